from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.methods.shallow.ksh import (
    Ksh,
    KshOptions,
    agreement,
    ascend,
    greedy_bits,
    signed_similarity,
    smoothed_agreement,
    whiten,
)


def similarity_error(codes: np.ndarray, similarity: np.ndarray) -> float:
    """||H H^T / K - S||^2 of codes H (l, K) in {-1, +1}: what KSH minimises."""
    return float(((codes @ codes.T / codes.shape[1] - similarity) ** 2).sum())


def problem(rows: int = 40, columns: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A basis (l, R) and similarities (l, l) that it can only partly explain."""
    generator = np.random.default_rng(seed)
    labels = generator.random((rows, 4)) < 0.3
    centred = np.hstack([labels - labels.mean(axis=0), generator.normal(size=(rows, columns - 4))])
    return whiten(centred, 0.0).basis, signed_similarity(labels)


def test_similarity_by_hand() -> None:
    labels = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=bool)
    expected = [[1, 1, -1, 1], [1, 1, -1, -1], [-1, -1, 1, -1], [1, -1, -1, 1]]
    similarity = signed_similarity(labels)
    np.testing.assert_array_equal(similarity, expected)
    assert similarity.dtype == np.float32


def test_error_and_agreement_agree_with_loops() -> None:
    generator = np.random.default_rng(0)
    codes = np.where(generator.random((7, 3)) < 0.5, -1.0, 1.0)
    similarity = signed_similarity(generator.random((7, 3)) < 0.4)
    squares = [
        (sum(codes[i, k] * codes[j, k] for k in range(3)) / 3 - similarity[i, j]) ** 2
        for i in range(7)
        for j in range(7)
    ]
    assert similarity_error(codes, similarity) == pytest.approx(sum(squares))
    terms = [codes[i, 0] * similarity[i, j] * codes[j, 0] for i in range(7) for j in range(7)]
    assert agreement(codes[:, 0], similarity) == sum(terms)


def test_whitening_and_its_way_back() -> None:
    centred = np.random.default_rng(0).normal(size=(30, 4)) * np.array([3, 1, 0.1, 0.01])
    basis, back = whiten(np.hstack([centred, centred[:, :2]]), 0.0)  # two columns are copies
    np.testing.assert_allclose(basis.T @ basis, 30 * np.eye(4), atol=1e-6)
    np.testing.assert_allclose(np.hstack([centred, centred[:, :2]]) @ back, basis, atol=1e-10)


def test_a_ridge_makes_small_directions_count_less() -> None:
    centred = np.linalg.qr(np.random.default_rng(0).normal(size=(30, 2)))[0] * np.sqrt(
        30 * np.array([1, 0.01])
    )
    lengths = np.sort((whiten(centred, 0.01).basis ** 2).mean(axis=0))
    np.testing.assert_allclose(lengths, [0.01 / 0.02, 1 / 1.01], rtol=1e-9)


def test_gradient_agrees_with_differences() -> None:
    basis, similarity = problem()
    narrow, weights = basis.astype(np.float32), np.random.default_rng(1).normal(size=basis.shape[1])
    _, gradient = smoothed_agreement(weights, narrow, similarity)

    def value(at: np.ndarray) -> float:
        bits = 2 / (1 + np.exp(-(basis @ at))) - 1  # as the paper writes it
        return float(bits @ similarity.astype(float) @ bits)

    for place, unit in enumerate(np.eye(len(weights))):
        numeric = (value(weights + 1e-5 * unit) - value(weights - 1e-5 * unit)) / 2e-5
        assert gradient[place] == pytest.approx(numeric, rel=1e-3, abs=1e-2)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_climbing_never_goes_down(seed: int) -> None:
    basis, similarity = problem(seed=seed)
    narrow = basis.astype(np.float32)
    start = np.random.default_rng(seed).normal(size=basis.shape[1])
    best, trace = ascend(start, narrow, similarity, 20)
    assert len(trace) == 21
    assert (np.diff(trace) >= 0).all()
    assert trace[0] == smoothed_agreement(start, narrow, similarity)[0]
    assert trace[-1] == smoothed_agreement(best, narrow, similarity)[0]
    assert trace[-1] > trace[0]


def test_climbing_from_a_flat_place_stays() -> None:
    basis, _ = problem()
    nothing = np.zeros((len(basis), len(basis)), dtype=np.float32)
    start = np.ones(basis.shape[1])
    best, trace = ascend(start, basis.astype(np.float32), nothing, 3)
    np.testing.assert_array_equal(best, start)
    assert trace.tolist() == [0, 0, 0, 0]


def naive_greedy(basis: np.ndarray, similarity: np.ndarray, bits: int) -> np.ndarray:
    """The spectral bits with the whole residue written out anew for each."""
    codes = np.empty((len(basis), 0))
    for _ in range(bits):
        residue = bits * similarity - codes @ codes.T
        top = np.linalg.eigh(basis.T @ residue @ basis)[1][:, -1]
        codes = np.hstack([codes, np.where(basis @ top >= 0, 1.0, -1.0)[:, None]])
    return codes


def test_spectral_bits_agree_with_a_naive_residue() -> None:
    basis, similarity = problem()
    codes = np.where(basis @ greedy_bits(basis, similarity, 6, iterations=0) >= 0, 1.0, -1.0)
    naive = naive_greedy(basis, similarity.astype(float), 6)
    assert (np.abs(codes.T @ naive).max(axis=1) == len(basis)).all()  # each bit or its complement


def test_objective_falls_with_bits_and_with_the_gradient() -> None:
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


def test_every_new_bit_lowers_the_residue() -> None:
    basis, similarity = problem(rows=60)
    codes = np.where(basis @ greedy_bits(basis, similarity, 16, 15) >= 0, 1.0, -1.0)
    residues = [((16 * similarity - codes[:, :k] @ codes[:, :k].T) ** 2).sum() for k in range(17)]
    assert (np.diff(residues) < 0).all()


def test_fitted_function_is_centred_on_the_training_rows() -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(50, 8)).astype(np.float32)
    fitted = Ksh.fit(features, generator.random((50, 3)) < 0.4, 8, KshOptions(labelled=20), seed=0)
    np.testing.assert_allclose(fitted.values(features).mean(axis=0), 0, atol=1e-9)
