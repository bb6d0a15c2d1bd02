"""Figures of weights: pictures with bars per label, and histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from centerhash.core.figures import new_figure
from centerhash.data import load_image
from centerhash.experiments.figures import COLOURS
from centerhash.experiments.paper.boxes import Boxes
from centerhash.experiments.paper.distribution import BINS
from centerhash.experiments.paper.drawing import LABEL_COLOURS, Drawing, drawn, legend_below
from centerhash.methods.table import METHODS

COLUMNS = 3  # examples side by side
PIXELS = 200  # of a picture's longer side
AREA_COLOUR = "#8a8f98"


@dataclass(frozen=True)
class Example:
    """One image with the weight of each label by method, and the labels' shares of the area where known."""

    path: Path
    weights: Mapping[str, Mapping[str, float]]
    shares: Mapping[str, float]
    boxes: Boxes


def example_plot(examples: Sequence[Example]) -> Drawing:
    """Each picture with its boxes, and beside it a group of bars per label."""
    columns = min(COLUMNS, len(examples))
    rows = -(-len(examples) // columns)
    with new_figure(4.5 * columns, 2.35 * rows + 0.4, 2 * columns, rows) as (figure, axes):
        for axis in axes[2 * len(examples) :]:
            axis.set_axis_off()
        for place, example in enumerate(examples):
            order = sorted(next(iter(example.weights.values())), key=lambda name: -_size(example, name))
            _picture(axes[2 * place], example, order)
            _bars(axes[2 * place + 1], example, order)
        legend_below(figure, axes[1], 1.7)
        return drawn("pictures", figure)


def _size(example: Example, label: str) -> float:
    """What labels are sorted by: the area where known, the last method's weight otherwise."""
    return example.shares.get(label, list(example.weights.values())[-1][label])


def _picture(axis: Axes, example: Example, order: Sequence[str]) -> None:
    image = load_image(example.path)
    width, height = image.size
    image.thumbnail((PIXELS, PIXELS))
    axis.imshow(np.asarray(image), extent=(0, 1, 1, 0), aspect=height / width, interpolation="nearest")
    for number, label in enumerate(order):
        colour = LABEL_COLOURS[number % len(LABEL_COLOURS)]
        for x, y, across, down in example.boxes.get(label, []):
            corner = (x - across / 2, y - down / 2)
            axis.add_patch(Rectangle(corner, across, down, fill=False, edgecolor="white", linewidth=2.4))
            axis.add_patch(Rectangle(corner, across, down, fill=False, edgecolor=colour, linewidth=1.4))
            badge = {"facecolor": colour, "edgecolor": "none", "pad": 0.8}
            axis.text(*corner, str(number + 1), color="white", fontsize=7, va="top", bbox=badge, clip_on=True)
    axis.set_axis_off()


def _bars(axis: Axes, example: Example, order: Sequence[str]) -> None:
    lines = [(METHODS[form].title, COLOURS[form], values) for form, values in example.weights.items()]
    if example.shares:
        lines.append(("share of the area", AREA_COLOUR, example.shares))
    thickness = 0.8 / len(lines)
    for line, (title, colour, values) in enumerate(lines):
        places = [number - 0.4 + (line + 0.5) * thickness for number in range(len(order))]
        axis.barh(
            places, [values.get(label, 0.0) for label in order], thickness * 0.9, color=colour, label=title
        )
    axis.set_yticks(range(len(order)), [f"{number} {label}" for number, label in enumerate(order, start=1)])
    axis.set(xlim=(0, 1), ylim=(len(order) - 0.5, -0.5))
    axis.set_xlabel("weight", fontsize=8)
    axis.tick_params(labelsize=8, length=0)
    axis.grid(visible=False, axis="y")


def histogram_plot(spread: Mapping[str, Mapping[str, Any]]) -> Drawing:
    """Distribution of the weights of images with several labels, one panel per method."""
    edges = np.linspace(0, 1, BINS + 1)
    with new_figure(2.9 * len(spread), 2.8, len(spread)) as (figure, axes):
        for axis, (form, values) in zip(axes, spread.items(), strict=True):
            counts = np.array(values["histogram"])
            axis.stairs(counts / max(1, counts.sum()), edges, fill=True, color=COLOURS[form])
            axis.set_title(
                f"{METHODS[form].title}\nvariance {values['variance_several']:.4f}", fontsize=9, loc="left"
            )
            axis.set(xlim=(0, 1), xlabel="weight")
        axes[0].set_ylabel("share of labels")
        return drawn("histograms", figure)
