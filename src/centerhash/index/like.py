"""Search by examples: one linear query over the bits of all code columns, from items that are like it and unlike it.

weights = example_weights(likes, unlikes, others)
ByExamples(weights).first(columns, k, None)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, packed_width, unpack
from centerhash.index.store import Bools, Rows, View

OTHERS = 2000  # random items that examples are compared with
_RIDGE = 3.0  # added to the variance of each bit
_UNLIKE = 0.25  # weight of the mean of unlike items: they are often the nearest wrong ones, and near to the like ones
_BLOCK = 1 << 16  # rows scored at a time


def example_weights(
    likes: NDArray[np.int8], unlikes: NDArray[np.int8], others: NDArray[np.int8]
) -> NDArray[np.float64]:
    """Return (C + RIDGE I)^-1 ((a - m) - UNLIKE (b - m)), a weight (B,) per bit: a linear discriminant.

    a and b are the mean bits of examples (n, B) and (m, B), -1 and +1; m and C are mean and covariance of other items
    (o, B). Bits that vary together in the whole collection count less.
    """
    mean = others.mean(axis=0)
    direction = likes.mean(axis=0) - mean
    if len(unlikes):
        direction -= _UNLIKE * (unlikes.mean(axis=0) - mean)
    covariance = (others - mean).T @ (others - mean) / len(others)
    weights: NDArray[np.float64] = np.linalg.solve(covariance + _RIDGE * np.eye(len(mean)), direction)
    return weights


def bits_of(columns: View, rows: Rows, bits: int, general_bits: int | None) -> NDArray[np.int8]:
    """Return the bits (n, K + V) of rows, -1 and +1; those of a missing general code are 0."""
    semantic = unpack(columns.semantic[rows], bits)
    if columns.general is None or general_bits is None:
        return semantic
    general = unpack(columns.general[rows], general_bits)
    if columns.has_general is not None:
        general[~columns.has_general[rows]] = 0
    return np.hstack([semantic, general])


def some_bits(columns: View, bits: int, general_bits: int | None) -> NDArray[np.int8]:
    """Return the bits of random items that are not hidden, always the same ones of a commit."""
    rows = np.arange(columns.meta.rows) if columns.shown is None else np.flatnonzero(columns.shown)
    chosen = np.random.default_rng(0).integers(0, len(rows), OTHERS) if len(rows) > OTHERS else slice(None)
    return bits_of(columns, rows[chosen], bits, general_bits)


@dataclass(frozen=True, eq=False)
class ByExamples:
    """The sum of the weights (K + V,) of the bits that are +1, minus that of the others, the largest first."""

    weights: NDArray[np.float64]
    bits: int  # K

    def first(self, columns: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows with the largest scores."""
        rows = np.arange(len(columns.semantic)) if allowed is None else np.flatnonzero(allowed)
        scores = np.concatenate(
            [self._scores(columns, rows[start : start + _BLOCK]) for start in range(0, len(rows), _BLOCK)]
            or [np.empty(0)]
        )
        if len(rows) > k:
            best = scores >= -np.partition(-scores, k - 1)[k - 1]
            rows, scores = rows[best], scores[best]
        ordered: Rows = rows[np.lexsort((rows, -scores))[:k]]
        return ordered

    def _scores(self, columns: View, rows: Rows) -> NDArray[np.float64]:
        scores = looked_up(byte_tables(self.weights[: self.bits]), columns.semantic[rows])
        if columns.general is not None:
            general = looked_up(byte_tables(self.weights[self.bits :]), columns.general[rows])
            if columns.has_general is not None:
                general[~columns.has_general[rows]] = 0
            scores += general
        return scores


def byte_tables(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tables (ceil(B/8), 256): the weighted sum of 8 bits of -1 and +1, by the byte that holds them."""
    padded = np.zeros(8 * packed_width(len(weights)))
    padded[: len(weights)] = weights
    every = unpack(np.arange(256, dtype=np.uint8)[:, None], 8)  # (256, 8)
    tables: NDArray[np.float64] = padded.reshape(-1, 8) @ every.T
    return tables


def looked_up(tables: NDArray[np.float64], packed: Packed) -> NDArray[np.float64]:
    """Return the sums (n,) of the table entries (W, 256) of packed codes (n, W)."""
    total = np.zeros(len(packed))
    for table, column in zip(tables, packed.T, strict=True):
        total += table[column]
    return total
