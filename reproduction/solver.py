"""Fig. 2: how fast projected gradient descent finds the weights, compared with the exact solver."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from centerhash import weights as solvers
from centerhash.core.errors import DataError
from centerhash.experiments.plots import new_figure
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.losses.functional import center_distances
from centerhash.methods.registry import METHODS
from reproduction import common
from reproduction.common import Section, Settings, heading, note, paragraph, table, words

PART, TITLE = "pgd", "Convergence of the weight solver"
FORMS = ("ics-printed", "ics")
STEPS = 30
# The paper reports convergence within so many steps.
TIMED_STEPS = 10
# Label, color and marker of each curve.
CURVES = {
    "true": ("true gradient", "#0072B2", "o"),
    "printed": ("gradient as printed, Eq. (13)", "#D55E00", "s"),
}


def convergence(distances: Tensor, mask: Tensor, beta: float, entropy: float, rate: float) -> Row:
    """Run PGD with both gradients on distances (B, L) of labels (B, L), and compare them with the exact solver.

    Returns the mean objective of the batch after 0, 1, 2, ... steps, its minimum, and milliseconds per batch.
    """
    distances = distances.double().masked_fill(~mask, 0)

    def objective(weights: Tensor) -> float:
        return float(solvers.weight_objective(weights, distances, beta, entropy).mean())

    def trace(gradient: solvers.Gradient) -> list[float]:
        weights = solvers.equal_weights(mask, torch.float64)
        values = [objective(weights)]
        for _ in range(STEPS):
            weights = solvers.projected_gradient_descent(gradient, mask, 1, rate, weights)
            values.append(objective(weights))
        return values

    single, steps = distances.float(), TIMED_STEPS
    return {
        "true": trace(lambda weights: solvers.true_gradient(weights, distances, beta, entropy)),
        "printed": trace(lambda weights: solvers.printed_gradient(weights, distances, entropy)),
        "minimum": objective(solvers.exact_weights(distances, mask, beta, entropy)),
        "exact_ms": _milliseconds(lambda: solvers.exact_weights(single, mask, beta, entropy)),
        "printed_ms": _milliseconds(lambda: solvers.printed_weights(single, mask, entropy, rate, steps)),
        "true_ms": _milliseconds(lambda: solvers.pgd_weights(single, mask, beta, entropy, rate, steps)),
    }


def _milliseconds(solve: Callable[[], Tensor]) -> float:
    """Return the median time of a solver for one batch."""
    return 1000 * float(np.median(timeit.repeat(solve, number=1, repeat=20)))


def run(settings: Settings) -> Section:
    """Train ICS in both forms and solve the weights of one batch of training images step by step."""
    tasks = [settings.task(form, bits) for form in settings.select(PART, FORMS) for bits in settings.bits]
    rows, failures = common.run_part(settings, PART, tasks, partial(_work, settings.out))
    pieces = [paragraph(words("pgd", **common.PRINTED["solver"]))]
    for form, group in groupby(rows, key=lambda row: row["config"]["method"]):
        pieces += [heading(METHODS[form].title), _panels(settings.folder(PART), form, list(group))]
    heads = ["", "images", "mean distance", "exact, ms", "10 printed steps, ms", "10 true steps, ms"]
    heads += ["above the minimum at 1/c", "after 10 printed steps", "after 10 true steps"]
    pieces += [table(heads, [_line(row) for row in rows]), note(words("pgd_remark"))]
    return Section(PART, TITLE, tuple(pieces), failures)


def _work(out: Path, setup: EvaluationSetup, task: Task) -> Row:
    """Measure convergence on the first training images with several labels."""
    settings, model = common.PRINTED["solver"], common.train_or_load(out, setup, task)
    labels, rows = setup.dataset.labels, setup.dataset.splits.train
    rows = rows[labels[rows].sum(axis=1) >= 2][: settings["batch"]]
    if not len(rows):
        raise DataError("no training image has two labels: there are no weights to solve.")
    objective: Any = model.objective
    slots = solvers.label_slots(torch.from_numpy(labels[rows]))
    logits = torch.from_numpy(model.logits(setup.features[rows]))
    distances = objective.scale * center_distances(logits, model.centers).gather(1, slots.classes)
    beta, entropy = objective.beta, objective.entropy
    result = convergence(distances, slots.mask, beta, entropy, settings["rate"])
    mean = float(distances[slots.mask].mean())
    return {**result, "images": len(rows), "distance": mean, "beta": beta, "lambda": entropy}


def _panels(folder: Path, form: str, rows: list[Row]) -> Markup:
    """Draw the mean objective of the weight step against the number of steps, one panel per number of bits."""
    with new_figure(3.7 * len(rows), 3.5, len(rows)) as (figure, axes):
        for axis, row in zip(axes, rows, strict=True):
            result = row["found"]
            for key, (label, color, marker) in CURVES.items():
                axis.plot(result[key], color=color, marker=marker, markersize=3, linewidth=1.5, label=label)
            axis.axhline(result["minimum"], color="#222222", lw=1.2, ls="--", label="exact minimum")
            axis.axvline(TIMED_STEPS, color="#999999", lw=1, ls=":", label="ten steps")
            title = f"{row['config']['bits']} bits, β {result['beta']:g}, λ {result['lambda']:g}"
            axis.set(title=title, xlabel="steps of projected gradient descent")
        axes[0].set_ylabel("J₁ + λR, mean over the batch")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return common.write_figure(folder / f"convergence-{form}", figure)


def _line(row: Row) -> list[str]:
    result, config = row["found"], row["config"]
    values = [result["true"][0], result["printed"][TIMED_STEPS], result["true"][TIMED_STEPS]]
    return [
        f"{METHODS[config['method']].title}, {config['bits']} bits",
        str(result["images"]),
        f"{result['distance']:.3g}",
        *(f"{result[f'{name}_ms']:.2f}" for name in ("exact", "printed", "true")),
        *(f"{value - result['minimum']:.2g}" for value in values),
    ]
