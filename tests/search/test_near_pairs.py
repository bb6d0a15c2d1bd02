from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.search import near_pairs, scan
from centerhash.search.near_pairs import FAR, complete_link_groups, linked_pairs


def bits_between(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    return int(np.unpackbits(first ^ second).sum())


def pixels_between(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> int:
    pairs = [(first[0], view) for view in second] + [(second[0], view) for view in first]
    return min(int(one ^ other).bit_count() for one, other in pairs)


def toy(seed: int, count: int = 40, views: int = 3) -> tuple[Packed, NDArray[np.uint64]]:
    """Items in families: members differ from their parent in some bits of one byte and one view."""
    generator = np.random.default_rng(seed)
    parents = generator.integers(0, 8, count)
    visual = generator.integers(0, 256, (8, 16), dtype=np.uint8)[parents]
    visual[np.arange(count), generator.integers(0, 16, count)] ^= generator.integers(0, 256, count, np.uint8)
    hashes = generator.integers(0, 2**63, (8, views), dtype=np.uint64)[parents]
    if views:
        hashes[:, 0] ^= generator.integers(0, 256, count, dtype=np.uint64)
    return visual, hashes


def naive(
    visual: Packed, views: NDArray[np.uint64], radius: int, most: int
) -> dict[tuple[int, int], tuple[int, int]]:
    found = {}
    for first in range(len(visual)):
        for second in range(first + 1, len(visual)):
            bits = bits_between(visual[first], visual[second])
            pixels = pixels_between(views[first], views[second]) if views.shape[1] else FAR
            if bits <= radius and (pixels <= most or not views.shape[1]):
                found[first, second] = bits, pixels
    return found


@given(st.integers(0, 10**6), st.sampled_from([0, 1, 3]), st.integers(0, 16), st.integers(0, 8))
def test_pairs_are_those_of_a_plain_loop(seed: int, views: int, radius: int, most: int) -> None:
    visual, hashes = toy(seed, views=views)
    pairs = linked_pairs(visual, hashes, radius, most)
    rows = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    far = zip(pairs.bits.tolist(), pairs.pixels.tolist(), strict=True)
    found = dict(zip(rows, far, strict=True))
    assert found == naive(visual, hashes, radius, most)
    assert list(found) == sorted(found)


@given(st.integers(0, 10**6), st.sampled_from([0, 1, 3]), st.integers(0, 16), st.integers(0, 8))
def test_without_numba_the_pairs_are_the_same(seed: int, views: int, radius: int, most: int) -> None:
    visual, hashes = toy(seed, count=120, views=views)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_pairs, "_ROWS", 40)
        expected = linked_pairs(visual, hashes, radius, most)
        patch.setattr(near_pairs, "_TILE", (16, 32))
        patch.setattr(near_pairs, "find_spec", lambda name: None)
        found = linked_pairs(visual, hashes, radius, most)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_more_pairs_than_there_is_room_for_and_more_rows_than_a_block() -> None:
    visual = np.zeros((1_300, 16), np.uint8)
    visual[:, 0] = np.arange(1_300) % 2
    pairs = linked_pairs(visual, np.empty((1_300, 0), np.uint64), 0, 0)
    assert pairs.first.size == 2 * 650 * 649 // 2 > scan.ROOM
    assert (visual[pairs.first] == visual[pairs.second]).all()
    assert (pairs.first < pairs.second).all()


@given(st.integers(0, 10**6), st.sampled_from([0, 2]), st.integers(0, 16))
def test_every_two_of_a_group_are_linked_and_no_two_groups_could_be_one(
    seed: int, views: int, radius: int
) -> None:
    visual, hashes = toy(seed, views=views)
    linked = naive(visual, hashes, radius, 6)
    groups = complete_link_groups(visual, hashes, radius, 6)
    grouped = [row for group in groups for row in group]
    assert len(grouped) == len(set(grouped))
    singles = [[row] for row in range(len(visual)) if row not in grouped]
    every = [*groups, *singles]
    for number, group in enumerate(every):
        assert all((a, b) in linked for a in group for b in group if a < b)
        for other in every[number + 1 :]:
            assert not all((min(a, b), max(a, b)) in linked for a in group for b in other)


def test_a_chain_does_not_grow() -> None:
    chain = np.zeros((5, 16), np.uint8)
    for row, byte in enumerate((0, 0b1, 0b11, 0b111, 0b1111)):
        chain[row, 0] = byte
    groups = complete_link_groups(chain, np.empty((5, 0), np.uint64), 1, 0)
    assert groups == [[0, 1], [2, 3]]


def test_equal_rows_are_one_group_without_pairs() -> None:
    visual = np.zeros((20_000, 16), np.uint8)
    visual[0, 0] = 255
    (group,) = complete_link_groups(visual, np.zeros((20_000, 2), np.uint64), 3, 3)
    assert group == list(range(1, 20_000))
