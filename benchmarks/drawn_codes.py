"""Codes as a model makes them, in any number: signs of real logits, or of a mixture fitted to such, with noise.

Of 107,664 COCO photos that the built-in model was not trained on, 43,216 codes of 64 bits are different, and 2,948
photos share one. The mixture of its centers has 42,632 and 2,853 (6,968 different ones of 13,458; the model 6,679).
Many more codes are drawn from one of 100,000 rows of logits each, with noise of a tenth of the logits' spread: the
number of different codes then grows as it does from 1,683 to 107,664 photos, by 1.85 with each doubling.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed

Logits = NDArray[np.float32]

NOISE = 0.1  # of the logits' standard deviation
ROWS, HELD_OUT = 100_000, 1_000  # logits to draw from; queries that nothing is drawn from
AT_ONCE = 1 << 18
LEVELS = 1 << 16
# of the mixture: how the frequencies of classes fall, labels beyond the first, how even their weights are, noise
FALL, MORE_LABELS, EVENNESS, SPREAD = 0.5, 0.8, 0.5, 0.4


def mixture(centers: NDArray[Any], rows: int, seed: int) -> Logits:
    """Logits (rows, K) of images with one or more labels, each a weighted mean of centers (C, K) of -1 and +1."""
    generator, classes = np.random.default_rng(seed), len(centers)
    frequency = 1 / np.arange(1, classes + 1) ** FALL
    labels = 1 + generator.poisson(MORE_LABELS, rows)
    weights = np.zeros((rows, classes), np.float32)
    for label in range(int(labels.max())):
        drawn = generator.choice(classes, rows, p=frequency / frequency.sum())
        weights[np.arange(rows), drawn] += generator.gamma(EVENNESS, 1, rows) * (label < labels)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    noise = SPREAD * generator.standard_normal((rows, centers.shape[1]), dtype=np.float32)
    return weights @ centers.astype(np.float32) + noise


def logits_of(run: str, features: Path | None) -> Logits:
    """The logits (N, K) of features (N, D) by a run or the built-in model, shuffled; without features a mixture."""
    import centerhash as ch

    model = ch.load(run)
    if features is None:
        return mixture(np.sign(model.centers.numpy()), ROWS + HELD_OUT, 0)
    stored = np.load(features, mmap_mode="r")
    chosen = np.random.default_rng(0).permutation(len(stored))[: ROWS + HELD_OUT]
    chunks = [chosen[top : top + 4096] for top in range(0, len(chosen), 4096)]
    return np.concatenate([model.logits(np.asarray(stored[np.sort(rows)], np.float32)) for rows in chunks])


def queries_of(logits: Logits) -> Packed:
    """The codes (1000, ceil(K/8)) of the first logits, as they are."""
    return np.packbits(logits[:HELD_OUT] >= 0, axis=1)


def drawn_codes(logits: Logits, count: int, seed: int, noise: float = NOISE) -> Packed:
    """Packed codes (count, ceil(K/8)): the signs of logits other than the first, each with noise of its own."""
    from math import erf

    generator, rest = np.random.default_rng(seed), logits[HELD_OUT:]
    packed, codes = np.packbits(rest >= 0, axis=1), np.empty((count, -(-logits.shape[1] // 8)), np.uint8)
    # a sign changes as often as noise is larger than its logit
    far = np.linspace(0, 6, 4096)
    tail = np.array([(1 - erf(value / 2**0.5)) / 2 for value in far])
    flips = np.interp(np.abs(rest) / (noise * rest.std()), far, tail)
    levels = np.minimum(flips * LEVELS, LEVELS - 1).astype(np.uint16)
    for top in range(0, count, AT_ONCE):
        rows = generator.integers(0, len(rest), min(AT_ONCE, count - top))
        flipped = generator.integers(0, LEVELS, (len(rows), logits.shape[1]), dtype=np.uint16) < levels[rows]
        codes[top : top + len(rows)] = packed[rows] ^ np.packbits(flipped, axis=1)
    return codes
