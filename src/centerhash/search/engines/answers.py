"""Exact answers from several parts: each is scanned, and what they found is put into one order.

The rows of a part are in the order of their ids, so the first k of its answer are all that can be wanted of it,
however many items are tied: only the parts' own k best are compared by id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.search.engines.base import Hits, Id
from centerhash.search.engines.idcolumns import joined_ids
from centerhash.search.engines.snapshot import Part

if TYPE_CHECKING:
    from centerhash.search.engines.scan import Answer, Mask, Words

FEW = 8  # a label that fewer than one in so many items carry has its codes copied together, else the scan skips others

Found: TypeAlias = tuple[Part, NDArray[np.int64], NDArray[np.int64]]  # a part, rows (m,), distances (m,)


def nearest(parts: Sequence[Part], packed: Packed, bits: int, k: int, labels: Sequence[str]) -> list[Hits]:
    """The `k` nearest items of each code (Q, ceil(K/8)) that carry all the labels."""
    from centerhash.search.engines import scan  # numba takes a while to import

    def scanned(queries: Words, database: Words, alive: Mask | None) -> Iterator[Answer]:
        for rows, distances in scan.nearest(queries, database, bits, k, alive):
            yield rows[:k].copy(), distances[:k].copy()  # without the ties, which would stay in memory

    queries = scan.words(packed, bits)
    columns = []
    for part in parts:
        rows, database, alive = _candidates(part, bits, labels)
        columns.append([_of(part, rows, answer) for answer in scanned(queries, database, alive)])
    return [_ordered([column[query] for column in columns], k) for query in range(len(packed))]


def within(
    parts: Sequence[Part], packed: Packed, bits: int, radius: int, labels: Sequence[str]
) -> list[Hits]:
    """All items at distance `radius` or less of each code (Q, ceil(K/8)) that carry all the labels."""
    from centerhash.search.engines import scan

    queries = scan.words(packed, bits)
    columns = []
    for part in parts:
        rows, database, alive = _candidates(part, bits, labels)
        found = scan.within(queries, database, bits, radius, alive)
        columns.append([_of(part, rows, answer) for answer in found])
    return [_ordered([column[query] for column in columns], None) for query in range(len(packed))]


def _candidates(
    part: Part, bits: int, labels: Sequence[str]
) -> tuple[NDArray[np.uint32] | None, Words, Mask | None]:
    """The rows that carry the labels (None: all), their words, and which of them are there (None: all)."""
    from centerhash.search.engines import scan

    codes, alive, rows = part.segment.codes, part.alive, None
    if labels:
        rows = part.segment.carrying(labels)
        if len(rows) * FEW > len(part.segment):
            allowed = np.zeros(len(part.segment), np.uint8)
            allowed[rows] = 1
            rows, alive = None, allowed if alive is None else allowed & alive
        else:
            rows, alive = (rows if alive is None else rows[alive[rows] == 1]), None
            codes = codes[rows]
    database = scan.words(codes, bits)
    database.flags.writeable = False  # as mapped ones are: numba compiles the two kinds apart
    return rows, database, alive


def _of(part: Part, rows: NDArray[np.uint32] | None, answer: Answer) -> Found:
    """An answer's positions as rows of the part."""
    positions, distances = answer
    return part, positions if rows is None else rows[positions].astype(np.int64), distances


def _ordered(found: Sequence[Found], k: int | None) -> Hits:
    """The `k` first (None: all) of what the parts found, by distance, then id."""
    found = [(part, rows, distances) for part, rows, distances in found if len(rows)]
    if not found:
        return Hits((), np.empty(0, np.int64))
    if len(found) == 1:
        part, rows, distances = found[0]
        return Hits(tuple(part.segment.ids.at(rows)), distances)
    found = _within_cut(found, k)
    distances = np.concatenate([distances for _, _, distances in found])
    raw = joined_ids([part.segment.ids.raw(rows) for part, rows, _ in found])
    if isinstance(raw, list):
        order = np.array(sorted(range(len(raw)), key=lambda place: (distances[place], raw[place])), np.int64)
    else:
        order = np.lexsort((raw, distances))
    ids: list[Id] = [id for part, rows, _ in found for id in part.segment.ids.at(rows)]
    chosen = order[:k]
    return Hits(tuple(ids[place] for place in chosen.tolist()), distances[chosen])


def _within_cut(found: Sequence[Found], k: int | None) -> list[Found]:
    """Leave out what is farther than the k-th nearest of all."""
    distances = np.concatenate([distances for _, _, distances in found])
    if k is None or len(distances) <= k:
        return list(found)
    cut = np.partition(distances, k - 1)[k - 1]
    return [(part, rows[distances <= cut], distances[distances <= cut]) for part, rows, distances in found]
