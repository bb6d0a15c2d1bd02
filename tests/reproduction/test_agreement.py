from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.errors import InputError
from reproduction.agreement import (
    BINS,
    METRICS,
    bootstrap_intervals,
    measure_agreement,
    weight_distribution,
)

LABELS = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=bool)
WEIGHTS = np.array([[0.75, 0.25, 0], [0.5, 0.3, 0.2], [1, 0, 0], [0, 0, 0]])
AREAS = np.array([[0.3, 0.1, 0.9], [0.1, 0.2, 0.1], [0.7, 0, 0], [0, 0.5, 0]])  # 0.9 is no label of its image


def random_images(count: int = 200, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    generator = np.random.default_rng(seed)
    labels = generator.random((count, 7)) < 0.45
    areas = np.where(labels, generator.integers(1, 30, labels.shape), 0) / 100
    raw = np.where(labels, areas + generator.random(labels.shape) * 0.2, 0)
    weights = raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9)
    return weights, areas, labels


def equal(labels: NDArray[np.bool_], kind: Any = np.float64) -> NDArray[Any]:
    counts = np.maximum(labels.sum(axis=1, keepdims=True), 1)
    return (labels / counts).astype(kind)


def test_agreement_by_hand() -> None:
    found = measure_agreement(WEIGHTS, AREAS, LABELS)
    weights, shares = [0.75, 0.25, 0.5, 0.3, 0.2], [0.75, 0.25, 0.25, 0.5, 0.25]
    assert found.images == 2  # one label, or none, leaves nothing to share
    assert found.weights.tolist() == pytest.approx(weights)
    assert found.shares.tolist() == pytest.approx(shares)
    assert found.pearson == pytest.approx(np.corrcoef(weights, shares)[0, 1])
    even = np.array([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3])
    assert found.centred_pearson == pytest.approx(np.corrcoef(weights - even, shares - even)[0, 1])
    assert found.largest == pytest.approx(0.5)  # right in the first image, wrong in the second
    assert found.chance == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_ties_count_as_a_random_choice() -> None:
    labels = np.ones((1, 4), dtype=bool)
    tied_weights = measure_agreement(np.array([[0.4, 0.4, 0.1, 0.1]]), np.array([[4, 3, 2, 1]]), labels)
    assert tied_weights.largest == pytest.approx(0.5)
    tied_areas = measure_agreement(np.array([[0.4, 0.3, 0.2, 0.1]]), np.array([[2, 2, 1, 1]]), labels)
    assert tied_areas.largest == 1
    assert tied_areas.chance == pytest.approx(0.5)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_equal_weights_score_chance_and_explain_nothing(kind: Any) -> None:
    _, areas, labels = random_images()
    found = measure_agreement(equal(labels, kind), areas, labels)
    assert found.largest == pytest.approx(found.chance, abs=1e-12)
    assert abs(found.centred_pearson) < 1e-6
    assert found.pearson > 0.2  # but few labels mean large shares: only subtracting 1/c shows that


def test_the_true_shares_score_full_marks() -> None:
    _, areas, labels = random_images()
    shares = areas / np.maximum(areas.sum(axis=1, keepdims=True), 1e-9)
    found = measure_agreement(shares, areas, labels)
    for value in (found.pearson, found.spearman, found.centred_pearson, found.largest):
        assert value == pytest.approx(1)


def test_spearman_agrees_with_scipy() -> None:
    from scipy import stats  # slow to import: only here

    found = measure_agreement(*random_images())
    assert found.spearman == pytest.approx(stats.spearmanr(found.weights, found.shares).statistic)
    assert found.pearson == pytest.approx(stats.pearsonr(found.weights, found.shares).statistic)
    assert 0.2 < found.centred_pearson < 1
    assert found.chance < found.largest < 1


def test_what_is_outside_the_labels_does_not_matter() -> None:
    weights, areas, labels = random_images()
    noise = np.random.default_rng(1).random(labels.shape)
    spoiled = measure_agreement(np.where(labels, weights, noise), np.where(labels, areas, noise), labels)
    assert spoiled.to_dict() == measure_agreement(weights, areas, labels).to_dict()


def test_inputs_stay_as_they_are_and_the_figures_are_json() -> None:
    inputs = random_images()
    before = [array.copy() for array in inputs]
    figures = measure_agreement(*inputs).to_dict()
    assert all(np.array_equal(one, other) for one, other in zip(inputs, before, strict=True))
    assert json.loads(json.dumps(figures)) == figures
    assert set(figures) == {"images", "pearson", "spearman", "centred_pearson", "largest", "chance"}


def test_arrays_that_cannot_be_compared() -> None:
    with pytest.raises(InputError):
        measure_agreement(WEIGHTS[:3], AREAS, LABELS)
    with pytest.raises(InputError):
        weight_distribution(WEIGHTS[:3], LABELS)
    for rows in ([2, 3], []):  # nothing to compare
        with pytest.raises(InputError):
            measure_agreement(WEIGHTS[rows], AREAS[rows], LABELS[rows])


def test_images_without_areas_are_left_out() -> None:
    areas = AREAS.copy()
    areas[1] = 0
    assert measure_agreement(WEIGHTS, areas, LABELS).images == 1


# Intervals, held against drawing images one by one


def test_of_two_images_one_right_the_draws_are_none_half_or_all() -> None:
    weights = np.array([[0.9, 0.1], [0.9, 0.1]])
    areas = np.array([[0.5, 0.2], [0.2, 0.5]])
    ends = bootstrap_intervals(weights, areas, np.ones((2, 2), dtype=bool), draws=400)
    assert ends["largest"] == (0, 1)


def test_intervals_are_those_of_images_drawn_one_by_one() -> None:
    arrays = random_images(60)
    several = arrays[2].sum(axis=1) >= 2
    kept = tuple(array[several] for array in arrays)
    generator, draws = np.random.default_rng(0), []
    for _ in range(30):
        drawn = generator.integers(several.sum(), size=several.sum())
        found = measure_agreement(*(array[drawn] for array in kept))
        draws.append([getattr(found, name) for name in METRICS])
    low, high = np.percentile(draws, (2.5, 97.5), axis=0)
    for place, (name, ends) in enumerate(bootstrap_intervals(*arrays, draws=30).items()):
        assert name == METRICS[place]
        assert ends == pytest.approx((low[place], high[place]))


# How weights are distributed

SPREAD_LABELS = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1], [0, 0, 0]], dtype=bool)
SPREAD = np.array([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])


def test_variances_by_hand() -> None:
    found = weight_distribution(SPREAD, SPREAD_LABELS)
    # of 1, 0, .5, .25, .25, 1: mean .5, squares .25 + .25 + 0 + .0625 + .0625 + .25
    assert found["variance"] == pytest.approx(0.875 / 6)
    # without the image of one label: mean .4, squares .36 + .16 + .01 + .0225 + .0225
    assert found["variance_several"] == pytest.approx(0.575 / 5)
    # from 1/2, 1/2, 1/3, 1/3, 1/3
    assert found["variance_uneven"] == pytest.approx((0.25 + 0.25 + 1 / 36 + 2 / 144) / 5)
    assert found["labels"] == 6


def test_corners_and_unevenness_by_hand() -> None:
    found = weight_distribution(SPREAD, SPREAD_LABELS)
    assert found["corner"] == 0.5
    assert found["by_count"] == {
        "2": {"images": 1, "uneven": pytest.approx(1)},
        "3": {"images": 1, "uneven": pytest.approx((1 / 2 - 1 / 3) / (2 / 3))},
    }


def test_the_histogram_counts_labels_of_images_with_several() -> None:
    histogram = weight_distribution(SPREAD, SPREAD_LABELS)["histogram"]
    assert sum(histogram) == 5
    assert {place: count for place, count in enumerate(histogram) if count} == {
        0: 1,
        BINS // 4: 2,
        BINS // 2: 1,
        BINS - 1: 1,
    }


def test_images_with_one_label_each_have_nothing_to_spread() -> None:
    found = weight_distribution(np.eye(3), np.eye(3, dtype=bool))
    assert (found["variance"], found["variance_several"], found["corner"], found["by_count"]) == (0, 0, 0, {})
    json.dumps(found)
