"""The door of the evaluation: checks what callers pass, once, and turns it into what the kernels scan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import as_codes, check_packed, pack, to_words
from centerhash.core.arrays import as_array, whole_number
from centerhash.core.errors import InputError

LONGEST = int(np.iinfo(np.uint16).max) - 1  # distances are kept as uint16, and one more value marks no item


def cutoffs(values: Iterable[Any]) -> tuple[int, ...]:
    """Return the places at which precision is asked for, in the given order."""
    if not isinstance(values, Iterable):
        raise InputError(f"precision_at must be numbers of places such as (1, 10, 100), got {values!r}.")
    return tuple(whole_number(value, "each place in precision_at", 1) for value in values)


def code_words(codes: NDArray[Any], bits: int | None, name: str) -> tuple[NDArray[np.uint64], int]:
    """Return codes as words (N, W) with their number of bits.

    Without `bits`, `codes` is (N, K) in {-1, +1}, {0, 1} or bool; with it, the bytes (N, ceil(K/8)) of `codes.pack`. The
    words are a copy: numba compiles again for arrays that are read-only, as memory-mapped ones are.
    """
    codes = as_array(codes, name)
    if codes.ndim != 2 or codes.size == 0:
        raise InputError(f"{name} must be (items, bits) with at least one of each, got shape {codes.shape}.")
    if bits is None:
        if codes.dtype == np.uint8 and codes.max() > 1:
            raise InputError(
                f"{name} of shape {codes.shape} are bytes, not -1 and +1, nor 0 and 1: "
                "pass bits= (the length of a code) to evaluate packed codes."
            )
        packed, length = pack(as_codes(codes, name)), codes.shape[1]
    else:
        packed, length = check_packed(codes, whole_number(bits, "bits", 1), name), int(bits)
    if length > LONGEST:
        raise InputError(f"{name} have {length} bits, at most {LONGEST} can be compared.")
    return to_words(packed).copy(), length


def planes(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Turn words (N, W) into contiguous planes (W, N), one scan per word."""
    return np.ascontiguousarray(words.T)


def label_words(labels: NDArray[Any], name: str) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return labels (N, C) as words (N, L), and the number of labels of each item (N,)."""
    labels = as_array(labels, name)
    if labels.ndim != 2 or labels.size == 0:
        raise InputError(
            f"{name} must be (items, classes) with at least one of each, got shape {labels.shape}."
        )
    flags = labels != 0
    if labels.dtype != np.bool_ and not (labels == flags).all():
        found = labels[labels != flags][:3].tolist()
        raise InputError(f"{name} must be bool, or hold only 0 and 1, found values such as {found}.")
    return to_words(np.packbits(flags, axis=1)), flags.sum(axis=1, dtype=np.int64)


def same(what: str, first: int, second: int, names: tuple[str, str]) -> None:
    """Refuse two numbers that must agree, naming both."""
    if first != second:
        raise InputError(
            f"{names[0]} and {names[1]} must have the same number of {what}, got {first} and {second}."
        )


def item_ids(ids: NDArray[Any] | None, items: int, name: str) -> NDArray[np.int64] | None:
    """Return the integer ids (N,) of the items, or None when they are not given."""
    if ids is None:
        return None
    ids = as_array(ids, name)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{name} must be a row of integers, got {ids.dtype} of shape {ids.shape}.")
    if ids.size != items:
        raise InputError(f"{name} must give one id per code, got {ids.size} ids for {items} codes.")
    return ids.astype(np.int64, copy=False)


def own_positions(
    query_ids: NDArray[np.int64] | None, database_ids: NDArray[np.int64] | None, *, required: bool
) -> NDArray[np.int64] | None:
    """Return for each query (Q,) the position of the database item with the same id, or -1.

    None when ids are missing, unless they are `required`.
    """
    if query_ids is not None and database_ids is not None:
        return _find(query_ids, database_ids)
    if required:
        given = (("query_ids", query_ids), ("database_ids", database_ids))
        missing = " and no ".join(name for name, ids in given if ids is None)
        raise InputError(
            f"exclude_self needs the ids of queries and database items, got no {missing}: "
            "pass for example the rows of the data set that they come from."
        )
    return None


def _find(wanted: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each wanted id among `ids`, or -1."""
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    repeated = ascending[1:][ascending[1:] == ascending[:-1]]
    if repeated.size:
        raise InputError(
            f"database_ids must be different from each other, found {int(repeated[0])} more than once: "
            "drop the repeated items, or give them ids of their own."
        )
    place = np.minimum(np.searchsorted(ascending, wanted), ascending.size - 1)
    return np.where(ascending[place] == wanted, order[place], -1)
