from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.methods.shallow.bre import (
    BRE,
    TrainingPairs,
    descend,
    draw_pairs,
    is_apart,
    line_search,
)


def random_pairs(rows: int, count: int, seed: int = 0) -> TrainingPairs:
    generator = np.random.default_rng(seed)
    first, second = np.triu_indices(rows, 1)
    subset = np.sort(generator.permutation(len(first))[:count])
    return TrainingPairs(first[subset], second[subset], generator.integers(0, 2, size=count).astype(float))


def naive_error(codes: np.ndarray, pairs: TrainingPairs) -> float:
    total = 0.0
    for i, j, target in zip(*pairs, strict=True):
        differing = sum(codes[i, k] != codes[j, k] for k in range(codes.shape[1]))
        total += (target - differing / codes.shape[1]) ** 2
    return total


def test_draw_pairs() -> None:
    labels = np.zeros((30, 3), dtype=bool)
    labels[:20, 0], labels[20:29, 1] = True, True
    distances = 1.0 - (labels.astype(int) @ labels.T > 0)
    pairs = draw_pairs(distances, distances == 0, 3, np.random.default_rng(0))
    assert (pairs.first < pairs.second).all()
    assert len(set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))) == len(pairs.first)
    same = (labels[pairs.first] & labels[pairs.second]).any(axis=1)
    np.testing.assert_array_equal(pairs.targets, 1.0 - same)
    for side, rows in ((same, 29), (~same, 30)):
        assert (
            np.bincount(np.concatenate([pairs.first[side], pairs.second[side]]), minlength=rows)[:rows] >= 3
        ).all()


def test_descend() -> None:
    generator = np.random.default_rng(0)
    columns, pairs = generator.normal(size=(40, 12)), random_pairs(40, 300)
    start = generator.normal(size=(12, 8)) * (generator.random((12, 8)) < 0.4)
    before = start.copy()
    weights = descend(columns, start, pairs, 3, generator)
    np.testing.assert_array_equal(start, before)
    errors = [naive_error(columns @ solution >= 0, pairs) for solution in (start, weights)]
    assert errors[1] < 0.9 * errors[0]
    np.testing.assert_array_equal(weights != 0, start != 0)  # each bit keeps its own points


def brute_force(values: np.ndarray, column: np.ndarray, costs: np.ndarray, pairs: TrainingPairs) -> float:
    """The lowest cost of a step in each interval between thresholds."""
    ends = np.sort(-values[column != 0] / column[column != 0])
    steps = [ends[0] - 1, *((ends[1:] + ends[:-1]) / 2), ends[-1] + 1]
    return min(float(costs @ is_apart(values + step * column, pairs)) for step in steps)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100_000), st.integers(2, 15))
def test_line_search(seed: int, rows: int) -> None:
    generator = np.random.default_rng(seed)
    values, column = generator.normal(size=(2, rows))
    column[generator.random(rows) < 0.2] = 0  # rows that never flip
    pairs = random_pairs(rows, rows * (rows - 1) // 2, seed)
    costs = generator.normal(size=len(pairs.first))
    step = line_search(values, column, costs, pairs)
    before = float(costs @ is_apart(values, pairs))
    after = float(costs @ is_apart(values + step * column, pairs))
    expected = min(before, brute_force(values, column, costs, pairs)) if column.any() else before
    assert after == pytest.approx(expected, abs=1e-9)
    # A step that flips every row changes no pair, up to rounding.
    assert after <= before + 1e-9


def test_bre_of_features() -> None:
    """Its linear kernel makes hyperplanes."""
    features = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    fitted = BRE(6, supervised=False, normalize=False, points=5, partners=2).fit(features)
    planes = fitted.anchors.astype(float).T @ fitted.weights
    np.testing.assert_allclose(fitted.transform(features), features @ planes - fitted.offset, atol=1e-9)
    again = BRE.from_arrays(fitted.arrays())
    np.testing.assert_array_equal(again.transform(features), fitted.transform(features))


def test_unused_points() -> None:
    features = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    labels = np.eye(2, dtype=bool)[np.arange(40) % 2]
    fitted = BRE(4, points=3).fit(features, labels)
    assert len(fitted.anchors) <= 12
    assert fitted.weights.any(axis=1).all()
