"""Near pairs: all pairs of items that are near each other.

All pairs are compared, so the time does not depend on the distribution of the codes: N^2 / 2 distances of codes, N^2 * M
of M views, each in some tenths of a nanosecond with numba (see `scan`) or about a nanosecond with numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, to_words
from centerhash.core.parallel import cpu_count
from centerhash.core.progress import Progress, silent
from centerhash.index.store import Rows

Words: TypeAlias = NDArray[np.uint64]

_ROWS_PER_CALL = 512
# The distances of a tile of rows and columns, which numpy computes at once, stay in the L2 cache.
_TILE = (32, 2048)


class NearPairs(NamedTuple):
    """Pairs of near items: rows first < second (n,), and the number of bits in which their codes differ."""

    first: Rows
    second: Rows
    bits: NDArray[np.uint16]


class Hits(NamedTuple):
    """Pairs of images: rows (n,) of a whole image and of an image with a view near it, the view, and their distance."""

    whole: Rows
    viewed: Rows
    view: Rows
    bits: NDArray[np.uint8]


def code_pairs(packed: Packed, radius: int, progress: Progress = silent) -> NearPairs:
    """Find all pairs of packed codes (N, W) that differ in at most `radius` bits, in the order of their rows."""
    # Each word is a contiguous row, whose scan becomes vector instructions.
    words = np.ascontiguousarray(to_words(packed).T)
    first, second, bits = _join(words, words, radius, progress)
    return NearPairs(first, second, bits.astype(np.uint16))


def view_hits(views: Words, radius: int, progress: Progress = silent) -> Hits:
    """Find all images whose view 0 differs in at most `radius` bits from a view of another image, of views (N, M).

    The nearest view of each pair is returned, of equal ones the first.
    """
    wholes = np.ascontiguousarray(views[:, 0])[None]
    whole, column, bits = _join(wholes, np.ascontiguousarray(views).reshape(1, -1), radius, progress)
    viewed, view = np.divmod(column, views.shape[1])
    order = np.lexsort((view, bits, viewed, whole))
    order = order[whole[order] != viewed[order]]
    pair = whole[order] * len(views) + viewed[order]
    nearest = order[np.diff(pair, prepend=-1) != 0]
    return Hits(whole[nearest], viewed[nearest], view[nearest], bits[nearest].astype(np.uint8))


def _join(words: Words, others: Words, radius: int, progress: Progress) -> Rows:
    """Return rows and distances (3, n) of the near pairs of codes (W, N) and others, sorted by row.

    If the codes are compared with themselves, each pair is returned once.
    """
    near: Callable[..., Rows] = numpy_near
    if find_spec("numba") is not None:
        from centerhash.index.scan import near

    count, is_self = words.shape[1], others is words
    parts = [np.empty((3, 0), np.int64)]

    def pairs_from(start: int) -> Rows:
        return near(words, others, start, min(start + _ROWS_PER_CALL, count), radius, is_self)

    with ThreadPoolExecutor(cpu_count()) as pool:
        for part in pool.map(pairs_from, range(0, count, _ROWS_PER_CALL)):
            parts.append(part)
            progress("pairs", min((len(parts) - 1) * _ROWS_PER_CALL, count), count)
    pairs = np.concatenate(parts, axis=1)
    return pairs[:, np.lexsort((pairs[1], pairs[0]))]


def numpy_near(words: Words, others: Words, start: int, end: int, radius: int, is_self: bool) -> Rows:
    """Return the near pairs (3, n) whose first row is in start..end; if the codes are the same, with later rows only."""
    rows, columns = _TILE
    pairs = [np.empty((3, 0), np.int64)]
    for top in range(start, end, rows):
        block = words[:, top : min(top + rows, end), None]
        for left in range(top + 1 if is_self else 0, others.shape[1], columns):
            differing = np.bitwise_count(block ^ others[:, None, left : left + columns])
            distances = differing.sum(axis=0, dtype=np.uint16)
            first, second = np.nonzero(distances <= radius)
            pair = np.stack([first + top, second + left, distances[first, second]])
            pairs.append(pair[:, pair[0] < pair[1]] if is_self else pair)
    return np.concatenate(pairs, axis=1)
