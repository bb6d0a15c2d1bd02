"""Making the tables of a segment, and checking that stored ones can be used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.core.compiled import compiled
from centerhash.core.parallel import in_threads
from centerhash.search.engines.scan import Words, words
from centerhash.search.engines.tables import GROUPED, Rows, Tables, table_edges

TABLE_BITS = (
    20  # of a code for each table: it takes 5 bytes of a row, and all at most twice those of the codes
)
EMPTY = 0xFFFFFFFF  # no row
MOST_BITS = 31  # of a stretch


def spans_of(bits: int, different: int) -> NDArray[np.int64]:
    """The stretches (m, 2) of K bits for so many different codes: a value has four of them or more on average."""
    longest = max(1, min(bits, int(math.log2(max(2, different))) - 2))
    tables = min(max(1, bits // TABLE_BITS), max(1, round(bits / longest)))
    edges = [bits * table // tables for table in range(tables + 1)]
    return np.array([(edges[t], min(edges[t + 1] - edges[t], longest)) for t in range(tables)], np.int64)


@compiled
def key_of(packed: Packed, row: Any, first: int, length: int) -> Any:
    """The value of `length` bits from the bit `first` of a row of codes."""
    begin, end = first // 8, (first + length + 7) // 8
    value = np.uint64(0)
    for byte in range(begin, end):
        value = (value << np.uint64(8)) | np.uint64(packed[row, byte])
    return (value >> np.uint64(8 * end - first - length)) & np.uint64((1 << length) - 1)


@compiled
def _keys(packed: Packed, rows: Rows, first: int, length: int, keys: Rows) -> None:
    for place in range(rows.size):
        keys[place] = np.uint32(key_of(packed, rows[place], first, length))


@compiled
def _first_rows(codes: Words, slots: Rows, firsts: Rows, sizes: Rows) -> int:
    """Find the first row of each code by hashing, and how many rows have it; return the number of different codes."""
    mask, different = np.uint64(slots.size - 1), 0
    for row in range(codes.shape[0]):
        mixed = np.uint64(0)
        for word in range(codes.shape[1]):
            mixed = (mixed ^ np.uint64(codes[row, word])) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        slot = (mixed * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(32) & mask
        while slots[slot] != EMPTY:
            same = True
            for word in range(codes.shape[1]):
                same &= codes[row, word] == codes[slots[slot], word]
            if same:
                break
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] == EMPTY:
            slots[slot] = row
            different += 1
        firsts[row] = slots[slot]
        sizes[slots[slot]] += np.uint32(1)
    return different


@compiled
def _groups(firsts: Rows, sizes: Rows, heads: Rows, starts: Rows, members: Rows) -> None:
    """List the groups of more than one row; `sizes` becomes the place of the next row of each."""
    head = 0
    for row in range(firsts.size):
        if firsts[row] == row and sizes[row] > 1:
            heads[head] = row
            starts[head + 1] = starts[head] + sizes[row]
            sizes[row] = starts[head] + np.uint32(1)  # after the place where the group begins; 1: no group
            members[starts[head]] = row
            head += 1
        elif firsts[row] != row:
            place = sizes[firsts[row]]
            members[place] = row
            sizes[firsts[row]] = place + np.uint32(1)


@compiled
def _sorted_rows(rows: Rows, keys: Rows, offsets: Rows, order: Rows) -> None:
    """Write rows in the order of their keys, and where each key begins: a stable counting sort."""
    for place in range(keys.size):
        offsets[keys[place] + 1] += np.uint32(1)
    for key in range(1, offsets.size):
        offsets[key] += offsets[key - 1]
    # fill each key from its beginning; the offsets are then one key ahead, and are put back
    for place in range(keys.size):
        at = offsets[keys[place]]
        order[at] = rows[place]
        offsets[keys[place]] = at + np.uint32(1)
    for key in range(offsets.size - 1, 0, -1):
        offsets[key] = offsets[key - 1]
    offsets[0] = 0


def build(packed: Packed, bits: int) -> Tables:
    """Make the tables of codes (n, ceil(K/8))."""
    packed = read_only(packed)
    codes, count = words(packed, bits), len(packed)
    slots = np.full(1 << max(1, (3 * count // 2).bit_length()), EMPTY, np.uint32)
    firsts, sizes = np.empty(count, np.uint32), np.zeros(count, np.uint32)
    different = _first_rows(codes, slots, firsts, sizes)
    del slots
    grouped = sizes > 1
    many, within = int(np.count_nonzero(grouped)), int(sizes[grouped].sum(dtype=np.int64))
    heads, starts, members = (
        np.empty(many, np.uint32),
        np.zeros(many + 1, np.uint32),
        np.empty(within, np.uint32),
    )
    listed = np.flatnonzero(sizes).astype(np.uint32)
    _groups(firsts, sizes, heads, starts, members)
    del firsts, sizes
    marked = listed | np.where(grouped[listed], np.uint32(GROUPED), np.uint32(0))
    spans = spans_of(bits, different)
    edges = table_edges(spans)
    offsets, orders = np.zeros(edges[-1], np.uint32), np.empty((len(spans), different), np.uint32)

    def fill(table: int) -> None:
        keys = np.empty(different, np.uint32)
        first, length = spans[table].tolist()
        _keys(packed, listed, first, length, keys)
        _sorted_rows(marked, keys, offsets[edges[table] : edges[table + 1]], orders[table])

    in_threads(fill, len(spans))
    made = Tables(spans, offsets, orders, heads, starts, members)
    for array in made.arrays().values():
        array.flags.writeable = False
    return made


def read_only(packed: Packed) -> Packed:
    """The same codes in contiguous memory as mapped ones are: numba compiles loops over other arrays apart."""
    view = np.ascontiguousarray(packed).view()
    view.flags.writeable = False
    return view


def fits(tables: Tables, rows: int, bits: int) -> bool:
    """Whether the compiled search can use these tables for codes (rows, ceil(K/8)): no number leads out of an array."""
    spans, arrays = tables.spans, tables.arrays()
    kinds = {name: np.dtype(np.int64 if name == "spans" else np.uint32) for name in arrays}
    if any(array.dtype != kinds[name] for name, array in arrays.items()):
        return False
    if (
        [array.ndim for array in arrays.values()] != [2, 1, 2, 1, 1, 1]
        or spans.shape[1] != 2
        or not len(spans)
    ):
        return False
    begins, lengths = spans.T
    if (lengths < 1).any() or (lengths > MOST_BITS).any() or (begins < 0).any():
        return False
    if (begins[1:] < (begins + lengths)[:-1]).any() or (begins + lengths)[-1] > bits:
        return False
    edges = table_edges(spans)
    if len(tables.offsets) != edges[-1] or len(tables.orders) != len(spans) or not len(tables.starts):
        return False
    listed = [
        _ascending(tables.offsets[edges[table] : edges[table + 1]], tables.orders.shape[1])
        for table in range(len(spans))
    ]
    listed.append(len(tables.starts) == len(tables.heads) + 1)
    listed.append(_ascending(tables.starts, len(tables.members)))
    largest = max(_largest(tables.orders.ravel()), _largest(tables.members))
    return all(listed) and bool(largest < rows)


@compiled
def _ascending(offsets: Rows, end: int) -> Any:
    """Whether offsets ascend from 0 to `end`."""
    sound = offsets[0] == 0 and offsets[-1] == end
    for place in range(1, offsets.size):
        sound &= offsets[place - 1] <= offsets[place]
    return sound


@compiled
def _largest(rows: Rows) -> Any:
    """The largest of these rows, -1 if there are none."""
    largest = np.int64(-1)
    for place in range(rows.size):
        largest = max(largest, np.int64(rows[place] & np.uint32(GROUPED - 1)))
    return largest
