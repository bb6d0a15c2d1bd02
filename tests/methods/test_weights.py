from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centerhash.methods.weights import (
    Form,
    descended_weights,
    equal_weights,
    exact_weights,
    label_slots,
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
def test_projection_equals_algorithm_2(values: list[float]) -> None:
    row = torch.tensor([values], dtype=torch.float64)
    found = project_to_simplex(row, torch.ones_like(row, dtype=torch.bool))[0]
    np.testing.assert_allclose(found.numpy(), simplex.project(values), atol=1e-9)


@given(values_strategy, st.integers(0, 1000))
def test_projection_is_feasible_idempotent_and_nearest(values: list[float], seed: int) -> None:
    row = torch.tensor([values], dtype=torch.float64)
    mask = torch.ones_like(row, dtype=torch.bool)
    point = project_to_simplex(row, mask)
    assert (point >= 0).all()
    assert float(point.sum()) == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(project_to_simplex(point, mask), point, atol=1e-9)
    other = torch.distributions.Dirichlet(torch.ones(len(values), dtype=torch.float64))
    torch.manual_seed(seed)
    assert float((row - point).norm()) <= float((row - other.sample()).norm()) + 1e-9


def test_projection_by_hand_and_behind_a_mask() -> None:
    rows = torch.tensor([[0.5, 0.5, 9.0], [2.0, 0.0, 9.0], [0.6, 0.2, 9.0], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[True, True, False]] * 3 + [[False, False, False]])
    expected = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.7, 0.3, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(project_to_simplex(rows, mask), expected)


def test_slots_gather_and_scatter() -> None:
    labels = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    slots = label_slots(labels)
    assert slots.mask.tolist() == [[True, True], [False, False], [True, False]]
    assert slots.classes[slots.mask].tolist() == [1, 3, 0]
    dense = scatter_weights(torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 9.0]]), slots, 4)
    assert dense.tolist() == [[0, 0.25, 0, 0.75], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_slots_of_a_batch_without_labels_or_rows() -> None:
    assert label_slots(torch.zeros(2, 3, dtype=torch.bool)).mask.tolist() == [[False], [False]]
    assert label_slots(torch.zeros(0, 3, dtype=torch.bool)).mask.shape == (0, 1)


def test_equal_weights() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    torch.testing.assert_close(equal_weights(mask), torch.tensor([[0.5, 0.5, 0], [1 / 3] * 3, [0, 0, 0]]))


def test_softmax_weights_survive_huge_scores_and_empty_rows() -> None:
    scores = torch.tensor([[1e30, -1e30, 0.0], [math.log(3), 0.0, 50.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(softmax_weights(scores, mask), expected)


@pytest.mark.parametrize("form", ["joint", "per_center"])
def test_objective_equals_plain_arithmetic(form: Form) -> None:
    weights = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    distances = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    expected = simplex.objective([0.5, 0.3, 0.2], [1.0, 2.0, 4.0], 0.7, 0.4, form)
    assert float(weight_objective(weights, distances, 0.7, 0.4, form)) == pytest.approx(expected)


@pytest.mark.parametrize("form", ["joint", "per_center"])
def test_true_gradient_is_that_of_the_objective(form: Form) -> None:
    distances, mask = batch(1)
    weights = equal_weights(mask, torch.float64).requires_grad_()
    weight_objective(weights, distances, 0.8, 0.3, form).sum().backward()
    assert weights.grad is not None
    found = true_gradient(weights.detach(), distances, 0.8, 0.3, form)
    torch.testing.assert_close(found[mask], weights.grad[mask])


def test_printed_gradient_by_hand() -> None:
    # -w / (1 + exp(w d)) + lambda (1 + log w) at w = 1/2, d = 2 log 3, lambda = 0.1: exp(w d) = 3
    weights, distances = torch.tensor([[0.5]]), torch.tensor([[2 * math.log(3)]])
    expected = -0.5 / 4 + 0.1 * (1 + math.log(0.5))
    assert float(printed_gradient(weights, distances, 0.1)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", ["joint", "per_center"])
@pytest.mark.parametrize(("beta", "entropy"), [(1.0, 0.15), (0.1, 0.5), (5.0, 0.3), (0.001, 0.2)])
def test_descent_along_the_true_gradient_reaches_the_exact_minimiser(
    form: Form, beta: float, entropy: float
) -> None:
    distances, mask = batch(2)
    exact = exact_weights(distances, mask, beta, entropy, form)
    descended = descended_weights(distances, mask, beta, entropy, rate=0.4, steps=500, form=form)
    torch.testing.assert_close(descended, exact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", ["joint", "per_center"])
def test_exact_minimiser_against_a_grid(form: Form) -> None:
    distances = [0.2, 0.5, 1.1]
    found = exact_weights(torch.tensor([distances], dtype=torch.float64), ALL, 2.0, 0.4, form)[0]
    np.testing.assert_allclose(found, simplex.best_on_a_grid(distances, 2.0, 0.4, form, 200), atol=1 / 200)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-3, 1.0, 40.0, 1e4, 1e8]),
    st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    st.sampled_from([1e-3, 0.01, 0.15, 10.0]),
    st.sampled_from(["joint", "per_center"]),
)
def test_no_better_weights_are_found_by_chance(
    seed: int, scale: float, beta: float, entropy: float, form: Form
) -> None:
    distances, mask = batch(seed, rows=3, scale=scale)
    exact = exact_weights(distances, mask, beta, entropy, form)
    assert torch.isfinite(exact).all()
    torch.testing.assert_close(exact.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert (exact[~mask] == 0).all()
    best = weight_objective(exact, distances * mask, beta, entropy, form)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        other = softmax_weights(3 * torch.randn(mask.shape, generator=generator, dtype=torch.float64), mask)
        value = weight_objective(other, distances * mask, beta, entropy, form)
        assert (best <= value + 1e-6 * (1 + value.abs())).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_solver_is_finite_on_extreme_rows(dtype: torch.dtype) -> None:
    distances = torch.tensor(
        [[0.0, 0.0, 0.0], [1e30, 0.0, 5.0], [3.0, 9.0, 9.0], [1.0, 1.0, 1.0]], dtype=dtype
    )
    mask = torch.tensor([[True] * 3, [True] * 3, [True, False, False], [False] * 3])
    solvers = {
        "exact": exact_weights(distances, mask, 1.0, 0.15),
        "per center": exact_weights(distances.clamp_max(1e6), mask, 1.0, 0.15, "per_center"),
        "printed": printed_weights(distances, mask),
        "descended": descended_weights(distances.clamp_max(1e6), mask, 1.0, 0.15, 0.1, 10),
    }
    for name, weights in solvers.items():
        assert torch.isfinite(weights).all(), name
        torch.testing.assert_close(weights.sum(dim=1), torch.tensor([1, 1, 1, 0], dtype=dtype), msg=name)
        torch.testing.assert_close(weights[0], torch.full((3,), 1 / 3, dtype=dtype))
        assert weights[2].tolist() == [1, 0, 0], name


def test_small_lambda_picks_the_nearest_center_and_large_lambda_gives_equal_weights() -> None:
    distances = torch.tensor([[0.3, 0.1, 0.9]])
    nearest = exact_weights(distances, ALL, 1.0, 1e-4)
    torch.testing.assert_close(nearest, torch.tensor([[0.0, 1.0, 0.0]]))
    torch.testing.assert_close(
        exact_weights(distances, ALL, 1.0, 1e4), torch.full((1, 3), 1 / 3), atol=1e-4, rtol=0
    )


def test_printed_steps_leave_the_weights_equal_at_64_bits() -> None:
    """Ten printed steps at distances of 64-bit codes hardly move: docs/explanation/paper.md."""
    distances = torch.tensor([[20.0, 35.0, 42.0]])
    assert float((printed_weights(distances, ALL) - 1 / 3).abs().max()) < 1e-2
    assert float((exact_weights(distances / 64, ALL, 1.0, 0.15) - 1 / 3).abs().max()) > 0.1


def test_printed_step_with_a_large_lambda_ends_in_a_corner() -> None:
    """Near w = 1/c the map's slope is 1 - eta lambda c: with eta lambda = 1 it overshoots."""
    distances = torch.tensor([[1.0, 1.5, 2.5]])
    assert float(printed_weights(distances, ALL, entropy=10.0).max()) > 0.99
    assert float(printed_weights(distances, ALL, entropy=0.01).max()) < 0.5


def test_printed_weights_are_ten_steps_of_a_tenth() -> None:
    distances, mask = batch(5)
    start = equal_weights(mask, torch.float64)
    slow = projected_gradient_descent(lambda w: printed_gradient(w, distances, 0.01), mask, 10, 0.1, start)
    torch.testing.assert_close(printed_weights(distances, mask), slow)
