"""Exact answers from several parts, searched by their tables or scanned together, then put into one order.

The rows of a part are in the order of their ids, so the first k of its answer are all that can be wanted of it,
however many items are tied: only the parts' own k best are compared by id.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
    return [_ordered(found, k) for found in _found(parts, packed, bits, k, bits, only)]


def within(parts: Sequence[Part], packed: Packed, bits: int, radius: int, only: Filter) -> list[Hits]:
    """All items at distance `radius` or less of each code (Q, ceil(K/8)) that pass the filter."""
    return [_ordered(found, None) for found in _found(parts, packed, bits, None, radius, only)]


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
    [first] = _found(parts, code, bits, SPARE * k, bits, only)
    known = np.concatenate([np.empty(0), *(ranking.penalties(part.segment, rows) for part, rows, _ in first)])
    if len(known) < k:
        return [(part, rows) for part, rows, _ in first]
    radius = min(int(np.partition(known, k - 1)[k - 1]), bits)
    [near] = _found(parts, code, bits, None, radius, only)
    return [(part, rows) for part, rows, _ in near]


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


def _found(
    parts: Sequence[Part], packed: Packed, bits: int, k: int | None, radius: int, only: Filter
) -> list[list[Found]]:
    """For each code what each part has of its k nearest (None: all) within the radius, nearest first.

    At most k of each part, and all that may be among the k first by distance and id. Small parts and those with tables
    come first; what they leave is scanned together, within the distance that is known to be enough by then.
    """
    found, cuts = list[list[Found]]([] for _ in packed), [radius] * len(packed)
    left = defaultdict[tuple[int, ...], list[Part]](list)
    for part in parts:
        answers = _unscanned(part, packed, bits, k, only, cuts)
        for query, answer in enumerate(answers):
            if answer is not None:
                found[query].append((part, *answer))
                cuts[query] = int(_cut_of([distances for *_, distances in found[query]], k, cuts[query]))
        left[tuple(query for query, answer in enumerate(answers) if answer is None)].append(part)
    for queries, some in left.items():
        if queries:
            scanned = _scanned(some, packed[list(queries)], bits, k, only, [cuts[query] for query in queries])
            for query, more in zip(queries, scanned, strict=True):
                found[query] += more
    return found


def _unscanned(
    part: Part, packed: Packed, bits: int, k: int | None, only: Filter, cuts: Sequence[int]
) -> list[Answer | None]:
    """What numpy finds for each code if the part is small, or its tables; None where it has to be scanned."""
    if part.tables is not None:
        return _by_tables(part, packed, bits, len(part.segment) + 1 if k is None else k, only, cuts)
    if not _plainly(len(packed) * len(part.segment)):
        return [None] * len(packed)
    rows = _allowed(part, only)
    codes = part.segment.codes[rows]
    return [_cut(rows, code_distances(codes, code), k, cut) for code, cut in zip(packed, cuts, strict=True)]


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


def _cut(rows: NDArray[np.int64], distances: NDArray[np.int64], k: int | None, cut: int) -> Answer:
    """The k nearest (None: all) of ascending rows within the cut, nearest first."""
    if k is not None and len(rows) > k:
        cut = min(cut, int(np.partition(distances, k - 1)[k - 1]))
    near = np.flatnonzero(distances <= cut)
    order = near[np.argsort(distances[near], kind="stable")[:k]]
    return rows[order], distances[order]


def _scanned(
    parts: Sequence[Part], packed: Packed, bits: int, k: int | None, only: Filter, cuts: Sequence[int]
) -> Iterator[list[Found]]:
    """What a scan of all these parts finds for each code within its cut."""
    from centerhash.search.engines import scan  # numba takes a while to import

    candidates = [_candidates(part, bits, only) for part in parts]
    databases = [(database, alive) for _, database, alive in candidates]
    for answers in scan.several(scan.words(packed, bits), databases, bits, k, np.array(cuts)):
        yield [
            (part, positions if rows is None else rows[positions].astype(np.int64), distances)
            for part, (rows, _, _), (positions, distances) in zip(parts, candidates, answers, strict=True)
        ]


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
    return most if k is None or len(together) < k else float(np.partition(together, k - 1)[k - 1])
