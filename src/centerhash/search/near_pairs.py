"""Near pairs: all pairs of codes that are near each other, and groups in which every two are.

An item is a visual code of two words and, if its pixels were read, the hashes of its views, one word each: the first of
the whole image, the others of what it may have become (see `duplicates`). Two items are linked when their visual codes
are at most `radius` bits apart, and the whole of one is at most `most` bits from some view of the other. Without views
the visual code decides alone.

All pairs are compared, so the time does not depend on the distribution of the codes: N^2 / 2 distances, a few tenths of
a nanosecond each. As in `scan`, plain threads run loops that release the interpreter lock.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed, to_words
from centerhash.core.compiled import compiled
from centerhash.core.parallel import cpu_count
from centerhash.core.progress import Progress, silent
from centerhash.search.items import VISUAL_BITS
from centerhash.search.scan import differing

Words: TypeAlias = NDArray[np.uint64]
Integers: TypeAlias = NDArray[np.int64]
Small: TypeAlias = NDArray[np.uint8]

FAR = 255  # the pixel distance where nothing is known of the pixels
_ROWS = 512  # whose pairs are found in one call
_COLUMNS = 4096  # compared with all these rows before the next: they stay in the L2 cache
_STEP = 256  # distances computed at once, and looked at one by one only where some are near
_ROOM = 1 << 14  # pairs that a call has room for at first


class Pairs(NamedTuple):
    """Linked items: rows first < second (M,), how many visual bits they differ in, and how many of the pixels."""

    first: Integers
    second: Integers
    bits: Small
    pixels: Small


@compiled
def visual_distance(words: Words, first: int, second: int) -> int:
    """Bits in which two items of visual words (2, N) differ."""
    distance: int = differing(words[0, first], words[0, second]) + differing(
        words[1, first], words[1, second]
    )
    return distance


@compiled
def pixel_distance(views: Words, first: int, second: int) -> int:
    """The fewest bits between the whole of one item and a view of the other, of views (N, V)."""
    least = 64
    for view in range(views.shape[1]):
        least = min(least, int(differing(views[first, 0], views[second, view])))
        least = min(least, int(differing(views[second, 0], views[first, view])))
    return least


@compiled
def _join(
    words: Words, views: Words, start: int, end: int, radius: int, most: int, found: Integers, far: Small
) -> int:
    """Write the pairs whose first row is in start..end to found (2, room) and far (2, room); return how many."""
    size, rows = 0, words.shape[1]
    distances = np.empty(_STEP, np.uint8)
    for top in range(start, rows, _COLUMNS):
        low, high = words[0, top : top + _COLUMNS], words[1, top : top + _COLUMNS]
        for first in range(start, min(end, top + low.size)):
            here_low, here_high = words[0, first], words[1, first]
            for left in range(max(0, (first + 1 - top) // _STEP * _STEP), low.size, _STEP):
                part_low, part_high = low[left : left + _STEP], high[left : left + _STEP]
                near = np.uint64(0)
                for column in range(np.uint64(part_low.size)):  # unsigned: no test for negative indices
                    distance = differing(here_low, part_low[column]) + differing(here_high, part_high[column])
                    distances[column] = distance
                    near += np.uint64(distance <= np.uint64(radius))
                if not near:
                    continue
                for column in range(max(left, first + 1 - top), min(left + _STEP, low.size)):
                    if distances[column - left] > radius:
                        continue
                    pixels = FAR
                    if views.shape[1]:
                        pixels = pixel_distance(views, first, top + column)
                        if pixels > most:
                            continue
                    if size < found.shape[1]:
                        found[0, size], found[1, size] = first, top + column
                        far[0, size], far[1, size] = distances[column - left], pixels
                    size += 1
    return size


def linked_pairs(visual: Packed, views: Words, radius: int, most: int, progress: Progress = silent) -> Pairs:
    """All linked pairs of items with visual codes (N, 16) and views (N, V), V = 0 where pixels do not matter.

    They come in the order of their rows.
    """
    words = _planes(visual)
    starts = range(0, len(visual), _ROWS)

    def work(start: int) -> tuple[Integers, Small]:
        room = _ROOM
        while True:
            found, far = np.empty((2, room), np.int64), np.empty((2, room), np.uint8)
            size = _join(words, views, start, min(start + _ROWS, len(visual)), radius, most, found, far)
            if size <= room:
                order = np.lexsort((found[1, :size], found[0, :size]))
                return found[:, order], far[:, order]
            room = size

    parts = [(np.empty((2, 0), np.int64), np.empty((2, 0), np.uint8))]
    with ThreadPoolExecutor(cpu_count()) as pool:
        for done, part in enumerate(pool.map(work, starts), 1):
            parts.append(part)
            progress("pairs", min(done * _ROWS, len(visual)), len(visual))
    rows, far = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    return Pairs(rows[0], rows[1], far[0], far[1])


@compiled
def _complete_link(
    words: Words, views: Words, first: Integers, second: Integers, radius: int, most: int, group: Integers
) -> None:
    """Merge the groups of each pair in turn, where every member of one is linked with every member of the other."""
    rows = group.size
    following, last, size = np.full(rows, -1), np.arange(rows), np.ones(rows, np.int64)
    for pair in range(first.size):
        large, small = group[first[pair]], group[second[pair]]
        if large == small:
            continue
        if size[large] < size[small]:
            large, small = small, large
        one, linked = small, True
        while one >= 0 and linked:
            other = large
            while other >= 0 and linked:
                linked = visual_distance(words, one, other) <= radius and (
                    views.shape[1] == 0 or pixel_distance(views, one, other) <= most
                )
                other = following[other]
            one = following[one]
        if linked:
            one = small
            while one >= 0:
                group[one] = large
                one = following[one]
            following[last[large]], last[large] = small, last[small]
            size[large] += size[small]


def complete_link_groups(
    visual: Packed, views: Words, radius: int, most: int, progress: Progress = silent
) -> list[list[int]]:
    """Groups of rows in which every two are linked, so that a chain of small steps does not join what is far apart.

    The nearest pair is merged first. Groups of one are left out; the others come in the order of their first rows.
    """
    check_packed(visual, VISUAL_BITS, "visual codes")
    # equal rows are one: a thousand black images would be half a million pairs
    both = np.concatenate(
        [visual, np.ascontiguousarray(views).view(np.uint8).reshape(len(visual), 8 * views.shape[1])], axis=1
    )
    _, rows, place = np.unique(both, axis=0, return_index=True, return_inverse=True)
    own_views = np.ascontiguousarray(views[rows])
    pairs = linked_pairs(visual[rows], own_views, radius, most, progress)
    order = np.lexsort((pairs.second, pairs.first, pairs.bits, pairs.pixels))
    group = np.arange(len(rows))
    words = _planes(visual[rows])
    _complete_link(words, own_views, pairs.first[order], pairs.second[order], radius, most, group)
    members: dict[int, list[int]] = {}
    for row, name in enumerate(group[place.ravel()].tolist()):
        members.setdefault(name, []).append(row)
    return [rows for rows in members.values() if len(rows) > 1]


def _planes(visual: Packed) -> Words:
    """Visual words (2, N): each word one contiguous scan, which becomes vector instructions."""
    return np.ascontiguousarray(to_words(visual).T)
