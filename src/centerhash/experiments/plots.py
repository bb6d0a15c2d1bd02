"""Figures for papers and pages, drawn by matplotlib.

    from centerhash.experiments.plots import code_heat_map, save
    save(code_heat_map(codes, labels, classes), "codes.pdf")        # .svg, .png or .pdf

A method has the same color, line style and marker in all figures.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from centerhash.codes import unpack
from centerhash.core.extras import require
from centerhash.core.files import atomic
from centerhash.encoding.code_files import CodeFile
from centerhash.evaluation import Evaluation
from centerhash.methods.registry import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class LineStyle(NamedTuple):
    """The style of a method's lines, in the words of matplotlib."""

    color: str
    linestyle: str = "-"
    marker: str = "."


# The colors of Okabe and Ito with gray for yellow, which differ for all common kinds of color vision.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#000000")
# The methods that are most often in one figure come first, so that no two of them share a color.
_FIRST = ("csq", "ewcs", "ics", "orthohash", "ics-softmax", "ics-printed")
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.parse_math": False,  # "$5 or $6" is no formula.
    "svg.hashsalt": "centerhash",  # The same figure gives the same bytes.
    "svg.fonttype": "none",  # Text stays text.
}
RANKS = (1, 10, 100, 1000)
DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_MOST_CLASSES, _MOST_POINTS = 40, 2_000


def line_style(method: str) -> LineStyle:
    """Return the style of a method: dotted for a shallow one, and a color and marker of which no two are equal."""
    if method not in METHODS:
        return LineStyle("#000000")
    marker, color = divmod([*dict.fromkeys((*_FIRST, *METHODS))].index(method), len(_COLORS))
    linestyle = ":" if METHODS[method].family == "shallow" else "-"
    return LineStyle(_COLORS[color], linestyle, "osD^vPX*"[marker % 8])


@contextmanager
def new_figure(
    width: float, height: float, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Create a figure in the common style with its axes row by row; no window system is needed."""
    with require("matplotlib").rc_context(_STYLE):
        figure = require("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
        yield figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _file(figure: Figure, kind: str) -> bytes:
    stream = io.BytesIO()
    # Dates would make equal figures differ.
    metadata = {"Date": None} if kind == "svg" else None
    with require("matplotlib").rc_context(_STYLE):
        figure.savefig(stream, format=kind, dpi=144, metadata=metadata)
    return stream.getvalue()


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure, atomically, in the format of the path's ending."""
    with atomic(path) as stream:
        stream.write(_file(figure, Path(path).suffix[1:]))
    return Path(path)


def svg_text(figure: Figure) -> Markup:
    """Return the figure as an <svg> element for a page."""
    text = _file(figure, "svg").decode()
    return Markup(text[text.index("<svg") :])  # nosec B704


class Series(NamedTuple):
    """One line of a plot: a method, or one of several settings of it."""

    name: str
    method: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()


def line_plot(
    panels: Mapping[str, Sequence[Series]],
    xlabel: str,
    ylabel: str,
    ticks: Sequence[float] = (),
    random: Sequence[float] = (),
) -> Figure:
    """Draw a panel per title with a common legend below; `ticks` make a logarithmic x axis.

    `random` is the level of a random ranking in each panel.
    """
    handles: dict[str, Any] = {}
    width = 3.7 * max(len(panels), 1.3)
    legend_columns = int(width // 2)
    legend_rows = -(-max(map(len, panels.values())) // legend_columns)
    with new_figure(width, 3.4 + 0.2 * legend_rows, len(panels)) as (figure, axes):
        for number, (axis, (title, lines)) in enumerate(zip(axes, panels.items(), strict=True)):
            for series in lines:
                style: dict[str, Any] = {**line_style(series.method)._asdict(), "capsize": 2}
                # Other settings of a method have hollow markers.
                is_first = series is next(line for line in lines if line.method == series.method)
                style |= {
                    "markevery": max(1, len(series.x) // 8),
                    "mfc": style["color"] if is_first else "white",
                }
                handles[series.name] = axis.errorbar(series.x, series.y, series.spread or None, **style)
            if random:
                handles["random ranking"] = axis.axhline(
                    random[number], color="#777777", linewidth=1, linestyle=(0, (1, 3))
                )
            if ticks:
                axis.set_xscale("log")
                axis.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
                axis.minorticks_off()
            axis.set(title=title, xlabel=xlabel, ylabel=ylabel)
        figure.legend(handles.values(), handles, ncols=legend_columns, loc="outside lower center")
        return figure


def recall_points(evaluations: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Compute mean recall and precision by radius, without radii at which no ball holds an item.

    The evaluations, one per seed, are those of `Evaluation.to_dict`.
    """
    curves = [evaluation["curve"] for evaluation in evaluations]
    recall = np.mean([curve["recall"] for curve in curves], axis=0)
    precision = np.array([curve["precision"] for curve in curves], dtype=float)
    has_items = ~np.isnan(precision).all(axis=0)
    return recall[has_items].tolist(), np.nanmean(precision[:, has_items], axis=0).tolist()


def precision_points(evaluations: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Return depths, and the mean precision at each; all evaluations of one database have the same depths."""
    means = np.mean([list(evaluation["precision"].values()) for evaluation in evaluations], axis=0)
    return [float(depth) for depth in evaluations[0]["precision"]], means.tolist()


def code_heat_map(codes: NDArray[Any], labels: NDArray[Any], classes: Sequence[str] | None = None) -> Figure:
    """Draw the mean value of every bit (K) over the items of each class, for the most frequent classes.

    `codes` (N, K) are -1 and +1, `labels` (N, C) bool.
    """
    labels = np.asarray(labels) != 0
    names = _most_frequent(labels, classes, _MOST_CLASSES)
    means = [codes[labels[:, number]].mean(axis=0) for number in names]
    with new_figure(7, 1.4 + 0.19 * max(len(names), 4)) as (figure, (axis,)):
        image = axis.imshow(means, vmin=-1, vmax=1, cmap="RdBu_r", aspect="auto", interpolation="nearest")
        axis.set_yticks(range(len(names)), names.values(), fontsize=8)
        axis.set(xlabel="bit")
        axis.grid(visible=False)
        figure.colorbar(image, ax=axis, label="mean of the bit")
        return figure


def t_sne(codes: NDArray[Any], labels: NDArray[Any], classes: Sequence[str] | None = None) -> Figure:
    """Draw at most 2,000 codes (N, K) by t-SNE, in the color of the most frequent class of each item (N, C)."""
    rows = slice(None, None, -(-len(codes) // _MOST_POINTS))
    labels = np.asarray(labels)[rows] != 0
    perplexity = min(30.0, (len(labels) - 1) / 3)
    method = require("sklearn.manifold").TSNE(perplexity=perplexity, init="random", random_state=0)
    points = method.fit_transform(codes[rows].astype(np.float32))
    names = _most_frequent(labels, classes, len(_COLORS))
    with new_figure(6.4, 4.6) as (figure, (axis,)):
        markers: dict[str, Any] = {"s": 9, "alpha": 0.6, "linewidths": 0}
        axis.scatter(*points.T, color="#BBBBBB", label="other", **markers)
        # The most frequent class is drawn last, over the others of the same item.
        for color, (number, name) in reversed([*zip(_COLORS, names.items(), strict=False)]):
            axis.scatter(*points[labels[:, number]].T, color=color, label=name, **markers)
        axis.set(xticks=[], yticks=[])
        figure.legend(loc="outside right upper", markerscale=2)
        return figure


def _most_frequent(labels: NDArray[np.bool_], classes: Sequence[str] | None, most: int) -> dict[int, str]:
    """Return the names of the classes with items by their numbers, the most frequent first."""
    counts = labels.sum(axis=0)
    numbers = [int(number) for number in np.argsort(-counts, kind="stable")[:most] if counts[number]]
    return {number: classes[number] if classes else str(number) for number in numbers}


def write_plots(database: CodeFile, result: Evaluation, folder: str | Path) -> list[Path]:
    """Write the plots of one evaluation into `folder` as PNG files and return their paths."""
    assert database.labels is not None
    rows, title = [result.to_dict()], f"{result.bits} bits"
    recall = Series("this run", "", *recall_points(rows))
    precision = Series("this run", "", *precision_points(rows))
    codes = unpack(database.packed, database.bits)
    figures = {
        "precision-recall.png": line_plot({title: [recall]}, "recall", "precision"),
        "precision-at-n.png": line_plot({title: [precision]}, "n", "precision@n", RANKS),
        "heat-map.png": code_heat_map(codes, database.labels, database.classes),
        "t-sne.png": t_sne(codes, database.labels, database.classes),
    }
    return [save(figure, Path(folder) / name) for name, figure in figures.items()]
