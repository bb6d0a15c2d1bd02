"""Exact answers out of a Milvus that breaks ties as it likes and answers with only so many rows."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.core.errors import DataError
from centerhash.search.engines import milvus_engine
from centerhash.search.engines.milvus_engine import MilvusIndex
from centerhash.search.engines.table import open_store
from tests.reference.index import ModelIndex, check_contents, check_search, check_within, distance

codes = st.tuples(st.sampled_from((0, 1, 255)), st.sampled_from((0, 255)))


class FakeMilvus:
    """The few calls of the client that the engine makes, over a dictionary; ties come in any order."""

    shown, embedded = "fake", True

    def __init__(self, most: int = 16_384, failing_upsert: int | None = None) -> None:
        self.most, self.failing_upsert = most, failing_upsert
        self.rows: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        self.calls.append((method, options))
        return getattr(self, method)(*arguments, **options)

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)

    def upsert(self, collection: str, rows: list[dict[str, Any]]) -> None:
        self.rows |= {row["id"]: row for row in rows}
        if self.count("upsert") == self.failing_upsert:
            raise DataError("the server is away")

    def delete(self, collection: str, filter: str) -> None:
        for row in self.fitting(filter):
            del self.rows[row["id"]]

    def query(
        self, collection: str, filter: str, output_fields: list[str], limit: int = 16_384, **_: Any
    ) -> list[dict[str, Any]]:
        if output_fields == ["count(*)"]:
            return [{"count(*)": len(self.rows)}]
        rows = sorted(self.fitting(filter), key=lambda row: str(row["id"]))[:limit]
        return [{**row, "code": [row["code"]]} for row in rows]

    def search(
        self, collection: str, data: list[bytes], limit: int, filter: str, search_params: Any, **_: Any
    ) -> list[list[dict[str, Any]]]:
        assert limit <= self.most
        least = search_params["params"].get("range_filter", 0)
        above = search_params["params"].get("radius", 10**6)
        answers = []
        for code in data:
            rows = self.fitting(filter)
            random.Random(len(self.calls)).shuffle(rows)
            found = [{"id": row["id"], "distance": float(distance(code, row["code"]))} for row in rows]
            kept = [hit for hit in found if least <= hit["distance"] < above]
            answers.append(sorted(kept, key=lambda hit: hit["distance"])[:limit])
        return answers

    def fitting(self, condition: str) -> list[dict[str, Any]]:
        return [row for row in self.rows.values() if all(map(self.test(row), condition.split(" and ")))]

    def test(self, row: dict[str, Any]) -> Any:
        def holds(term: str) -> bool:
            if match := re.fullmatch(r'ARRAY_CONTAINS\(labels, "(.*)"\)', term):
                return match[1] in row["labels"]
            if match := re.fullmatch(r'id (<|>|>=) "(.*)"', term):
                return {"<": row["id"] < match[2], ">": row["id"] > match[2], ">=": row["id"] >= match[2]}[
                    match[1]
                ]
            return term == "" or row["id"] in re.fullmatch(r"id in \[(.*)\]", term)[1]  # type: ignore[index]

        return holds


def index_over(fake: FakeMilvus) -> MilvusIndex:
    return MilvusIndex(fake, "fake", 16, False, "Strong")  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [2, 5, 16, 64])
@given(rows=st.lists(codes, max_size=60), query=codes, k=st.integers(1, 70), radius=st.integers(0, 16))
def test_answers_are_exact_however_few_rows_milvus_gives(
    most: int, rows: list[tuple[int, int]], query: tuple[int, int], k: int, radius: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(milvus_engine, "MAX_ANSWERS", most)
        index, model = index_over(FakeMilvus(most)), ModelIndex()
        for part in (index, model):
            labels = [("even",) if row % 2 == 0 else () for row in range(len(rows))]
            part.add(np.array(rows, dtype=np.uint8).reshape(-1, 2), list(range(len(rows))), labels)
        for wanted in ([], ["even"]):
            check_search(index, model, np.array([query], dtype=np.uint8), k, wanted)
            check_within(index, model, np.array([query], dtype=np.uint8), radius, wanted)
        check_contents(index, model)


def test_queries_go_together_and_more_is_asked_only_where_ties_are_cut() -> None:
    fake = FakeMilvus()
    index = index_over(fake)
    codes = np.array([[0, 0]] * 300 + [[255, number] for number in range(10)], dtype=np.uint8)
    index.add(codes, list(range(len(codes))))
    fake.calls.clear()
    hits = index.search(codes[[300, 0, 305]], k=3)
    asked = [(len(options["data"]), options["limit"]) for _, options in fake.calls]
    assert asked == [(3, 64), (1, 256), (1, 1_024)]
    assert hits[1].ids == (0, 1, 2)
    index.remove(list(range(3, len(codes))))
    fake.calls.clear()
    index.search(np.zeros((2_500, 2), dtype=np.uint8), k=10)
    assert max(len(options["data"]) * options["limit"] for _, options in fake.calls) <= 65_536


def test_an_add_that_fails_half_way_leaves_nothing() -> None:
    fake = FakeMilvus(failing_upsert=3)
    index = index_over(fake)
    index.add(np.zeros((1, 2), dtype=np.uint8), [7])
    with pytest.raises(DataError, match="the server is away"):
        index.add(np.zeros((900, 2), dtype=np.uint8), list(range(1_000, 1_900)))
    assert list(index.ids()) == [7]
    assert fake.count("upsert") == 3


def test_searches_read_with_the_consistency_asked_for_and_checks_with_the_strongest() -> None:
    fake = FakeMilvus()
    index = MilvusIndex(fake, "fake", 16, False, "Bounded")  # type: ignore[arg-type]
    index.add(np.zeros((1, 2), dtype=np.uint8), [7])
    index.remove([8])
    levels = {(method, options.get("consistency_level")) for method, options in fake.calls}
    assert levels == {("query", "Strong"), ("upsert", None)}
    fake.calls.clear()
    index.search(np.zeros((1, 2), dtype=np.uint8))
    assert (7 in index, len(index), list(index.ids())) == (True, 1, [7])
    levels = {(method, options.get("consistency_level")) for method, options in fake.calls}
    assert levels == {("query", "Bounded"), ("search", "Bounded")}


@pytest.mark.parametrize(
    ("asked", "read_only", "expected"),
    [("", False, "Session"), ("", True, "Bounded"), ("?consistency=Eventually", True, "Eventually")],
)
def test_who_writes_reads_its_session_and_others_what_is_seconds_old(
    monkeypatch: pytest.MonkeyPatch, asked: str, read_only: bool, expected: str
) -> None:
    class Connected(FakeMilvus):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

        def has_collection(self, _: str) -> bool:
            return True

        def describe_collection(self, _: str) -> None:
            return None

        def load_collection(self, _: str) -> None:
            return None

    monkeypatch.setattr(milvus_engine, "Connection", Connected)
    monkeypatch.setattr(milvus_engine, "bits_of", lambda *_: (16, True))
    opened = open_store(f"milvus:http://host:1{asked}", Path(), read_only=read_only)
    assert isinstance(opened, MilvusIndex)
    assert opened.consistency == expected
