"""Compiled scans: the codes nearest to a query, and the near pairs among codes, by reading all at the memory's speed.

Needs numba: `rankings` and `near_pairs` import this where it is installed, and compute the same with numpy elsewhere.

A code is a row of W words, of the widest unsigned type that divides its bytes. The inner loop only counts how many of a
few hundred rows are within a cut, which becomes vector instructions; the cut falls as better items are found, so a
closer look is rare. Of tied items the first positions count, so later ties with the last of k items are skipped.

The total of a row is weight * d_semantic, plus d_visual where visual codes are compared too; then copies of the query,
by d_visual alone, are found in the same pass. Plain threads run the loop over parts of the database; it releases the
interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.extras import require
from centerhash.core.parallel import compiled, cpu_count, in_threads, split

Words: TypeAlias = NDArray[Any]  # (n, W) of an unsigned type
Integers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.uint8]
Found: TypeAlias = tuple[Integers, Integers, Integers, Integers]  # state, counts by total, positions, totals

STRIDE, STEP = 512, 32  # rows counted at once; if some are near, again in steps, then one by one
THREAD_BYTES = (
    1 << 23
)  # to read per thread: handing a scan of less to another thread takes longer than it saves
SPARE = 1024  # items a thread has room for beyond k
HALF = 64  # visual bits in which a row without a visual code is said to differ
WIDEST_INTERLEAVED = 5  # rows of more words are added up word by word: LLVM would gather them instead

ROOM = 1 << 14  # near pairs that a call has room for at first
_COLUMNS = 4096  # compared with all rows of a call before the next: they stay in the L2 cache
_VIEWED = 512  # items whose views are compared with all rows of a call before the next
_NEAR_STEP = 256  # distances computed at once, and looked at one by one only where some are near

NO_MASK: Mask = np.empty(0, np.uint8)
NO_VISUAL = np.zeros((1, 2), np.uint64)
CUT, NEAR, STORED = range(3)  # the state of a thread


def _differing_rule(_context: Any, first: Any, second: Any) -> Any:
    """Tell numba how to count the bits in which two words differ, in their own width."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(builder.xor(*arguments))

    return first(first, second), generate


differing: Any = require("numba.extending").intrinsic(_differing_rule)


@compiled
def _keep(position: int, total: np.int64, k: int, found: Found) -> None:
    """Store an item within the cut, and lower the cut below the k-th smallest total: later ties come too late."""
    state, counts, positions, totals = found
    counts[total] += 1
    state[NEAR] += 1
    while state[NEAR] >= k:
        state[NEAR] -= counts[state[CUT]]
        state[CUT] -= 1
    if state[STORED] == positions.size:  # what is still wanted moves to the front
        stored, tied = 0, k - state[NEAR]
        for place in range(positions.size):
            last = totals[place] == state[CUT] + 1
            if totals[place] <= state[CUT] or (last and tied > 0):
                positions[stored], totals[stored] = positions[place], totals[place]
                stored += 1
                tied -= last
        state[STORED] = stored
    positions[state[STORED]], totals[state[STORED]] = position, total
    state[STORED] += 1


@cache
def _scanner(width: int, weight: int) -> Callable[..., None]:
    """Compile the scan of rows of `width` words: constants, so that LLVM unrolls loops and does not multiply."""

    def scan(
        query: Words,
        database: Words,
        seen: Words,
        visual: Words,
        has_visual: Mask,
        allowed: Mask,
        first: int,
        k: int,
        within: int,
        best: Found,
        copies: Found,
    ) -> None:
        """Scan the rows of `database`, which start at position `first`; an empty mask allows all rows."""
        state, copy_state = best[0], copies[0]
        apart = np.empty(STRIDE, np.uint64)
        start, closer, bottom = 0, 0, database.shape[0]  # rows before `closer` are counted in small steps
        while start < bottom and (state[CUT] >= 0 or copy_state[CUT] >= 0):
            end = min(start + (STEP if start < closer else STRIDE), bottom)
            rows = database[start:end]
            # one past each cut, since a cut may be -1 and unsigned numbers are compared at once
            past = np.uint64(min(state[CUT] // weight, within) + 1)
            near: Any = 0
            if visual.shape[0]:
                flat, views = rows.reshape(-1), visual[start:end].reshape(-1)
                total_past, copy_past = np.uint64(state[CUT] + 1), np.uint64(copy_state[CUT] + 1)
                size = np.uint64(rows.shape[0])
                for item in range(size):  # a loop per code: LLVM would gather words of both from one
                    apart[item] = differing(seen[0], views[np.uint64(2) * item]) + differing(
                        seen[1], views[np.uint64(2) * item + np.uint64(1)]
                    )
                for item in range(size):
                    distance = np.uint64(0)
                    for word in range(np.uint64(width)):
                        distance += differing(query[word], flat[item * np.uint64(width) + word])
                    # at most as far as a row without a visual code, so that the mask is not read here
                    total = np.uint64(weight) * distance + min(apart[item], np.uint64(HALF))
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
                if visual.shape[0]:
                    differs = np.int64(apart[row] if has_visual[start + row] else HALF)
                    exact += differs
                    if differs <= copy_state[CUT]:
                        _keep(first + start + row, differs, k, copies)
                if np.int64(distance) <= within and exact <= state[CUT]:
                    _keep(first + start + row, exact, k, best)
            start = end

    return compiled(scan)


def nearest(
    query: Words, database: Words, k: int, *, within: int, allowed: Mask | None = None
) -> tuple[Integers, Integers]:
    """Return the positions (m,) of the k nearest rows, and their distances: ascending, then by position.

    `query` (W,) and `database` (N, W) are words; `within` is the largest distance, `allowed` (N,) is 1 for rows that may
    be returned.
    """
    largest = 8 * database.itemsize * query.size
    return _scan(query, database, k, 1, largest, within, allowed, NO_VISUAL[0], NO_VISUAL[:0], NO_MASK, -1)[0]


def nearest_by_both(
    query: Words,
    database: Words,
    k: int,
    *,
    weight: int,
    within: int,
    seen: Words,
    visual: Words,
    has_visual: Mask,
    copied: int,
    allowed: Mask | None = None,
) -> tuple[Integers, Integers]:
    """Return the positions (m,) of the k rows with the smallest totals, and of the k nearest copies, from one scan.

    The visual query is `seen` (2,), the visual codes are `visual` (N, 2); a row without one counts as one in which half
    of the bits differ. A copy differs in at most `copied` visual bits, fewer than half of all.
    """
    largest = weight * 8 * database.itemsize * query.size + 2 * HALF
    best, copies = _scan(
        query, database, k, weight, largest, within, allowed, seen, visual, has_visual, copied
    )
    return best[0], copies[0]


def _scan(
    query: Words,
    database: Words,
    k: int,
    weight: int,
    largest: int,
    within: int,
    allowed: Mask | None,
    seen: Words,
    visual: Words,
    has_visual: Mask,
    copied: int,
) -> list[tuple[Integers, Integers]]:
    """Scan in threads; return positions and totals of the best rows, and positions and distances of copies."""
    rows = len(database)
    threads = max(1, min((database.nbytes + visual.nbytes) // THREAD_BYTES, cpu_count()))
    k, scan = min(k, rows), _scanner(query.size, weight)
    found = [[_room(k, cut) for cut in (largest, copied)] for _ in range(threads)]

    def work(part: int) -> None:
        own = split(rows, threads)[part]
        mask = NO_MASK if allowed is None else allowed[own]
        best, copies = found[part]
        scan(
            query, database[own], seen, visual[own], has_visual[own], mask, own.start, k, within, best, copies
        )

    if k:
        in_threads(work, threads)
    return [_merged(own, k) for own in zip(*found, strict=True)]


def _room(k: int, cut: int) -> Found:
    """Make what a thread writes: its state, how many items have each total up to `cut`, positions and totals."""
    positions, totals = np.empty((2, k + SPARE), np.int64) if cut >= 0 else np.empty((2, 0), np.int64)
    return np.array([cut, 0, 0]), np.zeros(cut + 1, np.int64), positions, totals


def _merged(parts: Sequence[Found], k: int) -> tuple[Integers, Integers]:
    """Return the k best positions of all threads, and their totals."""
    place = np.concatenate([positions[: state[STORED]] for state, _, positions, _ in parts])
    value = np.concatenate([totals[: state[STORED]] for state, _, _, totals in parts])
    order = np.lexsort((place, value))[:k]
    return place[order], value[order]


@compiled
def _join_codes(words: Words, start: int, end: int, radius: int, found: Integers) -> int:
    """Write the pairs whose first row is in start..end, and their distance, to found (3, room); return how many."""
    size, rows = 0, words.shape[1]
    distances = np.empty(_NEAR_STEP, np.uint8)
    for top in range(start, rows, _COLUMNS):
        low, high = words[0, top : top + _COLUMNS], words[1, top : top + _COLUMNS]
        for first in range(start, min(end, top + low.size)):
            here_low, here_high = words[0, first], words[1, first]
            for left in range(max(0, (first + 1 - top) // _NEAR_STEP * _NEAR_STEP), low.size, _NEAR_STEP):
                part_low, part_high = low[left : left + _NEAR_STEP], high[left : left + _NEAR_STEP]
                near = np.uint64(0)
                for column in range(np.uint64(part_low.size)):  # unsigned: no test for negative indices
                    distance = differing(here_low, part_low[column]) + differing(here_high, part_high[column])
                    distances[column] = distance
                    near += np.uint64(distance <= np.uint64(radius))
                if not near:
                    continue
                for column in range(max(left, first + 1 - top), min(left + _NEAR_STEP, low.size)):
                    if distances[column - left] > radius:
                        continue
                    if size < found.shape[1]:
                        found[0, size], found[1, size] = first, top + column
                        found[2, size] = distances[column - left]
                    size += 1
    return size


@compiled
def _join_views(views: Words, start: int, end: int, most: int, found: Integers) -> int:
    """Write the hits whose whole is in start..end to found (4, room): rows, view, distance; return how many."""
    size, rows, count = 0, views.shape[0], views.shape[1]
    flat = views.reshape(-1)
    for top in range(0, rows, _VIEWED):
        for first in range(start, end):
            whole = views[first, 0]
            for second in range(top, min(top + _VIEWED, rows)):
                base = np.uint64(second * count)
                near = np.uint64(0)
                for view in range(np.uint64(count)):  # unsigned: no test for negative indices
                    near += np.uint64(differing(whole, flat[base + view]) <= np.uint64(most))
                if not near or first == second:
                    continue
                least, nearest_view = np.uint64(64), 0
                for view in range(count):
                    distance = differing(whole, views[second, view])
                    if distance < least:
                        least, nearest_view = distance, view
                if size < found.shape[1]:
                    found[0, size], found[1, size] = first, second
                    found[2, size], found[3, size] = nearest_view, least
                size += 1
    return size


def near_codes(words: Words, start: int, end: int, radius: int) -> Integers:
    """As `near_pairs.numpy_codes`."""
    return _with_room(3, lambda found: _join_codes(words, start, end, radius, found))


def near_views(views: Words, start: int, end: int, most: int) -> Integers:
    """As `near_pairs.numpy_views`."""
    return _with_room(4, lambda found: _join_views(views, start, end, most, found))


def _with_room(columns: int, join: Callable[[Integers], int]) -> Integers:
    """Call `join` with an array (columns, room) that is large enough, and return what it has written."""
    found = np.empty((columns, ROOM), np.int64)
    while (size := join(found)) > found.shape[1]:
        found = np.empty((columns, size), np.int64)
    return found[:, :size]
