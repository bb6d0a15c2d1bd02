"""Agreement of weights and areas, by hand and against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.errors import InputError
from reproduction.agreement import METRICS, measure_agreement

LABELS = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=bool)
WEIGHTS = np.array([[0.75, 0.25, 0], [0.5, 0.3, 0.2], [1, 0, 0], [0, 0, 0]])
AREAS = np.array([[0.3, 0.1, 0.9], [0.1, 0.2, 0.1], [0.7, 0, 0], [0, 0.5, 0]])  # 0.9 belongs to no label


def random_images(count: int = 200) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    generator = np.random.default_rng(0)
    labels = generator.random((count, 7)) < 0.45
    areas = np.where(labels, generator.integers(1, 30, labels.shape), 0) / 100
    raw = np.where(labels, areas + generator.random(labels.shape) * 0.2, 0)
    return raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9), areas, labels


def test_measure_agreement() -> None:
    agreement = measure_agreement(WEIGHTS, AREAS, LABELS)
    weights, shares = [0.75, 0.25, 0.5, 0.3, 0.2], [0.75, 0.25, 0.25, 0.5, 0.25]
    even = np.array([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3])
    assert agreement.images == 2  # those with two labels or more
    assert agreement.weights.tolist() == pytest.approx(weights)
    assert agreement.shares.tolist() == pytest.approx(shares)
    assert agreement.pearson == pytest.approx(np.corrcoef(weights, shares)[0, 1])
    assert agreement.centered_pearson == pytest.approx(np.corrcoef(weights - even, shares - even)[0, 1])
    assert agreement.largest == pytest.approx(0.5)  # right in the first image, wrong in the second
    assert agreement.chance == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_agreement_of_ties() -> None:
    labels = np.ones((1, 4), dtype=bool)
    tied_weights = measure_agreement(np.array([[0.4, 0.4, 0.1, 0.1]]), np.array([[4, 3, 2, 1]]), labels)
    assert tied_weights.largest == pytest.approx(0.5)
    tied_areas = measure_agreement(np.array([[0.4, 0.3, 0.2, 0.1]]), np.array([[2, 2, 1, 1]]), labels)
    assert (tied_areas.largest, tied_areas.chance) == (1, 0.5)


def test_agreement_of_equal_weights() -> None:
    _, areas, labels = random_images()
    agreement = measure_agreement(labels / np.maximum(labels.sum(axis=1, keepdims=True), 1), areas, labels)
    assert agreement.largest == pytest.approx(agreement.chance)
    assert agreement.centered_pearson == pytest.approx(0, abs=1e-6)
    assert agreement.pearson > 0.2  # few labels mean large shares


def test_agreement_of_true_shares() -> None:
    _, areas, labels = random_images()
    agreement = measure_agreement(areas / np.maximum(areas.sum(axis=1, keepdims=True), 1e-9), areas, labels)
    assert [getattr(agreement, name) for name in METRICS] == pytest.approx([1, 1, 1])


def test_agreement_intervals() -> None:
    agreement, again = (measure_agreement(*random_images()) for _ in range(2))
    assert agreement.intervals == again.intervals
    wide = measure_agreement(*(array[:40] for array in random_images())).intervals
    for name, (low, high) in agreement.intervals.items():
        assert low < getattr(agreement, name) < high
        assert high - low < wide[name][1] - wide[name][0]


@pytest.mark.parametrize("areas", [AREAS[:, :2], np.zeros_like(AREAS)])
def test_measure_agreement_rejects(areas: NDArray[Any]) -> None:
    with pytest.raises(InputError):
        measure_agreement(WEIGHTS, areas, LABELS)
