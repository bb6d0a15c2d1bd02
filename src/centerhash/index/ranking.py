"""Rankings: the order of the results of a query, by codes, by labels with weights, or by examples.

Every ranking returns the first k rows of the columns of an index, exactly; rows with equal values keep the order in which
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
_LEAST_LIKELIHOOD = 0.01
# An item whose probability of a label is below this one is no result of a query by that label: see `benchmarks.quality`.
LEAST_PROBABILITY = 0.12
# A cropped copy of a photo differs in at most this share of the general bits: see `benchmarks.quality`.
COPY_DISTANCE = 1 / 4
# Other copies differ in at most this share of the general bits more than the nearest one.
_COPY_SPREAD = 1 / 64
_PENALTY_DIGITS = 9

# If at most one row in this many is allowed, the codes of allowed rows are gathered; otherwise the scan skips the others.
GATHERED_PART = 8
# Up to this many rows, numpy takes less time than the import of numba.
NUMPY_ROWS_AT_FIRST = 1 << 19
# Up to this many rows, numpy is as quick as the compiled loop.
NUMPY_ROWS = 1 << 13
_SCAN = "centerhash.index.scan"


def code_distances(codes: Packed, code: Packed) -> Rows:
    """Return the Hamming distances (m,) of packed codes (m, W) to one (W,)."""
    differing = np.bitwise_count(to_words(codes) ^ to_words(code[None]))
    distances: Rows = differing.sum(axis=1, dtype=np.int64)
    return distances


@dataclass(frozen=True, eq=False)
class BySemantic:
    """The Hamming distance of the semantic codes."""

    code: Packed
    within: int | None = None

    def first(self, columns: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows of the nearest semantic codes."""
        return _nearest(columns["semantic"], self.code, k, allowed, self.within)[0]


@dataclass(frozen=True, eq=False)
class ByGeneral:
    """The Hamming distance of the general codes; items without one are no results. With `copies`, see `_copies_first`."""

    general: Packed  # (V, W): of the query, and of further views of it, which only copies are compared with
    within: int | None = None
    copies: bool = False

    def first(self, columns: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows of copies of any view, then of the nearest general codes of the query itself."""
        allowed = both(columns.has_general, allowed)
        nearest, _ = _nearest(columns["general"], self.general[0], k, allowed, self.within)
        if not self.copies or len(self.general) == 1:  # its copies are the first of these
            return nearest
        limit = near_bits(self.general)
        limit = limit if self.within is None else min(limit, self.within)
        candidates = [_nearest(columns["general"], view, k, allowed, limit)[0] for view in self.general]
        return _copies_first(columns["general"], self.general, candidates, nearest, k)


@dataclass(frozen=True, eq=False)
class ByBoth:
    """Semantic distance plus a small part of the general one: d_semantic + 0.1 d_general.

    An item without a general code counts as one in which half of the bits differ. `within` limits d_semantic. With
    `copies`, copies of the query come first (see `_copies_first`).
    """

    code: Packed  # (ceil(K/8),)
    general: Packed  # (V, W): of the query, and of further views of it, which only copies are compared with
    within: int | None = None
    copies: bool = False

    def first(self, columns: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows of copies, then those with the smallest d."""
        if self.copies and self.within is not None:  # copies are found by their general codes alone
            allowed = both(code_distances(columns["semantic"], self.code) <= self.within, allowed)
        limit = near_bits(columns["general"])
        compared = General(
            self.general[0], columns["general"], columns.has_general, limit if self.copies else -1
        )
        rows, copies = _nearest(columns["semantic"], self.code, k, allowed, self.within, compared)
        if not self.copies:
            return rows
        candidates, allowed = [copies], both(columns.has_general, allowed)
        candidates += [_nearest(columns["general"], view, k, allowed, limit)[0] for view in self.general[1:]]
        return _copies_first(columns["general"], self.general, candidates, rows, k)


def near_bits(general: Packed) -> int:
    """Return in how many bits a copy's general code may differ."""
    return round(COPY_DISTANCE * 8 * int(general.shape[1]))


def _copies_first(general: Packed, views: Packed, candidates: Sequence[Rows], nearest: Rows, k: int) -> Rows:
    """Return k rows: candidates that are nearly as near to the views (V, W) as the nearest of them, then the others."""
    rows = np.unique(np.concatenate(candidates))
    if not len(rows):
        return nearest
    distances = np.min([code_distances(general[rows], view) for view in views], axis=0)
    near = distances <= distances.min() + round(_COPY_SPREAD * 8 * general.shape[1])
    copies = rows[near][np.argsort(distances[near], kind="stable")]
    return np.concatenate([copies, nearest[~np.isin(nearest, copies)]])[:k]


@dataclass(frozen=True, eq=False)
class ByLabels:
    """The probability of all labels first, then how near their shares are to the weights.

    penalty = - sum_j log p_j + 1/2 sum_j |s_j - w_j| over the labels j of the query, p their probabilities, s
    their area shares and w the weights. An item with a probability below LEAST_PROBABILITY is no result. Without stored
    scores, both follow from the code (see `likelihoods`), and all items are results. Equal penalties are ordered by the
    semantic distance, which `within` limits.
    """

    code: Packed
    weights: Mapping[int, float]  # of the labels of the query, by their numbers; they sum to 1
    centers: Codes  # (C, K), by the numbers of their labels
    within: int | None = None

    def first(self, columns: View, k: int, allowed: Bools | None) -> Rows:
        """Return the rows with the smallest penalties, of those that fit."""
        rows, probability, share = self._scored(columns, allowed)
        if len(columns.unscored):
            unscored = columns.unscored if allowed is None else columns.unscored[allowed[columns.unscored]]
            likely = likelihoods(columns["semantic"][unscored], self.centers, list(self.weights))
            rows, share = np.concatenate([rows, unscored]), np.hstack([share, likely])
            # if m labels are all there, each has a likelihood of 1 / m
            probability = np.hstack([probability, np.clip(likely * len(likely), _LEAST_LIKELIHOOD, 1)])
        weights = np.array(list(self.weights.values()))
        far = np.abs(share - weights[:, None]).sum(axis=0) / 2
        penalties = (far - np.log(probability).sum(axis=0)).round(_PENALTY_DIGITS)
        if self.within is not None:
            near = code_distances(columns["semantic"][rows], self.code) <= self.within
            rows, penalties = rows[near], penalties[near]
        if len(rows) > k:
            best = penalties <= np.partition(penalties, k - 1)[k - 1]
            rows, penalties = rows[best], penalties[best]
        distances = code_distances(columns["semantic"][rows], self.code)
        return np.take(rows, np.lexsort((rows, distances, penalties))[:k])

    def _scored(
        self, columns: View, allowed: Bools | None
    ) -> tuple[Rows, NDArray[np.float64], NDArray[np.float64]]:
        """Return the rows in which all m labels have stored probabilities that fit, those, and their shares (m, n)."""
        stored = [columns.scores(label, LEAST_PROBABILITY * LEVELS) for label in self.weights]
        labels: NDArray[np.uint16] = np.zeros(len(columns["semantic"]), np.uint16)
        for rows, _, _ in stored:
            labels[rows] += 1
        if allowed is not None:
            labels[~allowed] = 0
        # rows ascend, so those of all labels are the same
        kept = [np.flatnonzero(labels[rows] == len(stored)) for rows, _, _ in stored]
        probability, share = (
            np.array([label[column][places] for label, places in zip(stored, kept, strict=True)]) / LEVELS
            for column in (1, 2)
        )
        return stored[0][0][kept[0]], probability, share


def likelihoods(packed: Packed, centers: Codes, classes: Sequence[int]) -> NDArray[np.float64]:
    """Return how likely (m, n) each of m classes is given a packed code (n, ceil(K/8)) alone.

    Softmax of 8 times the cosine of the code to all centers (C, K).
    """
    bits = centers.shape[1]
    sizes = np.exp(
        LIKELIHOOD_SHARPNESS * (1 - 2 * np.arange(bits + 1) / bits)
    )  # by the Hamming distance: few values
    total, likely = np.zeros(len(packed)), np.empty((len(classes), len(packed)))
    for row, center in enumerate(pack(centers)):
        size = sizes[code_distances(packed, center)]
        total += size
        likely[[place for place, number in enumerate(classes) if number == row]] = size
    return likely / total


def both(mask: Bools | None, other: Bools | None) -> Bools | None:
    """Return a mask of the rows that pass both; None: all."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


class General(NamedTuple):
    """General codes that rows are compared by too; a row without one counts as if half of the bits differed.

    Copies of the query are the rows whose general codes differ in at most `copied` bits, fewer than half.
    """

    code: Packed  # (V,)
    codes: Packed  # (N, V)
    has_code: Bools | None  # None: all
    copied: int


def _nearest(
    codes: Packed,
    code: Packed,
    k: int,
    allowed: Bools | None,
    within: int | None,
    general: General | None = None,
) -> tuple[Rows, Rows]:
    """Return the rows of the k nearest codes (N, W), and of the k nearest copies; with `general`, by both codes."""
    if allowed is not None and int(np.count_nonzero(allowed)) * GATHERED_PART <= len(codes):
        few = np.flatnonzero(allowed)
        if general is not None:
            has_code = None if general.has_code is None else general.has_code[few]
            general = general._replace(codes=general.codes.take(few, axis=0), has_code=has_code)
        best, copies = _nearest(codes.take(few, axis=0), code, k, None, within, general)
        return few[best], few[copies]
    limit = 8 * codes.shape[1] if within is None else within
    nearest: Callable[..., tuple[Rows, Rows]] = _numpy_nearest
    if (
        len(codes) > (NUMPY_ROWS if _SCAN in sys.modules else NUMPY_ROWS_AT_FIRST)
        and find_spec("numba") is not None
    ):
        from centerhash.index.scan import nearest  # numba takes a while to import

    return nearest(codes, code, k, allowed, limit, general)


def _numpy_nearest(
    codes: Packed, code: Packed, k: int, allowed: Bools | None, within: int, general: General | None
) -> tuple[Rows, Rows]:
    """As `scan.nearest`."""
    totals = distances = code_distances(codes, code)
    copies = np.empty(0, np.int64)
    is_allowed = True if allowed is None else allowed
    if general is not None:
        apart = code_distances(general.codes, general.code)
        if general.has_code is not None:
            apart[~general.has_code] = 4 * general.codes.shape[1]
        totals = SEMANTIC_WEIGHT * distances + apart
        rows = np.flatnonzero((apart <= general.copied) & is_allowed)
        copies = smallest(apart[rows], rows, k)
    rows = np.flatnonzero((distances <= within) & is_allowed)
    return smallest(totals[rows], rows, k), copies
