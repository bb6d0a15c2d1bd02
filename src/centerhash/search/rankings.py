"""Rankings: the order of the results of a query, by codes, by visual similarity, or by labels with weights.

Every ranking returns the first k rows of the columns of a store, exactly; rows with equal values keep the order in which
their items were added.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, pack, to_words
from centerhash.core.errors import InputError
from centerhash.search.items import LEVELS, VISUAL_BITS

Rows: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.uint8]

FACTOR = 0.1  # of a visual bit compared with a semantic one: see docs/how-to/search.md
_WEIGHT = round(1 / FACTOR)  # distances are compared as whole numbers: 10 d_semantic + d_visual
_FLOOR = 0.01  # the least probability that follows from a code
SHARPNESS = 8.0  # of the likelihood of labels given a code
FITS = 0.12  # label probability below which a photo does not fit a query by labels: see `benchmarks.finding`
NEAR = 32  # visual bits in which a cropped or screenshot copy of a photo may differ: see `benchmarks.finding`
_AS_NEAR = 2  # visual bits more than the nearest that other copies may differ in
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
    scores: Callable[[str, float], tuple[Rows, NDArray[np.uint8], NDArray[np.uint8]]]
    """Ascending rows (m,) with a probability of a label from the given one on, probabilities and shares in 255ths."""
    taught: Callable[[str], NDArray[np.float32] | None] = lambda _: None
    """Probabilities (N,) of a taught label, 0 to 1; None for any other label."""


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
    visual: Packed  # (V, 16): of the query, and of further views of it
    within: int | None = None

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows of very near visual codes of any view, then of the nearest ones of the query itself."""
        if not len(columns.visual):
            return np.empty(0, np.int64)
        shown = columns.has_visual if allowed is None else columns.has_visual & allowed
        nearest = _nearest(columns.visual, self.visual[0], k, shown, self.within)
        if len(self.visual) == 1:  # its copies are the first of these
            return nearest
        limit = NEAR if self.within is None else min(NEAR, self.within)
        found = [_nearest(columns.visual, view, k, shown, limit) for view in self.visual]
        return _joined(near_copies(columns, self.visual, found, k), nearest, k)


@dataclass(frozen=True, eq=False)
class ByBoth:
    """Copies of the query first, then semantic distance plus a small part of the visual one: d_semantic + 0.1 d_visual.

    An item without a visual code counts as one in which half of the bits differ. `within` limits d_semantic.
    """

    code: Packed  # (ceil(K/8),)
    visual: Packed  # (V, 16): of the query, and of further views of it
    within: int | None = None

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows of copies, then those with the smallest d."""
        if not len(columns.visual):
            return _nearest(columns.semantic, self.code, k, allowed, self.within)
        rows, *found = _nearest_by_both(columns, self.code, self.visual[0], k, allowed, self.within)
        if len(self.visual) > 1:
            shown = columns.has_visual if allowed is None else columns.has_visual & allowed
            found += [_nearest(columns.visual, view, k, shown, NEAR) for view in self.visual[1:]]
        copies = near_copies(columns, self.visual, found, k)
        if self.within is not None:
            copies = copies[code_distances(columns.semantic[copies], self.code) <= self.within]
        return _joined(copies, rows, k)


def near_copies(columns: Columns, visual: Packed, found: Sequence[Rows], k: int) -> Rows:
    """Return the rows, at most k, of those found near to the views (V, 16) that are nearly as near as the nearest."""
    rows = np.unique(np.concatenate(found))
    if not len(rows):
        return rows
    distances = np.min([code_distances(columns.visual[rows], view) for view in visual], axis=0)
    near = distances <= distances.min() + _AS_NEAR
    chosen: Rows = rows[near][np.argsort(distances[near], kind="stable")][:k]
    return chosen


def _joined(first: Rows, rest: Rows, k: int) -> Rows:
    """Return k rows: the first ones, then the rest without them."""
    joined: Rows = np.concatenate([first, rest[~np.isin(rest, first)]])[:k]
    return joined


@dataclass(frozen=True, eq=False)
class ByLabels:
    """The probability of all labels first, then how near their shares are to the weights.

    penalty = - sum_j log p_j + SHARES * 1/2 sum_j |s_j - w_j| over the labels j of the query, p their probabilities, s
    their shares of the image and w the weights. A photo with a probability below FITS does not fit and is no result.
    Without stored scores, both follow from the code (see `likelihoods`), and all photos fit. Equal penalties are ordered
    by the semantic distance, which `within` limits. A taught label has no share, so its weight does not count.
    """

    code: Packed
    weights: Mapping[str, float]  # of the labels of the query; they sum to 1
    centers: Codes  # (C, K)
    classes: Mapping[str, int]  # the row of each label's center; taught labels have none
    within: int | None = None

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows with the smallest penalties, of those that fit."""
        taught = self._taught(columns)
        for likely in taught:
            allowed = _both(likely >= FITS, allowed)
        rows, penalties = self._of_classes(columns, allowed)
        for likely in taught:
            penalties = penalties - np.log(likely[rows].astype(np.float64))
        return self._best(columns, rows, penalties.round(_DIGITS), k)

    def _taught(self, columns: Columns) -> list[NDArray[np.float32]]:
        """Return the probabilities (N,) of the labels that are taught."""
        found = []
        for label in self.weights.keys() - self.classes.keys():
            likely = columns.taught(label)
            if likely is None:  # another process has just removed it
                raise InputError(f"there is no taught label '{label}' any more.")
            found.append(likely)
        return found

    def _of_classes(self, columns: Columns, allowed: Mask | None) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows that fit all labels with a center, and their penalties; without such labels, all rows."""
        if not self._with_center:
            rows = np.arange(len(columns.semantic)) if allowed is None else np.flatnonzero(allowed)
            return rows, np.zeros(len(rows))
        rows, penalties = self._scored(columns, allowed)
        if np.count_nonzero(columns.scored) == len(columns.scored):
            return rows, penalties
        unscored = np.flatnonzero(_both(columns.scored == 0, allowed))
        more = self._from_codes(columns.semantic[unscored])
        return np.concatenate([rows, unscored]), np.concatenate([penalties, more])

    def _best(self, columns: Columns, rows: Rows, penalties: NDArray[np.float64], k: int) -> Rows:
        """Return the k rows with the smallest penalties."""
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
        return np.array([self.weights[label] for label in self._with_center])

    @property
    def _with_center(self) -> list[str]:
        """Return the labels of the query that are not taught."""
        return [label for label in self.weights if label in self.classes]

    def _scored(self, columns: Columns, allowed: Mask | None) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows in which every label has a stored probability that fits, and their penalties."""
        stored = [columns.scores(label, FITS * LEVELS) for label in self._with_center]
        chosen = stored[0][0] if allowed is None else stored[0][0][allowed[stored[0][0]] > 0]
        for rows, _, _ in stored[1:]:
            fits = np.zeros(len(columns.semantic), np.bool_)
            fits[rows] = True
            chosen = chosen[fits[chosen]]
        places = [np.searchsorted(rows, chosen) for rows, _, _ in stored]
        probability = (
            np.array([own[place] for (_, own, _), place in zip(stored, places, strict=True)]) / LEVELS
        )
        share = np.array([own[place] for (_, _, own), place in zip(stored, places, strict=True)]) / LEVELS
        return chosen, label_penalties(probability, share, self._weights)

    def _from_codes(self, packed: Packed) -> NDArray[np.float64]:
        """Return the penalties (n,) of items without scores, by their codes."""
        likely = likelihoods(packed, self.centers, [self.classes[label] for label in self._with_center])
        # if m labels are all there, each has a likelihood of 1 / m
        return label_penalties(np.clip(likely * len(likely), _FLOOR, 1), likely, self._weights)


@dataclass(frozen=True, eq=False)
class ByProbability:
    """How near the probability of a taught label is to a target: 1 for the likeliest, 0.5 for the most uncertain."""

    code: Packed
    label: str
    target: float

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows with the nearest probabilities."""
        likely = columns.taught(self.label)
        if likely is None:
            raise InputError(f"there is no taught label '{self.label}'.")
        rows = np.arange(len(likely)) if allowed is None else np.flatnonzero(allowed)
        away = np.abs(likely[rows].astype(np.float64) - self.target)
        chosen: Rows = rows[np.argsort(away, kind="stable")[:k]]
        return chosen


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


def _nearest(codes: Packed, code: Packed, k: int, allowed: Mask | None, within: int | None) -> Rows:
    """Return the rows of the k nearest codes (N, W)."""
    if allowed is not None and np.count_nonzero(allowed) * FEW <= len(codes):
        rows = np.flatnonzero(allowed)
        chosen: Rows = rows[_nearest(codes[rows], code, k, None, within)]
        return chosen
    limit = 8 * codes.shape[1] if within is None else within
    if _is_plain(codes):
        distances = code_distances(codes, code)
        return _smallest(distances, distances <= limit, allowed, k)
    from centerhash.search import scan  # numba takes a while to import

    return scan.nearest(_words(code[None])[0], _words(codes), k, within=limit, allowed=allowed)[0]


def _nearest_by_both(
    columns: Columns, code: Packed, visual: Packed, k: int, allowed: Mask | None, within: int | None
) -> tuple[Rows, Rows]:
    """Return the k rows with the smallest 10 d_semantic + d_visual, and the k nearest copies by d_visual alone."""
    if allowed is not None and np.count_nonzero(allowed) * FEW <= len(columns.semantic):
        rows = np.flatnonzero(allowed)
        few = replace(
            columns,
            semantic=columns.semantic[rows],
            visual=columns.visual[rows],
            has_visual=columns.has_visual[rows],
        )
        best, copies = _nearest_by_both(few, code, visual, k, None, within)
        return rows[best], rows[copies]
    limit = 8 * columns.semantic.shape[1] if within is None else within
    if _is_plain(columns.semantic):
        distances = code_distances(columns.semantic, code)
        apart = np.where(columns.has_visual, code_distances(columns.visual, visual), VISUAL_BITS // 2)
        totals = _WEIGHT * distances + apart
        return _smallest(totals, distances <= limit, allowed, k), _smallest(apart, apart <= NEAR, allowed, k)
    from centerhash.search import scan

    return scan.nearest_by_both(
        _words(code[None])[0],
        _words(columns.semantic),
        k,
        weight=_WEIGHT,
        within=limit,
        seen=_words(visual[None])[0],
        visual=_words(columns.visual),
        has_visual=columns.has_visual,
        copied=NEAR,
        allowed=allowed,
    )


def _is_plain(codes: Packed) -> bool:
    """Return whether numpy compares these codes."""
    return len(codes) <= (SMALL if _SCAN in sys.modules else PLAIN) or find_spec("numba") is None


def _smallest(values: Rows, mask: NDArray[np.bool_], allowed: Mask | None, k: int) -> Rows:
    """Return the k rows with the smallest values, of those in the mask that are allowed."""
    rows = np.flatnonzero(mask if allowed is None else mask & (allowed == 1))
    if len(rows) > k:
        rows = rows[values[rows] <= np.partition(values[rows], k - 1)[k - 1]]
    ordered: Rows = rows[np.argsort(values[rows], kind="stable")[:k]]
    return ordered


def _words(packed: Packed) -> NDArray[Any]:
    """View packed codes (n, bytes) as words (n, W) of the widest type that divides their bytes, read-only."""
    width = packed.shape[1]
    size = next(size for size in (8, 4, 2, 1) if width % size == 0)
    view = np.ascontiguousarray(packed).view(f"u{size}")
    view.flags.writeable = False  # numba compiles writeable arrays apart
    return view
