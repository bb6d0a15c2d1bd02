"""Any sequence of changes and searches leaves an index that equals the list."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from centerhash.core.errors import InputError
from centerhash.index import Index
from tests.index.naive import (
    FILTERS,
    QUERIES,
    ListIndex,
    Row,
    add,
    check,
    check_searches,
    create,
    damages,
    random_rows,
    search,
    small_chunks,
)

IDS = ("a", "b", "B", "ab", "ü", "'", '"', "\\", "%", "a b", "\n", "7", "0001", "x" * 512)
ids = st.sampled_from(IDS)
levels = st.integers(0, 255)
names = st.sampled_from(("cat", "dog", "emu", 'a "b"', "100%", "{}", "other"))


@st.composite
def rows(draw: st.DrawFn) -> Row:
    general = draw(st.none() | st.sampled_from((b"\1\1\1", b"\3\1\0", b"\xff\0\0")))
    return Row(
        draw(ids),
        bytes(draw(st.tuples(st.sampled_from((0, 1, 3, 128, 255)), st.sampled_from((0, 7, 255))))),
        general,
        tuple(draw(st.lists(names, max_size=3, unique=True))),
        draw(st.dictionaries(names, st.tuples(levels, levels), max_size=3)),
        draw(st.none() | st.sampled_from((-1e9, 0.0, 2.5, 4.0))),
        draw(st.none() | st.sampled_from(("kind 0", "kind 1", "", "it's"))),
    )


class IndexMachine(RuleBasedStateMachine):
    """Change an index and a list in the same way."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.model, self.keys = folder, ListIndex(), dict[str, int]()
        self.index = create(folder)
        self.reader = Index.open(folder, read_only=True)

    @rule(batch=st.lists(rows(), max_size=9, unique_by=lambda row: row.id), replaced=st.booleans())
    def add(self, batch: list[Row], replaced: bool) -> None:
        assert add(self.index, batch, replace=replaced) == self.model.add(batch, replace=replaced)

    @rule(batch=st.lists(rows(), min_size=1, max_size=4, unique_by=lambda row: row.id), removed=st.lists(ids))
    def transaction(self, batch: list[Row], removed: list[str]) -> None:
        with self.index.transaction():
            add(self.index, batch)
            self.model.add(batch)
            assert self.index.remove(removed) == self.model.remove(removed)
            assert [item.id for item in self.index] == self.model.ids()

    @rule(batch=st.lists(rows(), min_size=1, max_size=4, unique_by=lambda row: row.id), removed=st.lists(ids))
    def rolled_back(self, batch: list[Row], removed: list[str]) -> None:
        with suppress(KeyError), self.index.transaction():
            self.index.remove(removed)
            add(self.index, batch)
            raise KeyError

    @rule(selected=st.lists(ids, max_size=6))
    def remove(self, selected: list[str]) -> None:
        assert self.index.remove(selected) == self.model.remove(selected)

    @rule(selected=st.lists(ids, max_size=6), hidden=st.booleans())
    def hide(self, selected: list[str], hidden: bool) -> None:
        change = self.index.hide if hidden else self.index.show
        if set(selected) <= {*self.model.ids()}:
            assert change(selected) == self.model.set_hidden(selected, hidden)
        else:
            with pytest.raises(InputError):
                change(selected)

    @rule(query=st.sampled_from(QUERIES), only=st.sampled_from(FILTERS), k=st.integers(1, 14))
    def search(self, query: dict[str, object], only: dict[str, object], k: int) -> None:
        stored = {*self.model.ids()}
        if "id" in query and (query["id"] not in stored or self.model.row(str(query["id"])).general is None):
            return
        if "among" in only:
            only = {"among": [id for id in IDS if id in stored]}
        for index in (self.index, self.reader):
            assert search(index, query, k, only) == self.model.search(query, k, only)

    @rule(selected=ids)
    def get_one(self, selected: str) -> None:
        assert (selected in self.index) == (selected in self.model.ids())
        if selected not in self.model.ids():
            with pytest.raises(InputError):
                self.index.get(selected)

    @rule()
    def open_again(self) -> None:
        self.index.close()
        self.index = Index.open(self.folder)

    @rule()
    def compact(self) -> None:
        self.index.compact()

    @invariant()
    def keys_stay(self) -> None:
        keys = dict(zip(self.model.ids(), self.index.keys(self.model.ids()).tolist(), strict=True))
        assert list(keys.values()) == sorted(keys.values())
        for id, key in keys.items():
            assert self.keys.setdefault(f"{key}", id) == id
        assert self.index.ids(list(keys.values())) == list(keys)

    def teardown(self) -> None:
        for index in (self.index, self.reader):
            check(index, self.model)
            assert damages(index) == []
            index.close()


@pytest.mark.parametrize("chunk", [4, 4096])
def test_any_sequence_of_changes(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    small_chunks(monkeypatch, chunk)
    run_state_machine_as_test(
        lambda: IndexMachine(tmp_path_factory.mktemp("index")),
        settings=settings(
            max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("chunk", [4, 7, 4096])
@pytest.mark.parametrize("compiled", [False, True])
def test_search_equals_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, compiled: bool
) -> None:
    small_chunks(monkeypatch, chunk)
    if compiled:
        monkeypatch.setattr("centerhash.index.ranking.NUMPY_ROWS", 0)
        monkeypatch.setattr("centerhash.index.ranking.NUMPY_ROWS_AT_FIRST", 0)
    every, model = random_rows(120), ListIndex()
    with create(tmp_path / "index") as index:
        for start, end in ((0, 50), (50, 51), (51, 120)):
            assert add(index, every[start:end]) == model.add(every[start:end])
        changes = [every[3].id, every[60].id]
        assert index.hide(changes) == model.set_hidden(changes, True)
        check_searches(index, model)
        assert index.remove(model.ids()[40:100:3]) == model.remove(model.ids()[40:100:3])
        index.compact()
        more = [replace(row, id=f"new {row.id}") for row in every[:20]]
        assert add(index, more) == model.add(more)
        check_searches(index, model)
        check(index, model)
        assert damages(index) == []
