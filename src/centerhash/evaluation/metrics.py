"""The metrics of a Hamming ranking. docs/reference/metrics.md gives the formulas and their sources.

Queries are ranked block by block: memory depends on the database and the depth of the ranking, not on Q x N.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import as_codes, check_packed, pack, to_words
from centerhash.core.checks import as_array, whole_number
from centerhash.core.errors import InputError
from centerhash.evaluation.result import Curve, Evaluation, PerQuery

# The gain 2^r of r shared labels, summed over many ranks, must stay a finite float64.
MOST_SHARED_LABELS = 1000
# Distances are stored as uint16, and one more value marks an excluded item.
MOST_BITS = int(np.iinfo(np.uint16).max) - 1
# A block has fewer queries if the ranking is deep: its ranks are in memory at once.
BLOCK_QUERIES, BLOCK_RANKS = 256, 1 << 22


class Items(NamedTuple):
    """Codes and labels of the queries or of the database, as 64-bit words."""

    codes: NDArray[np.uint64]  # (N, W)
    labels: NDArray[np.uint64]  # (N, L)
    label_counts: NDArray[np.int64]  # (N,)
    bits: int
    classes: int


def evaluate(
    query_codes: NDArray[Any],
    database_codes: NDArray[Any],
    query_labels: NDArray[Any],
    database_labels: NDArray[Any],
    *,
    k: int = 5000,
    precision_at: Iterable[int] = (1, 10, 100, 1000, 5000),
    bits: int | None = None,
    query_ids: NDArray[Any] | None = None,
    database_ids: NDArray[Any] | None = None,
    exclude_self: bool = False,
    seed: int = 0,
) -> Evaluation:
    """Rank the database for every query by Hamming distance, and compute the metrics.

    Args:
        query_codes: (Q, K) in {-1, +1}, {0, 1} or bool, or packed bytes (Q, ceil(K/8)) if `bits` is given.
        database_codes: (N, K) likewise, or packed bytes (N, ceil(K/8)).
        query_labels: (Q, C) bool; an item is relevant to a query if they share a label.
        database_labels: (N, C) bool.
        k: depth of mAP, NDCG, ACG and WAP; N if it is smaller.
        precision_at: depths of precision.
        bits: K, for packed codes.
        query_ids: (Q,) integer ids of the items, for example their rows in the dataset.
        database_ids: (N,) integer ids of the items, all different.
        exclude_self: exclude the database item with the query's id from the ranking.
        seed: of the random order that breaks ties.

    """
    # Importing numba takes half a second.
    from centerhash.evaluation import kernels

    queries = _items(query_codes, query_labels, bits, "query")
    database = _items(database_codes, database_labels, bits, "database")
    _check_equal("bits", queries.bits, database.bits, "query_codes and database_codes")
    _check_equal("classes", queries.classes, database.classes, "query_labels and database_labels")
    k, count = whole_number(k, "k", 1), len(queries.codes)
    if not isinstance(precision_at, Iterable):
        raise InputError(f"precision_at must be depths such as (1, 10, 100), got {precision_at!r}.")
    depths = [whole_number(depth, "each depth in precision_at", 1) for depth in precision_at]
    most_shared = int(min(queries.label_counts.max(), database.label_counts.max()))
    if most_shared > MOST_SHARED_LABELS:
        raise InputError(f"a query and an item may share {most_shared} labels, at most {MOST_SHARED_LABELS}.")
    # The seeded random order breaks ties.
    order = np.random.default_rng(whole_number(seed, "seed", 0)).permutation(len(database.codes))
    in_database, excluded = None, np.full(count, -1)
    if query_ids is not None and database_ids is not None:
        query_ids, database_ids = _ids(query_ids, count, "query"), _ids(database_ids, len(order), "database")
        positions = _positions(query_ids, database_ids)
        in_database = int((positions >= 0).sum())
        if exclude_self:
            excluded = np.where(positions >= 0, np.argsort(order)[positions], -1)
    elif exclude_self:
        raise InputError("exclude_self needs query_ids and database_ids, such as rows of the dataset.")
    planes = [np.ascontiguousarray(words[order].T) for words in (database.codes, database.labels)]
    deepest = min(max((k, *depths)), len(order))
    discounts = 1.0 / np.log2(np.arange(2, min(k, deepest) + 2))
    gains = np.exp2(np.arange(most_shared + 1)) - 1.0
    blocks, rows = [], min(BLOCK_QUERIES, max(8, BLOCK_RANKS // deepest))
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        by_query = queries.codes[part], planes[0], queries.labels[part], planes[1], excluded[part]
        *tables, top = kernels.rank(*by_query, queries.bits, most_shared, deepest)
        hits_at = np.array([np.count_nonzero(top[:, :depth], axis=1) for depth in depths]).T
        blocks.append((*tables, kernels.ranked_sums(top, gains, discounts), hits_at))
    counts, relevant, grades, sums, hits_at = map(np.concatenate, zip(*blocks, strict=True))
    hits, precisions, graded, gain, shared = sums.T
    items, relevant_items = counts.sum(axis=1), relevant.sum(axis=1)
    per_query = PerQuery(
        # These are average precisions over retrieved and over all relevant items: measured, expected, at random.
        precisions / np.maximum(hits, 1),
        precisions / np.clip(relevant_items, 1, k),
        *kernels.expected_average_precision(counts, relevant, k),
        *kernels.random_level(items, relevant_items, k),
        ndcg=_ratio(gain, _ideal_gain(grades, gains, discounts)),
        acg=shared / np.clip(items, 1, k),
        wap=graded / np.maximum(hits, 1),
        relevant=relevant_items,
        hits=hits.astype(np.int64),
    )
    means: dict[str, Any] = {
        name.replace("average_precision", "map"): float(values.mean())
        for name, values in vars(per_query).items()
        if name not in ("relevant", "hits")
    }
    precision = [float((hits_at[:, n] / np.clip(items, 1, depth)).mean()) for n, depth in enumerate(depths)]
    return Evaluation(
        queries=count,
        database=len(order),
        bits=queries.bits,
        k=k,
        seed=int(seed),
        exclude_self=bool(exclude_self),
        queries_in_database=in_database,
        precision=dict(zip(depths, precision, strict=True)),
        curve=_curve(counts, relevant),
        queries_without_labels=int((queries.label_counts == 0).sum()),
        queries_without_relevant=int((relevant_items == 0).sum()),
        queries_without_hits=int((hits == 0).sum()),
        per_query=per_query,
        **means,
    )


def ranking(
    query_codes: NDArray[Any], database_codes: NDArray[Any], top: int, *, bits: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions and Hamming distances (Q, top) of the nearest database items, nearest first.

    Equal distances are in database order. `top` is cut to N. Codes as for `evaluate`.
    """
    from centerhash.evaluation import kernels

    queries, length = _code_words(query_codes, bits, "query_codes")
    database, database_length = _code_words(database_codes, bits, "database_codes")
    _check_equal("bits", length, database_length, "query_codes and database_codes")
    top = min(whole_number(top, "top", 1), len(database))
    indices, distances = kernels.nearest(queries, np.ascontiguousarray(database.T), length, top)
    return indices, distances.astype(np.int64)


def _ideal_gain(
    grades: NDArray[np.int64], gains: NDArray[np.float64], discounts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the discounted gain (Q,) when the whole database is sorted by number of shared labels."""
    reached = np.concatenate(([0.0], np.cumsum(discounts)))
    ends = np.minimum(np.cumsum(grades[:, ::-1], axis=1), discounts.size)
    per_grade = np.diff(reached[ends], axis=1, prepend=0.0)
    ideal: NDArray[np.float64] = per_grade @ gains[::-1]
    return ideal


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """Return part / whole, with 0 if the whole is 0."""
    ratio: NDArray[np.float64] = np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)
    return ratio


def _curve(counts: NDArray[np.int64], relevant: NDArray[np.int64]) -> Curve:
    """Compute precision and recall by radius from items and relevant items (Q, K+1) by distance."""
    inside, hits = np.cumsum(counts, axis=1), np.cumsum(relevant, axis=1)
    sums, filled = _ratio(hits, inside).sum(axis=0), (inside > 0).sum(axis=0)
    recall = _ratio(hits, np.broadcast_to(hits[:, -1:], hits.shape)).mean(axis=0)
    precision = tuple(float(total / n) if n else None for total, n in zip(sums, filled, strict=True))
    return Curve(precision, tuple(recall.tolist()), tuple(filled.tolist()))


def _items(codes: NDArray[Any], labels: NDArray[Any], bits: int | None, name: str) -> Items:
    """Check the codes and labels of "query" or "database", and return them as words."""
    words, length = _code_words(codes, bits, f"{name}_codes")
    labels = as_array(labels, f"{name}_labels")
    flags = labels != 0
    if labels.ndim != 2 or labels.size == 0 or not (labels == flags).all():
        raise InputError(
            f"{name}_labels must be (items, classes) of bool or of 0 and 1, got shape {labels.shape} with values "
            f"such as {np.unique(labels)[:3].tolist()}."
        )
    _check_equal("items", len(words), len(flags), f"{name}_codes and {name}_labels")
    label_words = to_words(np.packbits(flags, axis=1))
    return Items(words, label_words, flags.sum(axis=1, dtype=np.int64), length, flags.shape[1])


def _code_words(codes: NDArray[Any], bits: int | None, name: str) -> tuple[NDArray[np.uint64], int]:
    """Return codes, packed if there are `bits`, as words (N, W) with their number of bits.

    The words are a copy: numba compiles again for arrays that are read-only, as memory-mapped ones are.
    """
    codes = as_array(codes, name)
    if codes.ndim != 2 or codes.size == 0:
        raise InputError(f"{name} must be (items, bits) with at least one of each, got shape {codes.shape}.")
    if bits is None and codes.dtype == np.uint8 and codes.max() > 1:
        raise InputError(f"{name} of shape {codes.shape} are bytes: pass bits= to evaluate packed codes.")
    packed = pack(as_codes(codes, name)) if bits is None else check_packed(codes, bits, name)
    length = codes.shape[1] if bits is None else int(bits)
    if length > MOST_BITS:
        raise InputError(f"{name} have {length} bits, at most {MOST_BITS} can be compared.")
    return to_words(packed).copy(), length


def _check_equal(unit: str, first: int, second: int, names: str) -> None:
    """Check that two arrays have the same number of bits, classes or items."""
    if first != second:
        raise InputError(f"{names} must have the same number of {unit}, got {first} and {second}.")


def _ids(ids: NDArray[Any], items: int, name: str) -> NDArray[Any]:
    """Check the integer ids (N,) of the items, and return them as an array."""
    ids = as_array(ids, f"{name}_ids")
    if ids.shape != (items,) or ids.dtype.kind not in "iu":
        raise InputError(f"{name}_ids must be {items} integers, got {ids.dtype} of shape {ids.shape}.")
    return ids


def _positions(query_ids: NDArray[Any], database_ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return for each query (Q,) the position of the database item with the same id, or -1."""
    ascending, first, counts = np.unique(database_ids, return_index=True, return_counts=True)
    if counts.max() > 1:
        raise InputError(f"database_ids must be unique, got {ascending[counts.argmax()]} more than once.")
    nearest = np.minimum(np.searchsorted(ascending, query_ids), ascending.size - 1)
    return np.where(ascending[nearest] == query_ids, first[nearest], -1)
