"""Compare photos by their pixels: perceptual hashes of views, and the correlation of two aligned pictures.

A picture is a gray square (SIDE, SIDE). Its *views* are the parts that a copy of it may show: the whole in eight
orientations, the whole without the bars of a screenshot, and windows down to 60 % of the sides. Two pictures are
candidates if the hash of one whole is near the hash of a view of the other; they are copies if they also correlate after
alignment.

The hash is the pHash (Zauner 2010): which of the 8 x 8 lowest frequencies of the DCT of 32 x 32 samples are above their
median. Sampling a window and its DCT are linear in the picture: two small matrix products.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from centerhash.data.images import ImageSource, load_image
from centerhash.data.views import longest_run

Hashes: TypeAlias = NDArray[np.uint64]
# Boxes are float64, all else is float32.
Floats: TypeAlias = NDArray[np.floating[Any]]
Gray: TypeAlias = NDArray[np.uint8]
# Left, top, width and height, in shares of the sides.
Box: TypeAlias = tuple[float, float, float, float]

SIDE = 64  # pixels
ORIENTATIONS = 8
# The view without bars is the one after all orientations.
FRAMED = ORIENTATIONS
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
_SAMPLES = 32
_SAMPLE_CENTERS = ((np.arange(_SAMPLES) + 0.5) / _SAMPLES).astype(np.float32)  # in shares of a side
_NEAR_SAMPLES = np.abs(np.subtract.outer(np.arange(_SAMPLES), np.arange(_SAMPLES))) <= 2
# (32, 32): averages each sample with the two before and after it.
_SMOOTHING: Floats = (_NEAR_SAMPLES / _NEAR_SAMPLES.sum(axis=1, keepdims=True)).astype(np.float32)
_DCT_SIDE = 8
_SCALES = (0.92, 0.84, 0.77, 0.70, 0.64, 0.59)
_LARGEST_STEP = 0.067
_FLAT_LEVELS = 3
_MIN_CONTENT = 0.2
_GAUSS_NEWTON_STEPS = 6
_MAX_EDGE_SHIFT = 0.08


class Picture(NamedTuple):
    """A photo reduced to its gray square (SIDE, SIDE), the hashes (V,) of its views, and its frame without bars."""

    gray: Gray
    views: Hashes
    content: Box


# --- hashes


def picture_of(source: ImageSource) -> Picture:
    """Reduce an image to its gray square; its views are eight orientations, the frame without bars, and all windows."""
    image = load_image(source, at_least=2 * SIDE)
    large = np.asarray(image.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BOX).convert("L"))
    content = content_box(large)
    gray = (large.reshape(SIDE, 2, SIDE, 2).sum(axis=(1, 3), dtype=np.uint16) // 4).astype(np.uint8)
    values = gray.astype(np.float32)
    whole, framed = (
        _sampling(top, height) @ values @ _sampling(left, width).T
        for left, top, width, height in (WHOLE, content)
    )
    down, across = _window_samplings()
    views = np.concatenate([_orientations(whole), framed[None], down @ values @ across])
    return Picture(gray, _hashes(views), content)


def _hashes(dct: Floats) -> Hashes:
    """Return the hashes (n,) of low DCT coefficients (n, 8, 8): the bits that are above the median."""
    flat = dct.reshape(len(dct), _DCT_SIDE**2)
    # Rounding makes the coefficients of missing frequencies zero, whatever order the sums are computed in.
    flat = flat.round(2)
    middle = np.partition(flat, (31, 32), axis=1)[:, 31:33].mean(axis=1, keepdims=True)
    return np.packbits(flat > middle, axis=1).view(np.uint64).ravel()


def _orientations(dct: Floats) -> Floats:
    """Return the low DCT coefficients (8, 8, 8) of a picture in eight orientations: mirroring flips odd frequencies."""
    flip = np.where(np.arange(_DCT_SIDE) % 2, -1, 1).astype(np.float32)
    flips = list(product((np.ones_like(flip), flip), repeat=2))
    return np.stack([base * down[:, None] * across for base in (dct, dct.T) for down, across in flips])


def oriented(gray: Gray, view: int) -> Gray:
    """Return a picture in the orientation of a view; only the first eight views change it."""
    if view >= ORIENTATIONS:
        return gray
    base = gray.T if view & 4 else gray
    base = base[::-1] if view & 2 else base
    return base[:, ::-1] if view & 1 else base


@cache
def _window_samplings() -> tuple[Floats, Floats]:
    """Return the matrices (n, 8, SIDE) that sample all windows down, and (n, SIDE, 8) across."""
    windows = view_boxes()[FRAMED + 1 :]
    down = np.stack([_sampling(top, height) for _, top, _, height in windows])
    return down, np.stack([_sampling(left, width).T for left, _, width, _ in windows])


def _sampling(start: float, length: float) -> Floats:
    """Return the matrix (8, SIDE) from the pixels of a side to the low DCT-II coefficients of a stretch of it."""
    edges = SIDE * (start + length * np.arange(_SAMPLES + 1) / _SAMPLES)
    pixels = np.arange(SIDE)
    middle, half = (edges[1:] + edges[:-1]) / 2, max(1.0, SIDE * length / _SAMPLES) / 2
    # A sample is at least a pixel wide, and averages pixels by the share of each that it covers.
    covered = np.minimum(pixels + 1, (middle + half)[:, None]) - np.maximum(pixels, (middle - half)[:, None])
    shares = np.maximum(covered, 0)
    shares /= shares.sum(axis=1, keepdims=True)
    waves = np.cos(np.arange(_DCT_SIDE)[:, None] * (2 * np.arange(_SAMPLES) + 1) * np.pi / (2 * _SAMPLES))
    sampling: Floats = (waves @ shares).astype(np.float32)
    return sampling


@cache
def view_boxes() -> tuple[Box, ...]:
    """Return the box of each view in the picture; that of the view without bars is the whole."""
    boxes = [WHOLE] * (FRAMED + 1)
    for scale in _SCALES:
        starts = np.linspace(0, 1 - scale, max(2, ceil((1 - scale) / _LARGEST_STEP) + 1)).tolist()
        boxes += [(left, top, scale, scale) for top in starts for left in starts]
    return tuple(boxes)


def content_box(gray: Gray) -> Box:
    """Return the part of a picture between flat bars, as screenshots have them; the whole if there are none."""
    top, bottom = _content(gray)
    left, right = _content(gray[top:bottom].T)
    rows, columns = gray.shape
    return left / columns, top / rows, (right - left) / columns, (bottom - top) / rows


def _content(gray: Gray) -> tuple[int, int]:
    """Return the longest run of rows that are not flat, as its start and end; all rows if it is short."""
    ranked = np.sort(gray, axis=1)
    # A row of a bar is flat except for some pixels of text or symbols.
    ignored = gray.shape[1] // 32
    start, end = longest_run(ranked[:, -1 - ignored] - ranked[:, ignored] > _FLAT_LEVELS)
    return (start, end) if end - start >= len(gray) * _MIN_CONTENT else (0, len(gray))


# --- alignment


def correlations(templates: Gray, pictures: Gray, boxes: Floats) -> Floats:
    """Return how well templates (n, SIDE, SIDE) match the boxes (n, 4) of pictures (n, SIDE, SIDE), -1 to 1.

    A box is moved and stretched a little until it matches best (Lucas and Kanade 1981). Brightness and contrast do not
    matter. The result is the smaller one of the correlation of the pixels and the one of their details.
    """
    target = _normalized(_sampled(templates, np.tile(WHOLE, (len(templates), 1))))
    limits = boxes[:, [0, 1, 0, 1]] + np.pad(boxes[:, 2:], ((0, 0), (2, 0)))  # left, top, right, bottom
    edges = limits
    best, best_patch = np.full(len(boxes), -1.0), np.zeros_like(target)
    for step in range(_GAUSS_NEWTON_STEPS + 1):
        patch = _normalized(_sampled(pictures, _as_boxes(edges)))
        scores = (patch * target).mean(axis=(1, 2))
        better = scores > best
        best[better], best_patch[better] = scores[better], patch[better]
        if step < _GAUSS_NEWTON_STEPS:
            moved = edges + _step(patch, target, _as_boxes(edges))
            edges = np.clip(moved, limits - _MAX_EDGE_SHIFT, limits + _MAX_EDGE_SHIFT)
    details = (_details(best_patch) * _details(target)).mean(axis=(1, 2))
    smaller: Floats = np.minimum(best, details)
    return smaller


def _as_boxes(edges: Floats) -> Floats:
    return np.concatenate([edges[:, :2], np.maximum(edges[:, 2:] - edges[:, :2], 0.05)], axis=1)


def _sampled(pictures: Gray, boxes: Floats) -> Floats:
    """Return samples (n, 32, 32) of boxes of pictures, each interpolated between its four nearest pixels."""
    down, across = (_bilinear(boxes[:, [axis]], boxes[:, [axis + 2]]) for axis in (1, 0))
    samples: Floats = down @ pictures.astype(np.float32) @ across.transpose(0, 2, 1)
    return samples


def _bilinear(starts: Floats, lengths: Floats) -> Floats:
    """Return the weights (n, 32, SIDE) of the pixels of a side in each sample of stretches (n, 1) of it."""
    positions = np.clip(SIDE * (starts + lengths * _SAMPLE_CENTERS) - 0.5, 0, SIDE - 1).astype(np.float32)
    weights: Floats = np.maximum(0, 1 - np.abs(np.arange(SIDE, dtype=np.float32) - positions[..., None]))
    return weights


def _normalized(patches: Floats) -> Floats:
    """Return patches with mean 0 and standard deviation 1; flat ones are 0."""
    centered = patches - patches.mean(axis=(1, 2), keepdims=True)
    spread = centered.std(axis=(1, 2), keepdims=True)
    normalized: Floats = np.divide(centered, spread, out=np.zeros_like(centered), where=spread > 1e-3)
    return normalized


def _details(patches: Floats) -> Floats:
    """Return patches without their smooth part, normalized."""
    return _normalized(patches - _SMOOTHING @ patches @ _SMOOTHING.T)


def _step(patch: Floats, target: Floats, boxes: Floats) -> Floats:
    """Return the Gauss-Newton step (n, 4) of the edges of boxes that brings patches nearer to their targets."""
    down, across = np.gradient(patch, axis=(1, 2))
    share = _SAMPLE_CENTERS
    # The gradients per sample become gradients per share of the side.
    across = across * (_SAMPLES / boxes[:, 2])[:, None, None].astype(np.float32)
    down = down * (_SAMPLES / boxes[:, 3])[:, None, None].astype(np.float32)
    columns = np.stack(
        [across * (1 - share), down * (1 - share)[:, None], across * share, down * share[:, None]], axis=-1
    ).reshape(len(patch), -1, 4)
    error = (target - patch).reshape(len(patch), -1, 1)
    normal = columns.transpose(0, 2, 1) @ columns + 1e-2 * np.eye(4, dtype=np.float32) * len(error[0])
    step: Floats = np.linalg.solve(normal, columns.transpose(0, 2, 1) @ error)[..., 0]
    return step
