"""What the two parameter studies share: ICS in two forms, trained with one parameter after the other."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from centerhash.core.files import write_text
from centerhash.experiments.grid import Bench
from centerhash.experiments.paper.distribution import weight_distribution
from centerhash.experiments.paper.drawing import markdown_table, table
from centerhash.experiments.paper.settings import Settings
from centerhash.experiments.paper.tasks import Task, make_task, run_tasks
from centerhash.experiments.rows import Row
from centerhash.methods.table import METHODS
from centerhash.training.fitting import evaluate_model, fit

FORMS = ("ics-printed", "ics")
Options = Callable[
    [str, int, float], dict[str, Any]
]  # of a form at so many bits, for a value of the parameter


def run_study(
    settings: Settings, what: str, values: Sequence[float], options: Options
) -> tuple[list[Row], list[str]]:
    """Train every form x bits x value x seed that is missing; return all rows and what failed."""
    cells = [
        (value, settings.cell(form, bits, seed, **options(form, bits, value)))
        for seed in range(settings.seeds)
        for bits in settings.bits
        for form in settings.chosen(what, FORMS)
        for value in values
    ]
    return run_tasks(
        settings, what, [make_task(settings, cell, **{what: value}) for value, cell in cells], work
    )


def work(bench: Bench, task: Task) -> Row:
    """Train one model: its mAP, and how the weights of its training images are spread."""
    model = fit(bench.dataset, task.cell.config, features=bench.features, device=bench.device)
    scores = evaluate_model(
        model, bench.dataset, features=bench.features, k=bench.k, exclude_self=bench.exclude_self
    )
    train = np.sort(bench.dataset.splits.train)  # in the order of the file, which memory-mapped features like
    labels = bench.dataset.labels[train]
    return {
        "map_peers": scores.map_peers,
        "map_textbook": scores.map_textbook,
        "chance_peers": scores.chance_peers,
        "chance_textbook": scores.chance_textbook,
        "weights": weight_distribution(model.weights(bench.features[train], labels), labels),
    }


def select(rows: Sequence[Row], what: str, form: str, bits: int, value: float | None = None) -> list[Row]:
    """The rows of one form at one number of bits, and of one value of the parameter where one is given."""
    return [
        row
        for row in rows
        if row["task"]["config"]["method"] == form
        and row["task"]["config"]["bits"] == bits
        and (value is None or row["task"][what] == value)
    ]


def mean(rows: Sequence[Row], *keys: str) -> float:
    """Mean of something that was found, over the seeds."""
    values = []
    for row in rows:
        value = row["found"]
        for key in keys:
            value = value[key]
        values.append(float(value))
    return float(np.mean(values))


def study_table(
    settings: Settings, what: str, spoken: str, values: Sequence[float], rows: Sequence[Row]
) -> str:
    """The figures behind the plots, as HTML; also written as table.md."""
    heads = [
        spoken,
        *(f"{bits} bits: {name}" for bits in settings.bits for name in ("mAP", "variance", "corner")),
    ]
    lines = []
    for form in settings.chosen(what, FORMS):
        for value in values:
            cells = [f"{METHODS[form].title}, {spoken} = {value:g}"]
            for bits in settings.bits:
                found = select(rows, what, form, bits, value)
                cells += _cells(found)
            lines.append(cells)
    write_text(settings.folder(what) / "table.md", markdown_table(heads, lines))
    return table([html.escape(head) for head in heads], lines)


def _cells(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["", "", ""]
    return [
        f"{mean(rows, 'map_peers'):.3f}",
        f"{mean(rows, 'weights', 'variance_several'):.4f}",
        f"{mean(rows, 'weights', 'corner'):.0%}",
    ]


REMARK = (
    "mAP by the peers' denominator, mean over the seeds. Variance and corner: of the training images with two labels "
    "or more. The paper does not say which images its variances are of; over all of them equal weights have the least "
    "variance possible, and on COCO that is more than it prints. Corner: how many have one weight above 0.99."
)
