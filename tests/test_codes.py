from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import as_codes, binarize, check_codes, hamming, pack, to_words, unpack
from centerhash.core.errors import InputError
from tests.reference.hamming import hamming_naive

shapes = st.tuples(st.integers(0, 9), st.integers(1, 140))


def random_codes(rows: int, bits: int, seed: int) -> NDArray[np.int8]:
    return np.random.default_rng(seed).choice(np.array([-1, 1], dtype=np.int8), size=(rows, bits))


def test_binarize() -> None:
    values = np.array([[-0.5, 0.0, -0.0, 2.0, -np.inf, np.inf, 1e-30]])
    codes = binarize(values)
    assert codes.tolist() == [[-1, 1, 1, 1, -1, 1, 1]]  # The sign of both zeros is +1.
    assert codes.dtype == np.int8
    codes[0, 0] = 1
    assert values[0, 0] == -0.5


def test_binarize_nan() -> None:
    with pytest.raises(InputError, match="NaN"):
        binarize(np.array([[1.0, np.nan]]))


def test_pack() -> None:
    codes = np.array([[1, -1, -1, -1, -1, -1, -1, 1, 1, -1]], dtype=np.int8)
    # The first value is the highest bit, the rest is 0.
    assert pack(codes).tolist() == [[0b1000_0001, 0b1000_0000]]


@given(shapes, st.integers(0, 2**32 - 1))
def test_unpack_after_pack(shape: tuple[int, int], seed: int) -> None:
    codes = random_codes(*shape, seed)
    packed = pack(codes)
    assert packed.shape == (shape[0], -(-shape[1] // 8))
    unpacked = unpack(packed, shape[1])
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, codes)


@pytest.mark.parametrize(
    "packed",
    [np.zeros((3, 1), np.uint8), np.zeros((3, 3), np.uint8), np.zeros((3, 2)), np.zeros(2, np.uint8)],
)
def test_unpack_other_arrays(packed: NDArray[Any]) -> None:
    with pytest.raises(InputError, match=r"12 bits .* \(N, 2\)"):
        unpack(packed, 12)


@given(shapes, st.integers(0, 9), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_hamming_against_loops(shape: tuple[int, int], rows: int, seed: int) -> None:
    first, second = random_codes(*shape, seed), random_codes(rows, shape[1], seed + 1)
    expected = hamming_naive(first, second)
    np.testing.assert_array_equal(hamming(first, second), expected)
    np.testing.assert_array_equal((shape[1] - first.astype(int) @ second.astype(int).T) // 2, expected)


def test_hamming() -> None:
    codes = np.array([[1, 1, 1], [1, -1, 1], [-1, -1, -1]])
    assert hamming(codes, codes).tolist() == [[0, 1, 3], [1, 0, 2], [3, 2, 0]]


def test_hamming_of_other_length() -> None:
    with pytest.raises(InputError, match="8 and 9 bits"):
        hamming(np.ones((1, 8)), np.ones((1, 9)))


@given(shapes, st.integers(0, 2**32 - 1))
def test_distance_of_words(shape: tuple[int, int], seed: int) -> None:
    first, second = random_codes(*shape, seed), random_codes(*shape, seed + 1)
    words_first, words_second = to_words(pack(first)), to_words(pack(second))
    assert words_first.dtype == np.uint64
    assert words_first.shape == (shape[0], -(-shape[1] // 64))
    counted = np.bitwise_count(words_first ^ words_second).sum(axis=1)
    assert counted.tolist() == (first != second).sum(axis=1).tolist()


def test_words_without_copy() -> None:
    packed = pack(random_codes(4, 128, 0))
    assert np.shares_memory(to_words(packed), packed)  # 128 bits need no copy
    np.testing.assert_array_equal(to_words(packed[:, :8]), to_words(packed)[:, :1])


def test_check_codes() -> None:
    codes = random_codes(3, 8, 0)
    assert np.shares_memory(check_codes(codes), codes)
    converted = check_codes(codes.astype(np.float64))
    assert converted.dtype == np.int8
    np.testing.assert_array_equal(converted, codes)


@pytest.mark.parametrize("shape", [(8,), (2, 3, 8), ()])
def test_check_codes_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"centers must be \(N, K\)"):
        check_codes(np.ones(shape), "centers")


@pytest.mark.parametrize("bad", [0, np.uint8(0), 2, -3, 257, 1.5, "a"])
def test_check_codes_values(bad: Any) -> None:
    # As int8, 257 and 1.5 would become 1.
    codes = np.ones((2, 4)).astype(int).astype(type(bad))
    codes[1, 2] = bad
    with pytest.raises(InputError, match=re.escape(f"{bad!s:.3}")):
        pack(codes)


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int64, np.float32])
def test_codes_of_0_and_1(kind: type) -> None:
    codes = random_codes(5, 20, 3)
    zeros_and_ones = (codes > 0).astype(kind)
    np.testing.assert_array_equal(as_codes(zeros_and_ones), codes)
    np.testing.assert_array_equal(as_codes(codes), codes)
    np.testing.assert_array_equal(binarize(zeros_and_ones - 0.5), codes)  # The advice of the error.


@pytest.mark.parametrize("bits", [3.5, 8.0, "8", True, 0, -8, None])
def test_unpack_bits(bits: Any) -> None:
    with pytest.raises(InputError, match="bits"):
        unpack(np.zeros((1, 1), np.uint8), bits)
