"""Near pairs: all pairs of items that are near each other, and groups around the item to keep.

All pairs are compared, so the time does not depend on the distribution of the codes: N^2 / 2 distances of visual codes,
N^2 * V of views (see `pixels`), some tenths of a nanosecond each with numba (see `scan`), about a nanosecond with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed, to_words
from centerhash.core.parallel import cpu_count
from centerhash.core.progress import Progress, silent
from centerhash.search.items import VISUAL_BITS

Words: TypeAlias = NDArray[np.uint64]
Integers: TypeAlias = NDArray[np.int64]
Small: TypeAlias = NDArray[np.uint8]

_ROWS = 512  # whose pairs are found in one call
_TILE = (32, 2048)  # rows and columns that numpy compares at once: their distances stay in the L2 cache
_VIEWED = 128  # columns whose views numpy compares at once


class Pairs(NamedTuple):
    """Near items: rows first < second (M,), and how many bits of their visual codes differ."""

    first: Integers
    second: Integers
    bits: Small


class Hits(NamedTuple):
    """Items whose whole is near a view of another one: rows (M,) of both, the view, and how many bits differ."""

    whole: Integers
    viewed: Integers
    view: Integers
    bits: Small


def code_pairs(visual: Packed, radius: int, progress: Progress = silent) -> Pairs:
    """Find all pairs of visual codes (N, 16) that differ in at most `radius` bits, in the order of their rows."""
    check_packed(visual, VISUAL_BITS, "visual codes")
    near_codes = numpy_codes
    if find_spec("numba") is not None:
        from centerhash.search.scan import near_codes

    # each word one contiguous scan, which becomes vector instructions
    words = np.ascontiguousarray(to_words(visual).T)
    found = _in_blocks(len(visual), 3, lambda start, end: near_codes(words, start, end, radius), progress)
    return Pairs(found[0], found[1], found[2].astype(np.uint8))


def view_hits(views: Words, most: int, progress: Progress = silent) -> Hits:
    """Find all items whose whole, view 0, differs in at most `most` bits from a view of another one, of views (N, V).

    The nearest view of each pair is returned, the first one of equal ones.
    """
    near_views = numpy_views
    if find_spec("numba") is not None:
        from centerhash.search.scan import near_views

    found = _in_blocks(len(views), 4, lambda start, end: near_views(views, start, end, most), progress)
    return Hits(found[0], found[1], found[2], found[3].astype(np.uint8))


def _in_blocks(
    count: int, columns: int, work: Callable[[int, int], Integers], progress: Progress
) -> Integers:
    """Call `work` for blocks of rows in threads; return what it finds (columns, M), sorted by the first two."""
    starts = range(0, count, _ROWS)
    parts = [np.empty((columns, 0), np.int64)]
    with ThreadPoolExecutor(cpu_count()) as pool:
        blocks = pool.map(lambda start: work(start, min(start + _ROWS, count)), starts)
        for done, part in enumerate(blocks, 1):
            parts.append(part)
            progress("pairs", min(done * _ROWS, count), count)
    found = np.concatenate(parts, axis=1)
    return found[:, np.lexsort((found[1], found[0]))]


def numpy_codes(words: Words, start: int, end: int, radius: int) -> Integers:
    """Return the near pairs whose first row is in start..end: rows and distance (3, M), of visual words (2, N)."""
    rows, columns = _TILE
    found = [np.empty((3, 0), np.int64)]
    for top in range(start, end, rows):
        own = words[:, top : min(top + rows, end), None]
        for left in range(top + 1, words.shape[1], columns):
            others = words[:, None, left : left + columns]
            distances = np.bitwise_count(own[0] ^ others[0])
            distances += np.bitwise_count(own[1] ^ others[1])
            first, second = np.nonzero(distances <= radius)
            pair = np.stack([first + top, second + left, distances[first, second]])
            found.append(pair[:, pair[0] < pair[1]])
    return np.concatenate(found, axis=1)


def numpy_views(views: Words, start: int, end: int, most: int) -> Integers:
    """Return the hits whose whole is in start..end: rows, view and distance (4, M)."""
    found = [np.empty((4, 0), np.int64)]
    for left in range(0, len(views), _VIEWED):
        others = views[left : left + _VIEWED]
        for row in range(start, end):
            distances = np.bitwise_count(others ^ views[row, 0])
            places = np.flatnonzero(distances.min(axis=1) <= most)
            places = places[places != row - left]
            if places.size:
                view = distances[places].argmin(axis=1)
                hit = [np.full(places.size, row), places + left, view, distances[places, view]]
                found.append(np.stack(hit).astype(np.int64))
    return np.concatenate(found, axis=1)


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
