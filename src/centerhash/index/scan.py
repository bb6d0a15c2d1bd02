"""Compiled scans: the codes nearest to a query, and the near pairs among codes, by reading all at the memory's speed.

Needs numba: `ranking` and `near_pairs` import this where it is installed, and compute the same with numpy elsewhere.

A code is a row of W words, of the widest unsigned type that divides its bytes. The inner loop only counts how many of a
few hundred rows are within a cut, which becomes vector instructions; the cut falls as better items are found, so a
closer look is rare. Of tied items the first positions count, so later ties with the last of k items are skipped.

The total of a row is weight * d_semantic, plus d_general where general codes are compared too; then copies of the query,
by d_general alone, are found in the same pass. Plain threads run the loop over parts of the database; it releases the
interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.core.extras import require
from centerhash.core.parallel import compiled, cpu_count, in_threads, split
from centerhash.index.ranking import SEMANTIC_WEIGHT, General
from centerhash.index.store import Bools, Rows

Words: TypeAlias = NDArray[Any]  # (n, W) of an unsigned type
Mask: TypeAlias = NDArray[np.uint8]
# State, counts by total, positions, totals.
Nearest: TypeAlias = tuple[Rows, Rows, Rows, Rows]

# Rows counted at once; if some are near, again in steps, then one by one.
STRIDE, STEP = 512, 32
# Bytes to read per thread: handing a scan of less to another thread takes longer than it saves.
THREAD_BYTES = 1 << 23
# Items a thread has room for beyond k.
SPARE = 1024
# Rows of more words are added up word by word: LLVM would gather them instead.
WIDEST_INTERLEAVED = 5

# Near pairs that a call has room for at first.
ROOM = 1 << 14
# Columns that are compared with all rows of a call before the next: they stay in the L2 cache.
_COLUMNS = 4096
# Distances computed at once, and looked at one by one only where some are near.
_NEAR_STEP = 256

_NO_MASK: Mask = np.empty(0, np.uint8)
_NO_WORDS: Words = np.zeros((1, 1), np.uint64)
CUT, NEAR, STORED = range(3)  # the state of a thread


def _differing_rule(_context: Any, first: Any, second: Any) -> Any:
    """Tell numba how to count the bits in which two words differ, in their own width."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(builder.xor(*arguments))

    return first(first, second), generate


differing: Any = require("numba.extending").intrinsic(_differing_rule)


@compiled
def _keep(position: int, total: np.int64, k: int, nearest: Nearest) -> None:
    """Store an item within the cut, and lower the cut below the k-th smallest total: later ties come too late."""
    state, counts, positions, totals = nearest
    counts[total] += 1
    state[NEAR] += 1
    while state[NEAR] >= k:
        state[NEAR] -= counts[state[CUT]]
        state[CUT] -= 1
    if state[STORED] == positions.size:  # what is still wanted moves to the front
        stored, tied = 0, k - state[NEAR]
        for row in range(positions.size):
            last = totals[row] == state[CUT] + 1
            if totals[row] <= state[CUT] or (last and tied > 0):
                positions[stored], totals[stored] = positions[row], totals[row]
                stored += 1
                tied -= last
        state[STORED] = stored
    positions[state[STORED]], totals[state[STORED]] = position, total
    state[STORED] += 1


@cache
def _scanner(width: int, general_width: int, weight: int) -> Callable[..., None]:
    """Compile the scan of rows of so many words: constants, so that LLVM unrolls loops and does not multiply."""

    def scan(
        query: Words,
        database: Words,
        general_query: Words,
        general: Words,
        has_general: Mask,
        half: int,
        allowed: Mask,
        first: int,
        k: int,
        within: int,
        best: Nearest,
        copies: Nearest,
    ) -> None:
        """Scan the rows of `database`, which start at position `first`; an empty mask is one of all rows."""
        state, copy_state = best[0], copies[0]
        apart = np.empty(STRIDE, np.uint64)
        start, closer, bottom = 0, 0, database.shape[0]  # rows before `closer` are counted in small steps
        while start < bottom and (state[CUT] >= 0 or copy_state[CUT] >= 0):
            end = min(start + (STEP if start < closer else STRIDE), bottom)
            rows = database[start:end]
            # one past each cut, since a cut may be -1 and unsigned numbers are compared at once
            past = np.uint64(min(state[CUT] // weight, within) + 1)
            near: Any = 0
            if general.shape[0]:
                flat, views = rows.reshape(-1), general[start:end].reshape(-1)
                total_past, copy_past = np.uint64(state[CUT] + 1), np.uint64(copy_state[CUT] + 1)
                size = np.uint64(rows.shape[0])
                for item in range(size):  # a loop per code: LLVM would gather words of both from one
                    distance = np.uint64(0)
                    for word in range(np.uint64(general_width)):
                        distance += differing(
                            general_query[word], views[item * np.uint64(general_width) + word]
                        )
                    apart[item] = distance
                for item in range(size):
                    distance = np.uint64(0)
                    for word in range(np.uint64(width)):
                        distance += differing(query[word], flat[item * np.uint64(width) + word])
                    # at most as far as a row without a general code, so that the mask is not read here
                    total = np.uint64(weight) * distance + min(apart[item], np.uint64(half))
                    near += ((distance < past) & (total < total_past)) | (apart[item] < copy_past)
            elif width <= WIDEST_INTERLEAVED:
                flat = rows.reshape(-1)
                for item in range(np.uint64(rows.shape[0])):  # unsigned: no test for negative indices
                    distance = np.uint64(0)
                    for word in range(np.uint64(width)):
                        distance += differing(query[word], flat[item * np.uint64(width) + word])
                    near += distance < past
            else:
                for row in range(rows.shape[0]):
                    distance = np.uint64(0)
                    for column in range(width):
                        distance += differing(query[column], rows[row, column])
                    near += distance < past
            if near and start >= closer:
                closer = end
                continue
            for row in range(rows.shape[0] if near else 0):
                if allowed.size and not allowed[start + row]:
                    continue
                distance = np.uint64(0)
                for column in range(width):
                    distance += differing(query[column], rows[row, column])
                exact = weight * np.int64(distance)
                if general.shape[0]:
                    differs = np.int64(apart[row])
                    if has_general.size and not has_general[start + row]:
                        differs = np.int64(half)
                    exact += differs
                    if differs <= copy_state[CUT]:
                        _keep(first + start + row, differs, k, copies)
                if np.int64(distance) <= within and exact <= state[CUT]:
                    _keep(first + start + row, exact, k, best)
            start = end

    return compiled(scan)


def nearest(
    codes: Packed, code: Packed, k: int, allowed: Bools | None, within: int, general: General | None
) -> tuple[Rows, Rows]:
    """Return the rows of the k codes (N, W) nearest to one (W,), by total and then by row; and those of k copies.

    Rows differ in at most `within` bits; with `allowed` (N,), only these rows are returned. Without `general` there are
    no copies.
    """
    query, database, rows = _words(code[None])[0], _words(codes), len(codes)
    other, others, has_code, copied, weight = _NO_WORDS[0], _NO_WORDS[:0], _NO_MASK, -1, 1
    if general is not None:
        other, others, weight = _words(general.code[None])[0], _words(general.codes), SEMANTIC_WEIGHT
        has_code, copied = _mask(general.has_code), general.copied
    threads = max(1, min((database.nbytes + others.nbytes) // THREAD_BYTES, cpu_count()))
    k, scan, mask = min(k, rows), _scanner(query.size, other.size, weight), _mask(allowed)
    rooms = [
        [_room(k, cut) for cut in (8 * (weight * query.nbytes + other.nbytes), copied)]
        for _ in range(threads)
    ]

    def work(part: int) -> None:
        place, (best, copies) = split(rows, threads)[part], rooms[part]
        compared = other, others[place], has_code[place], 4 * other.nbytes
        scan(query, database[place], *compared, mask[place], place.start, k, within, best, copies)

    if k:
        in_threads(work, threads)
    best, copies = (_merged(parts, k) for parts in zip(*rooms, strict=True))
    return best, copies


def _mask(rows: Bools | None) -> Mask:
    return _NO_MASK if rows is None else rows.view(np.uint8)


def _room(k: int, cut: int) -> Nearest:
    """Make what a thread writes: its state, how many items have each total up to `cut`, positions and totals."""
    positions, totals = np.empty((2, k + SPARE), np.int64) if cut >= 0 else np.empty((2, 0), np.int64)
    return np.array([cut, 0, 0]), np.zeros(cut + 1, np.int64), positions, totals


def _merged(parts: Sequence[Nearest], k: int) -> Rows:
    """Return the k best positions of all threads."""
    rows = np.concatenate([positions[: state[STORED]] for state, _, positions, _ in parts])
    values = np.concatenate([totals[: state[STORED]] for state, _, _, totals in parts])
    return rows[np.lexsort((rows, values))[:k]]


def _words(packed: Packed) -> NDArray[Any]:
    """View packed codes (n, bytes) as words (n, W) of the widest type that divides their bytes, read-only."""
    width = packed.shape[1]
    size = next(size for size in (8, 4, 2, 1) if width % size == 0)
    view = np.ascontiguousarray(packed).view(f"u{size}")
    view.flags.writeable = False  # numba compiles writeable arrays apart
    return view


@cache
def _joiner(width: int) -> Callable[..., int]:
    """Compile the comparison of codes of `width` words."""

    def join(
        words: Words, others: Words, start: int, end: int, radius: int, is_self: bool, pairs: Rows
    ) -> int:
        """Write the pairs whose first row is in start..end, and their distance, to (3, room); return their number."""
        size, rows, count = 0, words.shape[1], others.shape[1]
        flat, other = words.reshape(-1), others.reshape(-1)
        for top in range(0, count, _COLUMNS):
            bottom = min(top + _COLUMNS, count)
            for first in range(start, end):
                for left in range(max(top, first + 1 if is_self else 0), bottom, _NEAR_STEP):
                    right = min(left + _NEAR_STEP, bottom)
                    near = np.uint64(0)
                    # unsigned: no test for negative indices
                    for column in range(np.uint64(left), np.uint64(right)):
                        distance = np.uint64(0)
                        for word in range(width):
                            distance += differing(
                                flat[word * rows + first], other[np.uint64(word * count) + column]
                            )
                        near += np.uint64(distance <= np.uint64(radius))
                    for column in range(left, right if near else left):
                        distance = np.uint64(0)
                        for word in range(width):
                            distance += differing(flat[word * rows + first], other[word * count + column])
                        if distance > radius:
                            continue
                        if size < pairs.shape[1]:
                            pairs[0, size], pairs[1, size], pairs[2, size] = first, column, distance
                        size += 1
        return size

    return compiled(join)


def near(words: Words, others: Words, start: int, end: int, radius: int, is_self: bool) -> Rows:
    """As `near_pairs.numpy_near`."""
    join, pairs = _joiner(len(words)), np.empty((3, ROOM), np.int64)
    while (size := join(words, others, start, end, radius, is_self, pairs)) > pairs.shape[1]:
        pairs = np.empty((3, size), np.int64)
    return pairs[:, :size]
