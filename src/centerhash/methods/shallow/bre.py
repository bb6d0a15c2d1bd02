"""Hashing by binary reconstructive embeddings: BRE, coordinate descent on kernel weights with exact line search."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.options import Option
from centerhash.core.progress import Progress, silent
from centerhash.methods.shallow.base import STAGE, Floats, Normalize, prepare
from centerhash.methods.shallow.kernel import Bandwidth, KernelHash, share_label

Indices: TypeAlias = NDArray[np.int64]

# A gain below this share of all costs is rounding.
_ROUNDING = 1e-12
# No step is aimed at an interval between thresholds of less than this relative width.
_NARROW = 1e-9


class TrainingPairs(NamedTuple):
    """Pairs of training rows, and the distances that they should have, each (P,)."""

    first: Indices
    second: Indices
    targets: Floats


def feature_distances(prepared: Floats) -> Floats:
    """Compute half the squared distances (l, l) between rows (l, D), scaled to a mean of 1/2 over all pairs.

    That is the mean of normalized Hamming distances if bits are balanced. Unscaled, features that all lie in one
    narrow cone would lead to bits that are nearly constant.
    """
    halves = (prepared**2).sum(axis=1) / 2
    mean = 2 * halves.mean() - float((prepared.mean(axis=0) ** 2).sum())
    products = np.stack([prepared @ row for row in prepared])
    distances: Floats = (halves + halves[:, None] - products).clip(min=0) / (2 * mean)
    return distances


def draw_pairs(
    distances: Floats, near: NDArray[np.bool_], count: int, generator: np.random.Generator
) -> TrainingPairs:
    """Draw per row up to `count` partners among the near rows (l, l), and as many among the rest; each pair once.

    If all rows are near, or none is, the partners are of one kind: the original code's pairs.
    """
    pairs = np.zeros(near.shape, dtype=bool)
    for row in range(len(near)):
        candidates = np.delete(np.arange(len(near)), row)
        for side in (near[row, candidates], ~near[row, candidates]):
            pairs[row, generator.permutation(candidates[side])[:count]] = True
    first, second = np.nonzero(np.triu(pairs | pairs.T))
    return TrainingPairs(first, second, distances[first, second])


def is_apart(values: Floats, pairs: TrainingPairs) -> NDArray[np.bool_]:
    """Return whether the two rows of each pair (P,) have different signs of values (l,)."""
    signs = values >= 0
    apart: NDArray[np.bool_] = signs[pairs.first] != signs[pairs.second]
    return apart


def line_search(values: Floats, column: Floats, costs: Floats, pairs: TrainingPairs) -> float:
    """Return the step t that minimizes the costs of the pairs apart under the signs of values + t column.

    Values and column are (l,), costs (P,). The sign of a row flips at t = -value / column. As t passes these in
    order, a pair changes (from together to apart, or back) at the first of its two and returns at the second: the
    objective on all intervals is one cumulative sum. The step is 0 if no interval is better than the present one.
    """
    turning = np.flatnonzero(column)
    if not len(turning):
        return 0.0
    crossings = -values[turning] / column[turning]
    order = np.argsort(crossings, kind="stable")
    thresholds = crossings[order]
    # A row that never flips is passed by no interval.
    ranks = np.full(len(values), len(turning))
    ranks[turning[order]] = np.arange(len(turning))
    # These are the signs before all thresholds.
    signs = values >= 0
    signs[turning] = column[turning] < 0
    jumps = np.where(signs[pairs.first] == signs[pairs.second], costs, -costs)
    first, second, slots = ranks[pairs.first], ranks[pairs.second], len(turning) + 2
    rise = np.bincount(np.minimum(first, second) + 1, jumps, slots)
    fall = np.bincount(np.maximum(first, second) + 1, jumps, slots)
    # Interval i lies between thresholds i - 1 and i.
    objective = np.cumsum(rise - fall)[:-1]
    wide = np.diff(thresholds) > _NARROW * np.abs(thresholds[1:])
    best = int(np.where(np.concatenate([[True], wide, [True]]), objective, np.inf).argmin())
    gain = objective[np.searchsorted(thresholds, 0.0)] - objective[best]
    if gain <= _ROUNDING * np.abs(costs).sum():
        return 0.0
    beyond = 0.02 * float(np.abs(thresholds).max()) + 2e-9
    ends = np.concatenate([[thresholds[0] - beyond], thresholds, [thresholds[-1] + beyond]])
    return float(ends[best] + ends[best + 1]) / 2


def descend(
    columns: Floats,
    weights: Floats,
    pairs: TrainingPairs,
    passes: int,
    generator: np.random.Generator,
    progress: Progress = silent,
) -> Floats:
    """Return weights (M, K) on kernel columns (l, M) that lower sum over pairs of (target - Hamming distance / K)^2.

    Starts at `weights` (M, K), of which the zeros stay. A pass goes over the bits, and over each bit's weights in random
    order. A step is made only if it lowers the objective, so that rounding at a threshold cannot raise it.
    """
    weights, values, bits = weights.copy(), columns @ weights, weights.shape[1]
    apart = sum((is_apart(column, pairs) for column in values.T), np.zeros(len(pairs.first)))
    for number, bit in np.ndindex(passes, bits):
        value = values[:, bit]
        apart -= is_apart(value, pairs)
        # A pair costs so much more if this bit differs than if it agrees.
        costs = (pairs.targets - (apart + 1) / bits) ** 2 - (pairs.targets - apart / bits) ** 2
        cost = float(costs @ is_apart(value, pairs))
        points = np.flatnonzero(weights[:, bit])
        for point in points[generator.permutation(len(points))]:
            step = line_search(value, columns[:, point], costs, pairs)
            moved = value + step * columns[:, point]
            moved_cost = float(costs @ is_apart(moved, pairs)) if step else cost
            if moved_cost < cost:
                value, cost = moved, moved_cost
                weights[point, bit] += step
        values[:, bit] = value
        apart += is_apart(value, pairs)
        progress(STAGE, number * bits + bit + 1, passes * bits)
    return weights


class BRE(KernelHash):
    """BRE (Kulis and Darrell, 2009): kernel functions whose Hamming distances reconstruct target distances.

    Learning to Hash with Binary Reconstructive Embeddings, NeurIPS 2009. With labels, the kernel is Gaussian, and half of
    a row's partners share a label with it. Without, as in the authors' code, the kernel is linear and partners are
    random. The kernel is centered, as in KSH: otherwise a Gaussian kernel is positive and most bits begin constant.
    """

    def __init__(
        self,
        bits: int = 64,
        *,
        normalize: Normalize = True,
        bandwidth: Bandwidth = 0.35,
        supervised: Annotated[
            bool,
            Option("target distances from labels, 0 or 1; otherwise from features, as in the authors' code"),
        ] = True,
        samples: Annotated[int, Option("training rows used, also as kernel points", ge=2)] = 2000,
        points: Annotated[int, Option("random kernel points per bit", ge=1)] = 200,
        partners: Annotated[int, Option("half of the partners per row", ge=1)] = 50,
        passes: Annotated[int, Option("passes over all weights", ge=0)] = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(bits, normalize=normalize, seed=seed)
        self.bandwidth, self.needs_labels = bandwidth if supervised else 0.0, supervised
        self.samples, self.points, self.partners, self.passes = samples, points, partners, passes

    def _fit(self, features: NDArray[np.float32], labels: NDArray[np.bool_], progress: Progress) -> None:
        """Fit on pairs of some rows of features (n, D), at the distances of their labels (n, C) or of themselves."""
        generator = np.random.default_rng(self.seed)
        rows = self.sample_anchors(features, self.samples, self.bandwidth, generator)
        if self.needs_labels:
            distances: Floats = np.where(share_label(labels[rows]), 0.0, 1.0)
            pairs = draw_pairs(distances, distances == 0, self.partners, generator)
        else:
            distances = feature_distances(prepare(features[rows], bool(self.normalize)))
            pairs = draw_pairs(distances, distances >= 0, 2 * self.partners, generator)
        columns, mean = self.kernel(features[rows]), self.mean_kernel(features)
        # Each bit starts with Gaussian weights of some random rows.
        start = np.zeros((len(rows), self.bits))
        for bit in range(self.bits):
            points = generator.permutation(len(rows))[: self.points]
            start[points, bit] = generator.normal(size=len(points))
        weights = descend(columns - mean, start, pairs, self.passes, generator, progress)
        # Few bits use few of the points.
        used = weights.any(axis=1)
        self.anchors, self.weights, self.offset = self.anchors[used], weights[used], mean @ weights
