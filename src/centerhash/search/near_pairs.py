"""Near pairs: all pairs of codes that are near each other, and groups in which every two are.

An item is a visual code of two words and, if its pixels were read, the hashes of its views, one word each: the first of
the whole image, the others of what it may have become (see `duplicates`). Two items are linked when their visual codes
are at most `radius` bits apart, and the whole of one is at most `most` bits from some view of the other. Without views
the visual code decides alone.

All pairs are compared, so the time does not depend on the distribution of the codes: N^2 / 2 distances, a few tenths of
a nanosecond each with numba (see `scan`), some nanoseconds with numpy.
"""

from __future__ import annotations

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

FAR = 255  # the pixel distance where nothing is known of the pixels
_ROWS = 512  # whose pairs are found in one call
_TILE = (32, 2048)  # rows and columns that numpy compares at once: their distances stay in the L2 cache


class Pairs(NamedTuple):
    """Linked items: rows first < second (M,), how many visual bits they differ in, and how many of the pixels."""

    first: Integers
    second: Integers
    bits: Small
    pixels: Small


def visual_distances(words: Words, first: Integers, second: Integers | int) -> Small:
    """Bits (M,) in which the items `first` and `second` of visual words (2, N) differ."""
    second = np.atleast_1d(second)
    distances: Small = np.bitwise_count(words[:, first] ^ words[:, second]).sum(axis=0, dtype=np.uint8)
    return distances


def pixel_distances(views: Words, first: Integers, second: Integers | int) -> Small:
    """The fewest bits (M,) between the whole of one item and a view of the other, of views (N, V)."""
    second = np.atleast_1d(second)
    least: Small = np.minimum(
        np.bitwise_count(views[first, :1] ^ views[second]).min(axis=-1),
        np.bitwise_count(views[second, :1] ^ views[first]).min(axis=-1),
    )
    return least


def numpy_pairs(
    words: Words, views: Words, start: int, end: int, radius: int, most: int
) -> tuple[Integers, Small]:
    """The linked pairs (2, M) whose first row is in start..end, in their order, and their distances (2, M)."""
    rows, columns = _TILE
    found, far = [np.empty((2, 0), np.int64)], [np.empty((2, 0), np.uint8)]
    for top in range(start, end, rows):
        own = words[:, top : min(top + rows, end), None]
        for left in range(top + 1, words.shape[1], columns):
            others = words[:, None, left : left + columns]
            distances = np.bitwise_count(own[0] ^ others[0])
            distances += np.bitwise_count(own[1] ^ others[1])
            first, second = np.nonzero(distances <= radius)
            bits = distances[first, second]
            pair = np.stack([first + top, second + left])
            pixels = np.full(bits.shape, FAR, np.uint8)
            keep = pair[0] < pair[1]
            if views.shape[1]:
                pixels = pixel_distances(views, pair[0], pair[1])
                keep &= pixels <= most
            found.append(pair[:, keep])
            far.append(np.stack([bits, pixels])[:, keep])
    pairs, apart = np.concatenate(found, axis=1), np.concatenate(far, axis=1)
    order = np.lexsort((pairs[1], pairs[0]))
    return pairs[:, order], apart[:, order]


def linked_pairs(visual: Packed, views: Words, radius: int, most: int, progress: Progress = silent) -> Pairs:
    """All linked pairs of items with visual codes (N, 16) and views (N, V), V = 0 where pixels do not matter.

    They come in the order of their rows.
    """
    near_pairs = numpy_pairs
    if find_spec("numba") is not None:
        from centerhash.search.scan import near_pairs

    words = _planes(visual)
    starts = range(0, len(visual), _ROWS)

    def work(start: int) -> tuple[Integers, Small]:
        return near_pairs(words, views, start, min(start + _ROWS, len(visual)), radius, most)

    parts = [(np.empty((2, 0), np.int64), np.empty((2, 0), np.uint8))]
    with ThreadPoolExecutor(cpu_count()) as pool:
        for done, part in enumerate(pool.map(work, starts), 1):
            parts.append(part)
            progress("pairs", min(done * _ROWS, len(visual)), len(visual))
    rows, far = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    return Pairs(rows[0], rows[1], far[0], far[1])


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
    group = _complete_link(
        _planes(visual[rows]), own_views, pairs.first[order], pairs.second[order], radius, most
    )
    members: dict[int, list[int]] = {}
    for row, name in enumerate(group[place.ravel()].tolist()):
        members.setdefault(name, []).append(row)
    return [rows for rows in members.values() if len(rows) > 1]


def _complete_link(
    words: Words, views: Words, first: Integers, second: Integers, radius: int, most: int
) -> Integers:
    """The group of each row: those of each pair in turn merge if all members of one are linked with all of the other."""
    group = list(range(words.shape[1]))
    members = [[row] for row in group]
    apart: set[tuple[int, int]] = set()  # groups that are not linked; they stay so when they grow

    def linked(rows: Integers, row: int) -> bool:
        near = visual_distances(words, rows, row) <= radius
        return bool(near.all() and (views.shape[1] == 0 or (pixel_distances(views, rows, row) <= most).all()))

    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        large, small = group[one], group[other]
        if large == small or (large, small) in apart:
            continue
        if len(members[large]) < len(members[small]):
            large, small = small, large
        rows = np.array(members[large])
        if len(rows) == 1 or all(linked(rows, row) for row in members[small]):
            for row in members[small]:
                group[row] = large
            members[large] += members[small]
        else:
            apart |= {(large, small), (small, large)}
    return np.array(group)


def _planes(visual: Packed) -> Words:
    """Visual words (2, N): each word one contiguous scan, which becomes vector instructions."""
    return np.ascontiguousarray(to_words(visual).T)
