"""Views of a query image, so that a photo is found again by a rotated copy or by a screenshot of it.

Views are made of the pixels (S, S, 3) that the network reads: the whole frame, rotated by 90, 180 and 270 degrees, and
without its borders if it has some. Only their visual codes are used.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]

_PLAIN = 12.0  # standard deviation of the brightness below which a row or column of pixels shows nothing
_LEAST = 0.25  # of the side that is left between borders
_WORTH = 0.96  # of the side: less border than this is not worth a view


def query_views(pixels: Pixels) -> Pixels:
    """Return the views (V, S, S, 3) of an image's pixels (S, S, 3); the first is the image itself."""
    views = [np.rot90(pixels, turns) for turns in range(4)]
    inner = without_borders(pixels)
    if inner is not None:
        views.append(inner)
    return np.stack(views)


def without_borders(pixels: Pixels) -> Pixels | None:
    """Return the part of an image between plain borders or bars, at the same size; None if there are none."""
    from PIL import Image

    bright = pixels.astype(np.float32).mean(axis=2)
    top, bottom = _longest_run(bright.std(axis=1) >= _PLAIN)
    left, right = _longest_run(bright[top:bottom].std(axis=0) >= _PLAIN)
    side = len(pixels)
    kept = (bottom - top) / side, (right - left) / side
    if min(kept) < _LEAST or min(kept) > _WORTH:
        return None
    inner = Image.fromarray(pixels[top:bottom, left:right])
    return np.asarray(inner.resize((side, side), Image.Resampling.BICUBIC))


def _longest_run(mask: NDArray[np.bool_]) -> tuple[int, int]:
    """Return start and end of the longest run of True, the first of equally long ones; the whole if there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return 0, len(mask)
    best = int((ends - starts).argmax())
    return int(starts[best]), int(ends[best])
