"""Any sequence of adding, removing, searching and opening again leaves a store that equals the list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from centerhash.core.errors import InputError
from centerhash.search.items import File, Filter, Item, PhotoInfo
from centerhash.search.store import Store
from tests.reference.index import BITS, ListStore, check_contents, found, rankings

IDS = ("a", "b", "B", "ab", "ü", "'", '"', "\\", "%", "a b", "\n", "x" * 512)
PATHS = ("/a/x.jpg", "/a/\udcff.jpg", "/a/b/y.jpg", "/c/z.jpg", "images/0.png", "plain.jpg")
LABELS = ("cat", "dog", 'a "b"', "100%")
ids, labels = st.sampled_from(IDS), st.lists(st.sampled_from(LABELS), max_size=3, unique=True)


def files(path: str) -> st.SearchStrategy[File]:
    size, modified = st.none() | st.integers(0, 9), st.none() | st.sampled_from((0.0, 1.5))
    return st.builds(File, st.just(path), size, modified, st.booleans())


@st.composite
def items(draw: st.DrawFn) -> Item:
    code = draw(st.tuples(st.sampled_from((0, 1, 3, 128, 255)), st.sampled_from((0, 7, 255))))  # many tie
    paths = draw(st.lists(st.sampled_from(PATHS), max_size=2, unique=True))
    visual = draw(st.none() | st.integers(0, 255))
    scores = draw(
        st.dictionaries(st.sampled_from(LABELS), st.tuples(st.integers(0, 255), st.integers(0, 255)))
    )
    return Item(
        draw(ids),
        np.array(code, np.uint8),
        tuple(draw(labels)),
        tuple(sorted(draw(files(path)) for path in paths)),
        None if visual is None else np.full(16, visual, np.uint8),
        scores,
        PhotoInfo(
            draw(st.none() | st.sampled_from((-1e9, 0.0, 2e6, 1e9 + 0.25))),
            draw(st.none() | st.sampled_from(("Canon", "ü"))),
            draw(st.none() | st.integers(1, 9)),
        ),
    )


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to a list."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.model = folder, ListStore()
        self.store = Store.create(folder, BITS)

    @rule(batch=st.lists(items(), max_size=8))
    def add(self, batch: list[Item]) -> None:
        chosen = [item.id for item in batch]
        if not batch:
            return
        paths = [file.path for item in batch for file in item.files]
        twice = len(set(chosen)) < len(chosen) or len(set(paths)) < len(paths)
        if twice or set(chosen) & set(self.model.ids()):
            with pytest.raises(InputError):
                self.store.add_items(batch)
        else:
            self.store.add_items(batch)
            self.model.add(batch)

    @rule(item=items())
    def replace(self, item: Item) -> None:
        self.store.add_items([item], replace=True)
        self.model.remove([item.id])
        self.model.add([item])

    @rule(chosen=st.lists(ids, max_size=6))
    def remove(self, chosen: list[str]) -> None:
        assert self.store.remove(chosen) == self.model.remove(chosen)

    @rule(
        found=st.lists(
            st.tuples(ids, st.sampled_from(PATHS).flatmap(files)),
            max_size=3,
            unique_by=lambda pair: pair[1].path,
        ),
        gone=st.lists(st.sampled_from(PATHS), max_size=3),
    )
    def change_files(self, found: list[tuple[str, File]], gone: list[str]) -> None:
        self.store.change_files(found, gone)
        self.model.change_files(found, gone)

    @rule(
        kind=st.integers(0, 5),
        k=st.integers(1, 14),
        having=labels,
        without=labels,
        below=st.none() | st.just(("/a/",)),
        after=st.none() | st.just(1.0),
    )
    def search(
        self,
        kind: int,
        k: int,
        having: list[str],
        without: list[str],
        below: tuple[str, ...] | None,
        after: float | None,
    ) -> None:
        only, ranking = Filter(tuple(having), tuple(without), below, after), rankings()[kind]
        assert found(self.store, ranking, k, only) == self.model.search(ranking, k, only)
        page, total = self.store.newest(1, 3, only)
        newest = self.model.newest(only)
        assert ([item.id for item in page], total) == (newest[1:4], len(newest))

    @rule(chosen=ids)
    def get_one(self, chosen: str) -> None:
        assert (chosen in self.store) == (chosen in self.model.ids())
        if chosen not in self.model.ids():
            with pytest.raises(InputError):
                self.store.get([chosen])

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder)

    @rule()
    def read_meanwhile(self) -> None:
        with Store.open(self.folder, read_only=True) as reader:
            check_contents(reader, self.model)

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @invariant()
    def same_size(self) -> None:
        assert len(self.store) == len(self.model.items)

    def teardown(self) -> None:
        check_contents(self.store, self.model)
        assert self.store.verify() == []
        self.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [4, 4096])
def test_any_history(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    for module in ("database", "store", "writer"):
        monkeypatch.setattr(f"centerhash.search.{module}.CHUNK", chunk)
    run_state_machine_as_test(
        lambda: StoreMachine(tmp_path_factory.mktemp("store")),
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_the_list_itself_is_right() -> None:
    item = Item("a", np.array([0, 0], np.uint8), ("cat",))
    model = ListStore([item, replace(item, id="b", code=np.array([1, 0], np.uint8))])
    ranking = replace(rankings()[0], code=np.array([0, 0], np.uint8))
    assert model.search(ranking, 5, Filter(("cat",))) == [("a", 0), ("b", 1)]
    assert model.labels() == {"cat": 2}
