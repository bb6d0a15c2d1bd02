"""Figures of weights against areas, drawn from stored rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from centerhash.core.figures import new_figure
from centerhash.experiments.figures import COLOURS, STYLES
from centerhash.experiments.paper.drawing import Drawing, drawn

_CLASSIFIER = ("#444444", "*")  # no hashing method: neither its colour nor its mark is one of theirs
_PANELS = {
    "largest": "largest weight on largest object",
    "centred_pearson": "Pearson, 1/c subtracted",
    "pearson": "Pearson",
    "spearman": "Spearman",
}
_COLUMNS = 4  # panels of points side by side


@dataclass(frozen=True)
class Shown:
    """One reading of the weights as a line of figures and tables."""

    title: str
    method: str
    hollow: bool
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    chance: float
    points: Sequence[tuple[float, float]]  # area share and weight of some labels

    @property
    def look(self) -> tuple[str, str]:
        """Colour and mark."""
        if self.method in COLOURS:
            return COLOURS[self.method], STYLES[self.method][1]
        return _CLASSIFIER


def agreement_plot(shown: Sequence[Shown], bits: int) -> Drawing:
    """One panel per measure: every reading with its interval."""
    with new_figure(12.5, 1.3 + 0.36 * len(shown), len(_PANELS)) as (figure, axes):
        for axis, (name, title) in zip(axes, _PANELS.items(), strict=True):
            for place, item in enumerate(reversed(shown)):
                colour, mark = item.look
                value, (low, high) = item.values[name], item.intervals[name]
                axis.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
                fill = "white" if item.hollow else colour
                axis.plot(value, place, mark, color=colour, markerfacecolor=fill, markersize=7)
            if name == "largest":
                axis.axvline(shown[0].chance, color="#777777", linewidth=1, linestyle=(0, (1, 3)))
                axis.annotate(
                    "chance",
                    (shown[0].chance, 1),
                    xycoords=("data", "axes fraction"),
                    fontsize=8,
                    va="bottom",
                )
            titles = [item.title for item in reversed(shown)]
            axis.set_yticks(range(len(shown)), titles if axis is axes[0] else [""] * len(shown))
            axis.set_xlabel(title)
        figure.suptitle(f"{bits} bits, 95 % intervals over images", fontsize=10)
        return drawn("agreement", figure)


def scatter_plot(shown: Sequence[Shown]) -> Drawing:
    """Weight against area share, one panel per reading."""
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    with new_figure(3.1 * columns, 3.4 * rows, columns, rows) as (figure, axes):
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        for place, (axis, item) in enumerate(zip(axes, shown, strict=False)):
            shares, weights = np.array(item.points).reshape(-1, 2).T
            axis.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=1)
            axis.scatter(shares, weights, s=7, alpha=0.35, linewidths=0, color=item.look[0], zorder=2)
            axis.set_title(f"{item.title}\nr = {item.values['pearson']:.2f}", fontsize=9)
            axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="share of the labelled area", aspect="equal")
            if place % columns == 0:
                axis.set_ylabel("weight")
        return drawn("points", figure)
