"""How far apart centers are, and a search for a large smallest distance, as in MDSH (Wang et al., 2023).

The Gilbert-Varshamov bound is a smallest distance that C codes of K bits can have, Plotkin's one that they cannot
exceed. MDSH improves one center at a time while the others stay, by a relaxation with multipliers. Here a center moves by
single bits instead: a pair that is d apart weighs 4^-d, so that the nearest pairs decide and counts of them break ties.
Flipping a bit changes a pair's distance by one and its weight by a factor of four, so one matrix-vector product shows the
effect of every bit at once. Weights are whole powers of four, which sum up alike on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes

_LEVELS = 12  # distances above the nearest pair's that still have a weight
_NEARER = 4  # distances below it that are told apart
_KICK = 2  # bits that are flipped at random before the descent
_MOST_STEPS = 2000


def guaranteed_distance(classes: int, bits: int) -> int:
    """The Gilbert-Varshamov bound: the largest d with (C - 1) codes' balls of radius d - 1 not covering all codes."""
    covered, distance = 1, 0
    while distance < bits and (classes - 1) * covered < 2**bits:
        distance += 1
        covered += math.comb(bits, distance)
    return distance


def largest_distance(classes: int, bits: int) -> int:
    """Plotkin's bound: no smallest distance exceeds the mean one, and a bit tells at most C^2 / 4 pairs apart."""
    if classes < 2:
        return bits
    apart = (classes // 2) * ((classes + 1) // 2)
    return bits * apart * 2 // (classes * (classes - 1))


def search_steps(classes: int, bits: int) -> int:
    """Steps of the search, fewer as C grows, to stay within seconds; 0 where it would find nothing in that time."""
    return (
        min(_MOST_STEPS, 50 * classes, 4 * 10**8 // (classes**2 + 8 * classes * bits)) if classes > 1 else 0
    )


def separated(centers: Codes, rng: np.random.Generator) -> Codes:
    """Centers (C, K) whose smallest distance is no smaller, by moving one center at a time; the same rng, the same."""
    classes, bits = centers.shape
    steps = search_steps(classes, bits)
    if not steps:
        return centers
    codes = centers.astype(np.float64)
    distances = ((bits - codes @ codes.T) / 2).astype(np.int64)
    np.fill_diagonal(distances, 2 * bits + _LEVELS)  # no center with itself
    for step in range(steps):
        closest = distances.min(axis=1)
        nearest = int(closest.min())
        if nearest >= largest_distance(classes, bits):
            break
        crowded = np.flatnonzero(closest == nearest)
        moved = int(rng.choice(crowded)) if step % 4 else int(rng.integers(classes))
        _move(codes, distances, moved, nearest, rng)
    return codes.astype(np.int8)


def _move(
    codes: NDArray[np.float64],
    distances: NDArray[np.int64],
    moved: int,
    nearest: int,
    rng: np.random.Generator,
) -> None:
    """Flip some bits of one center at random, then those that help most; keep it, in place, unless it got worse."""
    code, away = codes[moved].copy(), distances[moved].copy()
    before = _weights(away, nearest).sum()
    for bit in rng.choice(len(code), _KICK, replace=False):
        _flip(code, away, codes, int(bit))
    for _ in range(len(code)):
        weights = _weights(away, nearest)
        # of each bit, times 8/3: weights of pairs that agree in it fall to a quarter, of others they grow fourfold
        change = 3 * weights.sum() - 5 * code * (weights @ codes)
        bit = int(change.argmin())
        if change[bit] >= 0:
            break
        _flip(code, away, codes, bit)
    if away.min() >= nearest and _weights(away, nearest).sum() <= before:
        codes[moved], distances[moved], distances[:, moved] = code, away, away


def _weights(away: NDArray[np.int64], nearest: int) -> NDArray[np.float64]:
    """Weights (C,) of distances (C,): 4^-d, times a constant that makes them whole; 0 far away."""
    power = np.clip(nearest + _LEVELS - away, -1, _LEVELS + _NEARER)
    return np.where(power < 0, 0.0, np.ldexp(1.0, 2 * power))


def _flip(code: NDArray[np.float64], away: NDArray[np.int64], codes: NDArray[np.float64], bit: int) -> None:
    """Flip one bit of a code (K,) and update its distances (C,), both in place; its own stays out of reach."""
    away += np.where(codes[:, bit] == code[bit], 1, -1)
    code[bit] = -code[bit]


# --- Distances of all pairs


def mean_distance(centers: Codes) -> float:
    """Mean distance of all pairs in C * K steps: the inner products of all pairs sum up to |sum of centers|^2."""
    classes, bits = centers.shape
    if classes == 1:
        return float(bits)
    total = int((centers.sum(axis=0, dtype=np.int64) ** 2).sum()) - classes * bits
    return float(bits - total / (classes * (classes - 1))) / 2


def distance_range(centers: Codes, tile: int = 2048) -> tuple[int, int]:
    """Smallest and largest distance of all pairs, tile by tile."""
    classes, bits = centers.shape
    if classes == 1:
        return bits, bits
    closest, farthest = -float(bits), float(bits)
    for rows in slices(classes, tile):
        left = centers[rows].astype(np.float32)
        for columns in slices(classes, tile, rows.start):
            inner = left @ centers[columns].astype(np.float32).T
            if columns == rows:
                inner = inner[~np.eye(len(inner), dtype=bool)]  # no center with itself
            closest = max(closest, float(inner.max(initial=-bits)))
            farthest = min(farthest, float(inner.min(initial=bits)))
    return int(bits - closest) // 2, int(bits - farthest) // 2


def slices(length: int, size: int, start: int = 0) -> Iterator[slice]:
    """Parts of range(start, length), each of at most `size`."""
    return (slice(at, min(at + size, length)) for at in range(start, length, size))
