"""Search by examples: one linear query over the bits of all code columns, from items that are like it and unlike it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, unpack
from centerhash.index.store import Bools, Rows, View, smallest

# Random items that examples are compared with.
OTHERS = 2000
# Added to the variance of each bit; the second is divided by the number of examples.
_RIDGE = (0.5, 20.0)
# Weight of the mean of unlike items: they are often the nearest wrong ones, and near to the like ones.
_UNLIKE = 0.25
# Rows scored at a time.
_BLOCK = 1 << 16


def example_weights(
    likes: NDArray[np.int8], unlikes: NDArray[np.int8], others: NDArray[np.int8]
) -> NDArray[np.float64]:
    """Return (C + (0.5 + 20/n) I)^-1 ((a - m) - (b - m) / 4), a weight (B,) per bit: a discriminant, shrunk.

    a and b are the means of n likes (n, B) and of unlikes (u, B), of -1 and +1; m and C are mean and covariance of
    other items (o, B). Bits that vary together in the whole collection count less, and few examples are trusted less.
    """
    mean = others.mean(axis=0)
    direction = likes.mean(axis=0) - mean
    if len(unlikes):
        direction -= _UNLIKE * (unlikes.mean(axis=0) - mean)
    covariance = np.cov(others.T, bias=True)
    ridge = _RIDGE[0] + _RIDGE[1] / len(likes)
    weights: NDArray[np.float64] = np.linalg.solve(covariance + ridge * np.eye(len(mean)), direction)
    return weights


def bits_of(view: View, rows: Rows, bits: int, general_bits: int | None) -> NDArray[np.int8]:
    """Return the bits (n, K + V) of rows, -1 and +1; those of a missing general code are 0."""
    semantic = unpack(view["semantic"][rows], bits)
    if general_bits is None:
        return semantic
    general = unpack(view["general"][rows], general_bits)
    return np.hstack(
        [semantic, general if view.has_general is None else general * view.has_general[rows, None]]
    )


def some_bits(view: View, bits: int, general_bits: int | None) -> NDArray[np.int8]:
    """Return the bits of random items that are not hidden, always the same ones of a commit."""
    rows = np.arange(view.meta.rows) if view.shown is None else np.flatnonzero(view.shown)
    if len(rows) > OTHERS:
        rows = rows[np.random.default_rng(0).integers(0, len(rows), OTHERS)]
    return bits_of(view, rows, bits, general_bits)


@dataclass(frozen=True, eq=False)
class ByExamples:
    """The sum of the weights (K + V,) of the bits that are +1, minus that of the others, the largest first."""

    weights: NDArray[np.float64]
    bits: int  # K

    def first(self, view: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows with the largest scores."""
        rows = np.arange(view.meta.rows) if allowed is None else np.flatnonzero(allowed)
        scores = np.zeros(len(rows))
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            scores[block] = _sums(self.weights[: self.bits], view["semantic"][rows[block]])
            if "general" in view.columns:
                general = _sums(self.weights[self.bits :], view["general"][rows[block]])
                scores[block] += (
                    general if view.has_general is None else general * view.has_general[rows[block]]
                )
        return smallest(-scores, rows, k)


def _sums(weights: NDArray[np.float64], packed: Packed) -> NDArray[np.float64]:
    """Return the weighted sums (n,) of the bits of packed codes (n, W), looked up byte by byte."""
    padded = np.pad(weights, (0, 8 * packed.shape[1] - len(weights))).reshape(-1, 8)
    tables = padded @ unpack(np.arange(256, dtype=np.uint8)[:, None], 8).T
    return sum(
        (table.take(column) for table, column in zip(tables, packed.T, strict=True)), np.zeros(len(packed))
    )
