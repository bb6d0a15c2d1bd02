"""Compiled scans: the codes nearest to a query, and the near pairs among codes, by reading all at the memory's speed.

It needs numba: `ranking` and `near_pairs` import this module if numba is installed, and otherwise use numpy.

A code is a row of W words of the widest unsigned type that divides its bytes. The inner loop only counts how many of a
few hundred rows are within a cut, which becomes vector instructions. The cut falls as better rows are stored, so rows are
rarely compared one by one. Of tied rows the first ones are results, so later ties with the last of k results are skipped.

The total of a row is weight * d_semantic, plus d_general if general codes are compared too. Copies of the query, by
d_general alone, are then stored in the same pass. Plain threads run the loop over parts of the database; it releases the
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
from centerhash.index.ranking import SEMANTIC_WEIGHT, GeneralCodes
from centerhash.index.store import Bools, Rows

Words: TypeAlias = NDArray[Any]  # (n, W) of an unsigned type
Mask: TypeAlias = NDArray[np.uint8]
# A thread writes its state, counts by total, rows and totals.
Nearest: TypeAlias = tuple[Rows, Rows, Rows, Rows]

# Rows are counted in strides; a stride with near rows is counted again in steps, then row by row.
STRIDE, STEP = 512, 32
# A scan of fewer bytes takes less time than its start in another thread.
BYTES_PER_THREAD = 1 << 23
SPARE_ROWS_PER_THREAD = 1024
# Codes of more words are compared word by word: LLVM would gather their words instead.
MAX_INTERLEAVED_WORDS = 5

PAIRS_PER_CALL_AT_FIRST = 1 << 14
# All rows of a call are compared with these columns before the next: they stay in the L2 cache.
_COLUMNS_PER_BLOCK = 4096
# The distances of a step are computed at once, and compared one by one only if some are near.
_COLUMNS_PER_STEP = 256

_NO_MASK: Mask = np.empty(0, np.uint8)
_NO_WORDS: Words = np.zeros((1, 1), np.uint64)
# The state of a thread has these values.
CUT, NEAR, STORED = range(3)


def _differing_rule(_context: Any, first: Any, second: Any) -> Any:
    """Return the numba rule that counts the bits in which two words differ, in their own width."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(builder.xor(*arguments))

    return first(first, second), generate


differing: Any = require("numba.extending").intrinsic(_differing_rule)


@compiled
def _keep(row: int, total: np.int64, k: int, nearest: Nearest) -> None:
    """Store a row within the cut, and lower the cut below the k-th smallest total, which later ties do not improve."""
    state, counts, rows, totals = nearest
    counts[total] += 1
    state[NEAR] += 1
    while state[NEAR] >= k:
        state[NEAR] -= counts[state[CUT]]
        state[CUT] -= 1
    # If there is no more room, the rows that may still be results move to the front.
    if state[STORED] == rows.size:
        stored, tied = 0, k - state[NEAR]
        for position in range(rows.size):
            last = totals[position] == state[CUT] + 1
            if totals[position] <= state[CUT] or (last and tied > 0):
                rows[stored], totals[stored] = rows[position], totals[position]
                stored += 1
                tied -= last
        state[STORED] = stored
    rows[state[STORED]], totals[state[STORED]] = row, total
    state[STORED] += 1


@cache
def _scanner(width: int, general_width: int, weight: int) -> Callable[..., None]:
    """Compile the scan of codes of `width` words; the parameters are constants, so that LLVM unrolls the loops."""

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
        """Scan the codes of `database`, whose first row is `first`; an empty mask stands for all rows."""
        state, copy_state = best[0], copies[0]
        general_distances = np.empty(STRIDE, np.uint64)
        # Rows before `closer` are counted in steps.
        start, closer, bottom = 0, 0, database.shape[0]
        while start < bottom and (state[CUT] >= 0 or copy_state[CUT] >= 0):
            end = min(start + (STEP if start < closer else STRIDE), bottom)
            rows = database[start:end]
            # These are one past each cut, since a cut may be -1 and unsigned numbers are compared.
            past = np.uint64(min(state[CUT] // weight, within) + 1)
            near: Any = 0
            if general.shape[0]:
                flat, views = rows.reshape(-1), general[start:end].reshape(-1)
                total_past, copy_past = np.uint64(state[CUT] + 1), np.uint64(copy_state[CUT] + 1)
                size = np.uint64(rows.shape[0])
                # There is one loop per kind of code: in a joint loop, LLVM would gather the words of both.
                for item in range(size):
                    distance = np.uint64(0)
                    for word in range(np.uint64(general_width)):
                        distance += differing(
                            general_query[word], views[item * np.uint64(general_width) + word]
                        )
                    general_distances[item] = distance
                for item in range(size):
                    distance = np.uint64(0)
                    for word in range(np.uint64(width)):
                        distance += differing(query[word], flat[item * np.uint64(width) + word])
                    # It is at most that of a row without a general code, so the mask need not be read.
                    total = np.uint64(weight) * distance + min(general_distances[item], np.uint64(half))
                    near += ((distance < past) & (total < total_past)) | (general_distances[item] < copy_past)
            elif width <= MAX_INTERLEAVED_WORDS:
                flat = rows.reshape(-1)
                # Unsigned indices are not tested for being negative.
                for item in range(np.uint64(rows.shape[0])):
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
                    general_distance = np.int64(general_distances[row])
                    if has_general.size and not has_general[start + row]:
                        general_distance = np.int64(half)
                    exact += general_distance
                    if general_distance <= copy_state[CUT]:
                        _keep(first + start + row, general_distance, k, copies)
                if np.int64(distance) <= within and exact <= state[CUT]:
                    _keep(first + start + row, exact, k, best)
            start = end

    return compiled(scan)


def nearest(
    codes: Packed, code: Packed, k: int, allowed: Bools | None, within: int, general: GeneralCodes | None
) -> tuple[Rows, Rows]:
    """Return the rows of the k codes (N, W) nearest to a code (W,), by total, then by row; and the rows of k copies.

    Rows differ in at most `within` bits; with `allowed` (N,), only these rows are returned. Without `general`, there are
    no copies.
    """
    query, database, count = _words(code[None])[0], _words(codes), len(codes)
    general_query, general_database, has_general = _NO_WORDS[0], _NO_WORDS[:0], _NO_MASK
    copy_bits, weight = -1, 1
    if general is not None:
        general_query, general_database = _words(general.code[None])[0], _words(general.codes)
        copy_bits, weight = general.copy_bits, SEMANTIC_WEIGHT
        has_general = _NO_MASK if general.has_code is None else general.has_code.view(np.uint8)
    threads = max(1, min((database.nbytes + general_database.nbytes) // BYTES_PER_THREAD, cpu_count()))
    k, scan = min(k, count), _scanner(query.size, general_query.size, weight)
    mask = _NO_MASK if allowed is None else allowed.view(np.uint8)
    largest = 8 * (weight * query.nbytes + general_query.nbytes)
    results = [(_empty(k, largest), _empty(k, copy_bits)) for _ in range(threads)]

    def work(part: int) -> None:
        rows, (best, copies) = split(count, threads)[part], results[part]
        compared = general_query, general_database[rows], has_general[rows], 4 * general_query.nbytes
        scan(query, database[rows], *compared, mask[rows], rows.start, k, within, best, copies)

    if k:
        in_threads(work, threads)
    best, copies = (_merged(parts, k) for parts in zip(*results, strict=True))
    return best, copies


def _empty(k: int, cut: int) -> Nearest:
    """Return the arrays that a thread writes: its state, the counts of totals up to `cut`, rows and totals."""
    rows, totals = np.empty((2, k + SPARE_ROWS_PER_THREAD if cut >= 0 else 0), np.int64)
    return np.array([cut, 0, 0]), np.zeros(cut + 1, np.int64), rows, totals


def _merged(parts: Sequence[Nearest], k: int) -> Rows:
    """Return the k best rows of all threads."""
    rows = np.concatenate([rows[: state[STORED]] for state, _, rows, _ in parts])
    totals = np.concatenate([totals[: state[STORED]] for state, _, _, totals in parts])
    return rows[np.lexsort((rows, totals))[:k]]


def _words(packed: Packed) -> NDArray[Any]:
    """View packed codes (n, bytes) as words (n, W) of the widest type that divides their bytes, read-only."""
    width = packed.shape[1]
    size = next(size for size in (8, 4, 2, 1) if width % size == 0)
    view = np.ascontiguousarray(packed).view(f"u{size}")
    # numba compiles writeable and read-only arrays separately.
    view.flags.writeable = False
    return view


@cache
def _joiner(width: int) -> Callable[..., int]:
    """Compile the comparison of codes of `width` words."""

    def join(
        words: Words, others: Words, start: int, end: int, radius: int, is_self: bool, pairs: Rows
    ) -> int:
        """Write the pairs whose first row is in start..end, and their distances, to `pairs` (3, m); count all of them."""
        size, rows, count = 0, words.shape[1], others.shape[1]
        flat, other = words.reshape(-1), others.reshape(-1)
        for top in range(0, count, _COLUMNS_PER_BLOCK):
            bottom = min(top + _COLUMNS_PER_BLOCK, count)
            for first in range(start, end):
                for left in range(max(top, first + 1 if is_self else 0), bottom, _COLUMNS_PER_STEP):
                    right = min(left + _COLUMNS_PER_STEP, bottom)
                    near = np.uint64(0)
                    # Unsigned indices are not tested for being negative.
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
    """Compute the same as `near_pairs.numpy_near`."""
    join, pairs = _joiner(len(words)), np.empty((3, PAIRS_PER_CALL_AT_FIRST), np.int64)
    while (size := join(words, others, start, end, radius, is_self, pairs)) > pairs.shape[1]:
        pairs = np.empty((3, size), np.int64)
    return pairs[:, :size]
