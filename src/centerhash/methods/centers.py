"""Hash centers: one code per class, as far from each other as the bits allow (Sec. 3.2 of the paper).

Centers (C, K) are int8 in {-1, +1}. The kinds:

    hadamard   rows of a Hadamard matrix H of order K, drawn without replacement; of [H; -H] when K < C <= 2K.
               Any two are exactly K/2 apart (K when opposite).
    spread     any C and K: rows of a larger Sylvester matrix, cut to K columns that are searched for so that the
               rows stay far apart.
    random     the paper's rule: each center has exactly half its bits +1, best of n draws by minimum, then mean.
    mdsh       any C and K: the largest smallest distance that a bounded search finds (separation.py).
    bernoulli  Bernoulli(0.5) bits, drawn once; only a center that another one equals is drawn again.
    auto       hadamard where it exists, else random, which is the paper's rule; mdsh where more than CROWDED classes
               share a bit, and random centers come too near to each other.
    printed    the paper's rule to the letter: hadamard where K is a power of two and C <= 2K, else bernoulli.

Smallest and mean distance, random (best of up to 100 draws) against spread, seed 0. No C codes of K bits have a
mean distance above K/2 * C/(C - 1). Far apart is not all: once classes that share images are given near centers
(assignment.py), uneven distances serve as well, so centers are random until they are crowded: COCO's 80 classes
gain by mdsh at 16 bits and hardly at 32 (benchmarks/results/ideas). mdsh starts from spread, so its smallest distance
is no smaller: 6, 14 and 20 in the first column.

        C    K   random        spread              C    K   random        spread
       80   16   2   8.06      6   8.09          200   64   18  32.05     28  32.14
       80   32   8  16.08     14  16.17        1,000   64   14  32.01     25  32.03
      200   48  12  24.04     20  24.11       40,000   64    8  32.00     19  32.00

Rows are taken as they are, without flipping columns at random: a flip changes no distance, but loses the balance
of the rows. H is normalised, so that its first row is constant and every other row has exactly K/2 ones; the
constant row is used only when the others do not suffice, because Sec. 3.2 requires half of the bits to be +1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, pack
from centerhash.core.errors import ConfigError, unknown_name
from centerhash.methods.separation import (
    distance_range,
    guaranteed_distance,
    mean_distance,
    search_steps,
    separated,
    slices,
)

KINDS = ("auto", "hadamard", "spread", "random", "mdsh", "bernoulli", "printed")
MIN_BITS, MAX_BITS, MAX_CLASSES = 8, 1024, 1_000_000
CROWDED = 4  # classes per bit

Score: TypeAlias = tuple[float, float]  # compared in this order


def hash_centers(classes: int, bits: int, seed: int = 0, kind: str = "auto") -> Codes:
    """Create hash centers (C, K), all different and determined by the arguments (Sec. 3.2).

    `kind` is one of KINDS, described at the top of this module.
    """
    classes = _whole("classes", classes, 1, MAX_CLASSES)
    bits = _whole("bits", bits, MIN_BITS, MAX_BITS)
    seed = _whole("seed", seed, 0, 2**63 - 1)
    if kind not in KINDS:
        raise unknown_name("kind of centers", str(kind), KINDS)
    if classes > 2**bits:
        raise ConfigError(
            f"{classes} classes cannot have different centers of {bits} bits: there are only {2**bits} codes. "
            f"Use at least {(classes - 1).bit_length()} bits, better {4 * (classes - 1).bit_length()} or more."
        )
    exists = has_hadamard(bits) and classes <= 2 * bits
    if kind == "hadamard" and not exists:
        raise _no_hadamard(classes, bits)
    if kind == "auto":
        kind = "hadamard" if exists else "mdsh" if classes > CROWDED * bits else "random"
    if kind == "printed":
        kind = "hadamard" if exists and bits & (bits - 1) == 0 else "bernoulli"
    make = {
        "hadamard": _hadamard_centers,
        "spread": _spread_centers,
        "random": _random_centers,
        "mdsh": _separated_centers,
        "bernoulli": _bernoulli_centers,
    }[kind]
    return make(classes, bits, np.random.default_rng(seed))


def _whole(name: str, value: Any, low: int, high: int) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, got {value!r}.")
    return int(value)


def _no_hadamard(classes: int, bits: int) -> ConfigError:
    """Say which bit lengths nearest to `bits` have Hadamard centers for so many classes."""
    usable = [order for order in hadamard_orders(MAX_BITS) if order >= max(MIN_BITS, (classes + 1) // 2)]
    near = [max((n for n in usable if n < bits), default=0), min((n for n in usable if n > bits), default=0)]
    names = " or ".join(str(order) for order in near if order)
    advice = f"Nearest bits that have them: {names}." if names else f"They end at {2 * MAX_BITS} classes."
    return ConfigError(
        f"no Hadamard centers for {classes} classes at {bits} bits: that needs a Hadamard matrix of order {bits} "
        f"and at most {2 * bits} classes. {advice} Or use kind 'random' or 'spread'."
    )


# --- Hadamard matrices: H (n, n) of -1 and +1 with H H^T = n I


def hadamard(order: int) -> Codes:
    """Hadamard matrix (n, n), read-only: the first row is all +1, every other has exactly n/2 ones."""
    return _build(_whole("order", order, 1, MAX_BITS))


def has_hadamard(order: int) -> bool:
    """Tell whether `hadamard(order)` works."""
    return 1 <= order <= MAX_BITS and _recipe(int(order)) is not None


def hadamard_orders(limit: int) -> list[int]:
    """List the orders up to `limit`, ascending, for which `hadamard` works."""
    return [order for order in range(1, min(limit, MAX_BITS) + 1) if has_hadamard(order)]


def sylvester(order: int) -> Codes:
    """Sylvester's matrix (n, n) for n a power of two: H_2n = [[H_n, H_n], [H_n, -H_n]]."""
    matrix = np.ones((1, 1), dtype=np.int8)
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def paley_one(q: int) -> Codes:
    """Paley's first matrix, of order q + 1, for a prime power q = 3 mod 4: H = I + S, S skew."""
    bordered = _bordered(q)
    bordered[1:, 0] = -1
    return bordered + np.eye(q + 1, dtype=np.int8)


def paley_two(q: int) -> Codes:
    """Paley's second matrix, of order 2 (q + 1), for a prime power q = 1 mod 4, normalised."""
    signs = np.array([[1, 1], [1, -1]], dtype=np.int8)
    zeros = np.array([[1, -1], [-1, -1]], dtype=np.int8)
    matrix: Codes = np.kron(_bordered(q), signs) + np.kron(np.eye(q + 1, dtype=np.int8), zeros)
    matrix *= matrix[0].copy()  # flips columns so that the first row is all +1 and balances the others
    return matrix


@cache
def _recipe(order: int) -> tuple[Callable[[int], Codes], int] | None:
    """Which function builds the matrix of `order`, and from which number; None when none of ours can."""
    if order & (order - 1) == 0:
        return sylvester, order
    if order % 4 == 0 and _prime_power(order - 1):
        return paley_one, order - 1
    if order % 8 == 4 and _prime_power(order // 2 - 1):
        return paley_two, order // 2 - 1
    for factor in range(2, math.isqrt(order) + 1):
        if order % factor == 0 and _recipe(factor) and _recipe(order // factor):
            return lambda small: np.kron(_build(small), _build(order // small)), factor
    return None


@lru_cache(maxsize=16)
def _build(order: int) -> Codes:
    recipe = _recipe(order)
    if recipe is None:
        raise ConfigError(
            f"no Hadamard matrix of order {order} can be built here (by Sylvester, Paley or Kronecker product). "
            "hadamard_orders(limit) lists those that can."
        )
    make, number = recipe
    matrix = make(number)
    matrix.setflags(write=False)  # callers share the cached array
    return matrix


def _bordered(q: int) -> Codes:
    """[[0, 1], [1, Q]] of order q + 1 with the Jacobsthal matrix Q[a, b] = chi(a - b) over GF(q)."""
    field = _prime_power(q)
    assert field is not None  # `_recipe` passes prime powers only
    prime, degree = field
    places = prime ** np.arange(degree)
    digits = np.arange(q)[:, None] // places % prime
    difference = (digits[:, None] - digits[None]) % prime @ places
    bordered = np.ones((q + 1, q + 1), dtype=np.int8)
    bordered[0, 0] = 0
    bordered[1:, 1:] = _quadratic_character(prime, degree)[difference]
    return bordered


def _quadratic_character(prime: int, degree: int) -> Codes:
    """Table chi (q,) over GF(q), q = prime^degree: 0 at zero, +1 at the squares, -1 elsewhere.

    Element e stands for the polynomial whose coefficients are the digits of e in base `prime`. When x generates
    all q - 1 units, its even powers are the squares, so no multiplication table is needed.
    """
    order = prime**degree
    orbits = (_powers(prime, taps) for taps in product(range(prime), repeat=degree) if taps[0])
    powers = next(orbit for orbit in orbits if len(orbit) == order - 1)
    table = np.zeros(order, dtype=np.int8)
    places = prime ** np.arange(degree)
    table[np.array(powers) @ places] = np.resize([1, -1], order - 1)
    return table


def _powers(prime: int, taps: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Powers 1, x, x^2, ... until 1 returns, modulo x^degree = sum of taps[i] x^i; lowest coefficient first."""
    one = (1, *[0] * (len(taps) - 1))
    powers = [one]
    while True:
        *lower, top = powers[-1]
        power = tuple((value + top * tap) % prime for value, tap in zip((0, *lower), taps, strict=True))
        if power == one:
            return powers
        powers.append(power)


def _prime_power(number: int) -> tuple[int, int] | None:
    """(prime, degree) with prime^degree = number, or None."""
    if number < 2:
        return None
    prime = next((p for p in range(2, math.isqrt(number) + 1) if number % p == 0), number)
    degree = round(math.log(number, prime))
    return (prime, degree) if prime**degree == number else None


# --- Hadamard centers and random centers


def _hadamard_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    matrix = hadamard(bits)
    rows = matrix if classes <= bits else np.concatenate([matrix, -matrix])
    balanced = np.flatnonzero(np.arange(len(rows)) % bits)  # all but the constant rows
    usable = balanced if len(balanced) >= classes else np.arange(len(rows))
    chosen: Codes = rows[rng.choice(usable, classes, replace=False)]
    return chosen


def _random_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """Best of n balanced draws by minimum, then mean distance; n shrinks as C grows, to stay within seconds."""
    balanced = math.comb(bits, bits // 2) * (1 + bits % 2)
    draw = _draw_sparse if 2 * classes <= balanced else _draw_dense
    draws = min(100, 4 * 10**9 // (classes**2 * bits))
    if draws < 2:
        return draw(classes, bits, rng)
    return max((draw(classes, bits, rng) for _ in range(draws)), key=_score)


def _score(centers: Codes) -> Score:
    return distance_range(centers)[0], mean_distance(centers)


def _draw_sparse(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """Different codes (C, K) with K/2 ones each (an odd K: one more or less)."""
    return _all_different(lambda count: _draw_balanced(count, bits, rng), classes)


def _all_different(draw: Callable[[int], Codes], classes: int) -> Codes:
    """Different codes (C, K), by drawing again what came twice."""
    codes = draw(classes)
    while True:
        _, first = np.unique(pack(codes), axis=0, return_index=True)
        if len(first) == classes:
            return codes
        codes = np.concatenate([codes[np.sort(first)], draw(classes - len(first))])


def _bernoulli_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    def coins(count: int) -> Codes:
        return rng.integers(0, 2, (count, bits), dtype=np.int8) * 2 - 1

    return _all_different(coins, classes)


def _separated_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """The best of some searches by minimum, then mean distance: from the best construction and from random centers.

    Random centers are tried again where the best is below the distance that Gilbert and Varshamov's bound guarantees.
    """
    exists = has_hadamard(bits) and classes <= 2 * bits
    best = separated((_hadamard_centers if exists else _spread_centers)(classes, bits, rng), rng)
    for _ in range(3 if search_steps(classes, bits) else 0):
        best = max(best, separated(_random_centers(classes, bits, rng), rng), key=_score)
        if distance_range(best)[0] >= guaranteed_distance(classes, bits):
            break
    return best


def _draw_balanced(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    ones = bits // 2 + rng.integers(0, 1 + bits % 2, size=(classes, 1))
    return rng.permuted(np.where(np.arange(bits) < ones, np.int8(1), np.int8(-1)), axis=1)


def _draw_dense(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    """Different codes (C, K) when C is near or above the number of balanced ones: the most balanced of all 2^K.

    MAX_CLASSES keeps K at 22 or less here, so that all codes can be listed.
    """
    numbers = np.arange(2**bits, dtype=np.int64)
    imbalance = np.abs(2 * np.bitwise_count(numbers).astype(np.int64) - bits)
    chosen = np.lexsort((rng.random(len(numbers)), imbalance))[:classes]
    ones = rng.permutation(chosen)[:, None] >> np.arange(bits) & 1
    return np.where(ones, np.int8(1), np.int8(-1))


# --- Spread centers: rows of a large Sylvester matrix, cut to K columns
# Entry (a, x) of the matrix is (-1)^parity(a & x), so rows a and b, cut to the columns X, have the inner product
# overlap[a ^ b] with overlap[a] = sum over x in X of (-1)^parity(a & x). All distances are thus at least
# (K - max overlap[1:]) / 2, and one Walsh transform shows the effect of every column at once. In the words of
# coding theory this searches for a good linear code.


def _spread_centers(classes: int, bits: int, rng: np.random.Generator) -> Codes:
    order = 1 << (max(classes, bits) - 1).bit_length()
    searches = 4 if order <= 4096 else 1
    columns = min((_search_columns(order, bits, rng) for _ in range(searches)), key=lambda found: found[0])[1]
    first = 1 if classes < order else 0  # row 0 is constant
    draws = max(1, min(100, 2**24 // (classes * bits)))
    chosen = (rng.choice(np.arange(first, order), classes, replace=False) for _ in range(draws))
    # beyond C = K any choice holds a nearest pair (C > order / 2), and only the mean is left to gain
    return max((_cut(rows, columns) for rows in chosen), key=_score if classes <= bits else mean_distance)


def _search_columns(order: int, bits: int, rng: np.random.Generator) -> tuple[Score, NDArray[np.int64]]:
    """Find K columns (K,) of Sylvester's matrix of `order` >= K: exchange one at a time, keep the best set seen.

    The first set holds the powers of two, which alone make all rows different, and their sum, with which rows
    differ in two places. The best set is no worse.
    """
    start = np.append(1 << np.arange(order.bit_length() - 1), order - 1)[:bits]
    columns = np.concatenate([start, rng.choice(order, bits - len(start), replace=False)])
    everything = np.arange(order)
    overlap = _walsh(np.bincount(columns, minlength=order).astype(np.float64))
    best, best_score = columns.copy(), _crowding(overlap)
    for _ in range(min(200 + bits, 2**25 // order)):
        slot = rng.integers(bits)
        overlap -= _cut(everything, columns[slot : slot + 1])[:, 0]
        pull = _walsh(_pressure(overlap))
        candidates = np.flatnonzero(pull <= pull.min() + 1e-9)
        columns[slot] = candidates[rng.integers(len(candidates))]
        overlap += _cut(everything, columns[slot : slot + 1])[:, 0]
        score = _crowding(overlap)
        if score < best_score:
            best, best_score = columns.copy(), score
    return best_score, best


def _crowding(overlap: NDArray[np.float64]) -> Score:
    """What the search lowers: the largest overlap of two different rows, then how many share it."""
    largest = overlap[1:].max()
    return float(largest), int((overlap[1:] == largest).sum())


def _pressure(overlap: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much each overlap matters: its fifth power, so that the largest decide and small ones break ties."""
    relative: NDArray[np.float64] = np.maximum(overlap, 0) / max(overlap[1:].max(), 1.0)
    relative[0] = 0  # a row with itself
    square = relative * relative
    return square * square * relative  # products, unlike powers, round alike on every machine


def _walsh(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Walsh-Hadamard transform (n,): Sylvester's matrix times `values`, in n log n additions."""
    half = 1
    while half < len(values):
        pairs = values.reshape(-1, 2, half)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return values


def _cut(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Codes:
    """Entries of Sylvester's matrix at `rows` (C,) and `columns` (K,), as codes (C, K)."""
    codes = np.empty((len(rows), len(columns)), dtype=np.int8)
    for part in slices(len(rows), max(1, 2**20 // len(columns))):
        codes[part] = 1 - 2 * (np.bitwise_count(rows[part, None] & columns) & 1).astype(np.int8)
    return codes
