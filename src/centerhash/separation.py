"""Distances between centers, and a search for a large minimum distance, as in MDSH (Wang et al., 2023).

MDSH improves one center at a time while all others are fixed, by a relaxation with multipliers. This search moves a
center by single bits instead. A pair at distance d has the weight 4^-d, so that the nearest pairs decide and their number
breaks ties. Flipping a bit changes a pair's distance by one and its weight by a factor of four, so one matrix-vector
product gives the effect of every bit at once. Weights are integer powers of four, whose sums are equal on every machine.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes

Score: TypeAlias = tuple[float, float]  # compared in this order

_MOST_STEPS = 2000
_RANDOM_FLIPS = 2
# A pair has a weight from so many bits below the distance of the nearest pair up to so many above it.
_NEARER, _LEVELS = 4, 12


def guaranteed_distance(classes: int, bits: int) -> int:
    """Return the Gilbert-Varshamov bound: the largest d at which C - 1 balls of radius d - 1 do not cover all codes."""
    covered, distance = 1, 0
    while distance < bits and (classes - 1) * covered < 2**bits:
        distance += 1
        covered += math.comb(bits, distance)
    return distance


def largest_distance(classes: int, bits: int) -> int:
    """Return Plotkin's bound: no minimum distance exceeds the mean, and a bit separates at most C^2 / 4 pairs."""
    separated_pairs, pairs = (classes // 2) * ((classes + 1) // 2), classes * (classes - 1) // 2
    return bits * separated_pairs // pairs if pairs else bits


def search_steps(classes: int, bits: int) -> int:
    """Return the steps of the search, fewer as C grows, to stay within seconds; 0 if these would not suffice."""
    affordable = 4 * 10**8 // (classes**2 + 8 * classes * bits)
    return min(_MOST_STEPS, 50 * classes, affordable) if classes > 1 else 0


def separated(centers: Codes, rng: np.random.Generator) -> Codes:
    """Move one center at a time; return centers (C, K) whose minimum distance is no smaller."""
    classes, bits = centers.shape
    codes = centers.astype(np.float64)
    steps = search_steps(classes, bits)
    distances = ((bits - codes @ codes.T) / 2).astype(np.int64) if steps else np.zeros((0, 0), np.int64)
    np.fill_diagonal(distances, 2 * bits + _LEVELS)  # no center with itself
    for step in range(steps):
        closest = distances.min(axis=1)
        nearest = int(closest.min())
        if nearest >= largest_distance(classes, bits):
            break
        crowded = np.flatnonzero(closest == nearest)
        index = int(rng.choice(crowded)) if step % 4 else int(rng.integers(classes))
        codes[index], to_others = _move(codes, index, distances[index], nearest, rng)
        distances[index] = distances[:, index] = to_others
    return codes.astype(np.int8)


def _move(
    codes: NDArray[np.float64],
    index: int,
    distances: NDArray[np.int64],
    nearest: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Flip some bits of one center at random, then those that help most; return it with its distances, unless worse."""
    code, new = codes[index].copy(), distances.copy()
    random_bits = rng.choice(len(code), _RANDOM_FLIPS, replace=False)
    for step in range(_RANDOM_FLIPS + len(code)):
        # This is the change of all weights if a bit flips, times 8/3: pairs that agree in the bit have a quarter of their
        # weight, others have four times theirs.
        weights = _weights(new, nearest)
        change = 3 * weights.sum() - 5 * code * (weights @ codes)
        bit = random_bits[step] if step < _RANDOM_FLIPS else change.argmin()
        if step >= _RANDOM_FLIPS and change[bit] >= 0:
            break
        # The distance to itself changes too, but stays too large to matter.
        new += np.where(codes[:, bit] == code[bit], 1, -1)
        code[bit] = -code[bit]
    better = new.min() >= nearest and _weights(new, nearest).sum() <= _weights(distances, nearest).sum()
    return (code, new) if better else (codes[index], distances)


def _weights(distances: NDArray[np.int64], nearest: int) -> NDArray[np.float64]:
    """Compute the weights (C,) of distances (C,): 4^-d, times a constant that makes them integers; 0 far away."""
    power = np.clip(nearest + _LEVELS - distances, -1, _LEVELS + _NEARER)
    return np.where(power < 0, 0.0, np.ldexp(1.0, 2 * power))


# --- Distances of all pairs


def mean_distance(centers: Codes) -> float:
    """Compute the mean distance of all pairs in C * K steps: all inner products sum up to |sum of centers|^2."""
    classes, bits = centers.shape
    total = int((centers.sum(axis=0, dtype=np.int64) ** 2).sum()) - classes * bits
    return float(bits - total / max(classes * (classes - 1), 1)) / 2


def smallest_distance(centers: Codes) -> int:
    """Compute the minimum distance of all pairs, in blocks of rows."""
    classes, bits = centers.shape
    codes, rows, largest = centers.astype(np.float32), max(1, 2**24 // classes), -float(bits)
    for start in range(0, classes, rows):
        inner = codes[start : start + rows] @ codes.T
        np.fill_diagonal(inner[:, start:], -bits)  # no center with itself
        largest = max(largest, float(inner.max()))
    return int(bits - largest) // 2


def quality(centers: Codes) -> Score:
    """Return the minimum and mean distance of centers (C, K), by which the best of several is selected."""
    return smallest_distance(centers), mean_distance(centers)


# --- Start of the search: rows of a large Sylvester matrix, cut to K columns
# Entry (a, x) of the matrix is (-1)^parity(a & x), so rows a and b, cut to the columns X, have the inner product
# overlap[a ^ b] with overlap[a] = sum over x in X of (-1)^parity(a & x). One Walsh transform gives the effect of all
# columns at once.


def spread_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """Return centers (C, K) for any C and K: rows of a Sylvester matrix, cut to columns that keep all rows far apart."""
    order = 1 << (max(classes, bits) - 1).bit_length()
    searches = [_search_columns(order, bits, rng) for _ in range(4 if order <= 4096 else 1)]
    _, columns = min(searches, key=lambda search: search[0])
    rows = np.arange(1 if classes < order else 0, order)  # row 0 is constant
    draws = max(1, min(100, 2**24 // (classes * bits)))
    candidates = (_cut(rng.choice(rows, classes, replace=False), columns) for _ in range(draws))
    # If C > K, any choice contains a nearest pair (C > order / 2), so that only the mean can be improved.
    return max(candidates, key=quality if classes <= bits else mean_distance)


def _search_columns(order: int, bits: int, rng: np.random.Generator) -> tuple[Score, NDArray[np.int64]]:
    """Search K columns (K,) of Sylvester's matrix of `order` >= K: exchange one at a time; return the best set.

    The first set contains the powers of two, which alone make all rows different, and their sum, with which rows differ
    in two bits.
    """
    start = np.append(1 << np.arange(order.bit_length() - 1), order - 1)[:bits]
    columns = np.concatenate([start, rng.choice(order, bits - len(start), replace=False)])
    all_rows, best = np.arange(order), columns.copy()
    overlap = _walsh(np.bincount(columns, minlength=order).astype(np.float64))
    best_score = _crowding(overlap)
    for _ in range(min(200 + bits, 2**25 // order)):
        slot = rng.integers(bits)
        overlap -= _cut(all_rows, columns[slot : slot + 1])[:, 0]
        # The fifth power lets the largest overlaps decide; products round alike on every machine, unlike powers.
        relative = np.maximum(overlap, 0) / max(overlap[1:].max(), 1.0)
        relative[0] = 0  # a row with itself
        square = relative * relative
        pull = _walsh(square * square * relative)
        candidates = np.flatnonzero(pull <= pull.min() + 1e-9)
        columns[slot] = candidates[rng.integers(len(candidates))]
        overlap += _cut(all_rows, columns[slot : slot + 1])[:, 0]
        score = _crowding(overlap)
        if score < best_score:
            best, best_score = columns.copy(), score
    return best_score, best


def _crowding(overlap: NDArray[np.float64]) -> Score:
    """Return the score that the search lowers: the largest overlap of two different rows, then their number."""
    largest = float(overlap[1:].max())
    return largest, int((overlap[1:] == largest).sum())


def _walsh(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the Walsh-Hadamard transform (n,): Sylvester's matrix times `values`, in n log n additions."""
    half = 1
    while half < len(values):
        pairs = values.reshape(-1, 2, half)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return values


def _cut(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Codes:
    """Return the entries of Sylvester's matrix at `rows` (C,) and `columns` (K,), as codes (C, K)."""
    parity = np.bitwise_count(rows.astype(np.int32)[:, None] & columns.astype(np.int32)) & 1
    return np.where(parity, np.int8(-1), np.int8(1))
