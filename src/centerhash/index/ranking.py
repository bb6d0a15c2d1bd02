"""Rankings: the order of the results of a query, by codes, by labels with weights, or by examples.

Every ranking returns the first k rows of the columns of an index, exactly; rows with equal values keep the order in which
their items were added.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, pack, to_words
from centerhash.index.items import LEVELS

Rows: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

FACTOR = 0.1  # of a general bit compared with a semantic one: see docs/how-to/search.md
_WEIGHT = round(1 / FACTOR)  # distances are compared as whole numbers: 10 d_semantic + d_general
_FLOOR = 0.01  # the least probability that follows from a code
SHARPNESS = 8.0  # of the likelihood of labels given a code
FITS = 0.12  # label probability below which an item does not fit a query by labels: see `benchmarks.finding`
NEAR = (
    1 / 4
)  # share of the general bits in which a cropped copy of a photo may differ: see `benchmarks.finding`
_AS_NEAR = 1 / 64  # share of the general bits more than the nearest copy in which other copies may differ
SHARES = 1.0  # weight of the shares compared with the probabilities: see docs/how-to/search.md
_DIGITS = 9  # of a penalty: smaller differences come from rounding

FEW = 8  # if fewer than one row in this many is allowed, their codes are gathered; otherwise the scan skips others
PLAIN = 1 << 19  # rows that numpy scans rather than import numba, which takes a second
SMALL = 1 << 13  # rows that numpy scans as quickly as the compiled loop
_SCAN = "centerhash.index.scan"


class Columns(Protocol):
    """What a ranking reads of N items."""

    @property
    def semantic(self) -> Packed:
        """Packed codes (N, ceil(K/8))."""

    @property
    def general(self) -> Packed | None:
        """Packed general codes (N, ceil(V/8)); None in an index without."""

    @property
    def has_general(self) -> Mask | None:
        """Which rows (N,) have a general code; None: all."""

    @property
    def unscored(self) -> Rows:
        """The rows without label scores."""

    def scores(self, label: int, least: float) -> tuple[Rows, NDArray[np.uint8], NDArray[np.uint8]]:
        """Ascending rows (m,) with a probability of a label from `least` on, probabilities and shares in 255ths."""


class Ranking(Protocol):
    """One order of all items."""

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
class ByGeneral:
    """The Hamming distance of the general codes; items without one are no results. With `copies`, see `near_copies`."""

    general: Packed  # (V, W): of the query, and of further views of it, which only copies are compared with
    within: int | None = None
    copies: bool = False

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows of copies of any view, then of the nearest general codes of the query itself."""
        assert columns.general is not None
        with_code = _both(columns.has_general, allowed)
        nearest = _nearest(columns.general, self.general[0], k, with_code, self.within)
        if not self.copies or len(self.general) == 1:  # its copies are the first of these
            return nearest
        limit = near_bits(columns.general)
        limit = limit if self.within is None else min(limit, self.within)
        candidates = [_nearest(columns.general, view, k, with_code, limit) for view in self.general]
        return _joined(near_copies(columns.general, self.general, candidates, k), nearest, k)


@dataclass(frozen=True, eq=False)
class ByBoth:
    """Semantic distance plus a small part of the general one: d_semantic + 0.1 d_general.

    An item without a general code counts as one in which half of the bits differ. `within` limits d_semantic. With
    `copies`, copies of the query come first (see `near_copies`).
    """

    code: Packed  # (ceil(K/8),)
    general: Packed  # (V, W): of the query, and of further views of it, which only copies are compared with
    within: int | None = None
    copies: bool = False

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows of copies, then those with the smallest d."""
        assert columns.general is not None
        if (
            self.copies and self.within is not None
        ):  # for copies of all views, which their general codes alone rank
            allowed = _both(code_distances(columns.semantic, self.code) <= self.within, allowed)
        rows, *candidates = _nearest_by_both(columns, self.code, self.general[0], k, allowed, self.within)
        if not self.copies:
            return rows
        if len(self.general) > 1:
            with_code, limit = _both(columns.has_general, allowed), near_bits(columns.general)
            views = (_nearest(columns.general, view, k, with_code, limit) for view in self.general[1:])
            candidates += views
        return _joined(near_copies(columns.general, self.general, candidates, k), rows, k)


def near_bits(general: Packed) -> int:
    """Return in how many bits a copy's general code may differ."""
    return round(NEAR * 8 * int(general.shape[1]))


def near_copies(general: Packed, views: Packed, candidates: Sequence[Rows], k: int) -> Rows:
    """Return the rows, at most k, of candidates that are nearly as near to the views (V, W) as the nearest."""
    rows = np.unique(np.concatenate(candidates))
    if not len(rows):
        return rows
    distances = np.min([code_distances(general[rows], view) for view in views], axis=0)
    near = distances <= distances.min() + round(_AS_NEAR * 8 * general.shape[1])
    copies: Rows = rows[near][np.argsort(distances[near], kind="stable")][:k]
    return copies


def _joined(first: Rows, rest: Rows, k: int) -> Rows:
    """Return k rows: the first ones, then the rest without them."""
    rows: Rows = np.concatenate([first, rest[~np.isin(rest, first)]])[:k]
    return rows


@dataclass(frozen=True, eq=False)
class ByLabels:
    """The probability of all labels first, then how near their shares are to the weights.

    penalty = - sum_j log p_j + SHARES * 1/2 sum_j |s_j - w_j| over the labels j of the query, p their probabilities, s
    their area shares and w the weights. An item with a probability below FITS does not fit and is no result. Without
    stored scores, both follow from the code (see `likelihoods`), and all items fit. Equal penalties are ordered by the
    semantic distance, which `within` limits.
    """

    code: Packed
    weights: Mapping[int, float]  # of the labels of the query, by their numbers; they sum to 1
    centers: Codes  # (C, K), by the numbers of their labels
    within: int | None = None

    def first(self, columns: Columns, k: int, allowed: Mask | None) -> Rows:
        """Return the rows with the smallest penalties, of those that fit."""
        rows, penalties = self._scored(columns, allowed)
        if len(columns.unscored):
            unscored = columns.unscored if allowed is None else columns.unscored[allowed[columns.unscored]]
            rows = np.concatenate([rows, unscored])
            penalties = np.concatenate([penalties, self._from_codes(columns.semantic[unscored])])
        if self.within is not None:
            near = code_distances(columns.semantic[rows], self.code) <= self.within
            rows, penalties = rows[near], penalties[near]
        if len(rows) > k:
            best = penalties <= np.partition(penalties, k - 1)[k - 1]
            rows, penalties = rows[best], penalties[best]
        distances = code_distances(columns.semantic[rows], self.code)
        ordered: Rows = rows[np.lexsort((rows, distances, penalties))[:k]]
        return ordered

    def _scored(self, columns: Columns, allowed: Mask | None) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows in which every label has a stored probability that fits, and their penalties."""
        stored = [columns.scores(label, FITS * LEVELS) for label in self.weights]
        rows = stored[0][0] if allowed is None else stored[0][0][allowed[stored[0][0]]]
        for others, _, _ in stored[1:]:
            fits = np.zeros(len(columns.semantic), np.bool_)
            fits[others] = True
            rows = rows[fits[rows]]
        positions = [np.searchsorted(label_rows, rows) for label_rows, _, _ in stored]
        probability, share = (
            np.array([label[column][at] for label, at in zip(stored, positions, strict=True)]) / LEVELS
            for column in (1, 2)
        )
        return rows, label_penalties(probability, share, np.array(list(self.weights.values())))

    def _from_codes(self, packed: Packed) -> NDArray[np.float64]:
        """Return the penalties (n,) of items without scores, by their codes."""
        likely = likelihoods(packed, self.centers, list(self.weights))
        # if m labels are all there, each has a likelihood of 1 / m
        probability = np.clip(likely * len(likely), _FLOOR, 1)
        return label_penalties(probability, likely, np.array(list(self.weights.values())))


def label_penalties(
    probability: NDArray[np.float64], shares: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return - sum_j log p_j + SHARES * 1/2 sum_j |s_j - w_j| of p and s (m, n) and weights (m,)."""
    far = np.abs(shares - weights[:, None]).sum(axis=0) / 2
    penalties: NDArray[np.float64] = SHARES * far - np.log(probability).sum(axis=0)
    return penalties.round(_DIGITS)


def likelihoods(packed: Packed, centers: Codes, classes: Sequence[int]) -> NDArray[np.float64]:
    """Return how likely (m, n) each of m classes is given a packed code (n, ceil(K/8)) alone.

    Softmax of 8 times the cosine of the code to all centers (C, K).
    """
    bits = centers.shape[1]
    sizes = np.exp(SHARPNESS * (1 - 2 * np.arange(bits + 1) / bits))  # by the Hamming distance: few values
    total, likely = np.zeros(len(packed)), np.empty((len(classes), len(packed)))
    for row, center in enumerate(pack(centers)):
        size = sizes[code_distances(packed, center)]
        total += size
        likely[[place for place, number in enumerate(classes) if number == row]] = size
    return likely / total


def _both(mask: Mask | None, other: Mask | None) -> Mask | None:
    """Return a mask of the rows that pass both; None: all."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def _is_few(allowed: Mask | None, codes: Packed) -> bool:
    return allowed is not None and int(np.count_nonzero(allowed)) * FEW <= len(codes)


def _nearest(codes: Packed, code: Packed, k: int, allowed: Mask | None, within: int | None) -> Rows:
    """Return the rows of the k nearest codes (N, W)."""
    if allowed is not None and _is_few(allowed, codes):
        few = np.flatnonzero(allowed)
        rows: Rows = few[_nearest(codes[few], code, k, None, within)]
        return rows
    limit = 8 * codes.shape[1] if within is None else within
    if _is_plain(codes):
        distances = code_distances(codes, code)
        return _smallest(distances, distances <= limit, allowed, k)
    from centerhash.index import scan  # numba takes a while to import

    mask = None if allowed is None else allowed.view(np.uint8)
    return scan.nearest(_words(code[None])[0], _words(codes), k, within=limit, allowed=mask)[0]


def _nearest_by_both(
    columns: Columns, code: Packed, general_code: Packed, k: int, allowed: Mask | None, within: int | None
) -> tuple[Rows, Rows]:
    """Return the k rows with the smallest 10 d_semantic + d_general, and the k nearest copies by d_general alone."""
    semantic, general, has_general = columns.semantic, columns.general, columns.has_general
    assert general is not None
    few = None
    if allowed is not None and _is_few(allowed, semantic):
        few = np.flatnonzero(allowed)
        semantic, general, allowed = semantic[few], general[few], None
        has_general = None if has_general is None else has_general[few]
    limit = 8 * semantic.shape[1] if within is None else within
    half, near = 4 * general.shape[1], near_bits(general)
    if _is_plain(semantic):
        distances, apart = code_distances(semantic, code), code_distances(general, general_code)
        if has_general is not None:
            apart[~has_general] = half
        totals = _WEIGHT * distances + apart
        best = _smallest(totals, distances <= limit, allowed, k)
        copies = _smallest(apart, apart <= near, allowed, k)
    else:
        from centerhash.index import scan

        best, copies = scan.nearest_by_both(
            _words(code[None])[0],
            _words(semantic),
            k,
            weight=_WEIGHT,
            within=limit,
            general_query=_words(general_code[None])[0],
            general=_words(general),
            has_general=None if has_general is None else has_general.view(np.uint8),
            half=half,
            copied=near,
            allowed=None if allowed is None else allowed.view(np.uint8),
        )
    return (best, copies) if few is None else (few[best], few[copies])


def _is_plain(codes: Packed) -> bool:
    """Return whether numpy compares these codes."""
    return len(codes) <= (SMALL if _SCAN in sys.modules else PLAIN) or find_spec("numba") is None


def _smallest(values: Rows, mask: Mask, allowed: Mask | None, k: int) -> Rows:
    """Return the k rows with the smallest values, of those in the mask that are allowed."""
    rows = np.flatnonzero(mask if allowed is None else mask & allowed)
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
