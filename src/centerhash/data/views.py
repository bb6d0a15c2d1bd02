"""Views of a query image, so that a search with a screenshot, a framed or a rotated copy returns the photo."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]

# A row or column of pixels is plain below this standard deviation of its brightness.
_PLAIN_DEVIATION = 4.0
# The part inside borders becomes a view if its share of each side is between these limits.
_SMALLEST_SHARE, _LARGEST_SHARE = 0.25, 0.96


def inner_box(pixels: Pixels) -> tuple[int, int, int, int] | None:
    """Return left, top, right and bottom of the part of an image (H, W, 3) between plain borders or bars, or None."""
    bright = pixels.astype(np.float32).mean(axis=2)
    top, bottom = longest_run(bright.std(axis=1) >= _PLAIN_DEVIATION)
    left, right = longest_run(bright[top:bottom].std(axis=0) >= _PLAIN_DEVIATION)
    height, width = bright.shape
    share = min((bottom - top) / height, (right - left) / width)
    return (left, top, right, bottom) if _SMALLEST_SHARE <= share <= _LARGEST_SHARE else None


def longest_run(mask: NDArray[np.bool_]) -> tuple[int, int]:
    """Return start and end of the longest run of True (the first, if several are equal), or of the whole mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return 0, len(mask)
    best = int((ends - starts).argmax())
    return int(starts[best]), int(ends[best])


def with_rotations(views: Pixels) -> Pixels:
    """Return views (n, S, S, 3) of an image, followed by the first one rotated by 90, 180 and 270 degrees."""
    return np.stack([*views, *(np.rot90(views[0], turns) for turns in (1, 2, 3))])
