from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.methods.shallow.ksh import (
    ascend,
    greedy_bits,
    signed_similarity,
    smoothed_agreement,
    whiten,
)


def similarity_error(codes: np.ndarray, similarity: np.ndarray) -> float:
    """||H H^T / K - S||^2 of codes H (l, K) in {-1, +1}, which KSH minimizes."""
    return float(((codes @ codes.T / codes.shape[1] - similarity) ** 2).sum())


def problem(rows: int = 40, columns: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A basis (l, R), and similarities (l, l) that it explains only in part."""
    generator = np.random.default_rng(seed)
    labels = generator.random((rows, 4)) < 0.3
    centered = np.hstack([labels - labels.mean(axis=0), generator.normal(size=(rows, columns - 4))])
    return whiten(centered, 0.0)[0], signed_similarity(labels)


def test_whiten() -> None:
    centered = np.random.default_rng(0).normal(size=(30, 4)) * np.array([3, 1, 0.1, 0.01])
    basis, back = whiten(np.hstack([centered, centered[:, :2]]), 0.0)  # two columns are copies
    np.testing.assert_allclose(basis.T @ basis, 30 * np.eye(4), atol=1e-6)
    np.testing.assert_allclose(np.hstack([centered, centered[:, :2]]) @ back, basis, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_ascend(seed: int) -> None:
    basis, similarity = problem(seed=seed)
    narrow = basis.astype(np.float32)
    start = np.random.default_rng(seed).normal(size=basis.shape[1])
    values = [
        smoothed_agreement(ascend(start, narrow, similarity, iterations), narrow, similarity)[0]
        for iterations in (0, 1, 5, 20)
    ]
    assert values == sorted(values)
    assert values[-1] > values[0] == smoothed_agreement(start, narrow, similarity)[0]


def test_similarity_error_falls() -> None:
    basis, similarity = problem(rows=60)
    before = similarity.copy()

    def error(bits: int, iterations: int) -> float:
        columns = greedy_bits(basis, similarity, bits, iterations)
        return similarity_error(np.where(basis @ columns >= 0, 1.0, -1.0), similarity)

    errors = [error(bits, 15) for bits in (1, 4, 16, 64)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.75 * errors[0]
    assert error(16, 15) < error(16, 0)
    np.testing.assert_array_equal(similarity, before)
