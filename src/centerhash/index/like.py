"""Search by examples: a linear query over the bits of all codes, from examples and counterexamples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, unpack
from centerhash.index.store import Bools, Rows, View, smallest

BACKGROUND_ITEMS = 2000
# The variance of each bit is increased by the first value, and by the second one divided by the number of examples.
_RIDGE = (0.5, 20.0)
# Counterexamples are often the nearest wrong results, and so near to the examples.
_COUNTEREXAMPLE_WEIGHT = 0.25
_ROWS_PER_BLOCK = 1 << 16


def example_weights(
    examples: NDArray[np.int8], counterexamples: NDArray[np.int8], background: NDArray[np.int8]
) -> NDArray[np.float64]:
    """Return (S + (0.5 + 20/n) I)^-1 ((a - m) - (b - m) / 4), a weight (K + V,) per bit: a shrunken discriminant.

    a and b are the means of n examples (n, K + V) and of counterexamples, of -1 and +1; m and S are mean and covariance
    of background items. Bits that vary together in the whole collection weigh less, and so do those of few examples.
    """
    mean = background.mean(axis=0)
    direction = examples.mean(axis=0) - mean
    if len(counterexamples):
        direction -= _COUNTEREXAMPLE_WEIGHT * (counterexamples.mean(axis=0) - mean)
    covariance = np.cov(background.T, bias=True)
    ridge = _RIDGE[0] + _RIDGE[1] / len(examples)
    weights: NDArray[np.float64] = np.linalg.solve(covariance + ridge * np.eye(len(mean)), direction)
    return weights


def bits_of(view: View, rows: Rows, bits: int, general_bits: int | None) -> NDArray[np.int8]:
    """Return the bits (n, K + V) of rows, -1 and +1; those of a missing general code are 0."""
    semantic = unpack(view["semantic"][rows], bits)
    if general_bits is None:
        return semantic
    general = unpack(view["general"][rows], general_bits)
    if view.has_general is not None:
        general = general * view.has_general[rows, None]
    return np.hstack([semantic, general])


def background_bits(view: View, bits: int, general_bits: int | None) -> NDArray[np.int8]:
    """Return the bits (n, K + V) of random visible items, the same ones for every query of a commit."""
    rows = np.arange(view.meta.rows) if view.visible is None else np.flatnonzero(view.visible)
    if len(rows) > BACKGROUND_ITEMS:
        rows = rows[np.random.default_rng(0).integers(0, len(rows), BACKGROUND_ITEMS)]
    return bits_of(view, rows, bits, general_bits)


@dataclass(frozen=True, eq=False)
class ExampleRanking:
    """Rank by the sum of the weights (K + V,) of bits that are +1, minus that of the others, the largest first."""

    weights: NDArray[np.float64]
    bits: int

    def top_rows(self, view: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows with the largest scores."""
        rows = np.arange(view.meta.rows) if allowed is None else np.flatnonzero(allowed)
        scores = np.zeros(len(rows))
        for start in range(0, len(rows), _ROWS_PER_BLOCK):
            block = slice(start, start + _ROWS_PER_BLOCK)
            scores[block] = _sums(self.weights[: self.bits], view["semantic"][rows[block]])
            if "general" in view.columns:
                general = _sums(self.weights[self.bits :], view["general"][rows[block]])
                if view.has_general is not None:
                    general *= view.has_general[rows[block]]
                scores[block] += general
        return smallest(-scores, rows, k)


def _sums(weights: NDArray[np.float64], packed: Packed) -> NDArray[np.float64]:
    """Return the weighted sums (n,) of the bits of packed codes (n, W), by a table of 256 sums per byte."""
    padded = np.pad(weights, (0, 8 * packed.shape[1] - len(weights))).reshape(-1, 8)
    tables = padded @ unpack(np.arange(256, dtype=np.uint8)[:, None], 8).T
    sums = (table.take(column) for table, column in zip(tables, packed.T, strict=True))
    return sum(sums, np.zeros(len(packed)))
