"""How fast the weight solvers converge on real distances, as in the paper's figure of the loss curve."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import Dataset
from centerhash.methods.losses.central import ICS, center_distances
from centerhash.methods.weights import (
    Gradient,
    descended_weights,
    equal_weights,
    exact_weights,
    label_slots,
    printed_gradient,
    printed_weights,
    projected_gradient_descent,
    true_gradient,
    weight_objective,
)
from centerhash.model.model import HashModel

TIMED_STEPS = 10  # within which the paper says that the loss has converged


@dataclass(frozen=True)
class Convergence:
    """Mean objective over a batch after 0, 1, 2, ... steps, per solver, and its exact minimum."""

    true: NDArray[np.float64]
    printed: NDArray[np.float64]
    minimum: float
    images: int
    exact_milliseconds: float  # the exact solver's time for the whole batch
    printed_milliseconds: float  # that of ten printed steps
    true_milliseconds: float  # that of ten steps along the true gradient


def batch_distances(
    model: HashModel, features: NDArray[Any], dataset: Dataset, images: int
) -> tuple[Tensor, Tensor, float, float]:
    """What a trained ICS model solves for its first `images` training images with several labels.

    Distances (B, L) to the centers of their labels, the mask (B, L) of labels, beta and lambda.
    """
    labels, rows = dataset.labels, dataset.splits.train
    rows = rows[labels[rows].sum(axis=1) >= 2][:images]
    if not len(rows):
        raise DataError("no training image has two labels: there are no weights to solve.")
    objective = model.objective
    if not isinstance(objective, ICS):
        raise ConfigError(f"the weight solver is that of 'ics', got '{model.spec.method}'.")
    slots = label_slots(torch.from_numpy(labels[rows]))
    logits = torch.from_numpy(model.logits(features[rows]))
    distances = objective.scale * center_distances(logits, model.centers).gather(1, slots.classes)
    return distances, slots.mask, objective.beta, objective.entropy


def solver_convergence(
    distances: Tensor, mask: Tensor, beta: float, entropy: float, rate: float = 0.1, steps: int = 30
) -> Convergence:
    """Run both gradients by PGD on distances (B, L) and compare them with the exact minimiser."""
    distances = distances.double().masked_fill(~mask, 0)

    def trace(gradient: Gradient) -> NDArray[np.float64]:
        weights = equal_weights(mask, torch.float64)
        values = [weight_objective(weights, distances, beta, entropy).mean()]
        for _ in range(steps):
            weights = projected_gradient_descent(gradient, mask, 1, rate, weights)
            values.append(weight_objective(weights, distances, beta, entropy).mean())
        return np.array([float(value) for value in values])

    best, single = exact_weights(distances, mask, beta, entropy), distances.float()
    return Convergence(
        true=trace(lambda weights: true_gradient(weights, distances, beta, entropy)),
        printed=trace(lambda weights: printed_gradient(weights, distances, entropy)),
        minimum=float(weight_objective(best, distances, beta, entropy).mean()),
        images=len(distances),
        exact_milliseconds=_milliseconds(lambda: exact_weights(single, mask, beta, entropy)),
        printed_milliseconds=_milliseconds(lambda: printed_weights(single, mask, entropy, rate, TIMED_STEPS)),
        true_milliseconds=_milliseconds(
            lambda: descended_weights(single, mask, beta, entropy, rate, TIMED_STEPS)
        ),
    )


def _milliseconds(solve: Callable[[], Tensor], repeats: int = 20) -> float:
    """Median time of a solver for one batch."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        solve()
        times.append(time.perf_counter() - started)
    return 1000 * float(np.median(times))
