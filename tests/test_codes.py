from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import as_codes, binarize, check_codes, hamming, pack, to_words, unpack
from centerhash.core.errors import InputError
from centerhash.search.store import Store
from tests.reference.hamming import hamming_naive

shapes = st.tuples(st.integers(0, 9), st.integers(1, 140))


def random_codes(rows: int, bits: int, seed: int) -> NDArray[np.int8]:
    return np.random.default_rng(seed).choice(np.array([-1, 1], dtype=np.int8), size=(rows, bits))


def test_binarise_by_hand() -> None:
    codes = binarize(np.array([[-0.5, 0.0, -0.0, 2.0, -np.inf, np.inf, 1e-30]]))
    assert codes.tolist() == [[-1, 1, 1, 1, -1, 1, 1]]  # sign(0) is +1, of both zeros
    assert codes.dtype == np.int8


def test_binarise_leaves_its_input() -> None:
    values = np.array([[0.25, -0.25]])
    binarize(values)[0, 0] = -1
    assert values.tolist() == [[0.25, -0.25]]


def test_binarise_refuses_nan() -> None:
    with pytest.raises(InputError, match=r"cannot binarize NaN: check the features or the training"):
        binarize(np.array([[1.0, np.nan]]))


def test_pack_by_hand() -> None:
    codes = np.array([[1, -1, -1, -1, -1, -1, -1, 1, 1, -1]], dtype=np.int8)
    assert pack(codes).tolist() == [
        [0b1000_0001, 0b1000_0000]
    ]  # first value is the highest bit, the rest is 0


@given(shapes, st.integers(0, 2**32 - 1))
def test_unpack_after_pack_is_identity(shape: tuple[int, int], seed: int) -> None:
    codes = random_codes(*shape, seed)
    packed = pack(codes)
    assert packed.shape == (shape[0], -(-shape[1] // 8))
    unpacked = unpack(packed, shape[1])
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, codes)


def test_unpack_refuses_what_pack_cannot_have_made() -> None:
    for packed in (
        np.zeros((3, 1), dtype=np.uint8),
        np.zeros((3, 3), dtype=np.uint8),
        np.zeros((3, 2), dtype=np.int64),
        np.zeros(2, dtype=np.uint8),
    ):
        with pytest.raises(
            InputError, match=r"packed codes of 12 bits must be uint8 of shape \(N, 2\), got "
        ):
            unpack(packed, 12)


@given(shapes, st.integers(0, 9), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_hamming_is_half_of_bits_minus_inner_product(shape: tuple[int, int], others: int, seed: int) -> None:
    first, second = random_codes(*shape, seed), random_codes(others, shape[1], seed + 1)
    expected = hamming_naive(first, second)
    np.testing.assert_array_equal(hamming(first, second), expected)
    np.testing.assert_array_equal((shape[1] - first.astype(int) @ second.astype(int).T) // 2, expected)


def test_hamming_by_hand() -> None:
    codes = np.array([[1, 1, 1], [1, -1, 1], [-1, -1, -1]])
    assert hamming(codes, codes).tolist() == [[0, 1, 3], [1, 0, 2], [3, 2, 0]]


def test_hamming_refuses_different_lengths() -> None:
    with pytest.raises(InputError, match="codes of 8 and 9 bits cannot be compared"):
        hamming(np.ones((1, 8)), np.ones((1, 9)))


@given(shapes, st.integers(0, 2**32 - 1))
def test_words_count_the_same_bits(shape: tuple[int, int], seed: int) -> None:
    first, second = random_codes(*shape, seed), random_codes(*shape, seed + 1)
    words_first, words_second = to_words(pack(first)), to_words(pack(second))
    assert words_first.dtype == np.uint64
    assert words_first.shape == (shape[0], -(-shape[1] // 64))
    counted = np.bitwise_count(words_first ^ words_second).sum(axis=1)
    assert counted.tolist() == (first != second).sum(axis=1).tolist()


def test_words_of_a_slice_and_of_whole_words() -> None:
    packed = pack(random_codes(4, 128, 0))
    assert np.shares_memory(to_words(packed), packed)  # 128 bits need no copy
    np.testing.assert_array_equal(to_words(packed[:, :8]), to_words(packed)[:, :1])


def test_check_codes_returns_int8_and_the_same_memory() -> None:
    codes = random_codes(3, 8, 0)
    assert np.shares_memory(check_codes(codes), codes)
    converted = check_codes(codes.astype(np.float64))
    assert converted.dtype == np.int8
    np.testing.assert_array_equal(converted, codes)


@pytest.mark.parametrize("shape", [(8,), (2, 3, 8), ()])
def test_check_codes_refuses_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"centers must be \(N, K\) with values -1 and \+1, got shape \("):
        check_codes(np.ones(shape), "centers")


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (0, r"\[0, 1\]: make codes of 0 and 1 into such by `2 \* codes - 1`"),
        (np.uint8(0), r'\[0, 1\]: make codes of 0 and 1 into such by `2 \* codes.astype\("int8"\) - 1`'),
        (2, r"\[1, 2\]: none is negative, so first subtract"),
        (-3, r"\[-3, 1\]: use binarize\(\) first"),
        (257, r"\[1, 257\]: none is negative"),
        (1.5, r"\[1\.0, 1\.5\]: none is negative"),
        ("a", r"\['1', 'a'\]: give numbers"),
    ],
)
def test_check_codes_refuses_other_values(bad: Any, shown: str) -> None:
    codes = np.ones((2, 4)).astype(int).astype(type(bad))  # 257 and 1.5 would become 1 as int8
    codes[1, 2] = bad
    with pytest.raises(InputError, match=rf"found values such as {shown}"):
        pack(codes)


def test_codes_of_0_and_1_keep_every_bit() -> None:
    for kind in (np.bool_, np.uint8, np.int64, np.float32):
        codes = random_codes(5, 20, 3)
        np.testing.assert_array_equal(as_codes((codes > 0).astype(kind)), codes)
        np.testing.assert_array_equal(as_codes(codes), codes)


def test_the_hint_for_codes_of_0_and_1_keeps_every_bit() -> None:
    for kind in (np.bool_, np.uint8, np.int8, np.float64):
        expected = random_codes(5, 20, 3)
        codes = (expected > 0).astype(kind)
        with pytest.raises(InputError) as caught:
            check_codes(codes)
        hint = str(caught.value).split("`")[1]
        np.testing.assert_array_equal(check_codes(eval(hint, {"codes": codes})), expected)


@pytest.mark.parametrize("bits", [3.5, 8.0, "8", True, 0, -8, None])
def test_codes_have_a_whole_number_of_bits(tmp_path: Path, bits: Any) -> None:
    with pytest.raises(InputError, match="codes have a whole number of bits, at least 1, got "):
        unpack(np.zeros((2, 1), np.uint8), bits)
    with pytest.raises(InputError):
        Store.create(tmp_path / "index", bits)
    assert not (tmp_path / "index").exists()
