"""Fig. 4, 5 and 6: mAP and weights against beta and lambda, and where the printed step becomes unstable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from centerhash.core.files import write_text
from centerhash.core.rendering import new_figure
from centerhash.experiments.figures import CHANCE, look
from centerhash.experiments.tables import markdown_table
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.methods.registry import METHODS
from centerhash.methods.weights import equal_weights, printed_gradient, projected_gradient_descent
from reproduction import common
from reproduction.agreement import BINS, weight_distribution
from reproduction.common import Section, Settings, heading, note, paragraph, table, words

FORMS = ("ics-printed", "ics")


@dataclass(frozen=True)
class Study:
    """ICS in two forms, trained with every value of a parameter."""

    what: str
    spoken: str  # the parameter's letter

    @property
    def values(self) -> list[float]:
        """The values of the parameter, as the paper has them."""
        return sorted(map(float, common.printed()["studies"][self.what]))

    def select(self, rows: Sequence[Row], form: str, bits: int, value: float | None = None) -> list[Row]:
        """The rows of one form at one number of bits, and of one value of the parameter where one is given."""
        return [
            row
            for row in rows
            if row["task"]["config"]["method"] == form
            and row["task"]["config"]["bits"] == bits
            and (value is None or row["task"][self.what] == value)
        ]


BETA, LAMBDA = Study("beta", "β"), Study("lambda", "λ")


def run_beta(settings: Settings) -> Section:
    """Fig. 5: train ICS as printed and exact with every beta, lambda fixed."""
    rows, failures = _run(settings, BETA)
    plots, remark = _plots(settings, BETA, rows), note(words("parameters_remark"))
    pieces = (paragraph(words("beta")), *plots, _table(settings, BETA, rows), remark)
    return Section("beta", "The parameter beta", pieces, failures)


def run_lambda(settings: Settings) -> Section:
    """Fig. 4 and 6: train ICS as printed and exact with every lambda of the paper, beta as each form has it."""
    rows, failures = _run(settings, LAMBDA)
    pieces = [paragraph(words("lambda")), *_plots(settings, LAMBDA, rows), _printed_table()]
    if "ics-printed" in settings.chosen("lambda", FORMS):
        plot = _instability_plot(settings.folder("lambda"), rows, common.printed()["solver"]["rate"])
        pieces += [heading("Where the printed step becomes unstable"), paragraph(words("unstable")), plot]
    pieces += [_table(settings, LAMBDA, rows), note(words("parameters_remark"))]
    return Section("lambda", "The parameter lambda", tuple(pieces), failures)


def _run(settings: Settings, study: Study) -> tuple[list[Row], tuple[str, ...]]:
    """Train every form x bits x value x seed that is missing; return all rows and what failed."""
    # as printed, lambda is 1 while beta is tuned; all else is as each form has it
    fixed = {"lambda": float(common.printed()["studies"]["lambda_of_beta"])} if study is BETA else {}
    others = {"ics-printed": fixed, "ics": {}}
    tasks = [
        settings.task(form, bits, seed, {study.what: value, **others[form]}, **{study.what: value})
        for seed in range(settings.seeds)
        for bits in settings.bits
        for form in settings.chosen(study.what, FORMS)
        for value in study.values
    ]
    return common.run_part(settings, study.what, tasks, _work)


def _work(setup: EvaluationSetup, task: Task) -> Row:
    """Train one model: its mAP, and how the weights of its training images are spread."""
    model, splits = setup.train(task), setup.dataset.splits
    query, database = setup.encode(model, splits.query), setup.encode(model, splits.database)
    scores = setup.evaluate(model.bits, query, database)
    names = ("map_peers", "map_textbook", "chance_peers", "chance_textbook")
    return {
        **{name: getattr(scores, name) for name in names},
        "weights": weight_distribution(*common.train_weights(setup, model)),
    }


# Tables


def _mean(rows: Sequence[Row], *keys: str) -> float:
    """Mean of something that was found, over the seeds."""
    return float(np.mean([reduce(getitem, keys, row["found"]) for row in rows]))


def _table(settings: Settings, study: Study, rows: Sequence[Row]) -> Markup:
    """The figures behind the plots, as HTML; also written as table.md."""
    names = ("mAP", "variance", "corner")
    columns = (
        ("{:.3f}", "map_peers"),
        ("{:.4f}", "weights", "variance_several"),
        ("{:.0%}", "weights", "corner"),
    )
    heads = [study.spoken, *(f"{bits} bits: {name}" for bits in settings.bits for name in names)]
    lines = []
    for form in settings.chosen(study.what, FORMS):
        for value in study.values:
            cells = [f"{METHODS[form].title}, {study.spoken} = {value:g}"]
            for bits in settings.bits:
                found = study.select(rows, form, bits, value)
                cells += [
                    template.format(_mean(found, *keys)) if found else "" for template, *keys in columns
                ]
            lines.append(cells)
    write_text(settings.folder(study.what) / "table.md", markdown_table(heads, lines) + "\n")
    return table(heads, lines)


def _printed_table() -> Markup:
    """The values that the paper prints under its histograms."""
    lines = []
    for row in common.printed()["weights"]:
        values = f"{row['map']:.3f}", f"{row['variance']:.4f}"
        lines.append([f"printed, λ = {row['lambda']:g}", *map(Markup("<i>{}</i>").format, values)])
    return table(["AlexNet, COCO, 64 bits", "mAP", "variance"], lines)


# Figures


def _plots(settings: Settings, study: Study, rows: Sequence[Row]) -> list[Markup]:
    """What both studies draw: mAP against the parameter, and the weights of the longest codes."""
    folder, longest = settings.folder(study.what), settings.bits[-1]
    return [
        _map_plot(folder, settings, study, rows),
        heading(f"Weights of the training images, {longest} bits"),
        _histograms(folder, settings, study, rows),
    ]


def _map_plot(folder: Path, settings: Settings, study: Study, rows: Sequence[Row]) -> Markup:
    """mAP against the parameter, one panel per number of bits, one line per form."""
    bits, forms = settings.bits, settings.chosen(study.what, FORMS)
    with new_figure(3.7 * len(bits), 3.5, len(bits)) as (figure, axes):
        for axis, length in zip(axes, bits, strict=True):
            for form in forms:
                found = study.select(rows, form, length)
                values = sorted({row["task"][study.what] for row in found})
                seeds = [
                    [row["found"]["map_peers"] for row in study.select(found, form, length, value)]
                    for value in values
                ]
                color, style, mark = look(form)
                axis.errorbar(
                    values,
                    [float(np.mean(scores)) for scores in seeds],
                    yerr=[float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0 for scores in seeds],
                    color=color,
                    linestyle=style,
                    marker=mark,
                    markersize=4.5,
                    capsize=2,
                    label=METHODS[form].title,
                )
            some = [row for form in forms for row in study.select(rows, form, length)]
            if some:
                axis.axhline(_mean(some, "chance_peers"), **CHANCE, label="random ranking")
            axis.set_xscale("log")
            axis.set_title(f"{length} bits", fontsize=10, loc="left")
            axis.set(xlabel=study.spoken)
        axes[0].set_ylabel("mAP over retrieved relevant items")
        common.legend_below(figure, axes[0], 1.5)
        return common.write_figure(folder / "map", figure)


def _histograms(folder: Path, settings: Settings, study: Study, rows: Sequence[Row]) -> Markup:
    """Distribution of the training images' weights: a row of panels per form, a column per value."""
    values, forms = study.values, settings.chosen(study.what, FORMS)
    across, down = len(values), len(forms)
    with new_figure(2.1 * across + 0.6, 2.1 * down + 0.3, across, down) as (figure, axes):
        for place, axis in enumerate(axes):
            form, value = forms[place // across], values[place % across]
            found = study.select(rows, form, settings.bits[-1], value)
            counts = [row["found"]["weights"]["histogram"] for row in found] or [[0] * BINS]
            common.weight_histogram(axis, np.sum(counts, axis=0), look(form).color)
            text = f", var {_mean(found, 'weights', 'variance_several'):.4f}" if found else ""
            axis.set_title(f"{study.spoken} {value:g}{text}", fontsize=8, loc="left")
            axis.tick_params(labelsize=7)
            if place >= across * (down - 1):
                axis.set_xlabel("weight", fontsize=8)
            if place % across == 0:
                axis.set_ylabel(f"{METHODS[form].title}\nshare of labels", fontsize=8)
        return common.write_figure(folder / "weights", figure)


def _instability_plot(folder: Path, rows: Sequence[Row], rate: float) -> Markup:
    """Why the printed step becomes unstable: what it does to two labels, and how uneven it makes the weights."""
    with new_figure(9.6, 3.7, 2) as (figure, (left, right)):
        for value, color, style in zip(
            (1.0, 5.0, 9.0, 11.0),
            ("#222222", "#009E73", "#7F52E5", "#CC3377"),
            ("-", "--", "-.", ":"),
            strict=True,
        ):
            label, path = f"λ = {value:g}, ηλc = {2 * rate * value:.1f}", printed_path(value, rate)
            left.plot(path, color=color, linestyle=style, marker="o", markersize=3, label=label)
        left.set(xlabel="step", ylabel="weight of the first of two labels", ylim=(-0.03, 1.03))
        left.set_title("printed steps from w = 0.52, both centers equally far", fontsize=9, loc="left")
        left.legend(frameon=False, fontsize=8)
        for count, mark in zip((2, 3, 4, 5), "osD^", strict=True):
            points = sorted(
                (
                    rate * row["task"]["lambda"] * count,
                    row["found"]["weights"]["by_count"][str(count)]["uneven"],
                )
                for row in rows
                if str(count) in row["found"]["weights"]["by_count"]
                and row["task"]["config"]["method"] == "ics-printed"
            )
            if points:
                x, y = zip(*points, strict=True)
                right.plot(x, y, mark, color=look("ics-printed").color, alpha=0.8, label=f"{count} labels")
        for level, text in ((1, "overshoots"), (2, "unstable")):
            right.axvline(level, **CHANCE)
            place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "center"}
            right.annotate(text, (level, 0.5), rotation=90, fontsize=8, **place)
        right.set_xscale("log")
        right.set(xlabel="ηλc", ylabel="(largest weight - 1/c) / (1 - 1/c), mean", ylim=(-0.03, 1.03))
        right.set_title("one mark per λ, number of labels and bits", fontsize=9, loc="left")
        if right.get_legend_handles_labels()[0]:
            right.legend(frameon=False, fontsize=8)
        return common.write_figure(folder / "instability", figure)


def printed_path(
    entropy: float, rate: float, steps: int = 12, start: float = 0.52, distance: float = 20.0
) -> list[float]:
    """Weight of the first of two labels after 0, 1, ... printed steps, both centers at the same distance."""
    mask, distances = torch.ones(1, 2, dtype=torch.bool), torch.full((1, 2), distance, dtype=torch.float64)
    weights = equal_weights(mask, torch.float64)
    weights = weights + torch.tensor([[start - 0.5, 0.5 - start]], dtype=torch.float64)
    path = [float(weights[0, 0])]
    for _ in range(steps):
        weights = projected_gradient_descent(
            lambda now: printed_gradient(now, distances, entropy), mask, 1, rate, weights
        )
        path.append(float(weights[0, 0]))
    return path
