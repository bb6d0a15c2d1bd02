"""Binary codes: the only module that handles bits.

A code is a row of K values in {-1, +1} (int8). For storage and search it is packed into ceil(K/8) bytes,
where a set bit means +1, the first value is the highest bit of the first byte, and bits past K are 0.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import InputError

Codes: TypeAlias = NDArray[np.int8]
Packed: TypeAlias = NDArray[np.uint8]


def binarize(values: NDArray[Any]) -> Codes:
    """Turn real values (N, K) into codes (N, K): x >= 0 becomes +1, everything else -1.

    Values of 0 become +1. NaN is rejected.
    """
    values = np.asarray(values)
    if np.isnan(values).any():
        raise InputError(
            "cannot binarize NaN: check the features or the training that produced these values."
        )
    return np.where(values >= 0, np.int8(1), np.int8(-1))


def check_codes(codes: NDArray[Any], name: str = "codes") -> Codes:
    """Check that `codes` is (N, K) with only -1 and +1, and return it as int8 (a view where it can be)."""
    codes = np.asarray(codes)
    if codes.ndim != 2:
        raise InputError(f"{name} must be (N, K) with values -1 and +1, got shape {codes.shape}.")
    if codes.size and not ((codes == 1) | (codes == -1)).all():
        found = np.unique(codes)[:5].tolist()
        raise InputError(f"{name} must hold only -1 and +1, found values such as {found}: {_advice(codes)}.")
    return codes.astype(np.int8, copy=False)


def _advice(codes: NDArray[Any]) -> str:
    """How to make codes of other values; signs of values that are never negative would all be +1."""
    if codes.dtype.kind not in "biuf":
        return "give numbers"
    if _zeros_and_ones(codes):
        small = '.astype("int8")' if codes.dtype.kind == "u" else ""  # unsigned, 0 - 1 would be 255
        return f"make codes of 0 and 1 into such by `2 * codes{small} - 1`"
    if (codes >= 0).all():
        return "none is negative, so first subtract the value that parts -1 from +1, then use binarize()"
    return "use binarize() first"


def _zeros_and_ones(codes: NDArray[Any]) -> bool:
    return codes.dtype == np.bool_ or bool(((codes == 0) | (codes == 1)).all())


def as_codes(values: NDArray[Any], name: str = "codes") -> Codes:
    """Codes (N, K) of -1 and +1 from those, from 0 and 1, or from bool; False and 0 become -1."""
    values = np.asarray(values)
    if values.ndim == 2 and _zeros_and_ones(values):
        return np.where(values == 1, np.int8(1), np.int8(-1))
    return check_codes(values, name)


def check_bits(bits: int) -> int:
    """Check that `bits` can be the length K of codes."""
    if not isinstance(bits, int | np.integer) or isinstance(bits, bool) or bits < 1:
        raise InputError(f"codes have a whole number of bits, at least 1, got {bits!r:.40}.")
    return int(bits)


def first_bits(packed: Packed, bits: int) -> Packed:
    """Return the first `bits` bits of longer packed codes (N, W): (N, ceil(bits/8))."""
    first = packed[:, : packed_width(bits)].copy()
    if bits % 8:
        first[:, -1] &= 0xFF << (8 - bits % 8) & 0xFF
    return first


def packed_width(bits: int) -> int:
    """Bytes of a packed code of K bits: ceil(K/8)."""
    return (bits + 7) // 8


def check_packed(packed: NDArray[Any], bits: int, name: str = "packed codes") -> Packed:
    """Check that `packed` is what `pack` makes of codes of `bits` bits: uint8 (N, ceil(K/8)), no bit set past K."""
    packed, width = np.asarray(packed), packed_width(check_bits(bits))
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != width:
        raise InputError(
            f"{name} of {bits} bits must be uint8 of shape (N, {width}), got {packed.dtype} of shape "
            f"{packed.shape}: use centerhash.pack on codes of -1 and +1."
        )
    spare = 8 * width - bits
    if spare and bool((packed[:, -1] & ((1 << spare) - 1)).any()):
        raise InputError(
            f"{name} have bits set past the first {bits}: they are longer codes, or not made by centerhash.pack."
        )
    return packed


def pack(codes: NDArray[Any]) -> Packed:
    """Pack codes (N, K) into (N, ceil(K/8)) bytes; a set bit is +1."""
    return np.packbits(check_codes(codes) > 0, axis=1)


def unpack(packed: NDArray[np.uint8], bits: int) -> Codes:
    """Unpack (N, ceil(K/8)) bytes into codes (N, K), the inverse of `pack`."""
    return np.where(np.unpackbits(check_packed(packed, bits), axis=1, count=bits), np.int8(1), np.int8(-1))


def to_words(packed: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """View packed codes (N, bytes) as (N, ceil(bytes/8)) 64-bit words, the form that the kernels scan.

    Missing bytes are zero on both sides of every comparison and so never count.
    """
    packed = np.asarray(packed)
    rows, width = packed.shape
    words = (width + 7) // 8
    if width == words * 8 and packed.flags.c_contiguous and packed.dtype == np.uint8:
        return packed.view(np.uint64)
    padded = np.zeros((rows, words * 8), dtype=np.uint8)
    padded[:, :width] = packed
    return padded.view(np.uint64)


def hamming(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
    """Compute Hamming distances (Q, N) between codes (Q, K) and (N, K): (K - <a, b>) / 2."""
    first, second = check_codes(first, "first"), check_codes(second, "second")
    if first.shape[1] != second.shape[1]:
        raise InputError(f"codes of {first.shape[1]} and {second.shape[1]} bits cannot be compared.")
    bits = first.shape[1]
    inner = first.astype(np.float32) @ second.astype(np.float32).T  # exact: |inner| <= K < 2^24
    distances: NDArray[np.int64] = ((bits - inner) / 2).astype(np.int64)
    return distances
