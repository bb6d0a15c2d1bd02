from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.methods.shallow import sdh
from centerhash.methods.shallow.sdh import (
    Sdh,
    SdhOptions,
    Weights,
    alternate,
    discrete_cyclic_descent,
    label_targets,
    ridge_solution,
    sdh_objective,
    with_bias,
)


def problem(seed: int, rows: int = 12, bits: int = 4, classes: int = 3) -> tuple[np.ndarray, ...]:
    """Codes (n, K), pull (n, K), classifier (K, C)."""
    generator = np.random.default_rng(seed)
    codes = np.where(generator.random((rows, bits)) < 0.5, -1.0, 1.0)
    return codes, generator.normal(size=(rows, bits)), generator.normal(size=(bits, classes))


def cost(code: np.ndarray, pull: np.ndarray, classifier: np.ndarray) -> float:
    """||b W||^2 - 2 <b, q> of one row, by loops."""
    total = 0.0
    for label in range(classifier.shape[1]):
        total += sum(code[k] * classifier[k, label] for k in range(len(code))) ** 2
    return total - 2 * sum(code[k] * pull[k] for k in range(len(code)))


def better_value(code: np.ndarray, bit: int, pull: np.ndarray, classifier: np.ndarray) -> float:
    """Whichever of -1 and +1 costs less in this bit, both tried out."""

    def with_value(value: float) -> float:
        return cost(np.where(np.arange(len(code)) == bit, value, code), pull, classifier)

    return -1.0 if with_value(-1.0) < with_value(1.0) else 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))  # fewer and more classes than bits
def test_a_sweep_sets_each_bit_as_trying_both_would(seed: int, classes: int) -> None:
    codes, pull, classifier = problem(seed, classes=classes)
    expected = codes.copy()
    for row, bit in itertools.product(range(len(codes)), range(codes.shape[1])):
        expected[row, bit] = better_value(expected[row], bit, pull[row], classifier)
    before = codes.copy()
    np.testing.assert_array_equal(discrete_cyclic_descent(codes, pull, classifier, 1), expected)
    np.testing.assert_array_equal(codes, before)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_sweeps_end_where_no_single_bit_is_better(seed: int) -> None:
    codes, pull, classifier = problem(seed, rows=5)
    found = discrete_cyclic_descent(codes, pull, classifier, 100)
    for row in range(5):
        corners = [np.array(c) for c in itertools.product([-1.0, 1.0], repeat=4)]
        best = min(cost(corner, pull[row], classifier) for corner in corners)
        here = cost(found[row], pull[row], classifier)
        assert best - 1e-9 <= here <= cost(codes[row], pull[row], classifier) + 1e-9
        near = [corner for corner in corners if (corner != found[row]).sum() == 1]
        assert here <= min(cost(corner, pull[row], classifier) for corner in near) + 1e-9


def test_a_bit_that_does_not_matter_stays() -> None:
    codes = np.array([[1.0, -1.0], [-1.0, 1.0]])
    found = discrete_cyclic_descent(codes, np.zeros((2, 2)), np.zeros((2, 3)), 3)
    np.testing.assert_array_equal(found, codes)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, pull, classifier = problem(0, rows=11)
    whole = discrete_cyclic_descent(codes, pull, classifier, 5)
    monkeypatch.setattr(sdh, "_BLOCK", 4)
    np.testing.assert_array_equal(discrete_cyclic_descent(codes, pull, classifier, 5), whole)


def test_ridge_by_hand_and_by_its_gradient() -> None:
    # minimise (2w - 6)^2 + 2 w^2: 8w - 24 + 4w = 0
    np.testing.assert_allclose(ridge_solution(np.array([[2.0]]), np.array([[6.0]]), 2.0), [[2.0]])
    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(size=(20, 4)), generator.normal(size=(20, 3))
    weights = ridge_solution(inputs, targets, 0.7)
    np.testing.assert_allclose(inputs.T @ (inputs @ weights - targets) + 0.7 * weights, 0, atol=1e-10)


def test_objective_by_hand() -> None:
    codes, targets = np.array([[1.0], [-1.0]]), np.array([[1.0], [0.0]])
    columns = np.array([[0.5], [-1.0]])
    weights = Weights(np.array([[0.5]]), np.array([[2.0]]))
    options = SdhOptions(ridge=3.0, fit=0.1, smooth=0.2)
    classified = 0.5**2 + 0.5**2 + 3 * 0.25
    fitted = 0**2 + 1**2 + 2 * 0.2 * 4
    assert sdh_objective(codes, targets, columns, weights, options) == pytest.approx(
        classified + 0.1 * fitted
    )


@pytest.mark.parametrize("fit", [1e-5, 1.0])
def test_objective_never_rises_and_falls(fit: float) -> None:
    generator = np.random.default_rng(0)
    columns, labels = generator.normal(size=(80, 10)), generator.random((80, 5)) < 0.3
    options = SdhOptions(fit=fit, iterations=8)
    weights, objective = alternate(columns, label_targets(labels, True), 6, options, generator)
    assert len(objective) == 8
    assert (np.diff(objective) <= 1e-9 * objective[0]).all()
    assert objective[-1] < objective[0]
    assert weights.classifier.shape == (6, 5)
    assert weights.function.shape == (10, 6)


def test_bias_by_hand() -> None:
    np.testing.assert_array_equal(with_bias(np.array([[0.5], [2.0]])), [[0.5, 1], [2, 1]])


def test_far_from_all_anchors_the_bias_decides() -> None:
    """Where every image has the same label every code is the same, and only the bias can say so everywhere."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 3)).astype(np.float32)
    fitted = Sdh.fit(features, np.ones((60, 1), dtype=bool), 4, SdhOptions(unit=False, anchors=5), seed=0)
    far = fitted.values(np.full((1, 3), 1e4, dtype=np.float32))[0]
    np.testing.assert_allclose(far, -fitted.offset)
    np.testing.assert_array_equal(np.sign(far), np.sign(fitted.values(features)).mean(axis=0))
    assert np.abs(far).min() > 0.9


def test_targets_by_hand() -> None:
    labels = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=bool)
    np.testing.assert_array_equal(label_targets(labels, False), labels)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(label_targets(labels, True), [[half, half, 0], [0, 0, 0], [0, 0, 1]])
