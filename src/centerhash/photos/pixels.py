"""Compare photos by their pixels: perceptual hashes of views, and the correlation of two aligned pictures.

A picture is a grey square (SIDE, SIDE). Its *views* are what a copy of it may show: the whole in eight orientations, the
whole without the bars of a screenshot, and windows down to 60 % of the sides. Two pictures are candidates if the hash of
one whole is near the hash of a view of the other; they are copies if they also correlate after alignment.

The hash is the pHash (Zauner 2010): which of the 8 x 8 lowest frequencies of the DCT of 32 x 32 samples are above their
median. Sampling a window and its DCT are linear in the picture: two small matrix products.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from centerhash.data.views import longest_run

Words: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.floating[Any]]  # float32 but for boxes
Grey: TypeAlias = NDArray[np.uint8]
Box: TypeAlias = tuple[float, float, float, float]  # left, top, width, height in shares of the sides

SIDE = 64  # pixels of a picture
ORIENTATIONS = 8
FRAMED = ORIENTATIONS  # the view without bars
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
_SAMPLES = 32
_MIDDLES = ((np.arange(_SAMPLES) + 0.5) / _SAMPLES).astype(np.float32)  # of samples, in shares of a side
_WAVES = 8
_SCALES = (0.92, 0.84, 0.77, 0.70, 0.64, 0.59)
_LARGEST_STEP = 0.067
_FLAT_LEVELS = 3
_MIN_CONTENT = 0.2
_GAUSS_NEWTON_STEPS = 6
_MAX_EDGE_SHIFT = 0.08


class Picture(NamedTuple):
    """What is compared of one photo: its grey square (SIDE, SIDE), hashes (V,), and its frame without bars."""

    grey: Grey
    views: Words
    content: Box


# --- hashes


def picture_of(image: Image.Image) -> Picture:
    """Reduce an RGB image to what is compared."""
    large = np.asarray(image.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BOX).convert("L"))
    content = content_box(large)
    small = (large.reshape(SIDE, 2, SIDE, 2).sum(axis=(1, 3), dtype=np.uint16) // 4).astype(np.uint8)
    return Picture(small, views_of(small, content), content)


def views_of(grey: Grey, content: Box = WHOLE) -> Words:
    """Return the hashes (V,) of a picture: eight orientations, the frame without bars, all windows."""
    values = grey.astype(np.float32)
    whole, framed = (
        _sampling(top, height) @ values @ _sampling(left, width).T
        for left, top, width, height in (WHOLE, content)
    )
    down, across = _window_samplings()
    return hashes_of(np.concatenate([orientations(whole), framed[None], down @ values @ across]))


def hashes_of(waves: Floats) -> Words:
    """Return the hashes (n,) of low frequencies (n, 8, 8): the bits that are above the median."""
    flat = waves.reshape(len(waves), _WAVES**2)
    # frequencies that are not there are zero, whatever order the sums are computed in
    flat = flat.round(2)
    middle = np.partition(flat, (31, 32), axis=1)[:, 31:33].mean(axis=1, keepdims=True)
    return np.packbits(flat > middle, axis=1).view(np.uint64).ravel()


def orientations(waves: Floats) -> Floats:
    """Return the low frequencies (8, 8, 8) of a picture in eight orientations: mirroring flips odd waves."""
    flip = np.where(np.arange(_WAVES) % 2, -1, 1).astype(np.float32)
    oriented_waves = [
        base * down[:, None] * across
        for base in (waves, waves.T)
        for down in (np.ones_like(flip), flip)
        for across in (np.ones_like(flip), flip)
    ]
    return np.stack(oriented_waves)


def oriented(grey: Grey, view: int) -> Grey:
    """Return a picture in the orientation of a view; only the first eight views change it."""
    if view >= ORIENTATIONS:
        return grey
    base = grey.T if view & 4 else grey
    base = base[::-1] if view & 2 else base
    return base[:, ::-1] if view & 1 else base


@cache
def _window_samplings() -> tuple[Floats, Floats]:
    """Return the matrices (n, 8, SIDE) that sample all windows down, and (n, SIDE, 8) across."""
    windows = view_boxes()[FRAMED + 1 :]
    down = np.stack([_sampling(top, height) for _, top, _, height in windows])
    return down, np.stack([_sampling(left, width).T for left, _, width, _ in windows])


def _sampling(start: float, length: float) -> Floats:
    """Return the matrix (8, SIDE) that samples a stretch of a side and gives its lowest frequencies (DCT-II)."""
    edges = SIDE * (start + length * np.arange(_SAMPLES + 1) / _SAMPLES)
    pixels = np.arange(SIDE)
    # of each sample, the shares of the pixels that it covers; a sample is at least a pixel wide
    middle, half = (edges[1:] + edges[:-1]) / 2, max(1.0, SIDE * length / _SAMPLES) / 2
    covered = np.minimum(pixels + 1, (middle + half)[:, None]) - np.maximum(pixels, (middle - half)[:, None])
    shares = np.maximum(covered, 0)
    shares /= shares.sum(axis=1, keepdims=True)
    waves = np.cos(np.arange(_WAVES)[:, None] * (2 * np.arange(_SAMPLES) + 1) * np.pi / (2 * _SAMPLES))
    sampling: Floats = (waves @ shares).astype(np.float32)
    return sampling


@cache
def view_boxes() -> tuple[Box, ...]:
    """Return what each view shows of the picture; the place of the frame without bars holds the whole."""
    boxes = [WHOLE] * (FRAMED + 1)
    for scale in _SCALES:
        starts = np.linspace(0, 1 - scale, max(2, ceil((1 - scale) / _LARGEST_STEP) + 1)).tolist()
        boxes += [(left, top, scale, scale) for top in starts for left in starts]
    return tuple(boxes)


def content_box(grey: Grey) -> Box:
    """Return the part of a picture between flat bars, as screenshots have them; the whole if there are none."""
    top, bottom = _content(grey)
    left, right = _content(grey[top:bottom].T)
    rows, columns = grey.shape
    return left / columns, top / rows, (right - left) / columns, (bottom - top) / rows


def _content(grey: Grey) -> tuple[int, int]:
    """Return the longest run of rows that are not flat, as its start and end; all rows if it is short."""
    ranked = np.sort(grey, axis=1)
    aside = grey.shape[1] // 32  # pixels of text or symbols on a bar
    start, end = longest_run(ranked[:, -1 - aside] - ranked[:, aside] > _FLAT_LEVELS)
    return (start, end) if end - start >= len(grey) * _MIN_CONTENT else (0, len(grey))


# --- alignment


def correlations(templates: Grey, pictures: Grey, boxes: Floats) -> Floats:
    """Return how well templates (n, SIDE, SIDE) match the boxes (n, 4) of pictures (n, SIDE, SIDE), -1 to 1.

    A box is moved and stretched a little until it matches best (Lucas and Kanade 1981). Brightness and contrast do not
    matter. The result is the smaller one of the correlation of the pixels and the one of their details.
    """
    target = _normalized(_sampled(templates, np.tile(WHOLE, (len(templates), 1))))
    limits = boxes[:, [0, 1, 0, 1]] + np.pad(boxes[:, 2:], ((0, 0), (2, 0)))  # left, top, right, bottom
    edges = limits.copy()
    best = np.full(len(boxes), -1.0)
    best_edges = edges.copy()
    for step in range(_GAUSS_NEWTON_STEPS + 1):
        patch = _normalized(_sampled(pictures, _as_boxes(edges)))
        scores = (patch * target).mean(axis=(1, 2))
        better = scores > best
        best[better], best_edges[better] = scores[better], edges[better]
        if step < _GAUSS_NEWTON_STEPS:
            moved = edges + _step(patch, target, _as_boxes(edges))
            edges = np.clip(moved, limits - _MAX_EDGE_SHIFT, limits + _MAX_EDGE_SHIFT)
    patch = _normalized(_sampled(pictures, _as_boxes(best_edges)))
    details = (_details(patch) * _details(target)).mean(axis=(1, 2))
    smaller: Floats = np.minimum(best, details)
    return smaller


def _as_boxes(edges: Floats) -> Floats:
    return np.concatenate([edges[:, :2], np.maximum(edges[:, 2:] - edges[:, :2], 0.05)], axis=1)


def _sampled(pictures: Grey, boxes: Floats) -> Floats:
    """Return samples (n, 32, 32) of boxes of pictures, each between its four next pixels."""
    down, across = (_bilinear(boxes[:, [axis]], boxes[:, [axis + 2]]) for axis in (1, 0))
    samples: Floats = down @ pictures.astype(np.float32) @ across.transpose(0, 2, 1)
    return samples


def _bilinear(starts: Floats, lengths: Floats) -> Floats:
    """Return the weights (n, 32, SIDE) of the pixels of a side in each sample of stretches (n, 1) of it."""
    places = np.clip(SIDE * (starts + lengths * _MIDDLES) - 0.5, 0, SIDE - 1).astype(np.float32)
    weights: Floats = np.maximum(0, 1 - np.abs(np.arange(SIDE, dtype=np.float32) - places[..., None]))
    return weights


def _normalized(patches: Floats) -> Floats:
    """Return patches with mean 0 and standard deviation 1; flat ones are 0."""
    centered = patches - patches.mean(axis=(1, 2), keepdims=True)
    spread = centered.std(axis=(1, 2), keepdims=True)
    normalized: Floats = np.divide(centered, spread, out=np.zeros_like(centered), where=spread > 1e-3)
    return normalized


@cache
def _smoothing() -> Floats:
    """Return the matrix (32, 32) that averages each sample with the two before and after it."""
    near = np.abs(np.subtract.outer(np.arange(_SAMPLES), np.arange(_SAMPLES))) <= 2
    averages: Floats = (near / near.sum(axis=1, keepdims=True)).astype(np.float32)
    return averages


def _details(patches: Floats) -> Floats:
    """Return what is left of patches without their smooth part, normalized."""
    smooth = _smoothing()
    return _normalized(patches - smooth @ patches @ smooth.T)


def _step(patch: Floats, target: Floats, boxes: Floats) -> Floats:
    """Return by how much to move the edges (n, 4) of boxes, so that patches come nearer to their targets."""
    down, across = np.gradient(patch, axis=(1, 2))
    share = _MIDDLES
    # in samples per share of the side
    across = across * (_SAMPLES / boxes[:, 2])[:, None, None].astype(np.float32)
    down = down * (_SAMPLES / boxes[:, 3])[:, None, None].astype(np.float32)
    columns = np.stack(
        [across * (1 - share), down * (1 - share)[:, None], across * share, down * share[:, None]], axis=-1
    ).reshape(len(patch), -1, 4)
    error = (target - patch).reshape(len(patch), -1, 1)
    normal = columns.transpose(0, 2, 1) @ columns + 1e-2 * np.eye(4, dtype=np.float32) * len(error[0])
    step: Floats = np.linalg.solve(normal, columns.transpose(0, 2, 1) @ error)[..., 0]
    return step
