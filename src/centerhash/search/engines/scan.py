"""The exact scan: which codes are nearest to a query, by reading all of them at the speed of the memory.

A code is a row of W words, of the widest unsigned type that divides its bytes, so that packed codes of any length
are scanned where they lie, in a mapped file too. The loop that reads them only counts how many of a few hundred
rows are near enough, which becomes vector instructions; "near enough" is a cut that falls as better items are found,
so a closer look is rare. Of tied items the first positions count, so what ties with the last of k items that were found
is passed over like all others, however many there are.

Memory does not grow with N: every query has room for a fixed number of items. Where more are within a radius, the query
is scanned once more when their number is known. As in `evaluation.kernels`, plain threads run loops that
release the interpreter lock: over parts of the database for a few queries, over queries for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

from centerhash.codes import Packed, packed_width
from centerhash.core.compiled import compiled
from centerhash.core.parallel import cpu_count, in_threads, split

Words: TypeAlias = NDArray[Any]  # (n, W) of an unsigned type
Small: TypeAlias = NDArray[np.uint16]
Integers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.uint8]
Answer: TypeAlias = tuple[Integers, Integers]  # positions and distances (m,)
Database: TypeAlias = tuple[Words, Mask | None]  # (N, W), and which rows (N,) may be returned; None: all

STRIDE, STEP = 512, 32  # rows counted at once; where some are near, again in steps, then one by one
CACHED_BYTES = 1 << 18  # of the database, read from memory once for all queries: fits the L2 cache
THREAD_BYTES = 1 << 20  # to read for a thread: a scan of less is over before another one has started
SPARE = 1024  # items a query has room for beyond k
ROOM = 1 << 22  # items that the queries of one batch have room for, together
WIDEST_INTERLEAVED = 5  # rows of more words are added up word by word: LLVM would gather them instead

_NO_MASK: Mask = np.empty(0, np.uint8)
CUT, NEAR, STORED = range(3)  # the columns of a query's state in a part of the database


def _differing_rule(_context: Any, first: Any, second: Any) -> Any:
    """Tell numba how to count the bits in which two words differ, in their own width."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(builder.xor(*arguments))

    return first(first, second), generate


differing: Any = intrinsic(_differing_rule)


def words(packed: Packed, bits: int) -> Words:
    """View packed codes (n, ceil(K/8)) as words (n, W), without a copy when the rows are contiguous."""
    width = packed_width(bits)
    size = next(size for size in (8, 4, 2, 1) if width % size == 0)
    return np.ascontiguousarray(packed).view(f"u{size}")


@compiled
def _keep(
    position: int,
    distance: np.int64,
    k: int,
    state: Integers,
    counts: Integers,
    positions: Integers,
    distances: Small,
) -> None:
    """Note an item within the cut, and lower the cut below the k-th nearest distance: what ties later comes too late."""
    counts[distance] += 1
    state[NEAR] += 1
    while state[NEAR] >= k:
        state[NEAR] -= counts[state[CUT]]
        state[CUT] -= 1
    if state[STORED] == positions.size:  # what is still wanted moves to the front
        stored, tied = 0, k - state[NEAR]
        for place in range(positions.size):
            last = distances[place] == state[CUT] + 1
            if distances[place] <= state[CUT] or (last and tied > 0):
                positions[stored], distances[stored] = positions[place], distances[place]
                stored += 1
                tied -= last
        state[STORED] = stored
    if state[STORED] < positions.size:
        positions[state[STORED]], distances[state[STORED]] = position, distance
        state[STORED] += 1


@cache
def _scanner(width: int) -> Callable[..., None]:
    """Compile the scan of rows of `width` words: a constant, so that LLVM unrolls the loop over them."""

    def scan(
        queries: Words,
        database: Words,
        alive: Mask,
        first: int,
        k: int,
        block: int,
        states: Integers,
        counts: Integers,
        positions: Integers,
        distances: Small,
    ) -> None:
        """Scan the rows of `database`, which start at position `first`, for all queries; an empty mask allows all."""
        for top in range(0, database.shape[0], block):
            bottom = min(top + block, database.shape[0])
            for number in range(queries.shape[0]):
                query, state = queries[number], states[number]
                start, closer = top, top  # rows before `closer` are counted in small steps
                while start < bottom and state[CUT] >= 0:
                    end = min(start + (STEP if start < closer else STRIDE), bottom)
                    rows = database[start:end]
                    cut = np.uint64(state[CUT])
                    near: Any = 0
                    if width <= WIDEST_INTERLEAVED:
                        flat = rows.reshape(-1)
                        for item in range(np.uint64(rows.shape[0])):  # unsigned: no test for negative indices
                            distance = np.uint64(0)
                            for word in range(np.uint64(width)):
                                distance += differing(query[word], flat[item * np.uint64(width) + word])
                            near += distance <= cut
                    else:
                        for row in range(rows.shape[0]):
                            distance = np.uint64(0)
                            for column in range(width):
                                distance += differing(query[column], rows[row, column])
                            near += distance <= cut
                    if near and start >= closer:
                        closer = end
                        continue
                    for row in range(rows.shape[0] if near else 0):
                        if alive.size and not alive[start + row]:
                            continue
                        distance = np.uint64(0)
                        for column in range(width):
                            distance += differing(query[column], rows[row, column])
                        if np.int64(distance) <= state[CUT]:
                            _keep(
                                first + start + row,
                                np.int64(distance),
                                k,
                                state,
                                counts[number],
                                positions[number],
                                distances[number],
                            )
                    start = end

    return compiled(scan)


class _Found:
    """What the scans of P parts of a database noted for Q queries: states, counts by distance, items."""

    def __init__(self, parts: int, queries: int, bits: int, room: int) -> None:
        self.states = np.zeros((parts, queries, 3), np.int64)
        self.counts = np.zeros((parts, queries, bits + 1), np.int64)
        self.positions = np.empty((parts, queries, room), np.int64)
        self.distances = np.empty((parts, queries, room), np.uint16)


def _scan(
    queries: Words, databases: Sequence[Database], bits: int, cuts: Integers, k: int, room: int
) -> list[_Found]:
    """Scan with a thread for each part of the queries if there are many, else of each database if they are large.

    A thread takes its part of one database after the other, and what it found in the first ones lowers the cut in
    the next. What ties with the k-th nearest stays within it: ties of different databases are not in order yet.
    """
    threads = queries.shape[0] * sum(rows.nbytes for rows, _ in databases) // THREAD_BYTES
    threads = 1 if threads <= 1 else min(threads, cpu_count())
    over_queries = queries.shape[0] >= 2 * threads
    parts = 1 if over_queries else threads
    lots = split(queries.shape[0], threads) if over_queries else [slice(None)] * threads
    found = [_Found(parts, queries.shape[0], bits, room) for _ in databases]
    scan = _scanner(queries.shape[1])

    def work(part: int) -> None:
        lot, row = lots[part], part % parts
        asked, within = queries[lot], cuts[lot]
        counts = np.zeros((asked.shape[0], bits + 1), np.int64)
        for place, ((rows, alive), noted) in enumerate(zip(databases, found, strict=True)):
            if place:
                counts += found[place - 1].counts[row, lot]
                within = np.minimum(within, _reached(counts, k, bits))
            noted.states[row, lot, CUT] = within
            stretch = slice(0, len(rows)) if over_queries else split(len(rows), threads)[part]
            scan(
                asked,
                rows[stretch],
                _NO_MASK if alive is None else alive[stretch],
                stretch.start,
                k,
                max(1, len(rows)) if queries.shape[0] == 1 else _block(rows),
                noted.states[row, lot],
                noted.counts[row, lot],
                noted.positions[row, lot],
                noted.distances[row, lot],
            )

    in_threads(work, threads)
    return found


def _block(rows: Words) -> int:
    """Rows of a database that all queries are compared with while they are in the cache."""
    return max(1, CACHED_BYTES // max(1, rows.strides[0]) // STRIDE) * STRIDE


def _reached(counts: Integers, k: int, bits: int) -> Integers:
    """The distances (Q,) within which k items were counted (Q, K + 1); K where there are fewer."""
    enough = counts.cumsum(axis=1) >= k
    return np.where(enough.any(axis=1), enough.argmax(axis=1), bits)


@compiled
def _sorted(states: Integers, positions: Integers, distances: Small, k: int, bits: int) -> Any:
    """The k first items of Q queries of what P parts found, (P, Q, room): (2, M), nearest first, and where each's end."""
    queries = states.shape[1]
    ends = np.empty(queries, np.int64)
    for query in range(queries):
        stored = states[:, query, STORED].sum()
        ends[query] = (ends[query - 1] if query else 0) + min(k, stored)
    items = np.empty((2, ends[-1]), np.int64)
    for query in range(queries):  # a stable counting sort
        starts = np.zeros(bits + 2, np.int64)
        starts[0] = ends[query - 1] if query else 0
        for part in range(states.shape[0]):
            for item in range(states[part, query, STORED]):
                starts[distances[part, query, item] + 1] += 1
        for distance in range(bits + 1):
            starts[distance + 1] += starts[distance]
        for part in range(states.shape[0]):
            for item in range(states[part, query, STORED]):
                distance = distances[part, query, item]
                place = starts[distance]
                if place < ends[query]:
                    items[0, place], items[1, place] = positions[part, query, item], distance
                starts[distance] = place + 1
    return items, ends


def several(
    queries: Words, databases: Sequence[Database], bits: int, k: int | None, cuts: Integers
) -> Iterator[list[Answer]]:
    """Yield for each query an answer of each of S databases: what is within its cut, nearest first, then by position.

    All of the k nearest in all databases together are there, with what ties with the last, at most k of each database;
    None: all items. Queries (Q, W) and databases (N, W), at least one, are `words`, a mask (N,) is 1 where an item may
    be returned, cuts (Q,) are distances.
    """
    largest, total = max(len(rows) for rows, _ in databases), sum(len(rows) for rows, _ in databases)
    k, room = (total + 1, SPARE) if k is None else (min(k, total + 1), min(k, largest) + SPARE)
    yield from _answers(queries, databases, bits, cuts, k, room)


def _answers(
    queries: Words, databases: Sequence[Database], bits: int, cuts: Integers, k: int, room: int
) -> Iterator[list[Answer]]:
    """Yield the answers to each query, as many together as have room; one that has too little is scanned again."""
    together = max(1, ROOM // room // len(databases))
    for first in range(0, queries.shape[0], together):
        asked, within = queries[first : first + together], cuts[first : first + together]
        found = _scan(asked, databases, bits, within, k, room)
        items = [_sorted(noted.states, noted.positions, noted.distances, k, bits) for noted in found]
        needed = np.max([noted.states[:, :, NEAR].max(axis=0) for noted in found], axis=0).tolist()
        for query, wanted in enumerate(needed):
            if wanted > room:
                alone = slice(query, query + 1)
                yield from _answers(asked[alone], databases, bits, within[alone], k, wanted)
            else:
                parts = [slice(ends[query - 1] if query else 0, ends[query]) for _, ends in items]
                yield [(both[0, part], both[1, part]) for (both, _), part in zip(items, parts, strict=True)]


def nearest(
    queries: Words, database: Words, bits: int, k: int, alive: Mask | None = None
) -> Iterator[Answer]:
    """Yield for each query the positions of its k nearest items, with distances: nearest first, then by position.

    Queries (Q, W) and database (N, W) are `words`; `alive` (N,) is 1 where an item may be returned.
    """
    cuts = np.full(len(queries), bits)
    return (answer for [answer] in several(queries, [(database, alive)], bits, k, cuts))


def within(
    queries: Words, database: Words, bits: int, radius: int, alive: Mask | None = None
) -> Iterator[Answer]:
    """Yield for each query all positions, with distances, at most `radius` away, in the order of `nearest`."""
    cuts = np.full(len(queries), radius)
    return (answer for [answer] in several(queries, [(database, alive)], bits, None, cuts))
