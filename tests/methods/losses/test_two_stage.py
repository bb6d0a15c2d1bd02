from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from centerhash.core.errors import InputError
from centerhash.methods.losses.two_stage import (
    CNNH,
    descend_block,
    newton_step,
    relaxed_codes,
    similarity_rows,
    step_length,
)

BITS, CLASSES = 8, 5


def some_labels(count: int = 40, seed: int = 0) -> NDArray[np.bool_]:
    """Labels (n, C), the last image without any."""
    labels = np.random.default_rng(seed).random((count, CLASSES)) < 0.3
    labels[-1] = False
    return labels


def random_codes(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1, 1, size=(count, BITS)).astype(np.float32)


def reconstruction_error(codes: NDArray[np.float32], labels: NDArray[np.bool_]) -> float:
    """Mean of (S - H H^T / K)^2 over all pairs of images, for codes H (n, K): the objective of stage 1."""
    gap = similarity_rows(labels, 0, len(codes)) - codes @ codes.T / codes.shape[1]
    return float(np.square(gap).mean(dtype=np.float64))


def similarities(labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    count = len(labels)
    found = -np.ones((count, count))
    for i in range(count):
        for j in range(count):
            if i == j or (labels[i] & labels[j]).any():
                found[i, j] = 1
    return found


def test_similarity_rows_by_a_loop() -> None:
    labels = some_labels()
    parts = [similarity_rows(labels, start, start + 9) for start in range(0, len(labels), 9)]
    np.testing.assert_array_equal(np.concatenate(parts), similarities(labels))


def test_newton_step_uses_the_derivatives_of_the_objective() -> None:
    """Against differences of || K S - H H^T ||^2 in one entry, up to the curvature that the paper drops."""
    labels, codes = some_labels(), random_codes(40).astype(np.float64)
    similarity, (i, j) = similarities(labels), (3, 2)

    def objective(value: float) -> float:
        moved = codes.copy()
        moved[i, j] = value
        return float(np.square(moved @ moved.T - BITS * similarity).sum())

    at, width = float(codes[i, j]), 1e-4
    first = (objective(at + width) - objective(at - width)) / (2 * width)
    second = (objective(at + width) - 2 * objective(at) + objective(at - width)) / width**2
    residual = codes @ codes.T - BITS * similarity
    slope = residual @ codes[:, j]
    assert 4 * slope[i] == pytest.approx(first, rel=1e-5)
    square = float(codes[:, j] @ codes[:, j])
    assert 4 * (square + at**2 + residual[i, i]) == pytest.approx(second, rel=1e-3)
    single = (value.astype(np.float32) for value in (codes[[i], j], slope[[i]], residual[[i], i]))
    column, slopes, diagonal = single
    step = newton_step(column, slopes, square, diagonal)
    assert float(step[0]) == pytest.approx(float(np.clip(-first / second, -1 - at, 1 - at)), rel=1e-3)


def test_newton_step_stays_in_the_box() -> None:
    column = np.array([-1.0, 0.5, 1.0], dtype=np.float32)
    slope = np.array([50.0, -50.0, -50.0], dtype=np.float32)
    step = newton_step(column, slope, 2.0, np.zeros(3, dtype=np.float32))
    np.testing.assert_allclose(column + step, [-1, 1, 1])


def test_step_length_by_hand() -> None:
    for polynomial, best in (
        ((-2.0, 1.0, 0.0, 0.0), 1.0),  # (t - 1)^2 - 1
        ((-1.0, 1.0, 0.0, 0.0), 0.5),
        ((1.0, 1.0, 0.0, 0.0), 0.0),
        ((-4.0, 0.0, 0.0, 16.0), 0.0625 ** (1 / 3)),
        ((0.0, 0.0, 0.0, 0.0), 0.0),
    ):
        assert step_length(*polynomial) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("block", [1, 7, 40])
def test_objective_never_rises_and_the_gram_matrix_is_kept(block: int) -> None:
    labels, codes = some_labels(), random_codes(40)
    gram = codes.T @ codes
    errors = [reconstruction_error(codes, labels)]
    for _ in range(4):
        for start in range(0, len(codes), block):
            descend_block(codes, gram, similarity_rows(labels, start, start + block), start)
            errors.append(reconstruction_error(codes, labels))
    assert all(after <= before + 1e-6 for before, after in pairwise(errors))
    assert errors[-1] < 0.8 * errors[0]
    assert np.abs(codes).max() <= 1
    np.testing.assert_allclose(gram, codes.T @ codes, rtol=1e-4, atol=1e-3)


def test_blocks_of_one_row_are_the_entrywise_descent_of_the_paper() -> None:
    """One entry at a time with the residual kept whole, each step as long as lowers the objective most."""
    labels, codes = some_labels(), random_codes(40)
    naive = codes.astype(np.float64)
    similarity = similarities(labels)
    for i in range(len(naive)):
        for j in range(BITS):
            residual = naive @ naive.T - BITS * similarity
            column = naive[:, j].copy()
            curvature = column @ column + column[i] ** 2 + residual[i, i]
            step = np.clip(-(residual[i] @ column) / max(curvature, 1e-6), -1 - column[i], 1 - column[i])
            shares = np.linspace(0, 1, 2001)
            moved = np.tile(naive[i], (len(shares), 1))
            moved[:, j] += shares * step
            gaps = moved @ naive.T - BITS * similarity[i]
            gaps[:, i] = 0
            values = 2 * np.square(gaps).sum(axis=1) + (np.square(moved).sum(axis=1) - BITS) ** 2
            naive[i, j] += shares[int(np.argmin(values))] * step
    gram = codes.T @ codes
    for start in range(len(codes)):
        descend_block(codes, gram, similarity_rows(labels, start, start + 1), start)
    np.testing.assert_allclose(codes, naive, atol=5e-3)


def test_stage_one_separates_classes_and_follows_the_seed() -> None:
    labels = np.eye(4, dtype=bool).repeat(10, axis=0)
    codes = np.sign(relaxed_codes(labels, 16, sweeps=8, seed=0))
    distances = (16 - codes @ codes.T) / 2
    same = labels.astype(int) @ labels.T > 0
    assert distances[same].max() == 0
    assert distances[~same].min() >= 6
    np.testing.assert_array_equal(codes, np.sign(relaxed_codes(labels, 16, sweeps=8, seed=0)))
    assert not np.array_equal(codes, np.sign(relaxed_codes(labels, 16, sweeps=8, seed=1)))


@pytest.mark.parametrize(
    "labels",
    [
        np.ones((6, 3), dtype=bool),
        np.zeros((6, 3), dtype=bool),
        np.eye(6, dtype=bool),
        np.ones((1, 3), dtype=bool),
    ],
)
def test_stage_one_at_the_edge(labels: NDArray[np.bool_]) -> None:
    codes = relaxed_codes(labels, BITS, sweeps=3, seed=0)
    assert codes.shape == (len(labels), BITS)
    assert np.isfinite(codes).all()


def prepared(labels: NDArray[np.bool_]) -> CNNH:
    objective = CNNH(BITS, sweeps=3, seed=2)
    objective.prepare(np.zeros((len(labels), 1)), np.arange(len(labels)), labels)
    return objective


def test_loss_by_a_loop() -> None:
    labels = some_labels()
    objective, places = prepared(labels), torch.tensor([5, 0, 39])
    logits = torch.randn(3, BITS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = 0.0
    for row, place in enumerate(places.tolist()):
        for bit in range(BITS):
            chance = 1 / (1 + math.exp(-float(logits[row, bit])))
            total -= math.log(chance if objective.codes[place, bit] > 0 else 1 - chance)
    found = objective(logits, torch.from_numpy(labels)[places], places)
    assert float(found) == pytest.approx(total / (3 * BITS))
    assert set(objective.codes.flatten().tolist()) == {-1.0, 1.0}


def test_prepare_again_gives_the_same_codes_and_nothing_is_stored() -> None:
    labels = some_labels()
    objective = prepared(labels)
    first = objective.codes.clone()
    objective.prepare(np.zeros((40, 1)), np.arange(40), labels)
    assert torch.equal(objective.codes, first)
    assert not objective.state_dict()


def test_a_loss_that_was_not_prepared_says_so() -> None:
    logits, labels = torch.zeros(2, BITS), torch.ones(2, CLASSES, dtype=torch.bool)
    with pytest.raises(InputError, match=r"prepare\(\)"):
        CNNH(BITS)(logits, labels, torch.arange(2))
    with pytest.raises(InputError):
        prepared(some_labels())(logits, labels)
