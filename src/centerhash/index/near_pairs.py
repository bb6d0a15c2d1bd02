"""Near pairs: all pairs of items that are near each other.

All pairs are compared, so the time does not depend on the distribution of the codes: N^2 / 2 distances of codes,
N^2 * V of views, some tenths of a nanosecond each with numba (see `scan`), about a nanosecond with numpy.
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

Words: TypeAlias = NDArray[np.uint64]
Integers: TypeAlias = NDArray[np.int64]

# Rows whose pairs are found in one call.
_ROWS = 512
# Rows and columns that numpy compares at once: their distances stay in the L2 cache.
_TILE = (32, 2048)


class NearPairs(NamedTuple):
    """Near items: rows first < second (M,), and how many bits of their codes differ."""

    first: Integers
    second: Integers
    bits: NDArray[np.uint16]


class Hits(NamedTuple):
    """Items whose whole is near a view of another one: rows (M,) of both, the view, and how many bits differ."""

    whole: Integers
    viewed: Integers
    view: Integers
    bits: NDArray[np.uint8]


def code_pairs(packed: Packed, radius: int, progress: Progress = silent) -> NearPairs:
    """Find all pairs of packed codes (N, W) that differ in at most `radius` bits, in the order of their rows."""
    # each word one contiguous scan, which becomes vector instructions
    words = np.ascontiguousarray(to_words(packed).T)
    first, second, bits = _join(words, words, radius, progress)
    return NearPairs(first, second, bits.astype(np.uint16))


def view_hits(views: Words, radius: int, progress: Progress = silent) -> Hits:
    """Find all items whose whole, view 0, differs in at most `radius` bits from a view of another one, of views (N, V).

    The nearest view of each pair is returned, the first one of equal ones.
    """
    wholes = np.ascontiguousarray(views[:, 0])[None]
    whole, column, bits = _join(wholes, np.ascontiguousarray(views).reshape(1, -1), radius, progress)
    viewed, view = np.divmod(column, views.shape[1])
    order = np.lexsort((view, bits, viewed, whole))
    order = order[whole[order] != viewed[order]]
    pair = whole[order] * len(views) + viewed[order]
    nearest = order[np.diff(pair, prepend=-1) != 0]
    return Hits(whole[nearest], viewed[nearest], view[nearest], bits[nearest].astype(np.uint8))


def _join(words: Words, others: Words, radius: int, progress: Progress) -> Integers:
    """Return the near pairs of codes (W, N) and (W, M): rows and distance (3, m), sorted by the rows.

    Codes that are compared with themselves give each pair once.
    """
    near: Callable[..., Integers] = numpy_near
    if find_spec("numba") is not None:
        from centerhash.index.scan import near

    count, is_self = words.shape[1], others is words
    starts, parts = range(0, count, _ROWS), [np.empty((3, 0), np.int64)]
    with ThreadPoolExecutor(cpu_count()) as pool:
        blocks = pool.map(
            lambda start: near(words, others, start, min(start + _ROWS, count), radius, is_self), starts
        )
        for done, part in enumerate(blocks, 1):
            parts.append(part)
            progress("pairs", min(done * _ROWS, count), count)
    pairs = np.concatenate(parts, axis=1)
    return pairs[:, np.lexsort((pairs[1], pairs[0]))]


def numpy_near(words: Words, others: Words, start: int, end: int, radius: int, is_self: bool) -> Integers:
    """Return the near pairs (3, m) whose first row is in start..end; if the codes are the same, with later rows only."""
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
