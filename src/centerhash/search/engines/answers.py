"""Exact answers from several parts: each is searched by its tables or scanned, what they found is put into one order.

The rows of a part are in the order of their ids, so the first k of its answer are all that can be wanted of it,
however many items are tied: only the parts' own k best are compared by id.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.search.engines.base import Filter, Hits, Id
from centerhash.search.engines.idcolumns import joined_ids
from centerhash.search.engines.rankings import ByBoth, Ranking, code_distances
from centerhash.search.engines.snapshot import Part

if TYPE_CHECKING:
    from centerhash.search.engines.scan import Answer, Mask, Words

FEW = 8  # a filter that fewer than one in so many items pass has its codes copied together, else the scan skips others
PLAIN = 1 << 19  # distances that numpy counts rather than import the scan's compiled loops, which takes long
SMALL = 1 << 13  # distances that numpy counts as quickly as these
_SCAN = "centerhash.search.engines.scan"
SPARE = 4  # times k, the nearest by the semantic code among which a first bound on the combined distance is looked for

Found: TypeAlias = tuple[Part, NDArray[np.int64], NDArray[np.int64]]  # a part, rows (m,), distances (m,)


def nearest(parts: Sequence[Part], packed: Packed, bits: int, k: int, only: Filter) -> list[Hits]:
    """The `k` nearest items of each code (Q, ceil(K/8)) that pass the filter."""
    columns, cuts = list[list[Found]](), [bits] * len(packed)
    for place, part in enumerate(parts):
        columns.append(_nearest_rows(part, packed, bits, k, only, cuts))
        if place + 1 < len(parts):
            cuts = [
                int(_cut_of([column[query][2] for column in columns], k, bits))
                for query in range(len(packed))
            ]
    return [_ordered([column[query] for column in columns], k) for query in range(len(packed))]


def within(parts: Sequence[Part], packed: Packed, bits: int, radius: int, only: Filter) -> list[Hits]:
    """All items at distance `radius` or less of each code (Q, ceil(K/8)) that pass the filter."""
    columns = [_rows_within(part, packed, bits, radius, only) for part in parts]
    return [_ordered([column[query] for column in columns], None) for query in range(len(packed))]


def ranked(parts: Sequence[Part], ranking: Ranking, bits: int, k: int, only: Filter) -> Hits:
    """The `k` first items of a ranking that pass the filter, with the distances of their semantic codes."""
    if isinstance(ranking, ByBoth):
        candidates = _near_enough(parts, ranking, bits, k, only)
    else:
        candidates = [(part, _allowed(part, only)) for part in parts]
    found = [(part, *_first(part, rows, ranking, k)) for part, rows in candidates]
    return _ordered(
        [(part, rows, distances) for part, rows, _, distances in found], k, [row[2] for row in found]
    )


def _near_enough(
    parts: Sequence[Part], ranking: ByBoth, bits: int, k: int, only: Filter
) -> list[tuple[Part, NDArray[np.int64]]]:
    """The rows of each part among which the first k must be: no visual distance makes up for a farther code.

    The k-th smallest combined distance of any k items bounds that of the answer, and a semantic distance is never
    larger than the combined one.
    """
    code = ranking.code[None]
    first = [_nearest_rows(part, code, bits, SPARE * k, only)[0] for part in parts]
    known = np.concatenate([np.empty(0), *(ranking.penalties(part.segment, rows) for part, rows, _ in first)])
    if len(known) < k:
        return [(part, rows) for part, rows, _ in first]
    radius = min(int(np.partition(known, k - 1)[k - 1]), bits)
    return [(part, _rows_within(part, code, bits, radius, only)[0][1]) for part in parts]


def _first(
    part: Part, rows: NDArray[np.int64], ranking: Ranking, k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """The k first of these ascending rows of a part, their penalties and semantic distances."""
    penalties = ranking.penalties(part.segment, rows)
    kept = np.isfinite(penalties)
    if ranking.within is not None:
        kept &= ranking.distances(part.segment, rows) <= ranking.within
    if not kept.all():
        rows, penalties = rows[kept], penalties[kept]
    if len(rows) > k:
        near = penalties <= np.partition(penalties, k - 1)[k - 1]
        rows, penalties = rows[near], penalties[near]
    distances = code_distances(part.segment.codes[rows], ranking.code)
    order = np.lexsort((distances, penalties))[:k]  # stable: rows are in the order of ids
    return rows[order], penalties[order], distances[order]


def _allowed(part: Part, only: Filter) -> NDArray[np.int64]:
    """The ascending rows of a part that are there and pass the filter."""
    if not only:
        return part.rows()
    rows = part.segment.matching(only)
    return (rows if part.alive is None else rows[part.alive[rows] == 1]).astype(np.int64)


def _nearest_rows(
    part: Part, packed: Packed, bits: int, k: int, only: Filter, cuts: Sequence[int] | None = None
) -> list[Found]:
    """The k nearest rows of a part to each code; those beyond its cut, if there is one, may be left out."""
    if part.tables is None and _plainly(len(packed) * len(part.segment)):
        return [_cut(found, k) for found in _plain(part, packed, only)]
    from centerhash.search.engines import scan  # numba takes a while to import

    def scanned(asked: Words, database: Words, alive: Mask | None) -> Iterator[Answer]:
        return scan.nearest(asked, database, bits, k, alive)

    return _searched(part, packed, bits, k, only, cuts or [bits] * len(packed), scanned)


def _rows_within(part: Part, packed: Packed, bits: int, radius: int, only: Filter) -> list[Found]:
    """The rows of a part at distance `radius` or less of each code, nearest first."""
    if part.tables is None and _plainly(len(packed) * len(part.segment)):
        near = [(rows, distances, distances <= radius) for _, rows, distances in _plain(part, packed, only)]
        return [_cut((part, rows[kept], distances[kept]), None) for rows, distances, kept in near]
    from centerhash.search.engines import scan

    def scanned(asked: Words, database: Words, alive: Mask | None) -> Iterator[Answer]:
        return scan.within(asked, database, bits, radius, alive)

    return _searched(part, packed, bits, len(part.segment) + 1, only, [radius] * len(packed), scanned)


def _searched(
    part: Part,
    packed: Packed,
    bits: int,
    k: int,
    only: Filter,
    cuts: Sequence[int],
    scanned: Callable[[Words, Words, Mask | None], Iterator[Answer]],
) -> list[Found]:
    """The k nearest rows to each code within its cut, by the tables of the part; what these leave is scanned."""
    from centerhash.search.engines import scan

    found = _by_tables(part, packed, bits, k, only, cuts)
    left = [query for query, answer in enumerate(found) if answer is None]
    if left:
        rows, database, alive = _candidates(part, bits, only)
        asked = scan.words(packed[left], bits)
        for query, answer in zip(left, scanned(asked, database, alive), strict=True):
            found[query] = _of(rows, answer)
    return [(part, *answer) for answer in found if answer is not None]


def _by_tables(
    part: Part, packed: Packed, bits: int, k: int, only: Filter, cuts: Sequence[int]
) -> list[Answer | None]:
    """The answers that the tables of a part give, None where they give none.

    A filter is applied to more answers than are wanted: those that pass are the first of all that do, if k of them are
    left, or if no more items are within the cut.
    """
    tables, wanted = part.tables, _wanted(part, k, only)
    if tables is None or wanted is None:
        return [None] * len(packed)
    from centerhash.search.engines import multi_index, scan

    database = scan.words(np.asarray(part.segment.codes), bits)
    found = multi_index.nearest(tables, packed, database, bits, wanted, cuts, part.alive)
    if not only:
        return found
    for query, answer in enumerate(found):
        if answer is not None:
            rows, distances = answer
            passing = part.segment.passing(rows, only)
            enough = len(rows) < wanted or np.count_nonzero(passing) >= k
            found[query] = (rows[passing][:k], distances[passing][:k]) if enough else None
    return found


def _wanted(part: Part, k: int, only: Filter) -> int | None:
    """How many answers to ask for, so that k are likely to pass the filter; None if the items of a label are fewer."""
    total, carrying = len(part.segment), len(part.segment)
    for label in only.having:
        number = part.segment.label_numbers.get(label)
        carrying = 0 if number is None else min(carrying, len(part.segment.members[number]))
    if carrying * FEW <= total:
        return None
    return min(total + 1, k if not only else SPARE * k * total // carrying)


def _plainly(distances: int) -> bool:
    """Whether numpy is to count so many distances."""
    return distances <= (SMALL if _SCAN in sys.modules else PLAIN)


def _plain(part: Part, packed: Packed, only: Filter) -> list[Found]:
    """Distances of all rows that may be found to each code."""
    rows = _allowed(part, only)
    codes = part.segment.codes[rows]
    return [(part, rows, code_distances(codes, code)) for code in packed]


def _cut(found: Found, k: int | None) -> Found:
    """The k nearest of ascending rows, nearest first; None: all."""
    part, rows, distances = found
    if k is not None and len(rows) > k:
        near = np.flatnonzero(distances <= np.partition(distances, k - 1)[k - 1])
        rows, distances = rows[near], distances[near]
    order = np.argsort(distances, kind="stable")[:k]
    return part, rows[order], distances[order]


def _candidates(part: Part, bits: int, only: Filter) -> tuple[NDArray[np.uint32] | None, Words, Mask | None]:
    """The rows that pass the filter (None: all), their words, and which of them are there (None: all)."""
    from centerhash.search.engines import scan

    alive, rows = part.alive, None
    if only:
        rows = part.segment.matching(only)
        if len(rows) * FEW > len(part.segment):
            allowed = np.zeros(len(part.segment), np.uint8)
            allowed[rows] = 1
            rows, alive = None, allowed if alive is None else allowed & alive
        else:
            rows, alive = (rows if alive is None else rows[alive[rows] == 1]), None
    codes = np.asarray(part.segment.codes) if rows is None else part.segment.codes[rows]
    database = scan.words(codes, bits)
    database.flags.writeable = False  # as mapped ones are: numba compiles the two kinds apart
    return rows, database, alive


def _of(rows: NDArray[np.uint32] | None, answer: Answer) -> Answer:
    """An answer's positions as rows of the part."""
    positions, distances = answer
    return positions if rows is None else rows[positions].astype(np.int64), distances


def _ordered(
    found: Sequence[Found], k: int | None, penalties: Sequence[NDArray[np.float64]] | None = None
) -> Hits:
    """The `k` first (None: all) of what the parts found, by penalty if there are any, by distance, then id."""
    some = [place for place, (_, rows, _) in enumerate(found) if len(rows)]
    if not some:
        return Hits((), np.empty(0, np.int64))
    if len(some) == 1:
        part, rows, distances = found[some[0]]
        return Hits(tuple(part.segment.ids.at(rows)), distances)
    keys = [found[place][2] if penalties is None else penalties[place] for place in some]
    cut = _cut_of(keys, k)
    near = [np.flatnonzero(key <= cut) for key in keys]
    found = [
        (part, rows[kept], distances[kept])
        for (part, rows, distances), kept in zip((found[place] for place in some), near, strict=True)
    ]
    first: NDArray[Any] = np.concatenate([key[kept] for key, kept in zip(keys, near, strict=True)])
    distances = np.concatenate([distances for _, _, distances in found])
    raw = joined_ids([part.segment.ids.raw(rows) for part, rows, _ in found])
    if isinstance(raw, list):
        order = np.array(
            sorted(range(len(raw)), key=lambda place: (first[place], distances[place], raw[place])), np.int64
        )
    else:
        order = np.lexsort((raw, distances, first))
    ids: list[Id] = [id for part, rows, _ in found for id in part.segment.ids.at(rows)]
    chosen = order[:k]
    return Hits(tuple(ids[place] for place in chosen.tolist()), distances[chosen])


def _cut_of(keys: Sequence[NDArray[Any]], k: int | None, most: float = float("inf")) -> float:
    """The k-th smallest of all keys, or `most` where all are wanted."""
    together = np.concatenate(keys)
    return most if k is None or len(together) <= k else float(np.partition(together, k - 1)[k - 1])
