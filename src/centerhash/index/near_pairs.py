"""Near pairs: all pairs of items that are near each other, and groups around the item to keep.

All pairs are compared, so the time does not depend on the distribution of the codes: N^2 / 2 distances of codes,
N^2 * V of views, some tenths of a nanosecond each with numba (see `scan`), about a nanosecond with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, to_words
from centerhash.core.parallel import cpu_count
from centerhash.core.progress import Progress, silent

Words: TypeAlias = NDArray[np.uint64]
Integers: TypeAlias = NDArray[np.int64]
Small: TypeAlias = NDArray[np.uint8]

_ROWS = 512  # whose pairs are found in one call
_TILE = (32, 2048)  # rows and columns that numpy compares at once: their distances stay in the L2 cache
_VIEWED = 128  # columns whose views numpy compares at once


class Pairs(NamedTuple):
    """Near items: rows first < second (M,), and how many bits of their codes differ."""

    first: Integers
    second: Integers
    bits: NDArray[np.uint16]


class Hits(NamedTuple):
    """Items whose whole is near a view of another one: rows (M,) of both, the view, and how many bits differ."""

    whole: Integers
    viewed: Integers
    view: Integers
    bits: Small


def code_pairs(packed: Packed, radius: int, progress: Progress = silent) -> Pairs:
    """Find all pairs of packed codes (N, W) that differ in at most `radius` bits, in the order of their rows."""
    near_codes = numpy_codes
    if find_spec("numba") is not None:
        from centerhash.index.scan import near_codes

    # each word one contiguous scan, which becomes vector instructions
    words = np.ascontiguousarray(to_words(packed).T)
    pairs = _in_blocks(len(packed), 3, lambda start, end: near_codes(words, start, end, radius), progress)
    return Pairs(pairs[0], pairs[1], pairs[2].astype(np.uint16))


def view_hits(views: Words, most: int, progress: Progress = silent) -> Hits:
    """Find all items whose whole, view 0, differs in at most `most` bits from a view of another one, of views (N, V).

    The nearest view of each pair is returned, the first one of equal ones.
    """
    near_views = numpy_views
    if find_spec("numba") is not None:
        from centerhash.index.scan import near_views

    hits = _in_blocks(len(views), 4, lambda start, end: near_views(views, start, end, most), progress)
    return Hits(hits[0], hits[1], hits[2], hits[3].astype(np.uint8))


def _in_blocks(
    count: int, columns: int, work: Callable[[int, int], Integers], progress: Progress
) -> Integers:
    """Call `work` for blocks of rows in threads; return their results (columns, M), sorted by the first two."""
    starts = range(0, count, _ROWS)
    parts = [np.empty((columns, 0), np.int64)]
    with ThreadPoolExecutor(cpu_count()) as pool:
        blocks = pool.map(lambda start: work(start, min(start + _ROWS, count)), starts)
        for done, part in enumerate(blocks, 1):
            parts.append(part)
            progress("pairs", min(done * _ROWS, count), count)
    rows = np.concatenate(parts, axis=1)
    return rows[:, np.lexsort((rows[1], rows[0]))]


def numpy_codes(words: Words, start: int, end: int, radius: int) -> Integers:
    """Return the near pairs whose first row is in start..end: rows and distance (3, M), of words (W, N)."""
    rows, columns = _TILE
    pairs = [np.empty((3, 0), np.int64)]
    for top in range(start, end, rows):
        block = words[:, top : min(top + rows, end), None]
        for left in range(top + 1, words.shape[1], columns):
            others = words[:, None, left : left + columns]
            distances = np.zeros(np.broadcast_shapes(block.shape[1:], others.shape[1:]), np.uint16)
            for word, other in zip(block, others, strict=True):
                distances += np.bitwise_count(word ^ other)
            first, second = np.nonzero(distances <= radius)
            pair = np.stack([first + top, second + left, distances[first, second]])
            pairs.append(pair[:, pair[0] < pair[1]])
    return np.concatenate(pairs, axis=1)


def numpy_views(views: Words, start: int, end: int, most: int) -> Integers:
    """Return the hits whose whole is in start..end: rows, view and distance (4, M)."""
    hits = [np.empty((4, 0), np.int64)]
    for left in range(0, len(views), _VIEWED):
        others = views[left : left + _VIEWED]
        for row in range(start, end):
            distances = np.bitwise_count(others ^ views[row, 0])
            columns = np.flatnonzero(distances.min(axis=1) <= most)
            columns = columns[columns != row - left]
            if columns.size:
                view = distances[columns].argmin(axis=1)
                hit = [np.full(columns.size, row), columns + left, view, distances[columns, view]]
                hits.append(np.stack(hit).astype(np.int64))
    return np.concatenate(hits, axis=1)


def star_groups(order: Sequence[int], linked: Callable[[int], Iterable[int]]) -> list[list[int]]:
    """Group rows around the one to keep: each in turn takes all linked rows that no group has yet.

    `order` has the best rows first. Every row of a group is linked to its first one, so that a chain of small steps
    does not join what is far apart, and no two first ones are linked. Groups of one are left out.
    """
    free, groups = set(order), []
    for row in order:
        if row in free:
            free.remove(row)
            others = [other for other in linked(row) if other in free]
            free.difference_update(others)
            if others:
                groups.append([row, *others])
    return groups
