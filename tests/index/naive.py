"""A plain list of items, every one of which is compared in a search: the expected results of `Index`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.codes import Codes, pack, unpack
from centerhash.core.errors import InputError
from centerhash.index import Index
from centerhash.index.index import ITEMS
from centerhash.index.items import Facts
from centerhash.index.query import label_code
from centerhash.index.ranking import MIN_PROBABILITY
from centerhash.index.store import Store
from centerhash.model.base import FILTER_FROM

BITS, GENERAL_BITS = 16, 24
NAMES = ("cat", "dog", "emu")
CENTERS: Codes = np.random.default_rng(4).choice([-1, 1], size=(3, BITS)).astype(np.int8)
ATTRIBUTES = {"price": float, "kind": str}


@dataclass(frozen=True)
class Row:
    """An item to add; codes are bytes."""

    id: str
    code: bytes
    general: bytes | None = None
    labels: tuple[str, ...] = ()
    scores: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    price: float | None = None
    kind: str | None = None
    hidden: bool = False


def create(folder: Path) -> Index:
    """Create an index whose label queries need no network."""
    folder.mkdir(parents=True, exist_ok=True)
    model = "toy", None, NAMES, 0.0, CENTERS, CENTERS.astype(np.float32)
    Store.create(folder / ITEMS, Facts(BITS, GENERAL_BITS, ATTRIBUTES, *model)).close()
    return Index.open(folder)


def packed(codes: Sequence[bytes], width: int) -> Any:
    return np.frombuffer(b"".join(codes), np.uint8).reshape(-1, width)


def add(index: Index, rows: Sequence[Row], *, replace: bool = False) -> int:
    """Add rows in one call, and return how many are new."""
    return index.add(
        codes=packed([row.code for row in rows], BITS // 8),
        general=packed([row.general or bytes(GENERAL_BITS // 8) for row in rows], GENERAL_BITS // 8),
        ids=[row.id for row in rows],
        labels=[row.labels for row in rows],
        scores=[row.scores for row in rows],
        attributes={"price": [row.price for row in rows], "kind": [row.kind for row in rows]},
        replace=replace,
    ).added


def random_rows(count: int, seed: int = 0, first: int = 0) -> list[Row]:
    """Return rows of few distinct codes with many ties; some lack a general code, scores or attributes."""
    generator = np.random.default_rng(seed)
    rows = []
    for row in range(count):
        pairs = {name: tuple(generator.integers(0, 256, 2).tolist()) for name in NAMES}
        scores = {name: pair for name, pair in pairs.items() if generator.random() < 0.7}
        rows.append(
            Row(
                f"{first + row:04d}",
                bytes(generator.integers(0, 4, BITS // 8).tolist()),
                bytes(generator.integers(0, 4, GENERAL_BITS // 8).tolist()) if row % 5 else None,
                tuple(name for name in (*NAMES, "other") if generator.random() < 0.4),
                scores if row % 7 else {},
                float(generator.integers(0, 9)) if row % 6 else None,
                f"kind {generator.integers(0, 3)}" if row % 4 else None,
            )
        )
    return [row if row.general != b"\0\0\0" else replace(row, general=None) for row in rows]


def distance(first: bytes, second: bytes) -> int:
    return sum((a ^ b).bit_count() for a, b in zip(first, second, strict=True))


QUERIES: tuple[dict[str, Any], ...] = (
    {"code": b"\1\2", "by": "semantic"},
    {"code": b"\1\2", "within": 2},
    {"id": "0001"},
    {"id": "0005", "by": "general", "copies": True},
    {"id": "0002", "by": "both", "copies": True},
    {"code": b"\1\2", "views": (b"\3\3\3", b"\0\1\0"), "by": "both", "copies": True},
    {"code": b"\1\2", "views": (b"\3\3\3", b"\0\1\0"), "by": "both", "copies": True, "within": 3},
    {"code": b"\1\2", "views": (b"\3\3\3", b"\0\1\0"), "by": "both"},
    {"code": b"\1\2", "views": (b"\3\3\3", b"\1\1\1"), "by": "general", "copies": True, "within": 4},
    {"code": b"\1\2", "views": (b"\3\3\3",), "by": "general"},
    {"labels": {"cat": 0.7, "emu": 0.3}},
    {"labels": {"dog": 1.0}, "within": 9},
    {"labels": {"cat": 0.4, "dog": 0.3, "emu": 0.3}, "by": "semantic"},
)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"having": "cat"},
    {"having": ["cat", "other"], "without": ["dog"]},
    {"without": ["unknown", "emu"]},
    {"having": "unknown"},
    {"where": {"price": (2, 5)}},
    {"where": {"price": (None, 3), "kind": "kind 1"}},
    {"where": {"kind": ["kind 0", "kind 2", "none"]}, "having": "dog"},
    {"where": {"price": (7, 3)}},
    {"among": ["0001", "0002", "0003", "0017", "0030"]},
)


@dataclass
class ListIndex:
    """The rows in the order of adding."""

    rows: list[Row] = field(default_factory=list)

    @property
    def visible(self) -> list[Row]:
        return [row for row in self.rows if not row.hidden]

    def ids(self) -> list[str]:
        return [row.id for row in self.rows]

    def row(self, id: str) -> Row:
        return next(row for row in self.rows if row.id == id)

    def add(self, rows: Sequence[Row], *, replace: bool = False) -> int:
        if replace:
            self.remove([row.id for row in rows])
        new = [row for row in rows if row.id not in self.ids()]
        self.rows += new
        return len(new)

    def remove(self, ids: Sequence[str]) -> int:
        before = len(self.rows)
        self.rows = [row for row in self.rows if row.id not in ids]
        return before - len(self.rows)

    def set_hidden(self, ids: Sequence[str], hidden: bool) -> int:
        changed = sum(row.id in ids and row.hidden != hidden for row in self.rows)
        self.rows = [replace(row, hidden=hidden) if row.id in ids else row for row in self.rows]
        return changed

    def passes(self, row: Row, only: Mapping[str, Any]) -> bool:
        having, without = (
            {only.get(name, ())} if isinstance(only.get(name, ()), str) else {*only.get(name, ())}
            for name in ("having", "without")
        )
        labels = {
            *row.labels,
            *(name for name, (level, _) in row.scores.items() if level / 255 >= FILTER_FROM),
        }
        where = only.get("where", {})
        low, high = where.get("price", (None, None))
        price = math.nan if row.price is None else row.price
        kinds = where.get("kind", row.kind)
        return (
            not row.hidden
            and having <= labels
            and not without & labels
            and ("price" not in where or (-math.inf if low is None else low) <= price)
            and ("price" not in where or price <= (math.inf if high is None else high))
            and ("kind" not in where or row.kind in ([kinds] if isinstance(kinds, str) else kinds))
            and ("among" not in only or row.id in only["among"])
        )

    def penalty(self, row: Row, code: bytes, views: Sequence[bytes], query: Mapping[str, Any]) -> float:
        """Compute the formulas of docs/how-to/search.md in plain Python."""
        far, by = distance(row.code, code), query.get("by")
        if "labels" in query and by != "semantic":
            return self.label_penalty(row, query["labels"])
        if by == "semantic" or not views:
            return far
        if by == "general":
            return math.inf if row.general is None else distance(row.general, views[0])
        return round(
            far + 0.1 * (GENERAL_BITS / 2 if row.general is None else distance(row.general, views[0])), 9
        )

    def label_penalty(self, row: Row, weights: Mapping[str, float]) -> float:
        if row.scores:
            probable = {name: row.scores.get(name, (0, 0))[0] / 255 for name in weights}
            if min(probable.values()) < MIN_PROBABILITY:
                return math.inf
            shares = {name: row.scores.get(name, (0, 0))[1] / 255 for name in weights}
        else:
            bits = unpack(packed([row.code], BITS // 8), BITS)[0].astype(int)
            sizes = [math.exp(8 * int(center @ bits) / BITS) for center in CENTERS.astype(int)]
            shares = {name: sizes[NAMES.index(name)] / sum(sizes) for name in weights}
            probable = {name: min(max(share * len(shares), 0.01), 1) for name, share in shares.items()}
        off = sum(abs(shares[name] - weight) for name, weight in weights.items()) / 2
        return round(off - sum(math.log(value) for value in probable.values()), 9)

    def search(self, query: Mapping[str, Any], k: int, only: Mapping[str, Any]) -> list[tuple[str, int]]:
        """Return ids and semantic distances of the first k results."""
        item = self.row(query["id"]) if "id" in query else None
        if "labels" in query:
            weights = np.array([query["labels"].get(name, 0) for name in NAMES])
            code = pack(label_code(CENTERS, weights)[None]).tobytes()
        else:
            code = query["code"] if item is None else item.code
        views = query.get("views", () if item is None or item.general is None else (item.general,))
        scored = []
        for position, row in enumerate(self.rows):
            value, far = self.penalty(row, code, views, query), distance(row.code, code)
            limited = value if query.get("by") == "general" else far
            near = limited <= query.get("within", math.inf)
            if self.passes(row, only) and value < math.inf and near:
                scored.append((value, far if "labels" in query else 0, position, row.id, far))
        results = [(id, far) for _, _, _, id, far in sorted(scored)]
        if query.get("copies"):
            first = self.copies(code, views, query, only)
            results = [*first, *(result for result in results if result not in first)]
        return [result for result in results if item is None or result[0] != item.id][:k]

    def copies(
        self, code: bytes, views: Sequence[bytes], query: Mapping[str, Any], only: Mapping[str, Any]
    ) -> list[tuple[str, int]]:
        within, is_general = query.get("within", BITS + GENERAL_BITS), query.get("by") == "general"
        rows = []
        for position, row in enumerate(self.rows):
            if row.general is not None and self.passes(row, only):
                near = min(distance(row.general, view) for view in views)
                rows.append((near, position, row.id, distance(row.code, code)))
        rows = sorted(row for row in rows if row[0] <= min(GENERAL_BITS / 4, within if is_general else 99))
        most = rows[0][0] + round(GENERAL_BITS / 64) if rows else 0
        return [(id, far) for near, _, id, far in rows if near <= most and (is_general or far <= within)]

    def listed(self, only: Mapping[str, Any], order: str | None) -> list[str]:
        rows = [(position, row) for position, row in enumerate(self.rows) if self.passes(row, only)]
        if order is not None:
            rows.sort(key=lambda pair: (-math.inf if pair[1].price is None else pair[1].price, pair[0]))
        return [row.id for _, row in reversed(rows)]

    def label_counts(self, only: Mapping[str, Any]) -> dict[str, int]:
        rows = [row for row in self.rows if self.passes(row, only)]
        names = sorted({name for row in rows for name in row.labels})
        return {name: sum(name in row.labels for row in rows) for name in names}


def search(index: Index, query: Mapping[str, Any], k: int, only: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return ids and semantic distances of the results of an index."""
    passed = {name: value for name, value in query.items() if name != "views"}
    if "code" in query:
        code = np.frombuffer(query["code"], np.uint8)
        views = packed(query["views"], GENERAL_BITS // 8) if "views" in query else None
        passed["code"] = code if views is None else {"semantic": code, "general": views}
    return [(row.id, row.distance) for row in index.search(k=k, **passed, **only)]


def same_rows(index: Index, model: ListIndex, rows: Sequence[Row]) -> None:
    """Compare all stored values of rows."""
    for row, item in zip(rows, index.get([row.id for row in rows]), strict=True):
        general = None if item.general is None else item.general.tobytes()
        values = item.attributes["price"], item.attributes["kind"], item.hidden
        assert (item.id, item.code.tobytes(), general) == (row.id, row.code, row.general)
        assert (*values, set(item.labels), dict(item.scores)) == (
            row.price, row.kind, row.hidden, set(row.labels), dict(row.scores)
        )  # fmt: skip


def check(index: Index, model: ListIndex) -> None:
    """Compare everything that is not a search."""
    assert (len(index), [item.id for item in index]) == (len(model.visible), model.ids())
    same_rows(index, model, model.rows)
    for only in FILTERS:
        if set(only.get("among", ())) <= {*model.ids()}:
            counts = index.count(**only)
            assert counts.total == len(model.listed(only, None))
            assert counts.labels == model.label_counts(only)
            for order in (None, "price"):
                expected = model.listed(only, order)
                for offset, limit in ((0, 5), (3, 4), (0, 500)):
                    page, total = index.list(offset, limit, order=order, **only)
                    assert [item.id for item in page] == expected[offset : offset + limit]
                    assert total == len(expected)


def check_searches(index: Index, model: ListIndex) -> None:
    """Compare every kind of query and filter."""
    ids = {*model.ids()}
    for query in QUERIES:
        if "id" in query and (query["id"] not in ids or model.row(query["id"]).general is None):
            continue
        for only in FILTERS:
            if set(only.get("among", ())) <= ids:
                for k in (1, 7, 500):
                    assert search(index, query, k, only) == model.search(query, k, only), (query, only, k)
                    if "labels" in query:
                        index.search(labels=[*query["labels"]], k=1)


def refused(call: Any, *arguments: Any, **named: Any) -> str:
    try:
        call(*arguments, **named)
    except InputError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def damages(index: Index) -> list[str]:
    """Return the damages of the database; these indexes have no model file."""
    return [problem for problem in index.verify() if ITEMS in problem]


def small_chunks(monkeypatch: Any, rows: int) -> None:
    """Use chunks of a few rows."""
    for module in ("store", "writing"):
        monkeypatch.setattr(f"centerhash.index.{module}.CHUNK_ROWS", rows)
