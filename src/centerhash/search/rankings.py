"""Rankings: the order of the results of a query, by codes, by visual similarity, or by labels with weights.

Every ranking returns the first k rows of the columns of a store, exactly; rows with equal values keep the order in which
their items were added.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, pack, to_words
from centerhash.search.items import LEVELS, VISUAL_BITS

Rows: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.uint8]

FACTOR = 0.1  # of a visual bit compared with a semantic one: see docs/how-to/search.md
_WEIGHT = round(1 / FACTOR)  # distances are compared as whole numbers: 10 d_semantic + d_visual
SHARPNESS = 8.0  # of the likelihood of labels given a code
FLOOR = 0.01  # the probability of a label that is not stored because others are larger
SHARES = 1.0  # weight of the shares compared with the probabilities: see docs/how-to/search.md
_DIGITS = 9  # of a penalty: smaller differences come from rounding

FEW = 8  # if fewer than one row in this many is allowed, their codes are gathered; otherwise the scan skips others
PLAIN = 1 << 19  # rows that numpy scans rather than import numba, which takes a second
SMALL = 1 << 13  # rows that numpy scans as quickly as the compiled loop
_SCAN = "centerhash.search.scan"


@dataclass(frozen=True, eq=False)
class Columns:
    """What a search reads of N items: packed codes, visual codes, and the scores of labels."""

    semantic: Packed  # (N, ceil(K/8))
    visual: Packed  # (N, 16); (0, 16) if no item has a visual code
    has_visual: Mask  # (N,)
    scored: Mask  # (N,): 1 for items with label scores
    scores: Callable[[str], tuple[Rows, NDArray[np.uint8], NDArray[np.uint8]]]
    """Ascending rows (m,) with a score of a label, probabilities (m,) and shares (m,) in 255ths."""


class Ranking(Protocol):
    """One order of all items."""

    @property
    def code(self) -> Packed:
        """Return the semantic code (ceil(K/8),) that distances of the results are measured from."""

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the first k of the allowed rows (all if None), best first."""


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

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows of the nearest semantic codes."""
        return _nearest(columns.semantic, self.code, k, allowed, self.within)


@dataclass(frozen=True, eq=False)
class ByVisual:
    """The Hamming distance of the visual codes; items without one are not found."""

    code: Packed
    visual: Packed  # (16,)
    within: int | None = None

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows of the nearest visual codes."""
        if not len(columns.visual):
            return np.empty(0, np.int64)
        shown = columns.has_visual if allowed is None else columns.has_visual & allowed
        return _nearest(columns.visual, self.visual, k, shown, self.within)


@dataclass(frozen=True, eq=False)
class ByBoth:
    """Semantic distance plus a small part of the visual one: d = d_semantic + 0.1 d_visual.

    An item without a visual code counts as one in which half of the bits differ. `within` limits d_semantic.
    """

    code: Packed  # (ceil(K/8),)
    visual: Packed  # (16,)
    within: int | None = None

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows with the smallest d."""
        return _nearest(columns.semantic, self.code, k, allowed, self.within, columns, self.visual)


@dataclass(frozen=True, eq=False)
class ByLabels:
    """The probability of all labels first, then how near their shares are to the weights.

    penalty = - sum_j log p_j + SHARES * 1/2 sum_j |s_j - w_j| over the labels j of the query, p their probabilities, s
    their shares of the image and w the weights. Without stored scores, both follow from the code: see `likelihoods`.
    Equal penalties are ordered by the semantic distance, which `within` limits.
    """

    code: Packed
    weights: Mapping[str, float]  # of the labels of the query; they sum to 1
    centers: Codes  # (C, K)
    classes: Mapping[str, int]  # the row of each label's center
    within: int | None = None

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows with the smallest penalties."""
        far = -np.log(FLOOR)  # no item without a score of some label has a smaller penalty
        found = self._scored(columns, allowed, everywhere=True)
        unscored = np.flatnonzero(_both(columns.scored == 0, allowed))
        parts = [found, (unscored, self._from_codes(columns.semantic[unscored]))]
        if np.count_nonzero(found[1] < far) < k:
            parts[0] = found = self._scored(columns, allowed, everywhere=False)
            nowhere = label_penalties(
                np.full((len(self.weights), 1), FLOOR), np.zeros((len(self.weights), 1)), self._weights
            )
            if np.count_nonzero(found[1] < nowhere) < k:
                others = _both(columns.scored, allowed)
                others[found[0]] = 0
                rest = _nearest(columns.semantic, self.code, k, others, self.within)
                parts.append((rest, np.repeat(nowhere, len(rest))))
        rows = np.concatenate([rows for rows, _ in parts])
        penalties = np.concatenate([penalties for _, penalties in parts])
        if self.within is not None:
            near = code_distances(columns.semantic[rows], self.code) <= self.within
            rows, penalties = rows[near], penalties[near]
        if len(rows) > k:
            best = penalties <= np.partition(penalties, k - 1)[k - 1]
            rows, penalties = rows[best], penalties[best]
        distances = code_distances(columns.semantic[rows], self.code)
        chosen: Rows = rows[np.lexsort((rows, distances, penalties))[:k]]
        return chosen

    @property
    def _weights(self) -> NDArray[np.float64]:
        return np.array(list(self.weights.values()))

    def _scored(
        self, columns: Columns, allowed: Mask | None, *, everywhere: bool
    ) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows with scores of all the labels, or of some of them, and their penalties."""
        stored = [columns.scores(label) for label in self.weights]
        count = np.zeros(len(columns.semantic), np.uint8)
        for rows, _, _ in stored:
            count[rows] += 1
        passing = count == len(stored) if everywhere else count > 0
        chosen = np.flatnonzero(_both(passing, allowed))
        place = np.full(len(count), -1)
        place[chosen] = np.arange(len(chosen))
        probability, share = np.full((len(stored), len(chosen)), FLOOR), np.zeros((len(stored), len(chosen)))
        for label, (rows, probabilities, shares) in enumerate(stored):
            own = place[rows]
            kept = own >= 0
            probability[label, own[kept]] = np.maximum(probabilities[kept] / LEVELS, FLOOR)
            share[label, own[kept]] = shares[kept] / LEVELS
        return chosen, label_penalties(probability, share, self._weights)

    def _from_codes(self, packed: Packed) -> NDArray[np.float64]:
        """Return the penalties (n,) of items without scores, by their codes."""
        likely = likelihoods(packed, self.centers, [self.classes[label] for label in self.weights])
        # if m labels are all there, each has a likelihood of 1 / m
        return label_penalties(np.clip(likely * len(self.weights), FLOOR, 1), likely, self._weights)


def label_penalties(
    probability: NDArray[np.float64], shares: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return - sum_j log p_j + SHARES * 1/2 sum_j |s_j - w_j| of p and s (m, n) and weights (m,)."""
    far = np.abs(shares - weights[:, None]).sum(axis=0) / 2
    penalties: NDArray[np.float64] = SHARES * far - np.log(probability).sum(axis=0)
    return penalties.round(_DIGITS)


def likelihoods(packed: Packed, centers: Codes, columns: Sequence[int]) -> NDArray[np.float64]:
    """Return how likely (m, n) each of m classes is given a packed code (n, ceil(K/8)) alone.

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


def _both(mask: NDArray[Any], allowed: Mask | None) -> Mask:
    """Return a new mask of the rows that pass both."""
    own = mask.astype(np.uint8)
    return own if allowed is None else own & allowed


def _nearest(
    codes: Packed,
    code: Packed,
    k: int,
    allowed: Mask | None,
    within: int | None,
    columns: Columns | None = None,
    visual: Packed | None = None,
) -> Rows:
    """Return the rows of the k nearest codes (N, W), by both codes where `columns` and a visual code are given."""
    if allowed is not None and np.count_nonzero(allowed) * FEW <= len(codes):
        rows = np.flatnonzero(allowed)
        if columns is not None:
            some = columns.visual[rows] if len(columns.visual) else columns.visual
            columns = Columns(
                codes[rows], some, columns.has_visual[rows], columns.scored[rows], columns.scores
            )
        chosen: Rows = rows[_nearest(codes[rows], code, k, None, within, columns, visual)]
        return chosen
    bits = 8 * codes.shape[1]
    limit = bits if within is None else within
    seen = columns is not None and len(columns.visual) > 0
    if len(codes) <= (SMALL if _SCAN in sys.modules else PLAIN) or find_spec("numba") is None:
        distances = code_distances(codes, code)
        total = distances
        if seen and columns is not None and visual is not None:
            apart = np.where(
                columns.has_visual, code_distances(columns.visual, visual), np.int64(VISUAL_BITS // 2)
            )
            total = _WEIGHT * distances + apart
        rows = np.flatnonzero(
            distances <= limit if allowed is None else (distances <= limit) & (allowed == 1)
        )
        if len(rows) > k:
            rows = rows[total[rows] <= np.partition(total[rows], k - 1)[k - 1]]
        ordered: Rows = rows[np.argsort(total[rows], kind="stable")[:k]]
        return ordered
    from centerhash.search import scan  # numba takes a while to import

    more: dict[str, Any] = {}
    if seen and columns is not None and visual is not None:
        more = {
            "weight": _WEIGHT,
            "seen": to_words(visual[None])[0],
            "visual": to_words(columns.visual),
            "has_visual": columns.has_visual,
        }
    largest = _WEIGHT * bits + VISUAL_BITS if more else bits
    query, database = _words(code[None])[0], _words(codes)
    return scan.nearest(query, database, k, largest=largest, within=limit, allowed=allowed, **more)[0]


def _words(packed: Packed) -> NDArray[Any]:
    """View packed codes (n, bytes) as words (n, W) of the widest type that divides their bytes, read-only."""
    width = packed.shape[1]
    size = next(size for size in (8, 4, 2, 1) if width % size == 0)
    view = np.ascontiguousarray(packed).view(f"u{size}")
    view.flags.writeable = False  # numba compiles writeable arrays apart
    return view
