"""The result of an evaluation. docs/reference/metrics.md defines every metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Curve:
    """Precision and recall of the Hamming balls of radius 0, 1, ..., K around the queries.

    Attributes:
        precision: mean over the queries whose ball holds an item, per radius; None if no ball does.
        recall: mean over all queries, per radius; 0 for a query without relevant items.
        filled: number of queries whose ball holds an item, per radius.

    """

    precision: tuple[float | None, ...]
    recall: tuple[float, ...]
    filled: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PerQuery:
    """The metrics of each query as arrays (Q,); `Evaluation` has their means."""

    average_precision_retrieved: NDArray[np.float64]
    average_precision_all: NDArray[np.float64]
    average_precision_retrieved_expected: NDArray[np.float64]
    average_precision_all_expected: NDArray[np.float64]
    random_retrieved: NDArray[np.float64]
    random_all: NDArray[np.float64]
    ndcg: NDArray[np.float64]
    acg: NDArray[np.float64]
    wap: NDArray[np.float64]
    relevant: NDArray[np.int64]
    hits: NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The metrics of a ranking: means over all queries, in which a query without hits counts as 0.

        print(evaluate(query_codes, database_codes, query_labels, database_labels))

    Attributes:
        queries: number of queries.
        database: number of database items.
        bits: length of a code.
        k: depth of mAP, NDCG, ACG and WAP.
        seed: of the random order that breaks ties.
        exclude_self: whether the ranking of a query excludes its own item.
        queries_in_database: number of queries that are also database items; None without ids.
        map_retrieved: mAP@k over retrieved relevant items: divided by the relevant items among the first k.
        map_all: mAP@k over all relevant items: divided by min(k, all relevant items).
        map_retrieved_expected: exact mean of `map_retrieved` over all orders of tied items.
        map_all_expected: exact mean of `map_all` over all orders of tied items.
        random_retrieved: `map_retrieved` of a random ranking, exact.
        random_all: `map_all` of a random ranking, exact.
        precision: share of relevant items among the first n, by n.
        curve: precision and recall by Hamming radius.
        ndcg: normalized discounted cumulative gain at k, gain 2^(shared labels) - 1.
        acg: mean number of shared labels among the first k.
        wap: mean of the ACG at the ranks of relevant items among the first k.
        queries_without_labels: queries without labels.
        queries_without_relevant: queries without relevant items in the database; includes the former.
        queries_without_hits: queries without relevant items among the first k; includes the former.
        per_query: the metrics of each query; not part of `to_dict`.

    """

    queries: int
    database: int
    bits: int
    k: int
    seed: int
    exclude_self: bool
    queries_in_database: int | None
    map_retrieved: float
    map_all: float
    map_retrieved_expected: float
    map_all_expected: float
    random_retrieved: float
    random_all: float
    precision: dict[int, float]
    curve: Curve
    ndcg: float
    acg: float
    wap: float
    queries_without_labels: int
    queries_without_relevant: int
    queries_without_hits: int
    per_query: PerQuery = field(compare=False)

    @property
    def depth(self) -> int:
        """The depth of mAP@k: k, or the size of the database if that is smaller."""
        return min(self.k, self.database)

    def table(self) -> list[tuple[str, str, str, str]]:
        """Return the metrics by line as texts: name with the depth, value, value of a random ranking, meaning."""
        k, ties = f"@{self.depth:,}", "exact mean over all orders of ties"
        over_retrieved = "divided by the relevant items among the first k"
        over_all = "divided by min(k, all relevant items)"
        by_depth = {min(n, self.database): value for n, value in self.precision.items()}
        lines = [
            (f"mAP{k}, retrieved relevant", self.map_retrieved, self.random_retrieved, over_retrieved),
            ("  retrieved relevant, expected", self.map_retrieved_expected, None, ties),
            (f"mAP{k}, all relevant", self.map_all, self.random_all, over_all),
            ("  all relevant, expected", self.map_all_expected, None, ties),
            (f"NDCG{k}", self.ndcg, None, "graded by the number of shared labels"),
            (f"ACG{k}", self.acg, None, "mean number of shared labels"),
            (f"WAP{k}", self.wap, None, "average precision weighted by shared labels"),
            *((f"precision@{n:,}", value, None, "") for n, value in by_depth.items()),
        ]
        return [(name, f"{v:.4f}", "" if r is None else f"{r:.4f}", text) for name, v, r, text in lines]

    def __repr__(self) -> str:
        title = f"{self.queries:,} queries, {self.database:,} database items, {self.bits} bits"
        lines = [("metric", "value", "random", ""), *self.table()]
        return "\n".join([title, *(f"{name:<32}{value:>8}{random:>8}" for name, value, random, _ in lines)])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but `per_query` as plain values, ready for JSON."""
        values = {name: value for name, value in vars(self).items() if name != "per_query"}
        values["precision"] = {str(depth): value for depth, value in self.precision.items()}
        values["curve"] = {name: list(by_radius) for name, by_radius in vars(self.curve).items()}
        return values
