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
    """How a method is drawn."""

    color: str
    line: str = "-"
    mark: str = "."


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
MOST_CLASSES, MOST_POINTS = 40, 2_000


def line_style(method: str) -> LineStyle:
    """The look of a method: the line style tells shallow and deep ones apart, color and marker are its own."""
    if method not in METHODS:
        return LineStyle("#000000")
    mark, color = divmod([*dict.fromkeys((*_FIRST, *METHODS))].index(method), len(_COLORS))
    return LineStyle(
        _COLORS[color], ":" if METHODS[method].family == "shallow" else "-", "osD^vPX*"[mark % 8]
    )


@contextmanager
def new_figure(
    width: float, height: float, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure in the common style with its axes row by row; no window system is needed."""
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
    """Write a figure, atomically, as its ending says."""
    with atomic(path) as stream:
        stream.write(_file(figure, Path(path).suffix[1:]))
    return Path(path)


def svg_text(figure: Figure) -> Markup:
    """The figure as an <svg> element for a page."""
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
    """A panel per title with a common legend below; `ticks` make a logarithmic x axis.

    `random` is the level of a random ranking in each panel.
    """
    handles: dict[str, Any] = {}
    width = 3.7 * max(len(panels), 1.3)
    legend_columns = int(width // 2)
    most = max(map(len, panels.values()))
    with new_figure(width, 3.4 + 0.2 * -(-most // legend_columns), len(panels)) as (figure, axes):
        for number, (axis, (title, drawn)) in enumerate(zip(axes, panels.items(), strict=True)):
            for series in drawn:
                color, line, mark = line_style(series.method)
                style: dict[str, Any] = {"color": color, "linestyle": line, "marker": mark, "capsize": 2}
                # Other settings of a method have hollow markers.
                first = series is next(one for one in drawn if one.method == series.method)
                style |= {"markevery": max(1, len(series.x) // 8), "mfc": color if first else "white"}
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
    """Mean recall and precision by radius, without radii at which no ball holds an item.

    The evaluations, one per seed, are as `Evaluation.to_dict` returns them.
    """
    recall = np.mean([one["curve"]["recall"] for one in evaluations], axis=0)
    precision = np.array([one["curve"]["precision"] for one in evaluations], dtype=float)
    kept = ~np.isnan(precision).all(axis=0)
    return recall[kept].tolist(), np.nanmean(precision[:, kept], axis=0).tolist()


def precision_points(evaluations: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Depths, and the mean precision at each; all evaluations are of one database, so they have the same depths."""
    depths = list(evaluations[0]["precision"])
    means = np.mean([[one["precision"][depth] for depth in depths] for one in evaluations], axis=0)
    return [float(depth) for depth in depths], means.tolist()


# Codes


def code_heat_map(codes: NDArray[Any], labels: NDArray[Any], classes: Sequence[str] | None = None) -> Figure:
    """Mean value of every bit (K) over the items of each class, for the most frequent classes.

    `codes` (N, K) are -1 and +1, `labels` (N, C) bool.
    """
    labels = np.asarray(labels) != 0
    shown = _most_frequent(labels, classes, MOST_CLASSES)
    means = [codes[labels[:, number]].mean(axis=0) for number in shown]
    with new_figure(7, 1.4 + 0.19 * max(len(shown), 4)) as (figure, (axis,)):
        drawn = axis.imshow(means, vmin=-1, vmax=1, cmap="RdBu_r", aspect="auto", interpolation="nearest")
        axis.set_yticks(range(len(shown)), shown.values(), fontsize=8)
        axis.set(xlabel="bit")
        axis.grid(visible=False)
        figure.colorbar(drawn, ax=axis, label="mean of the bit")
        return figure


def t_sne(codes: NDArray[Any], labels: NDArray[Any], classes: Sequence[str] | None = None) -> Figure:
    """At most 2,000 codes (N, K) in the plane by t-SNE, in the color of the most frequent class of each item (N, C)."""
    rows = slice(None, None, -(-len(codes) // MOST_POINTS))
    labels = np.asarray(labels)[rows] != 0
    near = min(30.0, (len(labels) - 1) / 3)
    method = require("sklearn.manifold").TSNE(perplexity=near, init="random", random_state=0)
    points = method.fit_transform(codes[rows].astype(np.float32))
    shown = _most_frequent(labels, classes, len(_COLORS))
    with new_figure(6.4, 4.6) as (figure, (axis,)):
        marks: dict[str, Any] = {"s": 9, "alpha": 0.6, "linewidths": 0}
        axis.scatter(*points.T, color="#BBBBBB", label="other", **marks)
        # The most frequent class is drawn last, over the others of the same item.
        for color, (number, name) in reversed([*zip(_COLORS, shown.items(), strict=False)]):
            axis.scatter(*points[labels[:, number]].T, color=color, label=name, **marks)
        axis.set(xticks=[], yticks=[])
        figure.legend(loc="outside right upper", markerscale=2)
        return figure


def _most_frequent(labels: NDArray[np.bool_], classes: Sequence[str] | None, most: int) -> dict[int, str]:
    """The names of the classes with items by their numbers, the most frequent first."""
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
