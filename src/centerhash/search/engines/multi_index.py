"""The multi-index search: the nearest codes to a query by tables of stretches of bits, exactly as the scan finds them.

A code at distance d of the query differs in r bits or fewer in some stretch as soon as the sum of all r + 1 is more
than d. So the values of each stretch are visited ring by ring, those that differ in 0 bits, 1 bit, 2 bits ..., next
always the ring that costs least, until no code that was not seen can be as near as the k-th nearest one. Codes tied
with it have all been seen then, too. What a ring costs is counted before it is visited; a query that would cost more
than the scan is given up early, and the caller scans for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from centerhash.codes import Packed, packed_width
from centerhash.core.compiled import compiled, processors
from centerhash.search.engines.scan import Answer, Integers, Mask, Words, differing, in_threads, split, words
from centerhash.search.engines.tables import GROUPED, Rows, Tables
from centerhash.search.engines.tabling import keys_of, read_only

COUNTED = 1.25  # a ring costs so much more where it has to be counted yet
ROOM = 256  # codes that a query has room for before it takes more
TRIED = 12  # a query that would cost more than the scan is given up after a twelfth of that
SCANNED = 256  # bytes that a thread of the scan reads while one value or code is looked at, measured
TOGETHER = 3  # times as many for many queries, which the scan reads them for together
NEVER = 1 << 62


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
        if flips == 0:
            break
        flips = _following(flips)
    return total


@compiled
def _left(radii: Integers, costs: Integers, lengths: Integers, cut: int) -> float:
    """What is left to do if the k-th nearest code is at distance `cut`, as each ring grows by the next one's size."""
    reached = radii.copy()
    ahead, total = costs.astype(np.float64), 0.0
    for _ in range(cut + 1 - np.sum(radii + 1)):
        best = 0
        for table in range(1, ahead.size):
            if ahead[table] < ahead[best]:
                best = table
        total += ahead[best] if reached[best] == radii[best] else COUNTED * ahead[best]
        reached[best] += 1
        ahead[best] *= max(1.0, (lengths[best] - reached[best]) / (reached[best] + 1.0))
    return total


@compiled
def _present(head: int, heads: Rows, starts: Rows, members: Rows, alive: Mask, most: int) -> Any:
    """How many rows of a group may be returned, counted up to `most`; none of a row that is in no group."""
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
def _seen_before(query: Words, code: Words, masks: Words, radii: Integers) -> bool:
    """Whether a code was in a ring that was visited."""
    for table in range(radii.size):
        distance = np.int64(0)
        for word in range(code.size):
            distance += np.int64(differing(query[word] & masks[table, word], code[word] & masks[table, word]))
        if distance <= radii[table]:
            return True
    return False


@compiled
def _search(
    query: Words,
    keys: Rows,
    codes: Words,
    lengths: Integers,
    bases: Integers,
    offsets: Rows,
    orders: Rows,
    masks: Words,
    heads: Rows,
    starts: Rows,
    members: Rows,
    alive: Mask,
    bits: int,
    k: int,
    cut: int,
    limit: int,
) -> Any:
    """The codes that are no farther than `cut` and the k-th nearest row, and the last cut, or -1: given up."""
    tables = lengths.size
    radii, costs = np.full(tables, -1, np.int64), np.full(tables, -1, np.int64)
    counts = np.zeros(bits + 1, np.int64)
    rows, distances = np.empty(ROOM, np.uint32), np.empty(ROOM, np.int64)
    near, stored, spent, promising = 0, 0, 0, False
    while np.sum(radii + 1) <= cut and not np.any(radii == lengths):  # all values of a table: all codes
        best = 0
        for table in range(tables):
            ring = radii[table] + 1
            if costs[table] < 0:
                costs[table] = _ways(lengths[table], ring)
                if costs[table] <= limit:
                    spent += costs[table]
                    costs[table] += _counted(
                        offsets[bases[table] :], np.int64(keys[table]), lengths[table], ring
                    )
            if costs[table] < costs[best]:
                best = table
        if TRIED * (spent + costs[best]) > limit:
            left = _left(radii, costs, lengths, cut)
            if left > (limit if promising else limit - spent):  # what is spent is lost either way
                return rows[:0], distances[:0], -1
            promising = True
        spent += costs[best]
        table_offsets, key, flips = offsets[bases[best] :], np.int64(keys[best]), (1 << (radii[best] + 1)) - 1
        while flips < 1 << lengths[best]:
            for place in range(table_offsets[key ^ flips], table_offsets[(key ^ flips) + 1]):
                entry = orders[best, place]
                row = entry & np.uint32(GROUPED - 1)
                distance = np.int64(0)
                for word in range(codes.shape[1]):
                    distance += np.int64(differing(query[word], codes[row, word]))
                if distance > cut or _seen_before(query, codes[row], masks, radii):
                    continue
                if entry != row:
                    present = _present(row, heads, starts, members, alive, k)
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
                    for item in range(stored):
                        if distances[item] <= cut:
                            rows[kept], distances[kept] = rows[item], distances[item]
                            kept += 1
                    stored = kept
                    if 2 * stored > rows.size:
                        rows = np.append(rows, np.empty(rows.size, np.uint32))
                        distances = np.append(distances, np.empty(distances.size, np.int64))
                rows[stored], distances[stored] = entry, distance
                stored += 1
            if flips == 0:
                break
            flips = _following(flips)
        radii[best] += 1
        costs[best] = -1
    return rows[:stored], distances[:stored], cut


@compiled
def _rows_of(
    entries: Rows,
    distances: Integers,
    cut: int,
    heads: Rows,
    starts: Rows,
    members: Rows,
    alive: Mask,
    k: int,
) -> Any:
    """The rows (m,) of all codes within the cut and their distances; of a group its first k."""
    total = 0
    for item in range(entries.size):
        row = entries[item] & np.uint32(GROUPED - 1)
        grouped = entries[item] != row
        total += (
            0 if distances[item] > cut else _present(row, heads, starts, members, alive, k) if grouped else 1
        )
    rows, found, at = np.empty(total, np.int64), np.empty(total, np.int64), 0
    for item in range(entries.size):
        if distances[item] > cut:
            continue
        row = entries[item] & np.uint32(GROUPED - 1)
        end = at + 1
        if entries[item] == row:
            rows[at] = row
        else:
            group = np.searchsorted(heads, row)
            for place in range(starts[group], starts[group + 1]):
                if end - 1 - at == k:
                    break
                if not alive.size or alive[members[place]]:
                    rows[end - 1] = members[place]
                    end += 1
            end -= 1
        found[at:end] = distances[item]
        at = end
    return rows, found


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
    answer is the scan's, cut at k: ascending by distance, then row. None: it would take more than `limit` looks at
    values and codes, by default what the scan takes.
    """
    packed, answers = read_only(packed), list[Answer | None]([None]) * len(packed)
    asked = words(packed, bits)
    mask = np.empty(0, np.uint8) if alive is None else alive
    masks = _masks(tables.spans.tobytes(), bits)
    lengths = np.ascontiguousarray(tables.spans[:, 1])
    groups = (tables.heads, tables.starts, tables.members, mask)
    limit = scan_looks(codes, len(packed)) if limit is None else limit
    keys = np.empty((len(tables.spans), len(packed)), np.uint32)
    everyone = np.arange(len(packed), dtype=np.uint32)
    for table, (first, length) in enumerate(tables.spans.tolist()):
        keys_of(packed, everyone, first, length, keys[table])

    def answer(query: int) -> Answer | None:
        index = (codes, lengths, tables.bases, tables.offsets, tables.orders, masks)
        entries, distances, cut = _search(
            asked[query], keys[:, query].copy(), *index, *groups, bits, k, cuts[query], limit
        )
        if cut < 0:
            return None
        rows, distances = _rows_of(entries, distances, cut, *groups, k)
        order = np.lexsort((rows, distances))[:k]
        return rows[order], distances[order]

    lots = split(len(packed), max(1, min(len(packed), processors())))

    def work(part: int) -> None:
        for query in range(lots[part].start, lots[part].stop):
            answers[query] = answer(query)

    in_threads(work, len(lots))
    return answers


def scan_looks(codes: Words, queries: int) -> int:
    """How many looks at values and codes, in one thread, take as long as the scan of all codes (n, W) for a query."""
    threads = max(2, processors())
    return codes.nbytes // (SCANNED * (threads if queries < 2 * threads else TOGETHER))


@lru_cache(maxsize=16)
def _masks(spans: bytes, bits: int) -> Words:
    """The bits (m, W) of each stretch."""
    stretches = np.frombuffer(spans, np.int64).reshape(-1, 2).tolist()
    set_bits = np.zeros((len(stretches), 8 * packed_width(bits)), np.uint8)
    for table, (first, length) in enumerate(stretches):
        set_bits[table, first : first + length] = 1
    return words(np.packbits(set_bits, axis=1), bits)
