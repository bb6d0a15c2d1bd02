"""The compiled loops: Hamming distances, a counting sort of them, and the sums behind the metrics.

Codes and labels are 64-bit words: W words hold a code, L words hold the labels of an item. A query is a row of words
(W,), the database is planes (W, N): each word is one contiguous scan, which becomes vector instructions.

Plain threads run the loops over blocks of queries. A query needs O(N) memory; results do not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.extras import require
from centerhash.core.parallel import compiled, cpu_count, in_threads, split

Words: TypeAlias = NDArray[np.uint64]
Small: TypeAlias = NDArray[np.uint16]
Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

# A hypergeometric weight below this share of the largest one cannot change a sum in float64.
NEGLIGIBLE = 1e-20


def _over_rows(work: Callable[..., None], by_row: Sequence[NDArray[Any]], *whole: Any) -> None:
    """Call `work` on slices of the arrays `by_row` and on the `whole` arguments, in a thread per core."""
    rows = len(by_row[0])
    parts = split(rows, max(1, min(cpu_count(), rows)))
    in_threads(lambda part: work(*(array[parts[part]] for array in by_row), *whole), len(parts))


def _popcount_rule(_context: Any, _word: Any) -> Any:
    """Count the set bits of a uint64 in numba with the CPU's own instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    word = require("numba").types.uint64
    return word(word), generate


_popcount: Any = require("numba.extending").intrinsic(_popcount_rule)


@compiled
def _hamming(query: Words, database: Words, out: Small) -> None:
    """Write the Hamming distances between a code (W,) and the planes (W, N) to out (N,)."""
    word, plane = query[0], database[0]
    for item in range(out.size):
        out[item] = _popcount(word ^ plane[item])
    for index in range(1, query.size):
        word, plane = query[index], database[index]
        for item in range(out.size):
            out[item] += _popcount(word ^ plane[item])


@compiled
def _shared_labels(query: Words, database: Words, out: Small) -> None:
    """Write how many labels a row (L,) shares with each item of the planes (L, N) to out (N,)."""
    word, plane = query[0], database[0]
    for item in range(out.size):
        out[item] = _popcount(word & plane[item])
    for index in range(1, query.size):
        word, plane = query[index], database[index]
        for item in range(out.size):
            out[item] += _popcount(word & plane[item])


@compiled
def _nearest_first(distances: Small, counts: Integers, order: Integers, candidates: Integers) -> None:
    """Fill `order` (at most N) with the positions of the nearest items, ties in database order.

    A counting sort that stops at the end of `order`. `counts` is the histogram of the distances; `candidates` (N,) is
    memory for work.
    """
    starts = np.zeros(counts.size, np.int64)
    farthest = 0
    while starts[farthest] + counts[farthest] < order.size:
        starts[farthest + 1] = starts[farthest] + counts[farthest]
        farthest += 1
    near = 0
    # This loop has no branch, since few items would take it.
    for item in range(distances.size):
        candidates[near] = item
        near += distances[item] <= farthest
    for item in candidates[:near]:
        distance = distances[item]
        rank = starts[distance]
        if rank < order.size:
            order[rank] = item
            starts[distance] = rank + 1


@compiled
def _nearest_rows(queries: Words, indices: Integers, distances: Small, database: Words, bits: int) -> None:
    """Fill some rows of `nearest`."""
    to_all, candidates = np.empty(database.shape[1], np.uint16), np.empty(database.shape[1], np.int64)
    for row in range(queries.shape[0]):
        _hamming(queries[row], database, to_all)
        counts = np.zeros(bits + 1, np.int64)
        for item in range(to_all.size):
            counts[to_all[item]] += 1
        _nearest_first(to_all, counts, indices[row], candidates)
        for rank in range(indices.shape[1]):
            distances[row, rank] = to_all[indices[row, rank]]


def nearest(queries: Words, database: Words, bits: int, top: int) -> tuple[Integers, Small]:
    """Return the positions and distances (Q, top) of the nearest items, ties in database order."""
    indices = np.empty((queries.shape[0], top), np.int64)
    distances = np.empty((queries.shape[0], top), np.uint16)
    _over_rows(_nearest_rows, (queries, indices, distances), database, bits)
    return indices, distances


@compiled
def _rank_rows(
    queries: Words,
    query_labels: Words,
    excluded: Integers,
    counts: Integers,
    relevant: Integers,
    grades: Integers,
    top: Small,
    database: Words,
    database_labels: Words,
) -> None:
    """Fill some rows of `rank`."""
    items, (radii, most) = database.shape[1], (counts.shape[1], grades.shape[1])
    distances, shared = np.empty(items, np.uint16), np.empty(items, np.uint16)
    candidates, order = np.empty(items, np.int64), np.empty(top.shape[1], np.int64)
    for row in range(queries.shape[0]):
        _hamming(queries[row], database, distances)
        _shared_labels(query_labels[row], database_labels, shared)
        if excluded[row] >= 0:
            # The item ranks last, since no true distance is as large as this one, and is irrelevant.
            distances[excluded[row]] = radii - 1
            shared[excluded[row]] = 0
        # One table is twice as fast as three histograms.
        table = np.zeros((radii, most), np.int32)
        for item in range(distances.size):
            table[distances[item], shared[item]] += 1
        for distance in range(radii):
            for grade in range(most):
                counts[row, distance] += table[distance, grade]
                grades[row, grade] += table[distance, grade]
            relevant[row, distance] = counts[row, distance] - table[distance, 0]
        _nearest_first(distances, counts[row], order, candidates)
        for position in range(order.size):
            top[row, position] = shared[order[position]]


def rank(
    queries: Words,
    database: Words,
    query_labels: Words,
    database_labels: Words,
    excluded: Integers,
    bits: int,
    most_shared: int,
    depth: int,
) -> tuple[Integers, Integers, Integers, Small]:
    """Rank the database for each query, ties in database order.

    `excluded` (Q,) is the position of an item that is excluded from the ranking of a query, or -1. `most_shared`
    bounds the number of labels that a query and an item share. Returns, per query: items by distance (Q, K+1),
    relevant items by distance (Q, K+1), items by number of shared labels (Q, most_shared+1) and the number of shared
    labels at each of the first `depth` ranks (Q, depth). An excluded item counts only among those that share no label.
    """
    rows = queries.shape[0]
    counts = np.zeros((rows, bits + 2), np.int64)
    relevant = np.zeros((rows, bits + 2), np.int64)
    grades = np.zeros((rows, most_shared + 1), np.int64)
    top = np.empty((rows, depth), np.uint16)
    by_row = (queries, query_labels, excluded, counts, relevant, grades, top)
    _over_rows(_rank_rows, by_row, database, database_labels)
    return counts[:, : bits + 1], relevant[:, : bits + 1], grades, top


@compiled
def _sums_rows(top: Small, sums: Floats, gains: Floats, discounts: Floats) -> None:
    """Fill some rows of `ranked_sums`."""
    for row in range(top.shape[0]):
        hits, shared, out = 0, 0, sums[row]
        for position in range(discounts.size):
            grade = top[row, position]
            if grade:
                hits += 1
                shared += grade
                out[1] += hits / (position + 1)
                out[2] += shared / (position + 1)
                out[3] += gains[grade] * discounts[position]
        out[0] = hits
        out[4] = shared


def ranked_sums(top: Small, gains: Floats, discounts: Floats) -> Floats:
    """Sum over the first ranks of each query, as many as there are discounts; top (Q, depth) as from `rank`.

    The columns of the result (Q, 5): relevant ranks (hits); the precision at each of them; the mean number of
    shared labels up to each of them (ACG); the discounted gain; the number of shared labels.
    """
    sums = np.zeros((top.shape[0], 5), np.float64)
    _over_rows(_sums_rows, (top, sums), gains, discounts)
    return sums


@compiled
def _group_sum(before: int, hits_before: int, items: int, hits: int, ranks: int, harmonic: Floats) -> float:
    """Return the expected sum of precisions over the first `ranks` of a group of tied items in random order.

    `items` are tied, `hits` of them relevant; `before` and `hits_before` come first. The rank t = 1, 2, ... of the
    group is relevant with probability hits/items, and then 1 + (t-1)(hits-1)/(items-1) hits of the
    group are expected up to it: the sum over t of
    hits/items * (hits_before + 1 + (t-1)(hits-1)/(items-1)) / (before + t).
    """
    slope = (hits - 1) / (items - 1) if items > 1 else 0.0
    # These are the sums of 1 / (before + t), and of (t - 1) / (before + t).
    inverse = harmonic[before + ranks] - harmonic[before]
    ramp = ranks - (before + 1) * inverse
    rate = hits / items
    return float(rate * ((hits_before + 1) * inverse + slope * ramp))


@compiled
def _cut_group_mean(
    total: float, before: int, hits_before: int, items: int, hits: int, ranks: int, harmonic: Floats
) -> float:
    """Return the expected average precision over retrieved relevant items if the cut falls into tied items.

    `total` is the sum of precisions before the group. The number of hits among the first `ranks` of the group is
    hypergeometric, and for a fixed number their order is uniform. The weights follow from each other by their ratios,
    relative to the most likely number: this needs no factorials and loses no digits.
    """
    # There are so many more misses than ranks; if negative, some ranks must be hits.
    spare = items - hits - ranks
    lowest, highest = max(0, -spare), min(ranks, hits)
    likeliest = min(max((ranks + 1) * (hits + 1) // (items + 2), lowest), highest)
    number, weight = likeliest, 1.0
    while number > lowest and weight > NEGLIGIBLE:
        weight *= number * (spare + number) / ((hits - number + 1) * (ranks - number + 1))
        number -= 1
    mean, weights = 0.0, 0.0
    while number <= highest and (number <= likeliest or weight > NEGLIGIBLE):
        weights += weight
        if hits_before + number > 0:
            inside = _group_sum(before, hits_before, ranks, number, ranks, harmonic)
            mean += weight * (total + inside) / (hits_before + number)
        weight *= (hits - number) * (ranks - number) / ((number + 1) * (spare + number + 1))
        number += 1
    return mean / weights


@compiled
def _expected_rows(
    counts: Integers, relevant: Integers, expected: Floats, cut: int, harmonic: Floats
) -> None:
    """Fill some rows of the expected sum of precisions at relevant ranks, and of that sum over their number."""
    for row in range(counts.shape[0]):
        before, hits_before, total, mean = 0, 0, 0.0, 0.0
        for distance in range(counts.shape[1]):
            items, hits = counts[row, distance], relevant[row, distance]
            ranks = min(items, cut - before)
            if ranks > 0:
                inside = _group_sum(before, hits_before, items, hits, ranks, harmonic)
                if ranks < items:
                    mean = _cut_group_mean(total, before, hits_before, items, hits, ranks, harmonic)
                else:
                    mean = (total + inside) / max(hits_before + hits, 1)
                total += inside
                before += ranks
                hits_before += hits
        expected[row, 0], expected[row, 1] = total, mean


def expected_average_precision(counts: Integers, relevant: Integers, k: int) -> tuple[Floats, Floats]:
    """Return exact expectations (Q,) over all orders of tied items, over retrieved and over all relevant items.

    `counts` and `relevant` (Q, groups) are all and the relevant items of each group of ties, nearest group first.
    """
    cut = min(k, int(counts.sum(axis=1).max()))
    harmonic = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, cut + 1))))
    groups = np.ascontiguousarray(counts), np.ascontiguousarray(relevant)
    expected = np.empty((len(counts), 2), np.float64)
    _over_rows(_expected_rows, (*groups, expected), cut, harmonic)
    sums, retrieved = expected.T
    return retrieved, sums / np.clip(relevant.sum(axis=1), 1, k)


def random_level(items: Integers, relevant: Integers, k: int) -> tuple[Floats, Floats]:
    """Return the expectation (Q,) of a random ranking, which is one group of ties; each pair of numbers once."""
    pairs, inverse = np.unique(np.stack([items, relevant], axis=1), axis=0, return_inverse=True)
    over_retrieved, over_all = expected_average_precision(pairs[:, :1], pairs[:, 1:], k)
    return over_retrieved[inverse], over_all[inverse]
