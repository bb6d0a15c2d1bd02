"""Figures of the parameter studies, drawn from stored rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from centerhash.core.figures import new_figure
from centerhash.experiments.figures import COLOURS, STYLES
from centerhash.experiments.paper.distribution import BINS
from centerhash.experiments.paper.drawing import Drawing, drawn, legend_below
from centerhash.experiments.paper.settings import Settings
from centerhash.experiments.paper.study import FORMS, mean, select
from centerhash.experiments.rows import Row
from centerhash.methods.table import METHODS
from centerhash.methods.weights import equal_weights, printed_gradient, projected_gradient_descent


def study_plots(
    settings: Settings, rows: Sequence[Row], what: str, spoken: str, values: Sequence[float]
) -> list[str]:
    """Parts of the page that both studies have: mAP against the parameter, and the weights of the longest codes."""
    forms, folder, longest = settings.chosen(what, FORMS), settings.folder(what), settings.bits[-1]
    return [
        map_plot(rows, what, spoken, forms, settings.bits).write(folder),
        f"<h3>Weights of the training images, {longest} bits</h3>",
        histograms(rows, what, spoken, forms, longest, values).write(folder),
    ]


def map_plot(
    rows: Sequence[Row], what: str, spoken: str, forms: Sequence[str], bits: Sequence[int]
) -> Drawing:
    """mAP against the parameter, one panel per number of bits, one line per form."""
    with new_figure(3.7 * len(bits), 3.5, len(bits)) as (figure, axes):
        for axis, length in zip(axes, bits, strict=True):
            for form in forms:
                found = select(rows, what, form, length)
                values = sorted({row["task"][what] for row in found})
                seeds = [
                    [row["found"]["map_peers"] for row in select(found, what, form, length, value)]
                    for value in values
                ]
                axis.errorbar(
                    values,
                    [float(np.mean(scores)) for scores in seeds],
                    yerr=[float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0 for scores in seeds],
                    color=COLOURS[form],
                    linestyle=STYLES[form][0],
                    marker=STYLES[form][1],
                    markersize=4.5,
                    capsize=2,
                    label=METHODS[form].title,
                )
            some = [row for form in forms for row in select(rows, what, form, length)]
            if some:
                axis.axhline(
                    mean(some, "chance_peers"),
                    color="#777777",
                    linewidth=1,
                    linestyle=(0, (1, 3)),
                    label="chance",
                )
            axis.set_xscale("log")
            axis.set_title(f"{length} bits", fontsize=10, loc="left")
            axis.set(xlabel=spoken)
        axes[0].set_ylabel("mAP, peers")
        legend_below(figure, axes[0], 1.5)
        return drawn("map", figure)


def histograms(
    rows: Sequence[Row], what: str, spoken: str, forms: Sequence[str], bits: int, values: Sequence[float]
) -> Drawing:
    """Distribution of the training images' weights: a row of panels per form, a column per value."""
    edges = np.linspace(0, 1, BINS + 1)
    with new_figure(2.1 * len(values) + 0.6, 2.1 * len(forms) + 0.3, len(values), len(forms)) as (
        figure,
        axes,
    ):
        for place, axis in enumerate(axes):
            form, value = forms[place // len(values)], values[place % len(values)]
            found = select(rows, what, form, bits, value)
            counts = (
                np.sum([row["found"]["weights"]["histogram"] for row in found], axis=0)
                if found
                else np.zeros(BINS)
            )
            axis.stairs(counts / max(1, counts.sum()), edges, fill=True, color=COLOURS[form])
            axis.set_xlim(0, 1)
            text = f", var {mean(found, 'weights', 'variance_several'):.4f}" if found else ""
            axis.set_title(f"{spoken} {value:g}{text}", fontsize=8, loc="left")
            axis.tick_params(labelsize=7)
            if place >= len(values) * (len(forms) - 1):
                axis.set_xlabel("weight", fontsize=8)
            if place % len(values) == 0:
                axis.set_ylabel(f"{METHODS[form].title}\nshare of labels", fontsize=8)
        return drawn("weights", figure)


def instability_plot(rows: Sequence[Row], rate: float, counts: Sequence[int] = (2, 3, 4, 5)) -> Drawing:
    """Why the printed step becomes unstable: what it does to two labels, and how uneven it makes the weights."""
    with new_figure(9.6, 3.7, 2) as (figure, (left, right)):
        for value, colour, style in zip(
            (1.0, 5.0, 9.0, 11.0),
            ("#222222", "#009E73", "#7F52E5", "#CC3377"),
            ("-", "--", "-.", ":"),
            strict=True,
        ):
            label = f"λ = {value:g}, ηλc = {2 * rate * value:.1f}"
            left.plot(
                printed_path(value, rate),
                color=colour,
                linestyle=style,
                marker="o",
                markersize=3,
                label=label,
            )
        left.set(xlabel="step", ylabel="weight of the first of two labels", ylim=(-0.03, 1.03))
        left.set_title("printed steps from w = 0.52, both centers equally far", fontsize=9, loc="left")
        left.legend(frameon=False, fontsize=8)
        for count, mark in zip(counts, "osD^", strict=False):
            points = _uneven_points(rows, rate, count)
            if points:
                x, y = zip(*points, strict=True)
                right.plot(x, y, mark, color=COLOURS["ics-printed"], alpha=0.8, label=f"{count} labels")
        for level, text in ((1, "overshoots"), (2, "unstable")):
            right.axvline(level, color="#777777", linewidth=1, linestyle=(0, (1, 3)))
            right.annotate(
                text,
                (level, 0.5),
                xycoords=("data", "axes fraction"),
                rotation=90,
                ha="right",
                va="center",
                fontsize=8,
            )
        right.set_xscale("log")
        right.set(xlabel="ηλc", ylabel="(largest weight - 1/c) / (1 - 1/c), mean", ylim=(-0.03, 1.03))
        right.set_title("one mark per λ, number of labels and bits", fontsize=9, loc="left")
        if right.get_legend_handles_labels()[0]:
            right.legend(frameon=False, fontsize=8)
        return drawn("instability", figure)


def printed_path(
    entropy: float, rate: float, steps: int = 12, start: float = 0.52, distance: float = 20.0
) -> list[float]:
    """Weight of the first of two labels after 0, 1, ... printed steps, both centers at the same distance."""
    mask, distances = torch.ones(1, 2, dtype=torch.bool), torch.full((1, 2), distance, dtype=torch.float64)
    weights = equal_weights(mask, torch.float64) + torch.tensor(
        [[start - 0.5, 0.5 - start]], dtype=torch.float64
    )
    path = [float(weights[0, 0])]
    for _ in range(steps):
        weights = projected_gradient_descent(
            lambda now: printed_gradient(now, distances, entropy), mask, 1, rate, weights
        )
        path.append(float(weights[0, 0]))
    return path


def _uneven_points(rows: Sequence[Row], rate: float, count: int) -> list[tuple[float, float]]:
    """Of every printed run: ηλc and how uneven the weights of its training images with so many labels are."""
    points = []
    for row in rows:
        found = row["found"]["weights"]["by_count"].get(str(count))
        if found is not None and row["task"]["config"]["method"] == "ics-printed":
            points.append((rate * row["task"]["lambda"] * count, found["uneven"]))
    return sorted(points)
