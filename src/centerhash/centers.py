"""Hash centers: one code per class, as far from each other as the bits allow (Sec. 3.2 of the ICS paper).

    centers = hash_centers(classes=80, bits=64)     # (80, 64) int8 of -1 and +1

The kinds:

    hadamard   rows of a Hadamard matrix H of order K, sampled without replacement; of [H; -H] if K < C <= 2K.
               Any two are exactly K/2 apart, or K if they are opposite.
    random     the paper's rule: each center has exactly half its bits +1, best of n draws by minimum, then mean.
    mdsh       any C and K: the largest minimum distance that a bounded search reaches (separation.py).
    bernoulli  Bernoulli(0.5) bits of a single draw; only a center that equals another one is drawn again.
    auto       hadamard if it exists, else random; mdsh if more than MOST_CLASSES_PER_BIT classes share a bit, because
               random centers are then too near to each other.
    printed    the paper's rule to the letter: hadamard if K is a power of two and C <= 2K, else bernoulli.

H is normalized, so that its first row is constant and every other row has exactly K/2 ones. The constant row is used
only if the others do not suffice, because Sec. 3.2 requires half of the bits to be +1.

`assign_centers` decides which class gets which center: classes that share images should have centers that share bits. An
image with two labels is pulled to two centers. If they agree in many bits, one code can be near both; if they are
opposite, it can be near neither. Hadamard rows are all equally far apart, so this matters for [H; -H], which contains
opposite pairs, and for random centers, that is for many classes at few bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, pack
from centerhash.core.checks import whole_number
from centerhash.core.errors import ConfigError, InputError, unknown_name
from centerhash.separation import (
    guaranteed_distance,
    quality,
    search_steps,
    separated,
    smallest_distance,
    spread_centers,
)

KINDS = ("auto", "hadamard", "random", "mdsh", "bernoulli", "printed")
MIN_BITS, MAX_BITS, MAX_CLASSES = 8, 1024, 1_000_000
MOST_CLASSES_PER_BIT = 4
# About C swaps of C^2 steps each take a second at 1,024 classes.
MOST_ASSIGNED_CLASSES = 1024


def hash_centers(classes: int, bits: int, seed: int = 0, kind: str = "auto") -> Codes:
    """Create hash centers (C, K), all different and determined by the arguments (Sec. 3.2).

    `kind` is one of KINDS, described at the top of this module.
    """
    classes = whole_number(classes, "classes", 1, MAX_CLASSES)
    bits = whole_number(bits, "bits", MIN_BITS, MAX_BITS)
    seed = whole_number(seed, "seed", 0, 2**63 - 1)
    if kind not in KINDS:
        raise unknown_name("kind of centers", str(kind), KINDS)
    if classes > 2**bits:
        raise ConfigError(
            f"{classes} classes cannot have different centers of {bits} bits: there are only {2**bits} codes. "
            f"Use at least {(classes - 1).bit_length()} bits, better {4 * (classes - 1).bit_length()} or more."
        )
    has_hadamard = _has_hadamard(classes, bits)
    if kind == "hadamard" and not has_hadamard:
        raise ConfigError(
            f"no Hadamard centers for {classes} classes at {bits} bits: that needs a Hadamard matrix of order {bits} "
            f"and at most {2 * bits} classes. Use a power of two from {max(8, (classes - 1) // 2 + 1)} bits on, or kind "
            "'random' or 'mdsh'."
        )
    if kind == "auto":
        kind = "hadamard" if has_hadamard else "mdsh" if classes > MOST_CLASSES_PER_BIT * bits else "random"
    if kind == "printed":
        kind = "hadamard" if has_hadamard and bits.bit_count() == 1 else "bernoulli"
    create = {
        "hadamard": _hadamard_centers,
        "random": _random_centers,
        "mdsh": _separated_centers,
        "bernoulli": _bernoulli_centers,
    }[kind]
    return create(classes, bits, np.random.default_rng(seed))


# --- Hadamard matrices: H (n, n) of -1 and +1 with H H^T = n I


@lru_cache(maxsize=32)
def hadamard(order: int) -> Codes | None:
    """Return a Hadamard matrix (n, n), read-only; None if it is not Sylvester's, Paley's or a Kronecker product of such.

    The first row is all +1, every other row has exactly n/2 ones.
    """
    matrix: Codes | None
    if order.bit_count() == 1:
        matrix = sylvester(order)
    elif order % 4 == 0 and _is_prime(order - 1):
        matrix = paley_one(order - 1)
    elif order % 8 == 4 and _is_prime(order // 2 - 1):
        matrix = paley_two(order // 2 - 1)
    else:
        sizes = (size for size in range(2, math.isqrt(order) + 1) if order % size == 0)
        pairs = ((hadamard(size), hadamard(order // size)) for size in sizes)
        matrix = next((np.kron(a, b) for a, b in pairs if a is not None and b is not None), None)
    if matrix is not None:
        # Callers share the cached array.
        matrix.setflags(write=False)
    return matrix


def _has_hadamard(classes: int, bits: int) -> bool:
    return classes <= 2 * bits and hadamard(bits) is not None


def sylvester(order: int) -> Codes:
    """Return Sylvester's matrix (n, n) for n a power of two: H_2n = [[H_n, H_n], [H_n, -H_n]], Eq. (1)."""
    matrix = np.ones((1, 1), dtype=np.int8)
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def paley_one(q: int) -> Codes:
    """Return Paley's first matrix, of order q + 1, for a prime q = 3 mod 4: H = I + S, S skew."""
    bordered = _bordered(q)
    bordered[1:, 0] = -1
    return bordered + np.eye(q + 1, dtype=np.int8)


def paley_two(q: int) -> Codes:
    """Return Paley's second matrix, of order 2 (q + 1), for a prime q = 1 mod 4, normalized."""
    signs = np.array([[1, 1], [1, -1]], dtype=np.int8)
    zeros = np.array([[1, -1], [-1, -1]], dtype=np.int8)
    matrix: Codes = np.kron(_bordered(q), signs) + np.kron(np.eye(q + 1, dtype=np.int8), zeros)
    # Columns are flipped so that the first row is all +1 and all others are balanced.
    matrix *= matrix[0].copy()
    return matrix


def _bordered(q: int) -> Codes:
    """Return [[0, 1], [1, Q]] of order q + 1 with the Jacobsthal matrix Q[a, b] = chi(a - b) over the integers modulo q.

    The quadratic character chi is 0 at zero, +1 at the squares and -1 elsewhere.
    """
    numbers = np.arange(q)
    character = np.full(q, -1, dtype=np.int8)
    character[numbers**2 % q] = 1
    character[0] = 0
    bordered = np.ones((q + 1, q + 1), dtype=np.int8)
    bordered[0, 0] = 0
    bordered[1:, 1:] = character[(numbers[:, None] - numbers) % q]
    return bordered


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


# --- Hadamard centers and random centers


def _hadamard_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    matrix = hadamard(bits)
    assert matrix is not None
    rows = matrix if classes <= bits else np.concatenate([matrix, -matrix])
    balanced = np.flatnonzero(np.arange(len(rows)) % bits)  # without the constant rows
    usable = balanced if len(balanced) >= classes else np.arange(len(rows))
    centers: Codes = rows[rng.choice(usable, classes, replace=False)]
    return centers


def _random_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """Return the best of n balanced draws by minimum, then mean distance; n falls as C grows, to stay within seconds."""

    def draw() -> Codes:
        if 2 * classes > math.comb(bits, bits // 2) * (1 + bits % 2):
            return _draw_dense(classes, bits, rng)
        return _all_different(lambda count: _draw_balanced(count, bits, rng), classes)

    draws = min(100, 4 * 10**9 // (classes**2 * bits))
    return draw() if draws < 2 else max((draw() for _ in range(draws)), key=quality)


def _bernoulli_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    return _all_different(lambda count: rng.integers(0, 2, (count, bits), dtype=np.int8) * 2 - 1, classes)


def _all_different(draw: Callable[[int], Codes], classes: int) -> Codes:
    """Return different codes (C, K), by drawing duplicates again."""
    codes = draw(classes)
    while True:
        _, first = np.unique(pack(codes), axis=0, return_index=True)
        if len(first) == classes:
            return codes
        codes = np.concatenate([codes[np.sort(first)], draw(classes - len(first))])


def _separated_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """Return the best search by minimum, then mean distance: from the best construction and from random centers.

    Random centers are tried again while the best is below the distance that Gilbert and Varshamov's bound guarantees.
    """
    start = _hadamard_centers if _has_hadamard(classes, bits) else spread_centers
    best = separated(start(classes, bits, rng), rng)
    for _ in range(3 if search_steps(classes, bits) else 0):
        best = max(best, separated(_random_centers(classes, bits, rng), rng), key=quality)
        if smallest_distance(best) >= guaranteed_distance(classes, bits):
            break
    return best


def _draw_balanced(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """Draw codes (C, K) with K/2 ones each (for an odd K, one half more or less)."""
    ones = bits // 2 + rng.integers(0, 1 + bits % 2, size=(classes, 1))
    return rng.permuted(np.where(np.arange(bits) < ones, np.int8(1), np.int8(-1)), axis=1)


def _draw_dense(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """Draw different codes (C, K) if C is near or above the number of balanced ones: the most balanced of all 2^K.

    MAX_CLASSES keeps K at 22 or less in this case, so that all codes can be listed.
    """
    numbers = np.arange(2**bits, dtype=np.int64)
    imbalance = np.abs(2 * np.bitwise_count(numbers).astype(np.int64) - bits)
    balanced = np.lexsort((rng.random(len(numbers)), imbalance))[:classes]
    ones = rng.permutation(balanced)[:, None] >> np.arange(bits) & 1
    return np.where(ones, np.int8(1), np.int8(-1))


def cooccurrence(labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Compute the cosine (C, C) of the columns of labels (N, C): how often classes share an image; 0 on the diagonal."""
    counts = labels.astype(np.float32).T @ labels.astype(np.float32)
    size = np.sqrt(np.maximum(np.diag(counts), 1))
    together: NDArray[np.float64] = (counts / np.outer(size, size)).astype(np.float64)
    np.fill_diagonal(together, 0)
    return together


def assign_centers(centers: NDArray[np.int8], labels: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Reorder centers (C, K) so that sum_ij A_ij <v_i, v_j> is large, A the co-occurrence in labels (N, C).

    Starting from their order, the best pair of classes is swapped until no swap improves: a local optimum of this
    quadratic assignment problem. Past `MOST_ASSIGNED_CLASSES` classes the order stays as it is.
    """
    classes, bits = centers.shape
    if labels.ndim != 2 or labels.shape[1] != classes:
        raise InputError(
            f"labels of shape {labels.shape} do not fit {classes} centers: they must be (N, {classes})."
        )
    if classes < 3 or classes > MOST_ASSIGNED_CLASSES:
        return centers
    together = cooccurrence(labels)
    order = np.arange(classes)
    inner = centers.astype(np.float64) @ centers.T.astype(np.float64)
    # Entry (a, b) measures how well class a fits the center of class b.
    attraction = together @ inner
    for _ in range(20 * classes):
        # This is half the gain of the objective if two classes swap their centers, for every pair (C, C).
        current = np.diag(attraction)
        gain = attraction + attraction.T - current[:, None] - current - 2 * together * (bits - inner)
        first, second = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[first, second] <= 1e-9:
            break
        swap = np.arange(classes)
        swap[[first, second]] = second, first
        order, swapped = order[swap], inner[np.ix_(swap, swap)]
        # The product is together @ (swapped - inner), in which only two rows and two columns change.
        change, pair = swapped - inner, [first, second]
        product = together[:, pair] @ change[pair]
        change[pair] = 0
        product[:, pair] += together @ change[:, pair].copy()
        attraction, inner = attraction + product, swapped
    return centers[order]
