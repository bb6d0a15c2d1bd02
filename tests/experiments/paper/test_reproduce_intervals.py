"""Bootstrap intervals of weight against area, held against drawing images one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.errors import InputError
from centerhash.experiments.instances import MEASURES, bootstrap_intervals, measure_agreement


def random_images(count: int = 60, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Weights that follow the areas loosely, with ties among areas."""
    generator = np.random.default_rng(seed)
    labels = generator.random((count, 7)) < 0.45
    areas = np.where(labels, generator.integers(1, 30, labels.shape), 0) / 100
    raw = np.where(labels, areas + generator.random(labels.shape) * 0.2, 0)
    return raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9), areas, labels


def test_an_interval_of_one_image_is_its_value() -> None:
    weights, areas, labels = random_images()
    row = int(np.flatnonzero(labels.sum(axis=1) >= 3)[0])
    one = tuple(array[row : row + 1] for array in (weights, areas, labels))
    found = measure_agreement(*one)
    for name, ends in bootstrap_intervals(*one, draws=20).items():
        assert ends == pytest.approx((getattr(found, name),) * 2)


def test_of_two_images_one_right_the_draws_are_none_half_or_all() -> None:
    weights = np.array([[0.9, 0.1], [0.9, 0.1]])
    areas = np.array([[0.5, 0.2], [0.2, 0.5]])
    ends = bootstrap_intervals(weights, areas, np.ones((2, 2), dtype=bool), draws=400)
    assert ends["largest"] == (0, 1)
    half = bootstrap_intervals(weights, areas, np.ones((2, 2), dtype=bool), draws=400, level=0.1)
    assert half["largest"] == (0.5, 0.5)


def test_intervals_are_those_of_images_drawn_one_by_one() -> None:
    arrays = random_images()
    several = arrays[2].sum(axis=1) >= 2
    kept = tuple(array[several] for array in arrays)
    generator, draws = np.random.default_rng(5), []
    for _ in range(30):
        drawn = generator.integers(several.sum(), size=several.sum())
        found = measure_agreement(*(array[drawn] for array in kept))
        draws.append([getattr(found, name) for name in MEASURES])
    low, high = np.percentile(draws, (2.5, 97.5), axis=0)
    for place, (name, ends) in enumerate(bootstrap_intervals(*arrays, draws=30, seed=5).items()):
        assert name == MEASURES[place]
        assert ends == pytest.approx((low[place], high[place]))


def test_the_seed_decides() -> None:
    arrays = random_images()
    assert bootstrap_intervals(*arrays, draws=50, seed=3) == bootstrap_intervals(*arrays, draws=50, seed=3)
    assert bootstrap_intervals(*arrays, draws=50, seed=3) != bootstrap_intervals(*arrays, draws=50, seed=4)


def test_intervals_hold_the_value_and_inputs_stay() -> None:
    arrays = random_images(200)
    before = [array.copy() for array in arrays]
    found = measure_agreement(*arrays)
    for name, (low, high) in bootstrap_intervals(*arrays, draws=300).items():
        assert low < getattr(found, name) < high
    assert all(np.array_equal(one, other) for one, other in zip(arrays, before, strict=True))


def test_nothing_to_draw_from_is_said() -> None:
    with pytest.raises(InputError, match="no image has two labels with a known area"):
        bootstrap_intervals(np.eye(3), np.eye(3), np.eye(3, dtype=bool))
