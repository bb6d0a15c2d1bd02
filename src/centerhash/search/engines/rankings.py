"""What answers are ranked by, where that is more than the semantic code: looks, and labels with weights.

A ranking gives every item of a segment a penalty; the smallest comes first, then the smaller distance of the semantic
code, then the smaller id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, pack, to_words
from centerhash.search.engines.base import VISUAL_BITS
from centerhash.search.engines.segments import Segment

FACTOR = 0.1  # of a visual bit beside a semantic one: see docs/search.md
SHARPNESS = 8.0  # of the likelihood of labels given a code
FLOOR = 0.01  # the presence of a label that is not stored, because it is smaller than those that are
SHARES = 1.0  # what shares count beside presences: see docs/search.md
_DIGITS = 9  # of a penalty: what rounding alone tells apart is equal


class Ranking(Protocol):
    """One order of all items."""

    @property
    def code(self) -> Packed:
        """The semantic code (ceil(K/8),) of the question: equal penalties are ordered by its distance."""

    @property
    def within(self) -> int | None:
        """The largest distance of an answer; None: any."""

    def penalties(self, segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """What speaks against each of these rows (m,); infinite where an item cannot be compared."""

    def distances(self, segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The distances (m,) that `within` limits."""


def code_distances(codes: Packed, code: Packed) -> NDArray[np.int64]:
    """Hamming distances (m,) of packed codes (m, W) to one (W,)."""
    differing = np.bitwise_count(to_words(codes) ^ to_words(code[None]))
    distances: NDArray[np.int64] = differing.sum(axis=1, dtype=np.int64)
    return distances


@dataclass(frozen=True, eq=False)
class ByBoth:
    """Semantic distance plus a small part of the visual one: d = d_semantic + factor * d_visual.

    An item without a visual code counts as one that looks neither alike nor unlike: half of its bits differ.
    """

    code: Packed  # (ceil(K/8),)
    visual: Packed  # (16,)
    factor: float = FACTOR
    within: int | None = None

    def penalties(self, segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """d_semantic + factor * d_visual."""
        looks = np.where(
            segment.looks[rows] == 1, code_distances(segment.visual[rows], self.visual), VISUAL_BITS / 2
        )
        combined: NDArray[np.float64] = self.distances(segment, rows) + self.factor * looks
        return combined.round(_DIGITS)

    def distances(self, segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Semantic distances."""
        return code_distances(segment.codes[rows], self.code)


@dataclass(frozen=True, eq=False)
class ByLook:
    """The visual distance alone; items without a visual code are not found."""

    code: Packed
    visual: Packed
    within: int | None = None

    def penalties(self, segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Visual distances."""
        return np.where(segment.looks[rows] == 1, self.distances(segment, rows), np.inf)

    def distances(self, segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Visual distances."""
        return code_distances(segment.visual[rows], self.visual)


@dataclass(frozen=True, eq=False)
class ByLabels:
    """The presence of all labels first, then how near their shares are to the weights.

    penalty = - sum_j log p_j + SHARES * 1/2 sum_j |s_j - w_j| over the labels j asked for, p their presences, s their
    shares of the image and w the weights. Where no presence is stored, both follow from the code: see `likelihoods`.
    """

    code: Packed
    weights: Mapping[str, float]  # of the labels asked for; they sum to 1
    centers: Codes  # (C, K)
    classes: Mapping[str, int]  # the row of each label's center
    within: int | None = None

    def penalties(self, segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """- sum_j log p_j + SHARES * 1/2 sum_j |s_j - w_j|."""
        presence = np.full((len(self.weights), len(segment)), FLOOR)
        shares = np.zeros_like(presence)
        for row, label in enumerate(self.weights):
            owners, presences, own = segment.seen_as(label)
            presence[row, owners] = np.maximum(presences, FLOOR)
            shares[row, owners] = own
        presence, shares = presence[:, rows], shares[:, rows]
        unknown = np.flatnonzero(segment.seen.lengths()[rows] == 0)
        columns = [self.classes[label] for label in self.weights]
        if len(unknown):
            shares[:, unknown] = likely = likelihoods(segment.codes[rows[unknown]], self.centers, columns)
            # of m labels that are all there each has a likelihood of 1 / m
            presence[:, unknown] = np.clip(likely * len(columns), FLOOR, 1)
        return label_penalties(presence, shares, np.array(list(self.weights.values())))

    def distances(self, segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Semantic distances to the code that lies between the labels' centers."""
        return code_distances(segment.codes[rows], self.code)


def label_penalties(
    presence: NDArray[np.float64], shares: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """- sum_j log p_j + SHARES * 1/2 sum_j |s_j - w_j| of presences and shares (m, n) and weights (m,)."""
    far = np.abs(shares - weights[:, None]).sum(axis=0) / 2
    penalties: NDArray[np.float64] = SHARES * far - np.log(presence).sum(axis=0)
    return penalties.round(_DIGITS)


def likelihoods(packed: Packed, centers: Codes, columns: Sequence[int]) -> NDArray[np.float64]:
    """How likely (m, n) each of m classes is given a packed code (n, ceil(K/8)) alone.

    Softmax of 8 times the cosine of the code to all centers (C, K).
    """
    bits = centers.shape[1]
    sizes = np.exp(SHARPNESS * (1 - 2 * np.arange(bits + 1) / bits))  # by the Hamming distance: few values
    total, chosen = np.zeros(len(packed)), np.empty((len(columns), len(packed)))
    for place, center in enumerate(pack(centers)):
        size = sizes[code_distances(packed, center)]
        total += size
        chosen[[row for row, column in enumerate(columns) if column == place]] = size
    likely: NDArray[np.float64] = chosen / total
    return likely
