"""The multi-index search: the nearest codes to a query by tables of stretches of bits, exactly as the scan finds them.

A code at distance d of the query differs in r bits or fewer in some stretch as soon as the sum of all r + 1 is more
than d. So the values of each stretch are visited ring by ring, those that differ in 0 bits, 1 bit, 2 bits ..., next
always the ring that costs least, until no code that was not seen can be as near as the k-th nearest one. Codes tied
with it have all been seen then, too.

What a ring costs is counted before it is visited, and what all rings will cost follows from how near the k-th nearest
code is: at first the distance that the few codes that were seen let hope for, then the k-th nearest of those. A query
that would cost more than the scan is given up, most often after a hundredth of that, and the caller scans for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from centerhash.codes import Packed
from centerhash.core.compiled import compiled
from centerhash.core.parallel import cpu_count, in_threads, split
from centerhash.search.engines.scan import Answer, Integers, Mask, Words, differing, words
from centerhash.search.engines.tables import GROUPED, Rows, Tables
from centerhash.search.engines.tabling import key_of, read_only

COUNTED = 1.25  # a ring costs so much more where it has to be counted yet
ROOM = 256  # codes that a query has room for before it takes more
TOGETHER = 64  # values whose codes are asked from memory before the first of them is needed
# parts of the scan's cost after which the rest is judged first, and not by hope any more
FIRST, TRIED = 256, 32
HOPE = 4.0  # times as many codes as those that were seen speak for
# bytes that a thread of the scan reads while one value or code is looked at: 250 where others use the memory too, 500
# where nobody does; the larger, as tables are to be quicker everywhere
SCANNED = 512
SHARED = 3  # times as many for many queries, which the scan reads them for together
SAMPLE, TYPICAL = 64, 10  # codes that tables are tried with, and answers to each
NEVER = 1 << 62
ROW = np.uint32(GROUPED - 1)


def _prefetch_rule(_context: Any, array: Any, place: Any) -> Any:
    """Tell numba how to ask the memory for an item of an array before it is needed."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        kinds = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *[cgutils.int32_t] * 3])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kinds)
        builder.call(prefetch, [pointer, *(cgutils.int32_t(number) for number in (0, 3, 1))])  # to read, data
        return context.get_dummy_value()

    return types.void(array, place), generate


_prefetch: Any = intrinsic(_prefetch_rule)


@compiled
def _following(flips: Any) -> Any:
    """The next larger number with as many bits set."""
    lowest = flips & -flips
    ripple = flips + lowest
    places = np.int64(differing(np.uint64(lowest - 1), np.uint64(0)))  # by which the lowest bit is shifted
    return ((ripple ^ flips) >> (2 + places)) | ripple


@compiled
def _ways(length: int, ring: int) -> int:
    """How many values differ from one of `length` bits in `ring` bits; NEVER if there are too many to count."""
    ways = 1
    for step in range(ring):
        ways = ways * (length - step) // (step + 1)
        if ways > 1 << 32:
            return NEVER
    return ways


@compiled
def _counted(offsets: Rows, key: Any, length: int, ring: int) -> Any:
    """How many codes a ring of a table has."""
    total, flips = np.int64(0), (1 << ring) - 1
    while flips < 1 << length:
        total += np.int64(offsets[(key ^ flips) + 1]) - np.int64(offsets[key ^ flips])
        flips = _following(flips) if flips else 1 << length
    return total


@compiled
def _left(radii: Integers, costs: Integers, spans: Integers, cut: int) -> float:
    """What is left to do if the k-th nearest code is at distance `cut`, as each ring grows by the next one's size."""
    reached = radii.copy()
    ahead, total = costs.astype(np.float64), 0.0
    for _ in range(cut + 1 - np.sum(radii + 1)):
        best = np.argmin(ahead)
        total += ahead[best] if reached[best] == radii[best] else COUNTED * ahead[best]
        reached[best] += 1
        ahead[best] *= max(1.0, (spans[best, 1] - reached[best]) / (reached[best] + 1.0))
    return total


@compiled
def _share(distance: int, radii: Integers, spans: Integers, bits: int) -> float:
    """About the share of all codes at this distance that was seen, if the bits in which they differ lie anywhere."""
    missed = 1.0
    for table in range(radii.size):
        inside = min(spans[table, 1] / bits, 0.99)
        term, seen = (1 - inside) ** distance, 0.0
        for ring in range(radii[table] + 1):
            seen += term
            term *= (distance - ring) / (ring + 1) * inside / (1 - inside)
        missed *= max(0.0, 1 - seen)
    return max(1 - missed, 1e-9)


@compiled
def _likely(counts: Integers, radii: Integers, spans: Integers, k: int, cut: int, hope: float) -> int:
    """The distance, at most the cut, within which k codes may be, judged by those that were seen; 0 if none was."""
    if not counts.any():
        return 0
    likely = 0.0
    for distance in range(cut):
        if counts[distance]:
            likely += counts[distance] / _share(distance, radii, spans, counts.size - 1)
            if hope * likely >= k:
                return distance
    return cut


@compiled
def _present(head: Any, groups: Any, most: int) -> Any:
    """How many rows of a group may be returned, counted up to `most`; none of a row that is in no group."""
    heads, starts, members, alive = groups
    group = np.searchsorted(heads, np.uint32(head))
    if group == heads.size:
        return 0
    if not alive.size:
        return min(most, np.int64(starts[group + 1]) - np.int64(starts[group]))
    present = 0
    for place in range(starts[group], starts[group + 1]):
        present += alive[members[place]]
        if present == most:
            break
    return present


@compiled
def _seen_before(packed: Packed, row: Any, keys: Integers, spans: Integers, radii: Integers) -> bool:
    """Whether a code was in a ring that was visited."""
    for table in range(radii.size):
        key = key_of(packed, row, spans[table, 0], spans[table, 1])
        if np.int64(differing(key, np.uint64(keys[table]))) <= radii[table]:
            return True
    return False


@compiled
def _some(offsets: Rows, order: Rows, codes: Words, key: int, length: int, flips: int, entries: Rows) -> Any:
    """The entries of the next values of a ring, in an array that may be a longer one, and where to continue."""
    begins, ends, values, total = np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64), 0, 0
    while flips < 1 << length and values < TOGETHER:
        begins[values] = key ^ flips
        _prefetch(offsets, begins[values])
        values += 1
        flips = _following(flips) if flips else 1 << length
    for value in range(values):
        at = begins[value]
        begins[value], ends[value] = offsets[at], offsets[at + 1]
        _prefetch(order, begins[value])
        total += ends[value] - begins[value]
    if total > entries.size:
        entries = np.empty(2 * total, np.uint32)
    total = 0
    for value in range(values):
        for place in range(begins[value], ends[value]):
            entries[total] = order[place]
            _prefetch(codes, np.int64(order[place] & ROW) * codes.shape[1])
            total += 1
    return entries, total, flips


@compiled
def _rows_of(entries: Rows, distances: Integers, cut: int, groups: Any, k: int) -> Any:
    """The distance and the row of all codes within the cut in one number each (m,); of a group its first k rows."""
    heads, starts, members, alive = groups
    total = 0
    for item in range(entries.size):
        if distances[item] <= cut:
            total += 1 if entries[item] < GROUPED else _present(entries[item] & ROW, groups, k)
    found, at = np.empty(total, np.int64), 0
    for item in range(entries.size):
        if distances[item] > cut:
            continue
        if entries[item] < GROUPED:
            found[at] = distances[item] << 32 | entries[item]
            at += 1
            continue
        group, end = np.searchsorted(heads, entries[item] & ROW), min(at + k, total)
        for place in range(starts[group], starts[group + 1]):
            if at == end:
                break
            if not alive.size or alive[members[place]]:
                found[at] = distances[item] << 32 | members[place]
                at += 1
    return found


@compiled
def _search(
    asked: Packed,
    queries: Words,
    number: int,
    index: Any,
    groups: Any,
    bits: int,
    k: int,
    cut: int,
    limit: int,
) -> Any:
    """What `_rows_of` says of the codes that are no farther than `cut` and the k-th nearest row; whether not given up."""
    codes, packed, spans, bases, offsets, orders = index
    query, alive, tables = queries[number], groups[3], len(spans)
    radii, costs, keys = np.full(tables, -1), np.full(tables, -1), np.empty(tables, np.int64)
    for table in range(tables):
        keys[table] = key_of(asked, number, spans[table, 0], spans[table, 1])
    counts = np.zeros(bits + 1, np.int64)
    rows, distances, entries = np.empty(ROOM, np.uint32), np.empty(ROOM, np.int64), np.empty(ROOM, np.uint32)
    near, stored, spent, check = 0, 0, 0, limit // FIRST
    while np.sum(radii + 1) <= cut and not np.any(radii == spans[:, 1]):  # all values of a table: all codes
        for table in range(tables):
            if costs[table] < 0:
                costs[table] = _ways(spans[table, 1], radii[table] + 1)
                if costs[table] <= limit:
                    spent += costs[table]
                    costs[table] += _counted(
                        offsets[bases[table] :], keys[table], spans[table, 1], radii[table] + 1
                    )
        best = np.argmin(costs)
        if spent + costs[best] > check:
            check = 2 * (spent + costs[best])
            hope = HOPE if TRIED * check <= 2 * limit else 1.0
            likely = _likely(counts, radii, spans, k, cut, hope)
            if _left(radii, costs, spans, likely) > limit:
                return np.empty(0, np.int64), False
        spent += costs[best]
        flips = (1 << (radii[best] + 1)) - 1
        while flips < 1 << spans[best, 1]:
            entries, total, flips = _some(
                offsets[bases[best] :], orders[best], codes, keys[best], spans[best, 1], flips, entries
            )
            for item in range(total):
                row = np.int64(entries[item] & ROW)
                distance = np.int64(0)
                for word in range(codes.shape[1]):
                    distance += np.int64(differing(query[word], codes[row, word]))
                if distance > cut or _seen_before(packed, row, keys, spans, radii):
                    continue
                if entries[item] != row:
                    present = _present(row, groups, k)
                else:
                    present = np.int64(alive[row]) if alive.size else np.int64(1)
                if present == 0:
                    continue
                counts[distance] += present
                near += present
                while near - counts[cut] >= k:
                    near -= counts[cut]
                    cut -= 1
                if distance > cut:
                    continue
                if stored == rows.size:
                    kept = 0
                    for place in range(stored):
                        if distances[place] <= cut:
                            rows[kept], distances[kept] = rows[place], distances[place]
                            kept += 1
                    stored = kept
                    if 2 * stored > rows.size:
                        rows = np.append(rows, np.empty(rows.size, np.uint32))
                        distances = np.append(distances, np.empty(distances.size, np.int64))
                rows[stored], distances[stored] = entries[item], distance
                stored += 1
        radii[best] += 1
        costs[best] = -1
    return _rows_of(rows[:stored], distances[:stored], cut, groups, k), True


def nearest(
    tables: Tables,
    packed: Packed,
    codes: Words,
    bits: int,
    k: int,
    cuts: Sequence[int],
    alive: Mask | None = None,
    limit: int | None = None,
) -> list[Answer | None]:
    """The `k` nearest rows to each query (Q, ceil(K/8)) and their distances, none farther than its cut.

    `codes` (n, W) are the words that the tables were made of, `alive` (n,) is 1 where a row may be returned. An
    answer is the scan's: ascending by distance, then row. None: it would take more than `limit` looks at values and
    codes, by default what the scan takes.
    """
    packed = read_only(packed)
    asked = words(packed, bits)
    index = (codes, codes.view(np.uint8), tables.spans, tables.bases, tables.offsets, tables.orders)
    mask = np.empty(0, np.uint8) if alive is None else alive
    groups = (tables.heads, tables.starts, tables.members, mask)
    limit = scan_looks(codes, len(packed)) if limit is None else limit

    def answer(query: int) -> Answer | None:
        found, done = _search(packed, asked, query, index, groups, bits, k, cuts[query], limit)
        if not done:
            return None
        found = np.sort(found)[:k]
        return found & 0xFFFFFFFF, found >> 32

    if len(packed) == 1:
        return [answer(0)]
    answers = list[Answer | None]([None]) * len(packed)
    lots = split(len(packed), max(1, min(len(packed), cpu_count())))

    def work(part: int) -> None:
        for query in range(lots[part].start, lots[part].stop):
            answers[query] = answer(query)

    in_threads(work, len(lots))
    return answers


def pays(tables: Tables, codes: Words, bits: int) -> bool:
    """Whether tables answer most of a sample of their own codes sooner than the scan; few million random codes: none."""
    sample = np.ascontiguousarray(codes[:: max(1, len(codes) // SAMPLE)]).view(np.uint8)
    found = nearest(tables, sample, codes, bits, TYPICAL, [bits] * len(sample), None, scan_looks(codes, 1))
    return 2 * found.count(None) <= len(found)


def scan_looks(codes: Words, queries: int) -> int:
    """How many looks at values and codes, in one thread, take as long as the scan of all codes (n, W) for a query."""
    threads = cpu_count()
    return codes.nbytes // (SCANNED * (threads if queries < 2 * threads else SHARED))
