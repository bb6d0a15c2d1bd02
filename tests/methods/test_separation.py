from __future__ import annotations

import numpy as np
import pytest

from centerhash.codes import hamming
from centerhash.methods.centers import hash_centers
from centerhash.methods.separation import (
    distance_range,
    guaranteed_distance,
    largest_distance,
    mean_distance,
    search_steps,
    separated,
)
from tests.reference.center_statistics import center_statistics


def test_bounds_by_hand() -> None:
    # 8 bits: balls of radius 0, 1 and 2 hold 1, 9 and 37 of 256 codes
    assert [guaranteed_distance(classes, 8) for classes in (2, 7, 8, 29, 30, 256)] == [8, 3, 2, 2, 1, 1]
    # 3 codes: a bit tells two of three pairs apart; 4 codes: four of six; 5: six of ten
    assert [largest_distance(classes, 12) for classes in (1, 2, 3, 4, 5)] == [12, 12, 8, 8, 7]
    for classes in (2, 5, 20, 80, 1000):
        for bits in (8, 16, 48):
            if classes <= 2**bits:
                assert guaranteed_distance(classes, bits) <= largest_distance(classes, bits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "bits", "least"), [(80, 16, 6), (80, 32, 13), (20, 12, 5), (5, 32, 18), (3, 8, 5)]
)
def test_mdsh_centers_are_as_far_apart_as_any_that_are_made_here(classes: int, bits: int, least: int) -> None:
    found = center_statistics(hash_centers(classes, bits, kind="mdsh"))
    assert found.minimum >= max(least, guaranteed_distance(classes, bits))
    for kind in ("spread", "random"):
        assert found.minimum >= center_statistics(hash_centers(classes, bits, kind=kind)).minimum


@pytest.mark.slow
def test_the_search_goes_far_beyond_random_centers_and_never_back() -> None:
    for seed, (classes, bits) in enumerate(((80, 16), (81, 12), (10, 16), (10, 16))):
        start = hash_centers(classes, bits, seed, "random")
        found = separated(start, np.random.default_rng(seed))
        assert center_statistics(found).minimum > center_statistics(start).minimum
    spread = hash_centers(81, 12, kind="spread")
    assert distance_range(separated(spread, np.random.default_rng(0)))[0] >= distance_range(spread)[0]


@pytest.mark.slow
def test_the_search_leaves_its_start_alone_and_many_classes_as_they_are() -> None:
    start = hash_centers(20, 12, kind="random")
    before = start.copy()
    separated(start, np.random.default_rng(0))
    assert np.array_equal(start, before)
    assert search_steps(100_000, 64) == 0
    assert search_steps(1, 64) == 0
    alone = hash_centers(1, 8, kind="mdsh")
    assert alone.shape == (1, 8)
    everything = hash_centers(256, 8, kind="mdsh")
    assert len(np.unique(everything, axis=0)) == 256


@pytest.mark.parametrize("tile", [1, 7, 2048])
def test_distances_of_all_pairs(tile: int) -> None:
    codes = np.random.default_rng(3).choice(np.array([-1, 1], dtype=np.int8), (23, 17))
    distances = hamming(codes, codes)[np.triu_indices(23, 1)]
    assert distance_range(codes, tile) == (distances.min(), distances.max())
    assert mean_distance(codes) == pytest.approx(distances.mean())
