"""Compute the share of a frame that the objects of a COCO file cover, from their areas, masks and boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

# To measure the overlap of masks, they are drawn on a grid with this number of pixels on the longer side.
_GRID_SIDE = 128


def covered_share(objects: Sequence[Mapping[str, Any]], width: float, height: float) -> float | None:
    """Return the share (0 to 1) of a frame that objects cover together, or None if the size of one is unknown.

    The size of an object is its `area`, else that of its drawn mask, else that of its box. If boxes of objects touch,
    their masks are drawn on a small grid and the common part is counted once.
    """
    shares = [_share(entry, width, height) for entry in objects]
    if None in shares:
        return None
    boxes = [entry.get("bbox") or None for entry in objects]
    union_ratio = 1.0
    if any(_touch(first, second) for first, second in combinations(boxes, 2)):
        masks = [_draw_mask(entry, width, height) for entry in objects]
        total = sum(int(mask.sum()) for mask in masks)
        union_ratio = int(np.logical_or.reduce(masks).sum()) / total if total else 1.0
    return min(1.0, sum(filter(None, shares)) * union_ratio)


def _share(entry: Mapping[str, Any], width: float, height: float) -> float | None:
    """Return the share of one object alone."""
    if entry.get("area") is not None:
        share = float(entry["area"]) / (width * height)
    elif entry.get("segmentation"):
        share = float(_draw_mask(entry, width, height).mean())
    elif entry.get("bbox"):
        share = float(entry["bbox"][2]) * float(entry["bbox"][3]) / (width * height)
    else:
        return None
    if not 0 <= share < np.inf:
        raise ValueError(f"an area of {share} frames")
    return share


def _touch(first: Sequence[float] | None, second: Sequence[float] | None) -> bool:
    """Return whether two boxes (x, y, width, height) share pixels; True if a box is unknown."""
    if first is None or second is None:
        return True
    return all(
        first[axis] < second[axis] + second[axis + 2] and second[axis] < first[axis] + first[axis + 2]
        for axis in (0, 1)
    )


def _draw_mask(entry: Mapping[str, Any], width: float, height: float) -> NDArray[np.bool_]:
    """Draw one object on the grid, (rows, columns) bool: its mask, else its box, else nothing.

    Run lengths count column by column, background first. Instead of their compressed form, the box is drawn.
    """
    scale = _GRID_SIDE / max(width, height)
    columns, rows = max(1, round(width * scale)), max(1, round(height * scale))
    outline = entry.get("segmentation")
    if isinstance(outline, Mapping) and not isinstance(outline["counts"], str):
        down, across = (
            ((np.arange(count) + 0.5) * int(size) / count).astype(np.int64)
            for count, size in zip((rows, columns), outline["size"], strict=True)
        )
        runs = np.array([int(count) for count in outline["counts"]], dtype=np.int64)
        if runs.min() < 0 or runs.sum() != int(outline["size"][0]) * int(outline["size"][1]):
            raise ValueError(f"run lengths of {runs.sum():,} pixels for a mask of {outline['size']}")
        pixels = across * int(outline["size"][0]) + down[:, None]
        return np.asarray(np.searchsorted(runs.cumsum(), pixels, side="right") % 2 == 1)
    if isinstance(outline, Mapping) or not outline:
        left, top, box_width, box_height = entry.get("bbox") or (0, 0, 0, 0)
        right, bottom = left + box_width, top + box_height
        outline = [[left, top, right, top, right, bottom, left, bottom]] if entry.get("bbox") else []
    canvas = Image.new("L", (columns, rows))
    pen = ImageDraw.Draw(canvas)
    for polygon in outline:
        # Pillow counts from the center of the first pixel.
        corners = [float(value) * scale - 0.5 for value in polygon]
        pen.polygon(list(zip(corners[::2], corners[1::2], strict=True)), fill=1)
    return np.asarray(canvas, dtype=np.bool_)
