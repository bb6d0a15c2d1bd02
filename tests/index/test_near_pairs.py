from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.index import near_pairs, scan
from centerhash.index.near_pairs import code_pairs, view_hits


def toy(seed: int, count: int = 40, views: int = 3) -> tuple[Packed, NDArray[np.uint64]]:
    """Items in families: members differ from their parent in some bits of one byte and one view."""
    generator = np.random.default_rng(seed)
    parents = generator.integers(0, 8, count)
    general = generator.integers(0, 256, (8, 16), dtype=np.uint8)[parents]
    general[np.arange(count), generator.integers(0, 16, count)] ^= generator.integers(0, 256, count, np.uint8)
    hashes = generator.integers(0, 2**63, (8, views), dtype=np.uint64)[parents]
    hashes[:, 0] ^= generator.integers(0, 256, count, dtype=np.uint64)
    return general, hashes


@given(st.integers(0, 10**6), st.integers(0, 16))
def test_code_pairs(seed: int, radius: int) -> None:
    general, _ = toy(seed)
    expected = {}
    for first in range(len(general)):
        for second in range(first + 1, len(general)):
            bits = int(np.unpackbits(general[first] ^ general[second]).sum())
            if bits <= radius:
                expected[first, second] = bits
    pairs = code_pairs(general, radius)
    rows = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    actual = dict(zip(rows, pairs.bits.tolist(), strict=True))
    assert actual == expected
    assert list(actual) == sorted(actual)


@given(st.integers(0, 10**6), st.sampled_from([1, 3]), st.integers(0, 32))
def test_view_hits(seed: int, views: int, most: int) -> None:
    _, hashes = toy(seed, views=views)
    expected = []
    for whole in range(len(hashes)):
        for viewed in range(len(hashes)):
            bits = [int(hashes[whole, 0] ^ view).bit_count() for view in hashes[viewed]]
            if whole != viewed and min(bits) <= most:
                expected.append((whole, viewed, bits.index(min(bits)), min(bits)))
    assert list(zip(*(column.tolist() for column in view_hits(hashes, most)), strict=True)) == expected


@given(st.integers(0, 10**6), st.integers(0, 32))
def test_code_pairs_without_numba(seed: int, most: int) -> None:
    general, hashes = toy(seed, count=120)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_pairs, "_ROWS_PER_CALL", 40)
        expected = (*code_pairs(general, most), *view_hits(hashes, most))
        patch.setattr(near_pairs, "_TILE", (16, 32))
        patch.setattr(near_pairs, "find_spec", lambda name: None)
        actual = (*code_pairs(general, most), *view_hits(hashes, most))
    for array, reference in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(array, reference)
        assert array.dtype == reference.dtype


def test_code_pairs_beyond_first_call() -> None:
    general = np.zeros((1_300, 16), np.uint8)
    general[:, 0] = np.arange(1_300) % 2
    pairs = code_pairs(general, 0)
    assert pairs.first.size == 2 * 650 * 649 // 2 > scan.PAIRS_PER_CALL_AT_FIRST
    assert (general[pairs.first] == general[pairs.second]).all()
    assert (pairs.first < pairs.second).all()
