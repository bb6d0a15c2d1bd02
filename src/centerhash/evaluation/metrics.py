"""The metrics of a Hamming ranking. docs/reference/metrics.md gives the formulas and where they come from.

Inputs are checked once and brought into the kernels' form. Rankings come block by block: the memory follows the database
and the depth of the ranking, not Q x N, and an interrupt is heard between two blocks of queries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import as_codes, check_packed, pack, to_words
from centerhash.core.checks import as_array, whole_number
from centerhash.core.errors import InputError
from centerhash.evaluation import kernels
from centerhash.evaluation.result import Curve, Evaluation, PerQuery

LARGEST_GRADE = 1000  # 2^r for r shared labels, summed over many places, stays a finite float64
LONGEST = int(np.iinfo(np.uint16).max) - 1  # distances are kept as uint16, and one more value marks no item
BLOCK_QUERIES = 256
BLOCK_PLACES = 1 << 22  # ranked places held at once; fewer queries per block when the ranking is deep


class Items(NamedTuple):
    """Codes and labels of the queries or of the database, as words."""

    codes: NDArray[np.uint64]  # (N, W)
    labels: NDArray[np.uint64]  # (N, L)
    label_numbers: NDArray[np.int64]  # (N,)
    bits: int
    classes: int


class Block(NamedTuple):
    """The rankings of some queries, as `kernels.rank` returns them."""

    counts: NDArray[np.int64]  # (Q, K+1) items by distance
    relevant: NDArray[np.int64]  # (Q, K+1) relevant items by distance
    grades: NDArray[np.int64]  # (Q, most_shared+1) items by number of shared labels
    top: NDArray[np.uint16]  # (Q, depth) number of shared labels by place


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
    queries = _items(query_codes, query_labels, bits, "query")
    database = _items(database_codes, database_labels, bits, "database")
    ids = _item_ids(query_ids, len(queries.codes), "query_ids")
    others = _item_ids(database_ids, len(database.codes), "database_ids")
    own = _own_positions(ids, others, required=exclude_self)
    _same("bits", queries.bits, database.bits, ("query_codes", "database_codes"))
    _same("classes", queries.classes, database.classes, ("query_labels", "database_labels"))
    if not isinstance(precision_at, Iterable):
        raise InputError(
            f"precision_at must be numbers of places such as (1, 10, 100), got {precision_at!r}."
        )
    # the seeded random order that breaks ties
    order = np.random.default_rng(whole_number(seed, "seed", 0)).permutation(len(database.codes))
    k = whole_number(k, "k", 1)
    places = tuple(whole_number(place, "each place in precision_at", 1) for place in precision_at)
    most_shared = int(min(queries.label_numbers.max(), database.label_numbers.max()))
    if most_shared > LARGEST_GRADE:
        raise InputError(
            f"a query and an item may share {most_shared} labels, at most {LARGEST_GRADE} can be graded: "
            "NDCG's gain of 2^r would overflow."
        )
    left_out = np.full(len(queries.codes), -1)
    if exclude_self and own is not None:
        left_out = np.where(own >= 0, np.argsort(order)[own], -1)
    planes, label_planes = _planes(database.codes[order]), _planes(database.labels[order])
    depth = min(max((k, *places)), len(order))
    rows = min(BLOCK_QUERIES, max(8, BLOCK_PLACES // depth))
    figures: list[PerQuery] = []
    precisions: list[NDArray[np.float64]] = []
    balls: list[NDArray[np.float64]] = []
    for start in range(0, len(queries.codes), rows):
        part = slice(start, start + rows)
        block = Block(
            *kernels.rank(
                queries.codes[part],
                planes,
                queries.labels[part],
                label_planes,
                left_out[part],
                queries.bits,
                most_shared,
                depth,
            )
        )
        figures.append(_figures(block, k, most_shared))
        precisions.append(_precisions(block, places))
        balls.append(_ball_sums(block))
    columns = {name: np.concatenate([vars(part)[name] for part in figures]) for name in vars(figures[0])}
    per_query = PerQuery(**columns)
    means = np.concatenate(precisions).mean(axis=0).tolist()
    return Evaluation(
        queries=len(queries.codes),
        database=len(order),
        bits=queries.bits,
        k=k,
        seed=int(seed),
        exclude_self=bool(exclude_self),
        queries_in_database=None if own is None else int((own >= 0).sum()),
        map_peers=float(per_query.average_precision_peers.mean()),
        map_textbook=float(per_query.average_precision_textbook.mean()),
        map_peers_expected=float(per_query.average_precision_peers_expected.mean()),
        map_textbook_expected=float(per_query.average_precision_textbook_expected.mean()),
        chance_peers=float(per_query.chance_peers.mean()),
        chance_textbook=float(per_query.chance_textbook.mean()),
        precision=dict(zip(places, means, strict=True)),
        curve=_curve(np.sum(balls, axis=0), len(queries.codes)),
        ndcg=float(per_query.ndcg.mean()),
        acg=float(per_query.acg.mean()),
        wap=float(per_query.wap.mean()),
        queries_without_labels=int((queries.label_numbers == 0).sum()),
        queries_without_relevant=int((per_query.relevant == 0).sum()),
        queries_without_hits=int((per_query.hits == 0).sum()),
        per_query=per_query,
    )


def ranking(
    query_codes: NDArray[Any], database_codes: NDArray[Any], top: int, *, bits: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions and Hamming distances (Q, top) of the nearest database items, nearest first.

    Equal distances are in database order. `top` is cut to N. Codes as for `evaluate`.
    """
    queries, length = _code_words(query_codes, bits, "query_codes")
    database, database_length = _code_words(database_codes, bits, "database_codes")
    _same("bits", length, database_length, ("query_codes", "database_codes"))
    shown = min(whole_number(top, "top", 1), len(database))
    indices, distances = kernels.nearest(queries, _planes(database), length, shown)
    return indices, distances.astype(np.int64)


def _figures(block: Block, k: int, most_shared: int) -> PerQuery:
    """Work out every figure that belongs to one query, for a block of them."""
    cut = min(k, block.top.shape[1])
    discounts = 1.0 / np.log2(np.arange(2, cut + 2))
    gains = np.exp2(np.arange(most_shared + 1)) - 1.0
    hits, precisions, graded, gain, shared = kernels.ranked_sums(block.top, gains, discounts).T
    items, relevant = block.counts.sum(axis=1), block.relevant.sum(axis=1)
    peers_expected, textbook_expected = expected_average_precision(block.counts, block.relevant, k)
    chance_peers, chance_textbook = chance_level(items, relevant, k)
    return PerQuery(
        average_precision_peers=precisions / np.maximum(hits, 1),
        average_precision_textbook=precisions / np.clip(relevant, 1, k),
        average_precision_peers_expected=peers_expected,
        average_precision_textbook_expected=textbook_expected,
        chance_peers=chance_peers,
        chance_textbook=chance_textbook,
        ndcg=_share(gain, _ideal_gain(block.grades, gains, discounts)),
        acg=shared / np.clip(items, 1, k),
        wap=graded / np.maximum(hits, 1),
        relevant=relevant,
        hits=hits.astype(np.int64),
    )


def _ideal_gain(
    grades: NDArray[np.int64], gains: NDArray[np.float64], discounts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the discounted gain (Q,) when the whole database is sorted by number of shared labels."""
    reached = np.concatenate(([0.0], np.cumsum(discounts)))
    ends = np.minimum(np.cumsum(grades[:, ::-1], axis=1), discounts.size)
    per_grade = np.diff(reached[ends], axis=1, prepend=0.0)
    ideal: NDArray[np.float64] = per_grade @ gains[::-1]
    return ideal


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """Divide, with 0 where the whole is 0."""
    share = np.zeros(whole.shape)
    np.divide(part, whole, out=share, where=whole > 0)
    return share


def _precisions(block: Block, places: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the precision (Q, len(places)) at each number of places, or of all items if fewer."""
    items = block.counts.sum(axis=1)
    precisions = np.empty((len(items), len(places)))
    for column, place in enumerate(places):
        precisions[:, column] = np.count_nonzero(block.top[:, :place], axis=1) / np.clip(items, 1, place)
    return precisions


def _ball_sums(block: Block) -> NDArray[np.float64]:
    """Return sums over the queries (3, K+1) by radius: precision of the ball, recall, balls with an item."""
    inside = np.cumsum(block.counts, axis=1)
    hits = np.cumsum(block.relevant, axis=1)
    precision = _share(hits, inside)
    recall = _share(hits, np.broadcast_to(hits[:, -1:], hits.shape))
    return np.stack([precision.sum(axis=0), recall.sum(axis=0), (inside > 0).sum(axis=0)])


def _curve(sums: NDArray[np.float64], queries: int) -> Curve:
    precision, recall, filled = sums
    return Curve(
        precision=tuple(float(p / n) if n else None for p, n in zip(precision, filled, strict=True)),
        recall=tuple((recall / queries).tolist()),
        filled=tuple(filled.astype(int).tolist()),
    )


# Exact expectations of average precision: over the orders of tied items, and over all orders (chance)


def expected_average_precision(
    counts: NDArray[np.int64], relevant: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the expectation (Q,) over all orders of tied items, by the peers' and the textbook denominator.

    `counts` (Q, groups) are the tied items per group, nearest group first, `relevant` (Q, groups) the relevant ones.
    """
    cut = min(k, int(counts.sum(axis=1).max()))
    harmonic = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, cut + 1))))
    groups = np.ascontiguousarray(counts), np.ascontiguousarray(relevant)
    sums, peers = kernels.expected_precision(*groups, cut, harmonic).T
    return peers, sums / np.clip(relevant.sum(axis=1), 1, k)


def chance_level(
    items: NDArray[np.int64], relevant: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the expected average precision (Q,) of a uniformly random order, by both denominators.

    A random order is one group of ties. Queries with the same number of items (Q,) and of relevant items (Q,)
    have the same chance, so each pair of numbers is worked out once.
    """
    pairs, place = np.unique(np.stack([items, relevant], axis=1), axis=0, return_inverse=True)
    peers, textbook = expected_average_precision(pairs[:, :1], pairs[:, 1:], k)
    return peers[place], textbook[place]


# --- Inputs


def _items(codes: NDArray[Any], labels: NDArray[Any], bits: int | None, name: str) -> Items:
    """Check the codes and labels of the `name` ("query", "database") and turn them into words."""
    packed, length = _code_words(codes, bits, f"{name}_codes")
    labels = as_array(labels, f"{name}_labels")
    if labels.ndim != 2 or labels.size == 0:
        raise InputError(
            f"{name}_labels must be (items, classes) with at least one of each, got shape {labels.shape}."
        )
    flags = labels != 0
    if labels.dtype != np.bool_ and not (labels == flags).all():
        found = labels[labels != flags][:3].tolist()
        raise InputError(f"{name}_labels must be bool, or hold only 0 and 1, found values such as {found}.")
    _same("items", len(packed), len(flags), (f"{name}_codes", f"{name}_labels"))
    words = to_words(np.packbits(flags, axis=1))
    return Items(packed, words, flags.sum(axis=1, dtype=np.int64), length, flags.shape[1])


def _code_words(codes: NDArray[Any], bits: int | None, name: str) -> tuple[NDArray[np.uint64], int]:
    """Return codes as words (N, W) with their number of bits.

    Without `bits`, `codes` is (N, K) in {-1, +1}, {0, 1} or bool; with it, the bytes (N, ceil(K/8)) of `codes.pack`. The
    words are a copy: numba compiles again for arrays that are read-only, as memory-mapped ones are.
    """
    codes = as_array(codes, name)
    if codes.ndim != 2 or codes.size == 0:
        raise InputError(f"{name} must be (items, bits) with at least one of each, got shape {codes.shape}.")
    if bits is None:
        if codes.dtype == np.uint8 and codes.max() > 1:
            raise InputError(
                f"{name} of shape {codes.shape} are bytes, not -1 and +1, nor 0 and 1: "
                "pass bits= (the length of a code) to evaluate packed codes."
            )
        packed, length = pack(as_codes(codes, name)), codes.shape[1]
    else:
        packed, length = check_packed(codes, whole_number(bits, "bits", 1), name), int(bits)
    if length > LONGEST:
        raise InputError(f"{name} have {length} bits, at most {LONGEST} can be compared.")
    return to_words(packed).copy(), length


def _planes(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Turn words (N, W) into contiguous planes (W, N), one scan per word."""
    return np.ascontiguousarray(words.T)


def _same(what: str, first: int, second: int, names: tuple[str, str]) -> None:
    """Refuse two numbers that must agree, naming both."""
    if first != second:
        raise InputError(
            f"{names[0]} and {names[1]} must have the same number of {what}, got {first} and {second}."
        )


def _item_ids(ids: NDArray[Any] | None, items: int, name: str) -> NDArray[np.int64] | None:
    """Return the integer ids (N,) of the items, or None when they are not given."""
    if ids is None:
        return None
    ids = as_array(ids, name)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{name} must be a row of integers, got {ids.dtype} of shape {ids.shape}.")
    if ids.size != items:
        raise InputError(f"{name} must give one id per code, got {ids.size} ids for {items} codes.")
    return ids.astype(np.int64, copy=False)


def _own_positions(
    query_ids: NDArray[np.int64] | None, database_ids: NDArray[np.int64] | None, *, required: bool
) -> NDArray[np.int64] | None:
    """Return for each query (Q,) the position of the database item with the same id, or -1.

    None when ids are missing, unless they are `required`.
    """
    if query_ids is None or database_ids is None:
        if not required:
            return None
        given = (("query_ids", query_ids), ("database_ids", database_ids))
        missing = " and no ".join(name for name, ids in given if ids is None)
        raise InputError(
            f"exclude_self needs the ids of queries and database items, got no {missing}: "
            "pass for example the rows of the dataset that they come from."
        )
    order = np.argsort(database_ids, kind="stable")
    ascending = database_ids[order]
    repeated = ascending[1:][ascending[1:] == ascending[:-1]]
    if repeated.size:
        raise InputError(
            f"database_ids must be different from each other, found {int(repeated[0])} more than once: "
            "remove the repeated items, or give them unique ids."
        )
    place = np.minimum(np.searchsorted(ascending, query_ids), ascending.size - 1)
    return np.where(ascending[place] == query_ids, order[place], -1)
