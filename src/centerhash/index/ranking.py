"""Rankings: the order of the results of a query, by codes or by labels with weights.

Every ranking returns the exact first k rows of the columns of an index; rows with equal values keep the order in which
their items were added.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, pack, to_words
from centerhash.index.items import LEVELS
from centerhash.index.store import Bools, Rows, View, smallest

# One semantic bit counts as much as this many general bits: see docs/how-to/search.md.
SEMANTIC_WEIGHT = 10
# The softmax over all centers has this factor before the cosine of a code.
LIKELIHOOD_SHARPNESS = 8.0
_MIN_LIKELIHOOD = 0.01
# An item whose probability of a label is below this one is no result of a query by that label: see `benchmarks.quality`.
MIN_PROBABILITY = 0.12
# A cropped copy of a photo differs in at most this share of the general bits: see `benchmarks.quality`.
COPY_DISTANCE = 1 / 4
# Other copies differ in at most this share of the general bits more than the nearest copy.
_COPY_SPREAD = 1 / 64
_PENALTY_DIGITS = 9

# If at most one row in this many is allowed, the codes of allowed rows are gathered; otherwise the scan skips the others.
ROWS_PER_GATHERED_ROW = 8
# Up to this many rows, numpy takes less time than the import of numba.
NUMPY_ROWS_AT_FIRST = 1 << 19
# Up to this many rows, numpy is as fast as the compiled loop.
NUMPY_ROWS = 1 << 13
_SCAN = "centerhash.index.scan"


def code_distances(codes: Packed, code: Packed) -> Rows:
    """Return the Hamming distances (m,) of packed codes (m, W) to one (W,)."""
    distances: Rows = np.bitwise_count(to_words(codes) ^ to_words(code[None])).sum(axis=1, dtype=np.int64)
    return distances


@dataclass(frozen=True, eq=False)
class GeneralRanking:
    """Rank by the Hamming distance of the general codes; items without one are no results.

    `general` (M, W) are the general codes of the query and of further views of it, with which only copies are compared.
    With `copies`, copies of any view come first (see `_copies_first`).
    """

    general: Packed
    within: int | None = None
    copies: bool = False

    def top_rows(self, view: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows of copies, then those of the nearest general codes."""
        codes, allowed = view["general"], combined_mask(view.has_general, allowed)
        nearest, _ = _nearest(codes, self.general[0], k, allowed, self.within, None)
        # The copies of a single view are its nearest rows anyway.
        if not self.copies or len(self.general) == 1:
            return nearest
        limit = near_bits(codes) if self.within is None else min(near_bits(codes), self.within)
        copies = [_nearest(codes, general, k, allowed, limit, None)[0] for general in self.general]
        return _copies_first(codes, self.general, copies, nearest, k)


@dataclass(frozen=True, eq=False)
class SemanticRanking:
    """Rank by the Hamming distance of the semantic codes; with `general`, by d_semantic + 0.1 d_general.

    An item without a general code counts as one in which half of the bits differ. `within` limits d_semantic. The other
    fields are those of `GeneralRanking`.
    """

    code: Packed
    general: Packed | None = None
    within: int | None = None
    copies: bool = False

    def top_rows(self, view: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows of copies, then those of the smallest distances."""
        if self.general is None:
            return _nearest(view["semantic"], self.code, k, allowed, self.within, None)[0]
        codes = view["general"]
        # The scan finds copies by their general codes alone.
        if self.copies and self.within is not None:
            allowed = combined_mask(code_distances(view["semantic"], self.code) <= self.within, allowed)
        limit = near_bits(codes) if self.copies else -1
        general = GeneralCodes(self.general[0], codes, view.has_general, limit)
        nearest, copies = _nearest(view["semantic"], self.code, k, allowed, self.within, general)
        if not self.copies:
            return nearest
        allowed = combined_mask(view.has_general, allowed)
        others = [_nearest(codes, view_code, k, allowed, limit, None)[0] for view_code in self.general[1:]]
        return _copies_first(codes, self.general, [copies, *others], nearest, k)


def near_bits(general: Packed) -> int:
    """Return the number of bits in which the general code of a copy may differ."""
    return round(COPY_DISTANCE * 8 * int(general.shape[1]))


def _copies_first(general: Packed, views: Packed, candidates: Sequence[Rows], nearest: Rows, k: int) -> Rows:
    """Return k rows: candidates about as near to the views (M, W) as the nearest candidate, then the nearest rows."""
    rows = np.unique(np.concatenate(candidates))
    if not len(rows):
        return nearest
    distances = np.min([code_distances(general[rows], view) for view in views], axis=0)
    near = distances <= distances.min() + round(_COPY_SPREAD * 8 * general.shape[1])
    copies = rows[near][np.argsort(distances[near], kind="stable")]
    return np.concatenate([copies, nearest[~np.isin(nearest, copies)]])[:k]


@dataclass(frozen=True, eq=False)
class LabelRanking:
    """Rank by the probability of all labels first, then by the differences between their shares and the weights.

    penalty = - sum_j log p_j + 1/2 sum_j |s_j - w_j| over the labels j of the query, p their probabilities, s
    their area shares and w the weights. An item with a probability below MIN_PROBABILITY is no result. Without stored
    scores, both follow from the code (see `likelihoods`), and all items are results. Equal penalties are ordered by the
    semantic distance, which `within` limits.
    """

    code: Packed
    weights: Mapping[int, float]  # by class, with sum 1
    centers: Codes  # (C, K)
    within: int | None = None

    def top_rows(self, view: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows with the smallest penalties."""
        codes = view["semantic"]
        rows, probability, share = self._scored(view, allowed)
        if len(view.unscored):
            unscored = view.unscored if allowed is None else view.unscored[allowed[view.unscored]]
            likelihood = likelihoods(codes[unscored], self.centers, list(self.weights))
            rows, share = np.concatenate([rows, unscored]), np.hstack([share, likelihood])
            # Each of m present labels has a likelihood of 1 / m.
            likelihood = np.clip(likelihood * len(likelihood), _MIN_LIKELIHOOD, 1)
            probability = np.hstack([probability, likelihood])
        weights = np.array(list(self.weights.values()))
        differences = np.abs(share - weights[:, None]).sum(axis=0) / 2
        penalties = (differences - np.log(probability).sum(axis=0)).round(_PENALTY_DIGITS)
        if self.within is not None:
            is_near = code_distances(codes[rows], self.code) <= self.within
            rows, penalties = rows[is_near], penalties[is_near]
        if len(rows) > k:
            is_best = penalties <= np.partition(penalties, k - 1)[k - 1]
            rows, penalties = rows[is_best], penalties[is_best]
        distances = code_distances(codes[rows], self.code)
        return np.take(rows, np.lexsort((rows, distances, penalties))[:k])

    def _scored(
        self, view: View, allowed: Bools | None
    ) -> tuple[Rows, NDArray[np.float64], NDArray[np.float64]]:
        """Return the n rows with stored scores of all m labels that fit, their probabilities and shares (m, n)."""
        stored = [view.scores(label, MIN_PROBABILITY * LEVELS) for label in self.weights]
        labels: NDArray[np.uint16] = np.zeros(view.meta.rows, np.uint16)
        for rows, _, _ in stored:
            labels[rows] += 1
        if allowed is not None:
            labels[~allowed] = 0
        # Rows ascend, so the kept rows of all labels are equal.
        kept = [np.flatnonzero(labels[rows] == len(stored)) for rows, _, _ in stored]
        probability, share = (
            np.array([scores[column][entries] for scores, entries in zip(stored, kept, strict=True)]) / LEVELS
            for column in (1, 2)
        )
        return stored[0][0][kept[0]], probability, share


def likelihoods(packed: Packed, centers: Codes, classes: Sequence[int]) -> NDArray[np.float64]:
    """Return the likelihoods (m, n) of m classes given packed codes (n, W) alone.

    They are the softmax of 8 times the cosine of the code to all centers (C, K).
    """
    bits = centers.shape[1]
    size_of_distance = np.exp(LIKELIHOOD_SHARPNESS * (1 - 2 * np.arange(bits + 1) / bits))
    total, selected = np.zeros(len(packed)), np.empty((len(classes), len(packed)))
    for number, center in enumerate(pack(centers)):
        size = size_of_distance[code_distances(packed, center)]
        total += size
        selected[[row for row, column in enumerate(classes) if column == number]] = size
    return selected / total


def combined_mask(first: Bools | None, second: Bools | None) -> Bools | None:
    """Return a mask of the rows that are in both masks; None: all."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


class GeneralCodes(NamedTuple):
    """The general codes of a query and of rows, for the second part of a total distance.

    A row without one counts as if half of the bits differed. Copies differ in at most `copy_bits` bits, fewer than half.
    """

    code: Packed  # (W,)
    codes: Packed  # (N, W)
    has_code: Bools | None  # None: all
    copy_bits: int


def _nearest(
    codes: Packed,
    code: Packed,
    k: int,
    allowed: Bools | None,
    within: int | None,
    general: GeneralCodes | None,
) -> tuple[Rows, Rows]:
    """Return the rows of the k nearest codes (N, W), and of the k nearest copies; with `general`, by both codes."""
    if allowed is not None and int(np.count_nonzero(allowed)) * ROWS_PER_GATHERED_ROW <= len(codes):
        rows = np.flatnonzero(allowed)
        if general is not None:
            has_code = None if general.has_code is None else general.has_code[rows]
            general = general._replace(codes=general.codes.take(rows, axis=0), has_code=has_code)
        best, copies = _nearest(codes.take(rows, axis=0), code, k, None, within, general)
        return rows[best], rows[copies]
    limit = 8 * codes.shape[1] if within is None else within
    nearest: Callable[..., tuple[Rows, Rows]] = _numpy_nearest
    numpy_rows = NUMPY_ROWS if _SCAN in sys.modules else NUMPY_ROWS_AT_FIRST
    if len(codes) > numpy_rows and find_spec("numba") is not None:
        # The import of numba takes a while.
        from centerhash.index.scan import nearest

    return nearest(codes, code, k, allowed, limit, general)


def _numpy_nearest(
    codes: Packed, code: Packed, k: int, allowed: Bools | None, within: int, general: GeneralCodes | None
) -> tuple[Rows, Rows]:
    """Compute the same as `scan.nearest`."""
    totals = distances = code_distances(codes, code)
    copies = np.empty(0, np.int64)
    is_allowed = True if allowed is None else allowed
    if general is not None:
        general_distances = code_distances(general.codes, general.code)
        if general.has_code is not None:
            general_distances[~general.has_code] = 4 * general.codes.shape[1]
        totals = SEMANTIC_WEIGHT * distances + general_distances
        rows = np.flatnonzero((general_distances <= general.copy_bits) & is_allowed)
        copies = smallest(general_distances[rows], rows, k)
    rows = np.flatnonzero((distances <= within) & is_allowed)
    return smallest(totals[rows], rows, k), copies
