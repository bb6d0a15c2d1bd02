from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.centers import assign_centers, cooccurrence, hash_centers
from centerhash.core.errors import InputError


def objective(centers: np.ndarray, together: np.ndarray) -> float:
    return float((together * (centers.astype(float) @ centers.T.astype(float))).sum())


def test_cooccurrence() -> None:
    labels = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=bool)
    # Class 0 is in three images, class 1 in two of them: 2 / sqrt(3 * 2).
    expected = np.zeros((3, 3))
    expected[0, 1] = expected[1, 0] = 2 / np.sqrt(6)
    np.testing.assert_allclose(cooccurrence(labels), expected, rtol=1e-6)


def test_assign_opposite_centers() -> None:
    first = np.array([1, 1, -1, -1, 1, 1, -1, -1], dtype=np.int8)
    second = np.array([1, -1, 1, -1, 1, -1, 1, -1], dtype=np.int8)
    centers = np.stack([first, -first, second, -second])
    labels = np.array([[1, 1, 0, 0]] * 5 + [[0, 0, 1, 1]] * 5, dtype=bool)
    assigned = assign_centers(centers, labels)
    assert assigned[0] @ assigned[1] == 0
    assert assigned[2] @ assigned[3] == 0


def test_assign_local_optimum() -> None:
    generator = np.random.default_rng(3)
    labels = generator.random((60, 7)) < 0.35
    centers = hash_centers(7, 9, seed=1)
    together = cooccurrence(labels)
    assigned = assign_centers(centers, labels)
    reached = objective(assigned, together)
    assert reached >= objective(centers, together)
    for first, second in itertools.combinations(range(7), 2):
        order = np.arange(7)
        order[[first, second]] = second, first
        assert objective(assigned[order], together) <= reached + 1e-9


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.sampled_from([8, 12, 16]), st.integers(0, 5))
def test_assign_is_permutation(classes: int, bits: int, seed: int) -> None:
    centers = hash_centers(classes, bits, seed=seed)
    before = centers.copy()
    labels = np.random.default_rng(seed).random((50, classes)) < 0.2
    assigned = assign_centers(centers, labels)
    np.testing.assert_array_equal(centers, before)
    assert sorted(map(tuple, assigned.tolist())) == sorted(map(tuple, centers.tolist()))
    together = cooccurrence(labels)
    assert objective(assigned, together) >= objective(centers, together) - 1e-6


def test_assign_wrong_labels() -> None:
    with pytest.raises(InputError):
        assign_centers(hash_centers(5, 8), np.ones((3, 4), dtype=bool))
