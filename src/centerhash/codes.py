"""Binary codes: the only module that handles bits.

    codes = binarize(logits)        # (N, K) of -1 and +1
    packed = pack(codes)            # (N, ceil(K/8)) bytes
    hamming(codes, codes)           # (N, N) distances

A code is a row of K values in {-1, +1} (int8). For storage and search it is packed into ceil(K/8) bytes,
where a set bit means +1, the first value is the highest bit of the first byte, and bits past K are 0.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import whole_number
from centerhash.core.errors import InputError

Codes: TypeAlias = NDArray[np.int8]
Packed: TypeAlias = NDArray[np.uint8]


def binarize(values: NDArray[Any]) -> Codes:
    """Convert real values (N, K) to codes (N, K): x >= 0 becomes +1, everything else -1; NaN is rejected."""
    values = np.asarray(values)
    if np.isnan(values).any():
        raise InputError("cannot binarize NaN: check the features or the training run behind these values.")
    return np.where(values >= 0, np.int8(1), np.int8(-1))


def check_codes(codes: NDArray[Any], name: str = "codes") -> Codes:
    """Check that `codes` is (N, K) with only -1 and +1, and return it as int8 (a view if possible)."""
    codes = np.asarray(codes)
    if codes.ndim != 2 or not ((codes == 1) | (codes == -1)).all():
        raise InputError(
            f"{name} must be (N, K) with only -1 and +1, got shape {codes.shape} with values such as "
            f"{np.unique(codes)[:5].tolist()}: use binarize(values - threshold), with 0.5 for codes of 0 and 1."
        )
    return codes.astype(np.int8, copy=False)


def as_codes(values: NDArray[Any], name: str = "codes") -> Codes:
    """Convert codes (N, K) of 0 and 1, or bool, to -1 and +1; codes of -1 and +1 stay as they are."""
    values = np.asarray(values)
    if values.ndim == 2 and ((values == 0) | (values == 1)).all():
        return np.where(values == 1, np.int8(1), np.int8(-1))
    return check_codes(values, name)


def first_bits(packed: Packed, bits: int) -> Packed:
    """Return the first `bits` bits of longer packed codes (N, W): (N, ceil(bits/8))."""
    first = packed[:, : packed_width(bits)].copy()
    if bits % 8:
        first[:, -1] &= 0xFF << (8 - bits % 8) & 0xFF
    return first


def packed_width(bits: int) -> int:
    """Return the bytes of a packed code of K bits: ceil(K/8)."""
    return (bits + 7) // 8


def check_packed(packed: NDArray[Any], bits: int, name: str = "packed codes") -> Packed:
    """Check that `packed` holds codes of K `bits`, uint8 (N, ceil(K/8)) with no bit set past K, and return it."""
    packed, width = np.asarray(packed), packed_width(whole_number(bits, "bits", 1))
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != width:
        raise InputError(
            f"{name} of {bits} bits must be uint8 of shape (N, {width}), got {packed.dtype} of shape "
            f"{packed.shape}: use centerhash.pack on codes of -1 and +1."
        )
    if (packed[:, -1] & ((1 << (8 * width - bits)) - 1)).any():
        raise InputError(
            f"{name} have bits set past the first {bits}: they are longer codes, or not made by centerhash.pack."
        )
    return packed


def pack(codes: NDArray[Any]) -> Packed:
    """Pack codes (N, K) into (N, ceil(K/8)) bytes; a set bit is +1."""
    return np.packbits(check_codes(codes) > 0, axis=1)


def unpack(packed: Packed, bits: int) -> Codes:
    """Unpack (N, ceil(K/8)) bytes into codes (N, K), the inverse of `pack`."""
    return np.where(np.unpackbits(check_packed(packed, bits), axis=1, count=bits), np.int8(1), np.int8(-1))


def to_words(packed: Packed) -> NDArray[np.uint64]:
    """View packed codes (N, bytes) as (N, ceil(bytes/8)) 64-bit words for the kernels; missing bytes are zero."""
    missing = -packed.shape[1] % 8
    padded = np.pad(packed, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(packed)
    return padded.view(np.uint64)


def hamming(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
    """Compute Hamming distances (Q, N) between codes (Q, K) and (N, K): (K - <a, b>) / 2."""
    first, second = check_codes(first, "first"), check_codes(second, "second")
    if first.shape[1] != second.shape[1]:
        raise InputError(f"codes of {first.shape[1]} and {second.shape[1]} bits cannot be compared.")
    # Exact, since |<a, b>| <= K < 2^24.
    distances: NDArray[Any] = (first.shape[1] - first.astype(np.float32) @ second.astype(np.float32).T) / 2
    return distances.astype(np.int64)
