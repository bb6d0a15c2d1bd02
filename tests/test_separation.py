from __future__ import annotations

import numpy as np
import pytest

from centerhash.centers import hash_centers
from centerhash.codes import hamming
from centerhash.separation import (
    guaranteed_distance,
    largest_distance,
    mean_distance,
    search_steps,
    separated,
    smallest_distance,
    spread_centers,
)


def test_bounds() -> None:
    # Balls of radius 0, 1 and 2 contain 1, 9 and 37 of the 256 codes of 8 bits.
    assert [guaranteed_distance(classes, 8) for classes in (2, 7, 8, 29, 30, 256)] == [8, 3, 2, 2, 1, 1]
    # A bit separates two of the three pairs of 3 codes, four of six of 4, six of ten of 5.
    assert [largest_distance(classes, 12) for classes in (1, 2, 3, 4, 5)] == [12, 12, 8, 8, 7]
    for classes in (2, 5, 20, 80, 1000):
        for bits in (8, 16, 48):
            if classes <= 2**bits:
                assert guaranteed_distance(classes, bits) <= largest_distance(classes, bits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "bits", "least"), [(80, 16, 6), (80, 32, 13), (20, 12, 5), (5, 32, 18), (3, 8, 5)]
)
def test_mdsh_distances(classes: int, bits: int, least: int) -> None:
    distance = smallest_distance(hash_centers(classes, bits, kind="mdsh"))
    assert distance >= max(least, guaranteed_distance(classes, bits))
    start = spread_centers(classes, bits, np.random.default_rng(0))
    for centers in (start, hash_centers(classes, bits, kind="random")):
        assert distance >= smallest_distance(centers)


@pytest.mark.parametrize(
    ("classes", "bits", "least"), [(80, 16, 6), (80, 32, 13), (200, 48, 19), (200, 64, 27), (92, 92, 43)]
)
def test_spread_centers(classes: int, bits: int, least: int) -> None:
    spread = spread_centers(classes, bits, np.random.default_rng(0))
    assert len(np.unique(spread, axis=0)) == classes
    assert smallest_distance(spread) >= least


@pytest.mark.slow
def test_separated() -> None:
    for seed, (classes, bits) in enumerate(((80, 16), (81, 12), (10, 16), (10, 16))):
        start = hash_centers(classes, bits, seed, "random")
        centers = separated(start, np.random.default_rng(seed))
        assert smallest_distance(centers) > smallest_distance(start)
    spread = spread_centers(81, 12, np.random.default_rng(0))
    assert smallest_distance(separated(spread, np.random.default_rng(0))) >= smallest_distance(spread)


@pytest.mark.slow
def test_separated_extremes() -> None:
    start = hash_centers(20, 12, kind="random")
    before = start.copy()
    separated(start, np.random.default_rng(0))
    assert np.array_equal(start, before)
    assert search_steps(100_000, 64) == 0
    assert search_steps(1, 64) == 0
    assert hash_centers(1, 8, kind="mdsh").shape == (1, 8)
    assert len(np.unique(hash_centers(256, 8, kind="mdsh"), axis=0)) == 256


def test_distances() -> None:
    codes = np.random.default_rng(3).choice(np.array([-1, 1], dtype=np.int8), (23, 17))
    distances = hamming(codes, codes)[np.triu_indices(23, 1)]
    assert smallest_distance(codes) == distances.min()
    assert mean_distance(codes) == pytest.approx(distances.mean())
    assert smallest_distance(codes[:1]) == 17
