"""The metrics of a Hamming ranking. docs/evaluation.md gives the formulas and where they come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import whole_number
from centerhash.evaluation import kernels
from centerhash.evaluation.result import Curve, Evaluation, PerQuery
from centerhash.evaluation.task import (
    Block,
    Task,
    code_words,
    item_ids,
    make_task,
    own_positions,
    planes,
    read_items,
    same,
)


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
    """Rank the database for every query by Hamming distance and measure the rankings.

    Args:
        query_codes: (Q, K) in {-1, +1}, {0, 1} or bool, or packed bytes (Q, ceil(K/8)) when `bits` is given.
        database_codes: (N, K) likewise, or packed bytes (N, ceil(K/8)).
        query_labels: (Q, C) bool; an item is relevant to a query when they share a label.
        database_labels: (N, C) bool.
        k: number of places that mAP, NDCG, ACG and WAP look at; more than N means all.
        precision_at: the numbers of places for precision; more than N means all.
        bits: K, for packed codes.
        query_ids: (Q,) integer ids of the items, for example their rows in the data set.
        database_ids: (N,) integer ids of the items, all different.
        exclude_self: leave the database item with the query's id out of the query's ranking.
        seed: of the permutation of the database that breaks ties.

    """
    queries = read_items(query_codes, query_labels, bits, "query")
    database = read_items(database_codes, database_labels, bits, "database")
    ids = item_ids(query_ids, len(queries), "query_ids")
    others = item_ids(database_ids, len(database), "database_ids")
    own = own_positions(ids, others, required=exclude_self)
    left_out = own if exclude_self else None
    task = make_task(queries, database, k=k, precision_at=precision_at, left_out=left_out, seed=seed)
    per_query, precision, curve = _measure(task)
    return Evaluation(
        queries=len(queries),
        database=len(database),
        bits=queries.bits,
        k=task.k,
        seed=int(seed),
        exclude_self=bool(exclude_self),
        queries_in_database=None if own is None else int((own >= 0).sum()),
        queries_without_labels=int((queries.label_numbers == 0).sum()),
        precision=precision,
        curve=curve,
        per_query=per_query,
        **_summary(per_query),
    )


def ranking(
    query_codes: NDArray[Any], database_codes: NDArray[Any], top: int, *, bits: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions and Hamming distances (Q, top) of the nearest database items, nearest first.

    Equal distances are in database order. `top` is cut to N. Codes as for `evaluate`.
    """
    queries, length = code_words(query_codes, bits, "query_codes")
    database, database_length = code_words(database_codes, bits, "database_codes")
    same("bits", length, database_length, ("query_codes", "database_codes"))
    shown = min(whole_number(top, "top", 1), len(database))
    indices, distances = kernels.nearest(queries, planes(database), length, shown)
    return indices, distances.astype(np.int64)


def _summary(per_query: PerQuery) -> dict[str, Any]:
    """Return the fields of `Evaluation` that follow from the figures of each query."""
    return {
        "map_peers": float(per_query.average_precision_peers.mean()),
        "map_textbook": float(per_query.average_precision_textbook.mean()),
        "map_peers_expected": float(per_query.average_precision_peers_expected.mean()),
        "map_textbook_expected": float(per_query.average_precision_textbook_expected.mean()),
        "chance_peers": float(per_query.chance_peers.mean()),
        "chance_textbook": float(per_query.chance_textbook.mean()),
        "ndcg": float(per_query.ndcg.mean()),
        "acg": float(per_query.acg.mean()),
        "wap": float(per_query.wap.mean()),
        "queries_without_relevant": int((per_query.relevant == 0).sum()),
        "queries_without_hits": int((per_query.hits == 0).sum()),
    }


def _measure(task: Task) -> tuple[PerQuery, dict[int, float], Curve]:
    """Rank block by block and join what the blocks give."""
    figures: list[PerQuery] = []
    precisions: list[NDArray[np.float64]] = []
    balls: list[NDArray[np.float64]] = []
    for block in task.blocks():
        figures.append(_figures(block, task))
        precisions.append(_precisions(block, task.precision_at))
        balls.append(_ball_sums(block))
    columns = {name: np.concatenate([vars(part)[name] for part in figures]) for name in vars(figures[0])}
    means = np.concatenate(precisions).mean(axis=0).tolist()
    curve = _curve(np.sum(balls, axis=0), len(task.queries))
    return PerQuery(**columns), dict(zip(task.precision_at, means, strict=True)), curve


def _figures(block: Block, task: Task) -> PerQuery:
    """Work out every figure that belongs to one query, for a block of them."""
    cut = min(task.k, block.top.shape[1])
    discounts = 1.0 / np.log2(np.arange(2, cut + 2))
    gains = np.exp2(np.arange(task.most_shared + 1)) - 1.0
    hits, precisions, graded, gain, shared = kernels.ranked_sums(block.top, gains, discounts).T
    items, relevant = block.counts.sum(axis=1), block.relevant.sum(axis=1)
    peers_expected, textbook_expected = expected_average_precision(block.counts, block.relevant, task.k)
    chance_peers, chance_textbook = chance_level(items, relevant, task.k)
    return PerQuery(
        average_precision_peers=precisions / np.maximum(hits, 1),
        average_precision_textbook=precisions / np.clip(relevant, 1, task.k),
        average_precision_peers_expected=peers_expected,
        average_precision_textbook_expected=textbook_expected,
        chance_peers=chance_peers,
        chance_textbook=chance_textbook,
        ndcg=_share(gain, _ideal_gain(block.grades, gains, discounts)),
        acg=shared / np.clip(items, 1, task.k),
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

    Args:
        counts: (Q, groups) number of tied items per group, nearest group first.
        relevant: (Q, groups) how many of them are relevant.
        k: number of places that count.

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
