"""Fig. 2: how fast projected gradient descent finds the weights, compared with the exact solver."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from torch import Tensor

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.rendering import new_figure
from centerhash.data import Dataset
from centerhash.experiments.tasks import EvaluationSetup, Row, Task
from centerhash.methods import weights as solvers
from centerhash.methods.losses.central import ICS, center_distances
from centerhash.methods.registry import METHODS
from centerhash.model.model import HashModel
from reproduction import common
from reproduction.common import Section, Settings, heading, note, paragraph, table, words

WHAT, TITLE = "pgd", "Convergence of the weight solver"
FORMS = ("ics-printed", "ics")
STEPS = 30
TIMED_STEPS = 10  # within which the paper reports convergence


@dataclass(frozen=True)
class Convergence:
    """Mean objective over a batch after 0, 1, 2, ... steps, per gradient, and its exact minimum."""

    true: NDArray[np.float64]
    printed: NDArray[np.float64]
    minimum: float
    images: int
    exact_milliseconds: float  # of the exact solver, for the whole batch
    printed_milliseconds: float  # of ten printed steps
    true_milliseconds: float  # of ten steps along the true gradient


def batch_distances(
    model: HashModel, features: NDArray[Any], dataset: Dataset, images: int
) -> tuple[Tensor, Tensor, float, float]:
    """The weight problem of a trained ICS model for its first `images` training images with several labels.

    Distances (B, L) to the centers of their labels, the mask (B, L) of labels, beta and lambda.
    """
    labels, rows = dataset.labels, dataset.splits.train
    rows = rows[labels[rows].sum(axis=1) >= 2][:images]
    if not len(rows):
        raise DataError("no training image has two labels: there are no weights to solve.")
    objective = model.objective
    if not isinstance(objective, ICS):
        raise ConfigError(f"the weight solver is that of 'ics', got '{model.spec.method}'.")
    slots = solvers.label_slots(torch.from_numpy(labels[rows]))
    logits = torch.from_numpy(model.logits(features[rows]))
    distances = objective.scale * center_distances(logits, model.centers).gather(1, slots.classes)
    return distances, slots.mask, objective.beta, objective.entropy


def solver_convergence(
    distances: Tensor, mask: Tensor, beta: float, entropy: float, rate: float = 0.1, steps: int = STEPS
) -> Convergence:
    """Run both gradients by PGD on distances (B, L) and compare them with the exact minimizer."""
    distances = distances.double().masked_fill(~mask, 0)

    def objective(weights: Tensor) -> float:
        return float(solvers.weight_objective(weights, distances, beta, entropy).mean())

    def trace(gradient: solvers.Gradient) -> NDArray[np.float64]:
        weights = solvers.equal_weights(mask, torch.float64)
        values = [objective(weights)]
        for _ in range(steps):
            weights = solvers.projected_gradient_descent(gradient, mask, 1, rate, weights)
            values.append(objective(weights))
        return np.array(values)

    single, ten = distances.float(), TIMED_STEPS
    return Convergence(
        true=trace(lambda weights: solvers.true_gradient(weights, distances, beta, entropy)),
        printed=trace(lambda weights: solvers.printed_gradient(weights, distances, entropy)),
        minimum=objective(solvers.exact_weights(distances, mask, beta, entropy)),
        images=len(distances),
        exact_milliseconds=_milliseconds(lambda: solvers.exact_weights(single, mask, beta, entropy)),
        printed_milliseconds=_milliseconds(lambda: solvers.printed_weights(single, mask, entropy, rate, ten)),
        true_milliseconds=_milliseconds(
            lambda: solvers.descended_weights(single, mask, beta, entropy, rate, ten)
        ),
    )


def _milliseconds(solve: Callable[[], Tensor]) -> float:
    """Median time of a solver for one batch."""
    return 1000 * float(np.median(timeit.repeat(solve, number=1, repeat=20)))


def run(settings: Settings) -> Section:
    """Train ICS in both forms and solve the weights of one batch of training images step by step."""
    forms = settings.chosen(WHAT, FORMS)
    tasks = [settings.task(form, bits) for form in forms for bits in settings.bits]
    rows, failures = common.run_part(settings, WHAT, tasks, partial(_work, settings.models))
    pieces = [paragraph(words("pgd", **common.printed()["solver"]))]
    for form in forms:
        found = [row for row in rows if row["task"]["config"]["method"] == form]
        if found:
            pieces += [heading(METHODS[form].title), _panels(settings.folder(WHAT), form, found)]
    heads = ["", "images", "mean distance", "exact, ms", "10 printed steps, ms", "10 true steps, ms"]
    heads += ["above the minimum at 1/c", "after 10 printed steps", "after 10 true steps"]
    pieces += [table(heads, [_line(row) for row in rows]), note(words("pgd_remark"))]
    return Section(WHAT, TITLE, tuple(pieces), failures)


def _work(models: Path, setup: EvaluationSetup, task: Task) -> Row:
    """Convergence on the first batch of training images with several labels."""
    settings, model = common.printed()["solver"], common.trained(models, setup, task)
    distances, mask, beta, entropy = batch_distances(model, setup.features, setup.dataset, settings["batch"])
    found = vars(solver_convergence(distances, mask, beta, entropy, settings["rate"]))
    return {
        **{key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in found.items()},
        "beta": beta,
        "lambda": entropy,
        "distance": float(distances[mask].mean()),
    }


def _panels(folder: Path, form: str, rows: list[Row]) -> Markup:
    """Mean objective of the weight step against the number of steps, one panel per number of bits."""
    with new_figure(3.7 * len(rows), 3.5, len(rows)) as (figure, axes):
        for axis, row in zip(axes, rows, strict=True):
            found = row["found"]
            for key, (name, color, mark) in common.SOLVERS.items():
                axis.plot(found[key], color=color, marker=mark, markersize=3, linewidth=1.5, label=name)
            exact: dict[str, Any] = {"color": "#222222", "linewidth": 1.2, "linestyle": "--"}
            axis.axhline(found["minimum"], **exact, label="exact minimum")
            axis.axvline(TIMED_STEPS, color="#999999", linewidth=1, linestyle=":", label="ten steps")
            title = f"{row['task']['config']['bits']} bits, β {found['beta']:g}, λ {found['lambda']:g}"
            axis.set_title(title, fontsize=10, loc="left")
            axis.set(xlabel="steps of projected gradient descent")
        axes[0].set_ylabel("J₁ + λR, mean over the batch")
        common.legend_below(figure, axes[0])
        return common.write_figure(folder / f"convergence-{form}", figure)


def _line(row: Row) -> list[str]:
    found, config = row["found"], row["task"]["config"]
    times = [found[f"{name}_milliseconds"] for name in ("exact", "printed", "true")]
    gaps = [found["true"][0], found["printed"][TIMED_STEPS], found["true"][TIMED_STEPS]]
    return [
        f"{METHODS[config['method']].title}, {config['bits']} bits",
        str(found["images"]),
        f"{found['distance']:.3g}",
        *(f"{time:.2f}" for time in times),
        *(f"{gap - found['minimum']:.2g}" for gap in gaps),
    ]
