"""Plots of evaluated codes as PNG files: precision and recall, precision by depth, retrieved images, a map of codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import unpack
from centerhash.core.errors import ImageError
from centerhash.core.files import atomic, make_folder
from centerhash.core.rendering import as_it_is, new_figure, png_bytes, shown_text
from centerhash.data.images import load_image
from centerhash.data.layouts.parquet import is_stored_image
from centerhash.encoding.code_files import CodeFile, evaluate_codes_of
from centerhash.evaluation import Evaluation

_DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
RETRIEVED_PLOT = "retrieved.png"
QUERIES, RETRIEVED = 6, 8  # rows and columns of the grid of images
_THUMBNAIL = 160  # pixels
_MOST_POINTS = 5_000  # of the map
# of Okabe and Ito, told apart with all common kinds of color vision
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
_OTHERS, _CHANCE = "#BBBBBB", "#777777"
_RELEVANT, _WRONG = "#009E73", "#D55E00"


def write_plots(query: CodeFile, database: CodeFile, result: Evaluation, folder: str | Path) -> list[Path]:
    """Write the plots of an evaluation into `folder` and return their paths; images only if the codes name files."""
    drawn = {
        "precision-recall.png": _precision_recall(result),
        "precision-top-k.png": _precision_by_depth(_deep(query, database, result)),
        "map.png": _code_map(database),
    }
    files = _image_files(query), _image_files(database)
    if files[0] is not None and files[1] is not None:
        drawn[RETRIEVED_PLOT] = _retrieved(query, database, files[0], files[1], result.exclude_self)
    out = make_folder(folder)
    for name, content in drawn.items():
        with atomic(out / name) as stream:
            stream.write(content)
    return [out / name for name in drawn]


def _deep(query: CodeFile, database: CodeFile, result: Evaluation) -> Evaluation:
    """The same evaluation with precision at more depths."""
    places = [place for place in _DEPTHS if place <= result.database]
    same: dict[str, Any] = {"exclude_self": result.exclude_self, "seed": result.seed}
    return evaluate_codes_of(query, database, k=1, precision_at=places, **same)


# Curves


def _precision_recall(result: Evaluation) -> bytes:
    """Precision and recall of the Hamming balls; radii at which no ball holds an item have no point."""
    pairs = zip(result.curve.recall, result.curve.precision, strict=True)
    recall, precision = zip(*((r, p) for r, p in pairs if p is not None), strict=True)
    with new_figure(4.6, 3.6) as (figure, (axis,)):
        axis.plot(recall, precision, color=_COLORS[0], marker="o", markersize=3)
        axis.set(xlabel="recall", ylabel="precision", xlim=(-0.02, 1.02), ylim=(0, 1.02))
        axis.set_title(f"Hamming radius 0 to {result.bits}", fontsize=10, loc="left")
        return png_bytes(figure)


def _precision_by_depth(result: Evaluation) -> bytes:
    """Precision among the first n ranks, and its value for a random ranking: the precision of the whole database."""
    places = [place for place in result.precision if place <= result.database]
    random = result.curve.precision[-1]
    with new_figure(4.6, 3.6) as (figure, (axis,)):
        axis.plot(places, [result.precision[place] for place in places], color=_COLORS[0], marker="o")
        if random is not None:
            axis.axhline(random, color=_CHANCE, linewidth=1, linestyle=(0, (1, 3)))
            at = ("axes fraction", "data")
            axis.annotate("random ranking", (1, random), xycoords=at, ha="right", va="bottom", fontsize=8)
        axis.set_xscale("log")
        axis.set_xticks(places, [f"{place:,}" for place in places], rotation=45)
        axis.minorticks_off()
        axis.set(xlabel="top k", ylabel="precision", ylim=(0, 1.02))
        axis.set_title(f"precision@k, {result.bits} bits", fontsize=10, loc="left")
        return png_bytes(figure)


# The map of codes


def principal_plane(codes: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    """Project codes (N, K) onto their first two principal components (N, 2); also return their share of the variance."""
    centered = codes.astype(np.float64) - codes.mean(axis=0)
    values, vectors = np.linalg.eigh(centered.T @ centered)
    plane = vectors[:, ::-1][:, :2]
    plane = plane * np.where(plane[np.abs(plane).argmax(axis=0), range(plane.shape[1])] < 0, -1.0, 1.0)
    points = np.zeros((len(codes), 2))
    points[:, : plane.shape[1]] = centered @ plane
    return points, float(values[::-1][:2].sum() / max(float(values.sum()), 1e-12))


def _code_map(database: CodeFile) -> bytes:
    """Database codes in their principal plane, colored by the first label of each item."""
    assert database.labels is not None
    rows = np.arange(len(database.packed))[:: -(-len(database.packed) // _MOST_POINTS)]
    points, share = principal_plane(unpack(database.packed[rows], database.bits))
    labels = database.labels[rows] != 0
    first = np.where(labels.any(axis=1), labels.argmax(axis=1), -1)
    found, counts = np.unique(first[first >= 0], return_counts=True)
    frequent = found[np.argsort(-counts, kind="stable")][: len(_COLORS)]
    with new_figure(6.4, 4.6) as (figure, (axis,)):
        rest = ~np.isin(first, frequent)
        marks: dict[str, Any] = {"s": 9, "alpha": 0.6, "linewidths": 0}
        if rest.any():
            axis.scatter(*points[rest].T, color=_OTHERS, label="other", **marks)
        for color, label in zip(_COLORS, frequent.tolist(), strict=False):
            axis.scatter(*points[first == label].T, color=color, label=_class(database, label), **marks)
        axis.set(xlabel="first principal component", ylabel="second principal component")
        title = f"{len(rows):,} codes of {database.bits} bits: {100 * share:.0f} % of the variance"
        axis.set_title(title, fontsize=10, loc="left")
        axis.legend(
            title="first label",
            frameon=False,
            fontsize=8,
            loc="upper left",
            bbox_to_anchor=(1, 1),
            markerscale=2,
        )
        return png_bytes(figure)


def _class(codes: CodeFile, number: int) -> str:
    return as_it_is(shown_text(codes.classes[number])) if codes.classes else str(number)


# Images


def _image_files(codes: CodeFile) -> list[str] | None:
    """The files of the items, by their paths or else by their names; None if not a single one is there."""
    for column in (codes.paths, codes.names):
        if column is not None and any(_is_image(name) for name in column):
            return [str(name) for name in column]
    return None


def _is_image(name: str) -> bool:
    return bool(name) and (Path(name).is_file() or is_stored_image(Path(name)))


def retrieved_rows(
    query: CodeFile, database: CodeFile, rows: Sequence[int], top: int, exclude_self: bool
) -> list[list[tuple[int, int]]]:
    """The first `top` database items of some queries as (position, Hamming distance), nearest first."""
    from centerhash.evaluation import ranking

    positions, distances = ranking(query.packed[rows], database.packed, top + 1, bits=query.bits)
    answers = []
    for row, found, far in zip(rows, positions.tolist(), distances.tolist(), strict=True):
        own = query.ids[row] if exclude_self and query.ids is not None else None
        pairs = zip(found, far, strict=True)
        kept = [pair for pair in pairs if own is None or database.ids is None or database.ids[pair[0]] != own]
        answers.append(kept[:top])
    return answers


def _retrieved(
    query: CodeFile,
    database: CodeFile,
    query_files: Sequence[str],
    database_files: Sequence[str],
    exclude_self: bool,
) -> bytes:
    """A row per query: its image, then the nearest images, framed by whether they share a label with it."""
    assert query.labels is not None
    assert database.labels is not None
    count = min(QUERIES, len(query.packed))
    rows = np.linspace(0, len(query.packed) - 1, count).astype(int).tolist()
    answers = retrieved_rows(query, database, rows, RETRIEVED, exclude_self)
    with new_figure(1.3 * (RETRIEVED + 1), 1.55 * count, RETRIEVED + 1, count) as (figure, axes):
        for axis in axes:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for place, (row, found) in enumerate(zip(rows, answers, strict=True)):
            first, *others = axes[place * (RETRIEVED + 1) : (place + 1) * (RETRIEVED + 1)]
            _show_image(first, query_files[row], "query", "#000000")
            for axis, (position, distance) in zip(others, found, strict=False):
                shares = bool((query.labels[row].astype(bool) & database.labels[position].astype(bool)).any())
                color = _RELEVANT if shares else _WRONG
                _show_image(axis, database_files[position], f"{distance}{'' if shares else ' ×'}", color)
        figure.suptitle(
            "queries and nearest images, with Hamming distances; ×: no label in common", fontsize=9
        )
        return png_bytes(figure)


def _show_image(axis: Any, file: str, title: str, color: str) -> None:
    try:
        image = load_image(file)
        image.thumbnail((_THUMBNAIL, _THUMBNAIL))
        axis.imshow(np.asarray(image))
    except ImageError:
        axis.text(0.5, 0.5, "not readable", ha="center", va="center", fontsize=7, transform=axis.transAxes)
    axis.grid(visible=False)
    axis.spines[:].set(visible=True, color=color, linewidth=2)
    axis.set_title(title, fontsize=8, color=color, pad=3)
