"""Figures as SVG text: light, labelled, colour-blind safe, one colour per method everywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np

from centerhash.experiments.convergence import Convergence
from centerhash.experiments.instances import Agreement

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by all common kinds of colour vision
COLOURS: Mapping[str, str] = {
    "csq": "#999999",
    "ewcs": "#E69F00",
    "ics": "#0072B2",
    "ics-printed": "#56B4E9",
    "ics-softmax": "#D55E00",
}

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "svg.hashsalt": "centerhash",  # the same figure gives the same bytes
    "svg.fonttype": "none",  # text stays text
}


@contextmanager
def _figure(width: float, height: float, columns: int = 1) -> Iterator[tuple[Figure, list[Axes]]]:
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False, layout="constrained")
        try:
            yield figure, list(axes[0])
        finally:
            plt.close(figure)


def _svg(figure: Figure) -> str:
    """The figure as an inline <svg> element without a date, so that it is reproducible."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)


def weight_scatter(agreements: Mapping[str, Agreement], titles: Mapping[str, str]) -> str:
    """Weight against area share, one panel per method, with its correlations."""
    with _figure(3.5 * len(agreements), 3.7, len(agreements)) as (figure, axes):
        for axis, (method, found) in zip(axes, agreements.items(), strict=True):
            axis.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=1)
            colour = COLOURS.get(method, "#000000")
            axis.scatter(found.shares, found.weights, s=7, alpha=0.35, linewidths=0, color=colour, zorder=2)
            axis.set_title(
                f"{titles[method]}\nPearson {found.pearson:.2f}, Spearman {found.spearman:.2f}", fontsize=10
            )
            axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="true share of the labelled area", aspect="equal")
        axes[0].set_ylabel("learned weight")
        return _svg(figure)


def convergence_plot(found: Convergence) -> str:
    """Objective above its minimum against the number of steps, both gradients."""
    with _figure(6.4, 3.4) as (figure, (axis,)):
        for values, name, colour, marker in (
            (found.true, "true gradient", "#0072B2", "o"),
            (found.printed, "gradient as printed, Eq. (11)", "#D55E00", "s"),
        ):
            above = np.maximum(values - found.minimum, 1e-9)
            axis.semilogy(above, label=name, color=colour, marker=marker, markersize=3, linewidth=1.5)
        axis.set(xlabel="steps of projected gradient descent", ylabel="objective above its minimum")
        axis.legend(frameon=False)
        return _svg(figure)


def loss_plot(logs: Mapping[str, list[dict[str, float]]], titles: Mapping[str, str]) -> str:
    """Training loss per epoch, each method's relative to its first epoch."""
    with _figure(6.4, 3.4) as (figure, (axis,)):
        for method, rows in logs.items():
            losses = np.array([row["loss"] for row in rows])
            epochs = [row["epoch"] for row in rows]
            axis.plot(epochs, losses / losses[0], label=titles[method], color=COLOURS.get(method, "#000000"))
        axis.set(xlabel="epoch", ylabel="loss relative to the first epoch")
        axis.legend(frameon=False)
        return _svg(figure)
