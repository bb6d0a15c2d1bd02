"""The door of the evaluation: what callers pass, checked once, in the kernels' form; and rankings block by block.

The memory follows the database and the depth of the ranking, not Q x N, and an interrupt is heard between two
blocks of queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import as_codes, check_packed, pack, to_words
from centerhash.core.checks import as_array, whole_number
from centerhash.core.errors import InputError
from centerhash.evaluation import kernels

LARGEST_GRADE = 1000  # 2^r for r shared labels, summed over many places, stays a finite float64
BLOCK_QUERIES = 256
BLOCK_PLACES = 1 << 22  # ranked places held at once; fewer queries per block when the ranking is deep


@dataclass(frozen=True)
class Items:
    """Codes and labels of the queries or of the database, as words."""

    codes: NDArray[np.uint64]  # (N, W)
    labels: NDArray[np.uint64]  # (N, L)
    label_numbers: NDArray[np.int64]  # (N,)
    bits: int
    classes: int

    def __len__(self) -> int:
        return len(self.codes)


def read_items(codes: NDArray[Any], labels: NDArray[Any], bits: int | None, name: str) -> Items:
    """Check the codes and labels of the `name` ("query", "database") and turn them into words."""
    packed, length = code_words(codes, bits, f"{name}_codes")
    flags, numbers = label_words(labels, f"{name}_labels")
    same("items", len(packed), len(flags), (f"{name}_codes", f"{name}_labels"))
    return Items(packed, flags, numbers, length, np.shape(labels)[1])


@dataclass(frozen=True)
class Block:
    """The rankings of some queries, as `kernels.rank` returns them."""

    counts: NDArray[np.int64]  # (Q, K+1) items by distance
    relevant: NDArray[np.int64]  # (Q, K+1) relevant items by distance
    grades: NDArray[np.int64]  # (Q, most_shared+1) items by number of shared labels
    top: NDArray[np.uint16]  # (Q, depth) number of shared labels by place


@dataclass(frozen=True)
class Task:
    """Queries and database to rank; ties keep the order in which the database stands here."""

    queries: Items
    database_codes: NDArray[np.uint64]  # (W, N)
    database_labels: NDArray[np.uint64]  # (L, N)
    own: NDArray[np.int64]  # (Q,) position of the item to leave out, or -1
    most_shared: int
    k: int
    precision_at: tuple[int, ...]

    @property
    def depth(self) -> int:
        """The number of places that some metric looks at."""
        items: int = self.database_codes.shape[1]
        return min(max((self.k, *self.precision_at)), items)

    def blocks(self) -> Iterator[Block]:
        """Rank the database for all queries, so many at a time that memory stays bounded."""
        rows = min(BLOCK_QUERIES, max(8, BLOCK_PLACES // self.depth))
        for start in range(0, len(self.queries), rows):
            yield self._rank(slice(start, start + rows))

    def _rank(self, rows: slice) -> Block:
        arrays = kernels.rank(
            self.queries.codes[rows],
            self.database_codes,
            self.queries.labels[rows],
            self.database_labels,
            self.own[rows],
            self.queries.bits,
            self.most_shared,
            self.depth,
        )
        return Block(*arrays)


def make_task(
    queries: Items,
    database: Items,
    *,
    k: int,
    precision_at: Iterable[int],
    left_out: NDArray[np.int64] | None,
    seed: int,
) -> Task:
    """Put the database into the seeded random order that breaks ties; `left_out` (Q,) are positions or -1."""
    names = ("query_codes", "database_codes"), ("query_labels", "database_labels")
    same("bits", queries.bits, database.bits, names[0])
    same("classes", queries.classes, database.classes, names[1])
    if not isinstance(precision_at, Iterable):
        raise InputError(
            f"precision_at must be numbers of places such as (1, 10, 100), got {precision_at!r}."
        )
    order = np.random.default_rng(whole_number(seed, "seed", 0)).permutation(len(database))
    return Task(
        queries=queries,
        database_codes=planes(database.codes[order]),
        database_labels=planes(database.labels[order]),
        own=np.full(len(queries), -1) if left_out is None else _after(order, left_out),
        most_shared=_most_shared(queries.label_numbers, database.label_numbers),
        k=whole_number(k, "k", 1),
        precision_at=tuple(whole_number(place, "each place in precision_at", 1) for place in precision_at),
    )


def _after(order: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where `positions` (-1 stays -1) end up when the items are put into `order`."""
    places = np.empty_like(order)
    places[order] = np.arange(order.size)
    return np.where(positions >= 0, places[positions], -1)


def _most_shared(query_numbers: NDArray[np.int64], database_numbers: NDArray[np.int64]) -> int:
    """Return a bound for the labels that a query and an item share, from the labels that each has."""
    bound = int(min(query_numbers.max(), database_numbers.max()))
    if bound > LARGEST_GRADE:
        raise InputError(
            f"a query and an item may share {bound} labels, at most {LARGEST_GRADE} can be graded: "
            "NDCG's gain of 2^r would overflow."
        )
    return bound


# What callers pass

LONGEST = int(np.iinfo(np.uint16).max) - 1  # distances are kept as uint16, and one more value marks no item


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
