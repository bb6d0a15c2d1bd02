"""Figures as SVG text: light, labelled, colour-blind safe, one colour per method everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from centerhash.core.figures import new_figure, svg_text

if TYPE_CHECKING:  # they bring torch, which tables and plots of stored results do not need
    from centerhash.experiments.convergence import Convergence
    from centerhash.experiments.instances import Agreement


# told apart by all common kinds of colour vision within one line style of STYLES
COLOURS: Mapping[str, str] = {
    "lsh": "#7F52E5",
    "sh": "#C8A24A",
    "itq": "#009E73",
    "bre": "#B15928",
    "ksh": "#340554",
    "sdh": "#2F4F3F",
    "cnnh": "#332288",
    "dnnh": "#B8860B",
    "dhn": "#AA4499",
    "hashnet": "#117733",
    "dch": "#6FA8DC",
    "csq": "#999999",
    "ewcs": "#E69F00",
    "ics": "#0072B2",
    "ics-printed": "#56B4E9",
    "ics-softmax": "#D55E00",
    "orthohash": "#000000",
    "hyp2": "#882255",
}
# line style by kind (shallow, deep, around centers or proxies) and marker within the kind
STYLES: Mapping[str, tuple[str, str]] = {
    "lsh": (":", "o"),
    "sh": (":", "s"),
    "itq": (":", "D"),
    "bre": (":", "v"),
    "ksh": (":", "^"),
    "sdh": (":", "P"),
    "cnnh": ("--", "s"),
    "dnnh": ("--", "D"),
    "dhn": ("--", "v"),
    "hashnet": ("--", "^"),
    "dch": ("--", "o"),
    "csq": ("-", "s"),
    "ewcs": ("-", "D"),
    "ics": ("-", "o"),
    "ics-printed": ("-", "v"),
    "ics-softmax": ("-", "^"),
    "orthohash": ("-", "P"),
    "hyp2": ("-", "X"),
}


def weight_scatter(agreements: Mapping[str, Agreement], titles: Mapping[str, str]) -> str:
    """Weight against area share, one panel per method, with its correlations."""
    with new_figure(3.5 * len(agreements), 3.7, len(agreements)) as (figure, axes):
        for axis, (method, found) in zip(axes, agreements.items(), strict=True):
            axis.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=1)
            colour = COLOURS.get(method, "#000000")
            axis.scatter(found.shares, found.weights, s=7, alpha=0.35, linewidths=0, color=colour, zorder=2)
            axis.set_title(
                f"{titles[method]}\nPearson {found.pearson:.2f}, Spearman {found.spearman:.2f}", fontsize=10
            )
            axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="true share of the labelled area", aspect="equal")
        axes[0].set_ylabel("learned weight")
        return svg_text(figure)


def convergence_plot(found: Convergence) -> str:
    """Objective above its minimum against the number of steps, both gradients."""
    with new_figure(6.4, 3.4) as (figure, (axis,)):
        for values, name, colour, marker in (
            (found.true, "true gradient", "#0072B2", "o"),
            (found.printed, "gradient as printed, Eq. (13)", "#D55E00", "s"),
        ):
            above = np.maximum(values - found.minimum, 1e-9)
            axis.semilogy(above, label=name, color=colour, marker=marker, markersize=3, linewidth=1.5)
        axis.set(xlabel="steps of projected gradient descent", ylabel="objective above its minimum")
        axis.legend(frameon=False)
        return svg_text(figure)


def loss_plot(logs: Mapping[str, list[dict[str, float]]], titles: Mapping[str, str]) -> str:
    """Training loss per epoch, each method's relative to its first epoch."""
    with new_figure(6.4, 3.4) as (figure, (axis,)):
        for method, rows in logs.items():
            losses = np.array([row["loss"] for row in rows])
            epochs = [row["epoch"] for row in rows]
            axis.plot(epochs, losses / losses[0], label=titles[method], color=COLOURS.get(method, "#000000"))
        axis.set(xlabel="epoch", ylabel="loss relative to the first epoch")
        axis.legend(frameon=False)
        return svg_text(figure)


@dataclass(frozen=True)
class Series:
    """One line of a plot: a method, or one of several settings of it."""

    key: str  # names the line in the page
    method: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()  # half the length of error bars
    hollow: bool = False  # tells a second setting of a method from the first


def line_plot(
    series: Sequence[Series],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    ticks: Sequence[int] = (),
    limits: tuple[float, float] | None = None,
    across: tuple[float, float] | None = None,
    markers: int = 12,
    reference: tuple[str, float] | None = None,
    width: float = 4.6,
) -> str:
    """Lines with at most `markers` marks each.

    `ticks` make a logarithmic x axis; `limits` are the lowest and highest y, `across` those of x; `reference` is
    a named level.
    """
    with new_figure(width, 3.4) as (figure, (axis,)):
        for line in series:
            colour, (style, marker) = COLOURS.get(line.method, "#000000"), STYLES.get(line.method, ("-", "."))
            drawn = axis.errorbar(
                line.x,
                line.y,
                yerr=line.spread or None,
                color=colour,
                linestyle=style,
                marker=marker,
                markersize=4.5,
                markerfacecolor="white" if line.hollow else colour,
                markevery=max(1, -(-len(line.x) // markers)),
                linewidth=1.5,
                elinewidth=0.8,
                capsize=2,
            )
            for artist in drawn.get_children():
                artist.set_gid(f"series-{line.key}")
        if reference is not None:
            name, level = reference
            axis.axhline(level, color="#777777", linewidth=1, linestyle=(0, (1, 3)))
            axis.annotate(
                name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8
            )
        if ticks:
            axis.set_xscale("log")
            inside = [tick for tick in ticks if tick <= max(max(line.x) for line in series)]
            axis.set_xticks(inside, [f"{tick:,}" for tick in inside])
            axis.minorticks_off()
        for set_limits, ends in ((axis.set_ylim, limits), (axis.set_xlim, across)):
            if ends is not None:
                margin = 0.04 * (ends[1] - ends[0]) or 0.04
                set_limits(ends[0] - margin, ends[1] + margin)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set(xlabel=xlabel, ylabel=ylabel)
        return named_series(svg_text(figure))


def named_series(svg: str) -> str:
    """Name the lines in a way that may repeat within one page, and drop all names that nothing refers to."""
    svg = re.sub(r'<g id="series-([^"]+)">', r'<g class="series" data-series="\1">', svg)
    return re.sub(r'<g id="[a-zA-Z0-9_.]+">', "<g>", svg)


_MARKS = {  # outlines around (18, 7), as matplotlib draws them
    "o": "M14.5 7a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "s": "M15 4h6v6h-6z",
    "D": "M18 2.8l4.2 4.2l-4.2 4.2l-4.2-4.2z",
    "v": "M14.5 4h7l-3.5 6.5z",
    "^": "M14.5 10h7l-3.5-6.5z",
    "P": "M16.7 3h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "X": "M15.9 3.1l2.1 2.1l2.1-2.1l1.8 1.8l-2.1 2.1l2.1 2.1l-1.8 1.8l-2.1-2.1l-2.1 2.1l-1.8-1.8l2.1-2.1l-2.1-2.1z",
    ".": "M16.5 7a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0z",
}
_DASHES = {"-": "none", "--": "6 3", ":": "1.6 2.4"}


def swatch(method: str, hollow: bool = False) -> str:
    """A piece of a method's line, for keys and tables."""
    colour, (style, marker) = COLOURS.get(method, "#000000"), STYLES.get(method, ("-", "."))
    return (
        "<svg class='swatch' viewBox='0 0 36 14' width='36' height='14' aria-hidden='true'>"
        f"<path d='M1 7h34' stroke='{colour}' stroke-width='2' stroke-dasharray='{_DASHES[style]}'/>"
        f"<path d='{_MARKS[marker]}' fill='{'#fff' if hollow else colour}' stroke='{colour}'/></svg>"
    )
