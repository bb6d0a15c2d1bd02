"""The share of the frame that several objects of one label cover together, from polygons, run lengths and boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Mask: TypeAlias = NDArray[np.bool_]
Object: TypeAlias = Mapping[str, Any]  # an annotation of COCO: area, bbox, segmentation, each where known

MAX_MASK = 100_000_000  # pixels, as of images; each takes a byte
GRID = 128  # pixels of the longer side when masks are drawn to see how far they overlap


def covered_share(objects: Sequence[Object], width: float, height: float) -> float | None:
    """The share (0 to 1) of a frame that the objects cover together, or None where one says nothing of its size.

    Sizes come from the stated `area`, else from the mask, else from the box. Where the boxes of objects touch,
    their masks are drawn on a small grid and what they share is counted once.
    """
    shares = [_own_share(entry, width, height) for entry in objects]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    boxes = [_box(entry) for entry in objects]
    ratio = 1.0  # of the pixels of all masks together to the sum of the pixels of each
    if any(_may_touch(first, second) for first, second in combinations(boxes, 2)):
        masks = [draw(entry, width, height) for entry in objects]
        total = sum(int(mask.sum()) for mask in masks)
        ratio = int(np.logical_or.reduce(masks).sum()) / total if total else 1.0
    return min(1.0, sum(known) * ratio)


def _own_share(entry: Object, width: float, height: float) -> float | None:
    """The share of one object alone."""
    outline, box = entry.get("segmentation"), _box(entry)
    if entry.get("area") is not None:
        area = float(entry["area"])
    elif isinstance(outline, Mapping):
        area = float(decode_runs(outline).sum())
    elif outline:
        area = sum(_polygon_area(polygon) for polygon in outline)
    elif box is not None:
        area = float(box[2]) * float(box[3])
    else:
        return None
    if not 0 <= area < np.inf:
        raise ValueError(f"an area of {area}")
    return area / (width * height)


def _polygon_area(polygon: Sequence[float]) -> float:
    """The area inside x1, y1, x2, y2, ... by the shoelace formula."""
    corners = np.asarray(polygon, dtype=np.float64).reshape(-1, 2)
    following = np.roll(corners, -1, axis=0)
    doubled = corners[:, 0] @ following[:, 1] - corners[:, 1] @ following[:, 0]
    return abs(float(doubled)) / 2


def _box(entry: Object) -> Sequence[float] | None:
    box = entry.get("bbox")
    return box if box and len(box) == 4 else None


def _may_touch(first: Sequence[float] | None, second: Sequence[float] | None) -> bool:
    """Whether two boxes (x, y, width, height) share pixels; without boxes only the masks can tell."""
    if first is None or second is None:
        return True
    return all(
        first[axis] < second[axis] + second[axis + 2] and second[axis] < first[axis] + first[axis + 2]
        for axis in (0, 1)
    )


def draw(entry: Object, width: float, height: float) -> Mask:
    """Draw one object on the grid, (rows, columns) bool: its mask, else its box, else nothing."""
    scale = GRID / max(width, height)
    columns, rows = max(1, round(width * scale)), max(1, round(height * scale))
    outline, box = entry.get("segmentation"), _box(entry)
    if isinstance(outline, Mapping):
        full = decode_runs(outline)
        return full[np.ix_(_spread(rows, full.shape[0]), _spread(columns, full.shape[1]))]
    canvas = Image.new("L", (columns, rows))
    pen = ImageDraw.Draw(canvas)
    for polygon in outline or ([_corners(box)] if box is not None else []):
        # Pillow counts from the first pixel's centre
        scaled = [float(value) * scale - 0.5 for value in polygon]
        pen.polygon(list(zip(scaled[::2], scaled[1::2], strict=True)), fill=1)
    return np.asarray(canvas, dtype=np.bool_)


def _spread(count: int, size: int) -> NDArray[np.int64]:
    """`count` positions, evenly over 0 to `size` - 1."""
    return ((np.arange(count) + 0.5) * size / count).astype(np.int64)


def _corners(box: Sequence[float]) -> list[float]:
    left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
    return [left, top, right, top, right, bottom, left, bottom]


def decode_runs(runs: Mapping[str, Any]) -> Mask:
    """Decode COCO's run lengths into a mask (height, width): column by column, background first."""
    height, width = (int(length) for length in runs["size"])
    counts = runs["counts"]
    lengths = _read_counts(counts) if isinstance(counts, str) else [int(count) for count in counts]
    pixels = sum(lengths)
    if pixels != height * width or min(height, width, *lengths) < 0:
        raise ValueError(f"run lengths of {pixels:,} pixels for a mask of {width} x {height}")
    if pixels > MAX_MASK:
        raise ValueError(
            f"a mask of {width:,} x {height:,} is {pixels:,} pixels, more than the limit of {MAX_MASK:,}; make it smaller"
        )
    values = np.arange(len(lengths)) % 2 == 1
    flat = np.repeat(values, lengths)
    return flat.reshape(width, height).T


def _read_counts(text: str) -> list[int]:
    """Read the compressed form: five bits per character, and from the fourth run on the change from two before."""
    lengths: list[int] = []
    value, place = 0, 0
    for character in text:
        digit = ord(character) - 48
        value |= (digit & 0x1F) << (5 * place)
        place += 1
        if digit & 0x20:  # more to come
            continue
        if digit & 0x10:  # negative
            value -= 1 << (5 * place)
        lengths.append(value + lengths[-2] if len(lengths) > 2 else value)
        value, place = 0, 0
    return lengths
