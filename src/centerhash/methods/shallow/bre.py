"""Hashing by binary reconstructive embeddings: BRE, coordinate descent on kernel weights with exact line search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.core.progress import Progress, silent
from centerhash.methods.registry import Notes, Scores, register_method
from centerhash.methods.shallow.base import STAGE, Floats, Training, prepare
from centerhash.methods.shallow.kernel import Kernel, KernelHash, KernelOptions, draw_kernel, share_label

Indices: TypeAlias = NDArray[np.int64]
Distances: TypeAlias = Callable[[int], Floats]  # from a row to its target distances (l,) to all rows

_NEAR = 0.05  # share of the rows that are near, for distances of features
_ROUNDING = 1e-12  # gain, as a share of all costs, that is only rounding
_NARROW = 1e-9  # relative width of an interval between thresholds that is too narrow to aim at


class Pairs(NamedTuple):
    """Pairs of training rows, (P,) and (P,), and the distances (P,) that they should have."""

    first: Indices
    second: Indices
    targets: Floats


# --- pairs


def label_distances(labels: NDArray[np.bool_]) -> Distances:
    """Target distance 0 to the rows of labels (l, C) that share a label, else 1."""
    return lambda row: 1.0 - share_label(labels[row : row + 1], labels)[0]


def feature_distances(prepared: Floats) -> Distances:
    """Half the squared distances between rows (l, D), scaled so that the mean over all pairs is 1/2.

    That is the mean of normalised Hamming distances when bits are balanced. Unscaled, features that all lie
    in one narrow cone would ask for bits that are nearly constant.
    """
    halves = (prepared**2).sum(axis=1) / 2
    mean = 2 * halves.mean() - float((prepared.mean(axis=0) ** 2).sum())
    return lambda row: (halves + halves[row] - prepared @ prepared[row]).clip(min=0) / (2 * mean)


def balanced_pairs(
    distances: Distances, rows: int, near_share: float, count: int, generator: np.random.Generator
) -> Pairs:
    """Per row, up to `count` random near partners and as many far ones, each pair once.

    Near is the `near_share` of all other rows with the smallest distances, and what ties with them; a share
    of 0 is the nearest row and its ties, which with distances of labels are all similar rows.
    """
    keys, targets = [], []
    for row in range(rows):
        others = np.delete(np.arange(rows), row)
        own = distances(row)
        near = own[others] <= np.quantile(own[others], near_share, method="lower")
        for side in (near, ~near):
            partners = generator.permutation(others[side])[:count]
            keys.append(np.minimum(partners, row) * rows + np.maximum(partners, row))
            targets.append(own[partners])
    unique, places = np.unique(np.concatenate(keys), return_index=True)
    return Pairs(unique // rows, unique % rows, np.concatenate(targets)[places])


def random_pairs(distances: Distances, rows: int, count: int, generator: np.random.Generator) -> Pairs:
    """Per row, `count` partners drawn from all other rows, each pair once: the original code's pairs."""
    keys = []
    for row in range(rows):
        partners = np.delete(np.arange(rows), row)[generator.permutation(rows - 1)[:count]]
        keys.append(np.minimum(partners, row) * rows + np.maximum(partners, row))
    unique = np.unique(np.concatenate(keys))
    first, second = unique // rows, unique % rows
    starts = np.searchsorted(first, np.arange(rows + 1))
    targets = [distances(row)[second[starts[row] : starts[row + 1]]] for row in range(rows)]
    return Pairs(first, second, np.concatenate(targets))


# --- the objective


def reconstruction_error(codes: NDArray[np.bool_], pairs: Pairs) -> float:
    """Sum over pairs of (target - Hamming distance / K)^2 for codes (l, K): what BRE minimises."""
    apart = np.zeros(len(pairs.first))
    for bit in range(codes.shape[1]):
        apart += codes[pairs.first, bit] != codes[pairs.second, bit]
    return float(((pairs.targets - apart / codes.shape[1]) ** 2).sum())


def separation_costs(targets: Floats, others: Floats, bits: int) -> Floats:
    """What it costs (P,) that one bit differs rather than agrees, when `others` (P,) of the other bits differ."""
    return (targets - (others + 1) / bits) ** 2 - (targets - others / bits) ** 2


def is_apart(values: Floats, pairs: Pairs) -> NDArray[np.bool_]:
    """Whether the two rows of each pair (P,) have different signs of values (l,)."""
    signs = values >= 0
    apart: NDArray[np.bool_] = signs[pairs.first] != signs[pairs.second]
    return apart


# --- one coordinate


def line_search(values: Floats, column: Floats, costs: Floats, pairs: Pairs) -> float:
    """Step t that minimises, over all t, the costs of the pairs apart under the signs of values + t column.

    values and column are (l,), costs (P,). The sign of a row flips at t = -value / column, so the objective
    is constant between two such thresholds. As t passes them in order, a pair changes (from together to
    apart, or back) at the first of its two thresholds and returns at the second: the objective on all
    intervals is one cumulative sum. 0 when no interval is better than the one we are in.
    """
    turning = np.flatnonzero(column)
    if not len(turning):
        return 0.0
    crossings = -values[turning] / column[turning]
    order = np.argsort(crossings, kind="stable")
    thresholds = crossings[order]
    ranks = np.full(len(values), len(turning))  # a row that never flips is passed by no interval
    ranks[turning[order]] = np.arange(len(turning))
    signs = values >= 0
    signs[turning] = column[turning] < 0  # before all thresholds
    jumps = np.where(signs[pairs.first] == signs[pairs.second], costs, -costs)
    one, other = ranks[pairs.first], ranks[pairs.second]
    slots = len(turning) + 2
    rise = np.bincount(np.minimum(one, other) + 1, jumps, slots)
    fall = np.bincount(np.maximum(one, other) + 1, jumps, slots)
    objective = np.cumsum(rise - fall)[:-1]  # of interval i, between thresholds i - 1 and i
    wide = np.diff(thresholds) > _NARROW * np.abs(thresholds[1:])
    best = int(np.where(np.concatenate([[True], wide, [True]]), objective, np.inf).argmin())
    here = int(np.searchsorted(thresholds, 0.0))
    gain = objective[here] - objective[best]
    return _inside(thresholds, best) if gain > _ROUNDING * np.abs(costs).sum() else 0.0


def _inside(thresholds: Floats, interval: int) -> float:
    """Middle of the interval between thresholds `interval` - 1 and `interval`, or a little beyond the outermost."""
    beyond = 0.01 * float(np.abs(thresholds).max()) + 1e-9
    ends = np.concatenate([[thresholds[0] - 2 * beyond], thresholds, [thresholds[-1] + 2 * beyond]])
    return float(ends[interval] + ends[interval + 1]) / 2


def refine_bit(
    values: Floats, columns: Floats, costs: Floats, pairs: Pairs, order: Indices
) -> tuple[Floats, Floats]:
    """Search along the columns in `order`: the changes (S,) of one bit's weights, and its new values (l,).

    values (l,) are columns (l, S) @ weights. A step is taken only when it does lower the objective, so that
    rounding at a threshold cannot raise it.
    """
    changes = np.zeros(columns.shape[1])
    cost = float(costs @ is_apart(values, pairs))
    for place in order:
        step = line_search(values, columns[:, place], costs, pairs)
        moved = values + step * columns[:, place]
        moved_cost = float(costs @ is_apart(moved, pairs)) if step else cost
        if moved_cost < cost:
            values, cost = moved, moved_cost
            changes[place] += step
    return changes, values


# --- all coordinates


def random_weights(total: int, bits: int, points: int, generator: np.random.Generator) -> Floats:
    """Gaussian weights (M, K) on `points` random rows per bit, and 0 on the others."""
    weights = np.zeros((total, bits))
    for bit in range(bits):
        places = generator.permutation(total)[:points]
        weights[places, bit] = generator.normal(size=len(places))
    return weights


def descend(
    columns: Floats,
    weights: Floats,
    pairs: Pairs,
    passes: int,
    generator: np.random.Generator,
    progress: Progress = silent,
) -> tuple[Floats, Floats]:
    """Weights (M, K) on kernel columns (l, M), and the reconstruction error (passes + 1,) before and after each pass.

    Starts at `weights` (M, K), of which the zeros stay. A pass goes over the bits, and over each bit's weights
    in random order.
    """
    weights, values, bits = weights.copy(), columns @ weights, weights.shape[1]
    errors = [reconstruction_error(values >= 0, pairs)]
    apart = np.zeros(len(pairs.first))
    for bit in range(bits):
        apart += is_apart(values[:, bit], pairs)
    for number in range(passes):
        for bit in range(bits):
            places = np.flatnonzero(weights[:, bit])
            apart -= is_apart(values[:, bit], pairs)
            costs = separation_costs(pairs.targets, apart, bits)
            order = generator.permutation(len(places))
            changes, values[:, bit] = refine_bit(values[:, bit], columns[:, places], costs, pairs, order)
            weights[places, bit] += changes
            apart += is_apart(values[:, bit], pairs)
            progress(STAGE, number * bits + bit + 1, passes * bits)
        errors.append(reconstruction_error(values >= 0, pairs))
    return weights, np.array(errors)


class BreOptions(KernelOptions):
    """Options of BRE."""

    supervised: bool = Field(
        True, description="target distances from labels, 0 or 1; otherwise from features"
    )
    samples: int = Field(2000, ge=2, description="training rows used, also as kernel points")
    points: int = Field(200, ge=1, description="random kernel points per bit")
    partners: int = Field(50, ge=1, description="near partners per row; the same number of far ones")
    passes: int = Field(1, ge=0, description="passes over all weights")
    linear: bool = Field(False, description="linear kernel; otherwise Gaussian")
    balanced: bool = Field(True, description="near and far partners; otherwise random ones")


@register_method(
    "bre",
    title="BRE",
    paper="Learning to Hash with Binary Reconstructive Embeddings (Kulis and Darrell)",
    year=2009,
    multi_label="similar if a label is shared",
    space={"bandwidth": [0.35, 0.7, 1.0], "points": [50, 100, 200], "partners": [25, 50]},
    authors={
        "supervised": False,
        "linear": True,
        "balanced": False,
        "samples": 1000,
        "points": 50,
        "partners": 25,
    },
    notes=Notes(
        source="a redistributed BRE.m",
        equations="""
            min over W of  sum over pairs of ( d_ij - |h(x_i) - h(x_j)|_Hamming / K )^2
            h_k(x) = sign( sum_p W_pk (kappa(x_p, x) - mean) );  d_ij = 0 if i and j share a label, else 1""",
        differences="""
            The compared code uses a linear kernel and distances of features; `linear` and `supervised` select them.""",
        scores=Scores(0.709, None, 0.644),
    ),
)
@dataclass(frozen=True, eq=False)
class Bre(KernelHash):
    """BRE (Kulis and Darrell, 2009): kernel functions whose Hamming distances reconstruct target distances.

    The kernel is centred, as in KSH: without, a Gaussian kernel is positive and most bits begin constant.
    """

    @classmethod
    def _fit(cls, given: Training) -> Self:
        """Fit on pairs of some rows of features (n, D), at the distances of their labels (n, C) or their own."""
        supervised = isinstance(given.options, BreOptions) and given.options.supervised
        chosen = given.checked(BreOptions, "BRE with supervised=true" if supervised else None)
        features, labels = given.features, given.labels
        generator = np.random.default_rng(given.seed)
        kernel, rows = draw_kernel(features, chosen.samples, chosen, generator)
        if chosen.linear:
            kernel = Kernel(kernel.anchors, 0.0, kernel.unit)
        if chosen.supervised:
            distances, near_share = label_distances(labels[rows]), 0.0
        else:
            distances, near_share = feature_distances(prepare(features[rows], chosen.unit)), _NEAR
        pairs = (
            balanced_pairs(distances, len(rows), near_share, chosen.partners, generator)
            if chosen.balanced
            else random_pairs(distances, len(rows), 2 * chosen.partners, generator)
        )
        columns, mean = kernel(features[rows]), kernel.mean(features)
        start = random_weights(len(rows), given.bits, chosen.points, generator)
        weights, _ = descend(columns - mean, start, pairs, chosen.passes, generator, given.progress)
        used = weights.any(axis=1)  # few bits use few of the points
        smaller = Kernel(kernel.anchors[used], kernel.sigma, kernel.unit)
        return cls.at(smaller, weights[used], mean @ weights)
