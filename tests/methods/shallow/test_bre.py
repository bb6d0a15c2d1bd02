from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.methods.shallow.bre import (
    Bre,
    BreOptions,
    Pairs,
    balanced_pairs,
    descend,
    feature_distances,
    is_apart,
    label_distances,
    line_search,
    random_pairs,
    random_weights,
    reconstruction_error,
    refine_bit,
    separation_costs,
)


def some_pairs(rows: int, count: int, seed: int = 0) -> Pairs:
    generator = np.random.default_rng(seed)
    first, second = np.triu_indices(rows, 1)
    chosen = np.sort(generator.permutation(len(first))[:count])
    return Pairs(first[chosen], second[chosen], generator.integers(0, 2, size=count).astype(float))


def naive_error(codes: np.ndarray, pairs: Pairs) -> float:
    total = 0.0
    for i, j, target in zip(*pairs, strict=True):
        differing = sum(codes[i, k] != codes[j, k] for k in range(codes.shape[1]))
        total += (target - differing / codes.shape[1]) ** 2
    return total


def test_reconstruction_error_by_hand_and_by_loop() -> None:
    codes = np.array([[1, 1], [1, 0], [0, 0]], dtype=bool)
    pairs = Pairs(np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([0.0, 1.0, 1.0]))
    assert reconstruction_error(codes, pairs) == 0.5**2 + 0 + 0.5**2
    codes = np.random.default_rng(0).random((12, 5)) < 0.5
    assert reconstruction_error(codes, some_pairs(12, 30)) == pytest.approx(
        naive_error(codes, some_pairs(12, 30))
    )


def test_costs_are_what_one_bit_changes() -> None:
    codes = np.random.default_rng(0).random((10, 4)) < 0.5
    pairs = some_pairs(10, 25)
    others = sum(is_apart(codes[:, bit] - 0.5, pairs).astype(float) for bit in (0, 1, 3))
    costs = separation_costs(pairs.targets, others, 4)
    flipped = codes.copy()
    flipped[:5, 2] = ~flipped[:5, 2]
    change = costs @ is_apart(flipped[:, 2] - 0.5, pairs) - costs @ is_apart(codes[:, 2] - 0.5, pairs)
    assert naive_error(flipped, pairs) - naive_error(codes, pairs) == pytest.approx(change)


def brute_force(values: np.ndarray, column: np.ndarray, costs: np.ndarray, pairs: Pairs) -> float:
    """The lowest cost over a step in every interval between thresholds, each tried out."""
    ends = np.sort(-values[column != 0] / column[column != 0])
    steps = [ends[0] - 1, *((ends[1:] + ends[:-1]) / 2), ends[-1] + 1]
    return min(float(costs @ is_apart(values + step * column, pairs)) for step in steps)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100_000), st.integers(2, 15))
def test_line_search_finds_what_trying_everything_finds(seed: int, rows: int) -> None:
    generator = np.random.default_rng(seed)
    values, column = generator.normal(size=(2, rows))
    column[generator.random(rows) < 0.2] = 0  # rows that never turn
    pairs = some_pairs(rows, rows * (rows - 1) // 2, seed)
    costs = generator.normal(size=len(pairs.first))
    step = line_search(values, column, costs, pairs)
    now = float(costs @ is_apart(values, pairs))
    found = float(costs @ is_apart(values + step * column, pairs))
    expected = min(now, brute_force(values, column, costs, pairs)) if column.any() else now
    assert found == pytest.approx(expected, abs=1e-9)
    assert found <= now + 1e-9  # a step that turns every row leaves all pairs as they were, up to rounding


def test_line_search_does_not_aim_between_equal_thresholds() -> None:
    """Copies of a row turn together: no step can part them, however much that would save."""
    values, column = np.array([0.3, 0.3, -1.0]), np.array([1.0, 1.0, 0.0])
    pairs = Pairs(np.array([0]), np.array([1]), np.array([1.0]))
    assert line_search(values, column, np.array([-5.0]), pairs) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_no_coordinate_step_raises_the_error(seed: int) -> None:
    generator = np.random.default_rng(seed)
    columns, pairs, bits = generator.normal(size=(20, 6)), some_pairs(20, 80, seed), 4
    weights = random_weights(6, bits, 3, generator)
    codes = columns @ weights >= 0
    error = naive_error(codes, pairs)
    for bit in range(bits):
        places = np.flatnonzero(weights[:, bit])
        others = sum(is_apart(codes[:, k] - 0.5, pairs).astype(float) for k in range(bits) if k != bit)
        costs = separation_costs(pairs.targets, others, bits)
        for place in range(len(places)):  # one coordinate at a time
            changes, _ = refine_bit(
                columns @ weights[:, bit], columns[:, places], costs, pairs, np.array([place])
            )
            weights[places, bit] += changes
            codes = columns @ weights >= 0
            fresh = naive_error(codes, pairs)
            assert fresh <= error + 1e-9
            error = fresh


def test_descent_lowers_the_error_and_tells_it_right() -> None:
    generator = np.random.default_rng(0)
    columns, pairs = generator.normal(size=(40, 12)), some_pairs(40, 300)
    start = random_weights(12, 8, 5, generator)
    before = start.copy()
    weights, errors = descend(columns, start, pairs, 3, generator)
    np.testing.assert_array_equal(start, before)
    assert (np.diff(errors) <= 0).all()
    assert errors[-1] < 0.9 * errors[0]
    assert errors[0] == pytest.approx(naive_error(columns @ start >= 0, pairs))
    assert errors[-1] == pytest.approx(naive_error(columns @ weights >= 0, pairs))
    np.testing.assert_array_equal(weights != 0, start != 0)  # each bit keeps its own points


def test_random_weights_use_so_many_points_per_bit() -> None:
    weights = random_weights(30, 7, 4, np.random.default_rng(0))
    assert ((weights != 0).sum(axis=0) == 4).all()
    assert (random_weights(3, 2, 50, np.random.default_rng(0)) != 0).all()


def test_label_distances_by_hand() -> None:
    distances = label_distances(np.array([[1, 1], [0, 1], [0, 0]], dtype=bool))
    assert distances(0).tolist() == [0, 0, 1]
    assert distances(2).tolist() == [1, 1, 1]


def test_feature_distances_are_half_squares_of_mean_one_half() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4))
    table = np.stack([feature_distances(rows)(row) for row in range(9)])
    squares = np.array([[((a - b) ** 2).sum() / 2 for b in rows] for a in rows])
    np.testing.assert_allclose(table, squares / squares.mean() / 2, atol=1e-12)


def test_pairs_are_balanced_unique_and_right() -> None:
    labels = np.zeros((30, 3), dtype=bool)
    labels[:20, 0], labels[20:29, 1] = True, True  # two groups, and one row without labels
    distances = label_distances(labels)
    pairs = balanced_pairs(distances, 30, 0.0, 3, np.random.default_rng(0))
    assert (pairs.first < pairs.second).all()
    assert len(set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))) == len(pairs.first)
    np.testing.assert_array_equal(
        pairs.targets, [distances(i)[j] for i, j in zip(pairs.first, pairs.second, strict=True)]
    )
    both = np.concatenate([pairs.first, pairs.second])
    similar = np.tile(pairs.targets == 0, 2)
    assert (np.bincount(both[similar], minlength=30)[:29] >= 3).all()
    assert (np.bincount(both[~similar], minlength=30) >= 3).all()
    assert np.bincount(both[similar], minlength=30)[29] == 0  # similar to none


def test_near_features_are_drawn_as_often_as_far_ones() -> None:
    rows = np.arange(40, dtype=float)[:, None]
    pairs = balanced_pairs(feature_distances(rows), 40, 0.05, 1, np.random.default_rng(0))
    gaps = pairs.second - pairs.first
    assert 15 < (gaps <= 2).sum() < 45  # one of at most 40 draws near, and one far
    assert (gaps > 2).sum() > 15


def test_random_pairs_are_unique_and_have_their_distances() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3))
    distances = feature_distances(rows)
    pairs = random_pairs(distances, 20, 4, np.random.default_rng(1))
    assert (pairs.first < pairs.second).all()
    found = list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert len(set(found)) == len(found)
    assert 40 <= len(found) <= 80  # four per row, some drawn from both sides
    np.testing.assert_allclose(pairs.targets, [distances(one)[other] for one, other in found])
    every = random_pairs(distances, 20, 19, np.random.default_rng(1))
    assert len(every.first) == 190


def test_a_linear_kernel_makes_hyperplanes() -> None:
    features = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    labels = np.zeros((40, 1), dtype=bool)
    options = BreOptions(supervised=False, linear=True, balanced=False, unit=False, points=5, partners=2)
    fitted = Bre.fit(features, labels, 6, options, seed=0)
    planes = fitted.anchors.astype(float).T @ fitted.weights
    np.testing.assert_allclose(fitted.values(features), features @ planes - fitted.offset, atol=1e-9)
    again = Bre.from_arrays(fitted.arrays())
    np.testing.assert_array_equal(again.values(features), fitted.values(features))


def test_points_that_no_bit_uses_are_not_stored() -> None:
    features = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    labels = np.eye(2, dtype=bool)[np.arange(40) % 2]
    fitted = Bre.fit(features, labels, 4, BreOptions(points=3), seed=0)
    assert len(fitted.anchors) <= 12
    assert fitted.weights.any(axis=1).all()
