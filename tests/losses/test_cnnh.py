"""CNNH: stage 1 against the paper's entrywise descent, stage 2 against a loop."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from centerhash.core.errors import InputError
from centerhash.losses.cnnh import CNNHLoss, descend_block, relaxed_codes, similarity_rows

BITS, CLASSES = 8, 5


def random_labels(count: int = 40, seed: int = 0) -> NDArray[np.bool_]:
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
    similarity = -np.ones((count, count))
    for i in range(count):
        for j in range(count):
            if i == j or (labels[i] & labels[j]).any():
                similarity[i, j] = 1
    return similarity


@pytest.mark.parametrize("block", [1, 7, 40])
def test_descend_block(block: int) -> None:
    labels, codes = random_labels(), random_codes(40)
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


def test_descend_block_of_one_row() -> None:
    """The paper's descent by single entries with the whole residual, each step as long as lowers the objective most."""
    labels, codes = random_labels(), random_codes(40)
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


def test_relaxed_codes() -> None:
    labels = np.eye(4, dtype=bool).repeat(10, axis=0)
    codes = np.sign(relaxed_codes(labels, 16, sweeps=8, seed=0))
    distances = (16 - codes @ codes.T) / 2
    same = labels.astype(int) @ labels.T > 0
    assert distances[same].max() == 0
    assert distances[~same].min() >= 6
    np.testing.assert_array_equal(codes, np.sign(relaxed_codes(labels, 16, sweeps=8, seed=0)))
    assert not np.array_equal(codes, np.sign(relaxed_codes(labels, 16, sweeps=8, seed=1)))


def prepared(labels: NDArray[np.bool_]) -> CNNHLoss:
    loss = CNNHLoss(BITS, sweeps=3, seed=2)
    loss.prepare(labels)
    return loss


def test_cnnh() -> None:
    labels = random_labels()
    loss, indices = prepared(labels), torch.tensor([5, 0, 39])
    logits = torch.randn(3, BITS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = 0.0
    for row, index in enumerate(indices.tolist()):
        for bit in range(BITS):
            probability = 1 / (1 + math.exp(-float(logits[row, bit])))
            total -= math.log(probability if loss.codes[index, bit] > 0 else 1 - probability)
    value = loss(logits, torch.from_numpy(labels)[indices], indices)
    assert float(value) == pytest.approx(total / (3 * BITS))
    assert set(loss.codes.flatten().tolist()) == {-1.0, 1.0}


def test_cnnh_not_prepared() -> None:
    logits, labels = torch.zeros(2, BITS), torch.ones(2, CLASSES, dtype=torch.bool)
    with pytest.raises(InputError, match=r"prepare\(\)"):
        CNNHLoss(BITS)(logits, labels, torch.arange(2))
    with pytest.raises(InputError):
        prepared(random_labels())(logits, labels)
