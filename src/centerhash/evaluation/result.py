"""The result of an evaluation. docs/reference/metrics.md defines every metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from centerhash.core.rendering import to_frame


@dataclass(frozen=True)
class Curve:
    """Hold precision and recall of the Hamming balls of radius 0, 1, ..., K around the queries.

    Attributes:
        precision: mean over the queries whose ball holds an item, per radius; None if no ball does.
        recall: mean over all queries, per radius; 0 for a query without relevant items.
        filled: number of queries whose ball holds an item, per radius.

    """

    precision: tuple[float | None, ...]
    recall: tuple[float, ...]
    filled: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, ready for JSON; the position in a list is the radius."""
        return {"precision": list(self.precision), "recall": list(self.recall), "filled": list(self.filled)}


@dataclass(frozen=True, eq=False)
class PerQuery:
    """Hold the metrics of each query as arrays (Q,); `Evaluation` holds their means."""

    average_precision_peers: NDArray[np.float64]
    average_precision_textbook: NDArray[np.float64]
    average_precision_peers_expected: NDArray[np.float64]
    average_precision_textbook_expected: NDArray[np.float64]
    chance_peers: NDArray[np.float64]
    chance_textbook: NDArray[np.float64]
    ndcg: NDArray[np.float64]
    acg: NDArray[np.float64]
    wap: NDArray[np.float64]
    relevant: NDArray[np.int64]
    hits: NDArray[np.int64]


class Measure(NamedTuple):
    """One line of the table that an evaluation prints as."""

    name: str
    value: float
    chance: float | None  # of a random ranking
    meaning: str


@dataclass(frozen=True)
class Evaluation:
    """Hold the metrics of a ranking: means over all queries, in which a query without hits counts as 0.

    Attributes:
        queries: number of queries.
        database: number of database items.
        bits: length of a code.
        k: depth of mAP, NDCG, ACG and WAP.
        seed: of the random order that breaks ties.
        exclude_self: whether the ranking of a query excludes its own item.
        queries_in_database: number of queries that are also database items; None without ids.
        map_peers: mAP@k over retrieved relevant items: divided by the relevant items among the first k.
        map_textbook: mAP@k over all relevant items: divided by min(k, all relevant items).
        map_peers_expected: exact mean of `map_peers` over all orders of tied items.
        map_textbook_expected: exact mean of `map_textbook` over all orders of tied items.
        chance_peers: `map_peers` of a random ranking, exact.
        chance_textbook: `map_textbook` of a random ranking, exact.
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
    map_peers: float
    map_textbook: float
    map_peers_expected: float
    map_textbook_expected: float
    chance_peers: float
    chance_textbook: float
    precision: dict[int, float]
    curve: Curve
    ndcg: float
    acg: float
    wap: float
    queries_without_labels: int
    queries_without_relevant: int
    queries_without_hits: int
    per_query: PerQuery = field(compare=False, repr=False)

    @property
    def depth(self) -> int:
        """The depth of mAP@k: k, or the size of the database if that is smaller."""
        return min(self.k, self.database)

    def measures(self) -> list[Measure]:
        """Return the metrics one per line, named by their depth."""
        rows = []
        peers = self.map_peers, self.map_peers_expected, self.chance_peers
        textbook = self.map_textbook, self.map_textbook_expected, self.chance_textbook
        for name, (value, expected, chance), how in (
            ("retrieved relevant", peers, "relevant items among the first k"),
            ("all relevant", textbook, "min(k, all relevant items)"),
        ):
            rows += [
                Measure(f"mAP@{self.depth:,}, {name}", value, chance, f"divided by {how}"),
                Measure(f"  {name}, expected", expected, None, "exact mean over all orders of ties"),
            ]
        rows += [
            Measure(f"NDCG@{self.depth:,}", self.ndcg, None, "graded by the number of shared labels"),
            Measure(f"ACG@{self.depth:,}", self.acg, None, "mean number of shared labels"),
            Measure(f"WAP@{self.depth:,}", self.wap, None, "average precision weighted by shared labels"),
        ]
        places = {min(n, self.database): value for n, value in self.precision.items()}
        return rows + [Measure(f"precision@{n:,}", value, None, "") for n, value in places.items()]

    def __repr__(self) -> str:
        return (
            f"Evaluation(mAP@{self.depth:,} {self.map_peers:.4f} retrieved, {self.map_textbook:.4f} all relevant; "
            f"{self.queries:,} queries, {self.database:,} items, {self.bits} bits)"
        )

    def __str__(self) -> str:
        lines = [self._about(), f"{'metric':<32}{'value':>8}{'random':>8}"]
        lines += [f"{row.name:<32}{row.value:>8.4f}{_number(row.chance):>8}" for row in self.measures()]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{row.name}</td><td>{row.value:.4f}</td><td>{_number(row.chance)}</td><td>{row.meaning}</td></tr>"
            for row in self.measures()
        )
        heads = "".join(f"<th>{head}</th>" for head in ("metric", "value", "random", ""))
        return f"<table><caption>{self._about()}</caption><tr>{heads}</tr>{rows}</table>"

    def _about(self) -> str:
        return f"{self.queries:,} queries, {self.database:,} database items, {self.bits} bits"

    def to_pandas(self) -> Any:
        """Return the metrics as a DataFrame: name, value, chance (of a random ranking), meaning."""
        return to_frame([row._asdict() for row in self.measures()])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but `per_query` as plain values, ready for JSON."""
        values = {name: value for name, value in vars(self).items() if name != "per_query"}
        values["precision"] = {str(place): value for place, value in self.precision.items()}
        values["curve"] = self.curve.to_dict()
        return values


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
