"""What the metrics are worked out from: checked inputs in the kernels' form, and rankings block by block.

The memory follows the database and the depth of the ranking, not Q x N, and an interrupt is heard between two
blocks of queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.arrays import whole_number
from centerhash.core.errors import InputError
from centerhash.evaluation import inputs, kernels

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
    code_words, length = inputs.code_words(codes, bits, f"{name}_codes")
    label_words, numbers = inputs.label_words(labels, f"{name}_labels")
    inputs.same("items", len(code_words), len(label_words), (f"{name}_codes", f"{name}_labels"))
    return Items(code_words, label_words, numbers, length, np.shape(labels)[1])


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
    inputs.same("bits", queries.bits, database.bits, names[0])
    inputs.same("classes", queries.classes, database.classes, names[1])
    order = np.random.default_rng(whole_number(seed, "seed", 0)).permutation(len(database))
    return Task(
        queries=queries,
        database_codes=inputs.planes(database.codes[order]),
        database_labels=inputs.planes(database.labels[order]),
        own=np.full(len(queries), -1) if left_out is None else _after(order, left_out),
        most_shared=_most_shared(queries.label_numbers, database.label_numbers),
        k=whole_number(k, "k", 1),
        precision_at=inputs.cutoffs(precision_at),
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
