from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from centerhash.methods.weights import equal_weights, printed_gradient, project_to_simplex, weight_objective
from reproduction.solver import solver_convergence

BETA, ENTROPY = 1.0, 0.4


def batch(rows: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Distances (B, L) of images with two to five labels, as they are per bit."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(5) < torch.randint(2, 6, (rows, 1), generator=generator)
    return torch.rand(rows, 5, generator=generator) * 1.5, mask


def test_the_true_gradient_falls_to_the_minimum() -> None:
    found = solver_convergence(*batch(), BETA, ENTROPY, rate=0.05, steps=400)
    assert len(found.true) == 401
    assert (np.diff(found.true) <= 1e-12).all()
    assert (found.true >= found.minimum - 1e-9).all()
    assert found.true[0] - found.minimum > 1e-3
    assert found.true[-1] == pytest.approx(found.minimum, abs=1e-6)


def test_the_printed_gradient_goes_elsewhere() -> None:
    found = solver_convergence(*batch(), BETA, ENTROPY, rate=0.05, steps=400)
    assert found.printed[0] == found.true[0]
    assert (found.printed >= found.minimum - 1e-9).all()
    assert found.printed[-1] - found.minimum > 0.01


def test_the_traces_are_those_of_the_steps() -> None:
    distances, mask = batch(6)
    found = solver_convergence(distances, mask, BETA, ENTROPY, rate=0.2, steps=3)
    used = distances.double() * mask
    weights = equal_weights(mask, torch.float64)
    for step in range(4):
        value = weight_objective(weights, used, BETA, ENTROPY).mean()
        assert found.printed[step] == pytest.approx(float(value), abs=1e-12)
        weights = project_to_simplex(weights - 0.2 * printed_gradient(weights, used, ENTROPY), mask)


def test_entries_outside_the_mask_do_not_matter() -> None:
    distances, mask = batch()
    first = solver_convergence(distances, mask, BETA, ENTROPY, steps=5)
    spoiled = solver_convergence(torch.where(mask, distances, 1e6), mask, BETA, ENTROPY, steps=5)
    assert np.array_equal(first.true, spoiled.true)
    assert np.array_equal(first.printed, spoiled.printed)
    assert first.minimum == spoiled.minimum
