from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centerhash.weights import (
    Form,
    equal_weights,
    exact_weights,
    label_slots,
    pgd_weights,
    printed_gradient,
    printed_weights,
    project_to_simplex,
    projected_gradient_descent,
    scatter_weights,
    softmax_weights,
    true_gradient,
    weight_objective,
)
from tests.reference import simplex

ALL = torch.ones(1, 3, dtype=torch.bool)
values_strategy = st.lists(st.floats(-20, 20), min_size=1, max_size=8)


def batch(seed: int, rows: int = 40, width: int = 5, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    distances = scale * torch.rand(rows, width, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=generator) < 0.6
    mask[:, 0] = True
    return distances, mask


@given(values_strategy)
def test_project_to_simplex(values: list[float]) -> None:
    row = torch.tensor([values], dtype=torch.float64)
    projected = project_to_simplex(row, torch.ones_like(row, dtype=torch.bool))[0]
    np.testing.assert_allclose(projected.numpy(), simplex.project(values), atol=1e-9)


def test_project_to_simplex_with_mask() -> None:
    rows = torch.tensor([[0.5, 0.5, 9.0], [2.0, 0.0, 9.0], [0.6, 0.2, 9.0], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[True, True, False]] * 3 + [[False, False, False]])
    expected = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.7, 0.3, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(project_to_simplex(rows, mask), expected)


def test_label_slots() -> None:
    labels = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    slots = label_slots(labels)
    assert slots.mask.tolist() == [[True, True], [False, False], [True, False]]
    assert slots.classes[slots.mask].tolist() == [1, 3, 0]
    dense = scatter_weights(torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 9.0]]), slots, 4)
    assert dense.tolist() == [[0, 0.25, 0, 0.75], [0, 0, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("form", ["joint", "per_center"])
def test_weight_objective(form: Form) -> None:
    weights = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    distances = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    expected = simplex.objective([0.5, 0.3, 0.2], [1.0, 2.0, 4.0], 0.7, 0.4, form)
    assert float(weight_objective(weights, distances, 0.7, 0.4, form)) == pytest.approx(expected)


@pytest.mark.parametrize("form", ["joint", "per_center"])
def test_true_gradient(form: Form) -> None:
    distances, mask = batch(1)
    weights = equal_weights(mask, torch.float64).requires_grad_()
    weight_objective(weights, distances, 0.8, 0.3, form).sum().backward()
    assert weights.grad is not None
    gradient = true_gradient(weights.detach(), distances, 0.8, 0.3, form)
    torch.testing.assert_close(gradient[mask], weights.grad[mask])


def test_printed_gradient() -> None:
    # w = 1/2, d = 2 log 3 and lambda = 0.1, so that exp(w d) = 3.
    weights, distances = torch.tensor([[0.5]]), torch.tensor([[2 * math.log(3)]])
    expected = -0.5 / 4 + 0.1 * (1 + math.log(0.5))
    assert float(printed_gradient(weights, distances, 0.1)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("beta", "entropy"), [(1.0, 0.15), (0.1, 0.5), (5.0, 0.3), (0.001, 0.2)])
def test_pgd_weights_are_exact(beta: float, entropy: float) -> None:
    distances, mask = batch(2)
    exact = exact_weights(distances, mask, beta, entropy)
    torch.testing.assert_close(
        pgd_weights(distances, mask, beta, entropy, rate=0.4, steps=500), exact, atol=1e-5, rtol=0
    )


def test_pgd_weights_per_center() -> None:
    distances = [0.2, 0.5, 1.1]
    weights = pgd_weights(torch.tensor([distances]).double(), ALL, 2.0, 0.4, 0.1, 500, "per_center")[0]
    expected = simplex.best_on_a_grid(distances, 2.0, 0.4, "per_center", 200)
    np.testing.assert_allclose(weights, expected, atol=1 / 200)


def test_pgd_weights_at_large_lambda() -> None:
    """The default lambda at 128 bits is 16: eta lambda c = 4.8, and steps of 0.1 end in a corner."""
    distances = torch.tensor([[0.2, 0.4, 0.5]])
    expected = torch.tensor([[0.3351, 0.3330, 0.3319]])
    torch.testing.assert_close(pgd_weights(distances, ALL, 0.001, 16.0), expected, atol=5e-5, rtol=0)
    torch.testing.assert_close(exact_weights(distances, ALL, 0.001, 16.0), expected, atol=5e-5, rtol=0)
    fixed = projected_gradient_descent(
        lambda weights: true_gradient(weights, distances, 0.001, 16.0), ALL, 10, 0.1, equal_weights(ALL)
    )
    assert float(fixed[0, 0]) < 0.01


@given(st.integers(0, 10**6), st.sampled_from([1e-3, 1.0]), st.sampled_from([16.0, 400.0]))
def test_pgd_weights_converge(seed: int, beta: float, entropy: float) -> None:
    distances, mask = batch(seed, rows=8, width=20, scale=3.0)
    exact = exact_weights(distances, mask, beta, entropy)
    weights = pgd_weights(distances, mask, beta, entropy, steps=200)
    torch.testing.assert_close(weights, exact, atol=1e-4, rtol=0)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-3, 1.0, 40.0, 1e4, 1e8]),
    st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    st.sampled_from([1e-3, 0.01, 0.15, 10.0]),
)
def test_exact_weights_are_minimal(seed: int, scale: float, beta: float, entropy: float) -> None:
    distances, mask = batch(seed, rows=3, scale=scale)
    exact = exact_weights(distances, mask, beta, entropy)
    assert torch.isfinite(exact).all()
    torch.testing.assert_close(exact.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert (exact[~mask] == 0).all()
    best = weight_objective(exact, distances * mask, beta, entropy)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        other = softmax_weights(3 * torch.randn(mask.shape, generator=generator, dtype=torch.float64), mask)
        value = weight_objective(other, distances * mask, beta, entropy)
        assert (best <= value + 1e-6 * (1 + value.abs())).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_solvers_on_extreme_rows(dtype: torch.dtype) -> None:
    distances = torch.tensor(
        [[0.0, 0.0, 0.0], [1e30, 0.0, 5.0], [3.0, 9.0, 9.0], [1.0, 1.0, 1.0]], dtype=dtype
    )
    mask = torch.tensor([[True] * 3, [True] * 3, [True, False, False], [False] * 3])
    solvers = {
        "exact": exact_weights(distances, mask, 1.0, 0.15),
        "per center": pgd_weights(distances.clamp_max(1e6), mask, 1.0, 0.15, form="per_center"),
        "printed": printed_weights(distances, mask),
        "pgd": pgd_weights(distances.clamp_max(1e6), mask, 1.0, 0.15, 0.1, 10),
    }
    for name, weights in solvers.items():
        assert torch.isfinite(weights).all(), name
        torch.testing.assert_close(weights.sum(dim=1), torch.tensor([1, 1, 1, 0], dtype=dtype), msg=name)
        torch.testing.assert_close(weights[0], torch.full((3,), 1 / 3, dtype=dtype))
        assert weights[2].tolist() == [1, 0, 0], name
