from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.methods.shallow.sdh import discrete_cyclic_descent


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
    """The one of -1 and +1 that costs less in this bit."""

    def with_value(value: float) -> float:
        return cost(np.where(np.arange(len(code)) == bit, value, code), pull, classifier)

    return -1.0 if with_value(-1.0) < with_value(1.0) else 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))  # fewer and more classes than bits
def test_sweep(seed: int, classes: int) -> None:
    codes, pull, classifier = problem(seed, classes=classes)
    expected = codes.copy()
    for row, bit in itertools.product(range(len(codes)), range(codes.shape[1])):
        expected[row, bit] = better_value(expected[row], bit, pull[row], classifier)
    before = codes.copy()
    np.testing.assert_array_equal(discrete_cyclic_descent(codes, pull, classifier, 1), expected)
    np.testing.assert_array_equal(codes, before)
