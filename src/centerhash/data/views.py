"""Views of a query image, so that a photo is found again by a screenshot, a framed or a rotated copy of it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]
Box: TypeAlias = tuple[int, int, int, int]  # left, top, right, bottom

_PLAIN = 4.0  # standard deviation of the brightness below which a row or column of pixels shows nothing
_LEAST = 0.25  # of the side that is left between borders
_WORTH = 0.96  # of the side: less border than this is not worth a view


def inner_box(pixels: Pixels) -> Box | None:
    """Return the part of an image (H, W, 3) between plain borders or bars; None if there are none."""
    bright = pixels.astype(np.float32).mean(axis=2)
    top, bottom = _longest_run(bright.std(axis=1) >= _PLAIN)
    left, right = _longest_run(bright[top:bottom].std(axis=0) >= _PLAIN)
    height, width = bright.shape
    kept = min((bottom - top) / height, (right - left) / width)
    return (left, top, right, bottom) if _LEAST <= kept <= _WORTH else None


def _longest_run(mask: NDArray[np.bool_]) -> tuple[int, int]:
    """Return start and end of the longest run of True, the first of equally long ones; the whole if there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return 0, len(mask)
    best = int((ends - starts).argmax())
    return int(starts[best]), int(ends[best])


def with_rotations(views: Pixels) -> Pixels:
    """Return views (n, S, S, 3) of an image, followed by the first one rotated by 90, 180 and 270 degrees."""
    return np.stack([*views, *(np.rot90(views[0], turns) for turns in (1, 2, 3))])
