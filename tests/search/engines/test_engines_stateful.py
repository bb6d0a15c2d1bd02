"""Any sequence of adding, removing, searching and opening again leaves an index that answers as the model does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

from centerhash.core.errors import InputError
from centerhash.search.engines.base import HammingIndex, Id
from tests.reference.index import ModelIndex, check_contents, check_search, check_within
from tests.search.engines.places import Place, use_small_segments

BITS = 16
STRINGS = ("a", "b", "B", "ab", "ü", "'", '"', "\\", "%", "a b", "\n", "10", "9", "x" * 512)
INTEGERS = (-(2**63), -2, -1, 0, 1, 2, 9, 10, 11, 256, 2**32, 2**63 - 1)
LABELS = ("cat", "dog", 'a "b"', "100%")

codes = st.tuples(st.sampled_from((0, 1, 3, 128, 255)), st.sampled_from((0, 7, 255)))  # few, so that many tie
places = st.integers(0, 11)  # of an id
labels = st.lists(st.sampled_from(LABELS), max_size=3)
paths = st.none() | st.text(min_size=1, max_size=5).filter(lambda text: text.isprintable())
items = st.tuples(places, codes, labels, paths)


def packed(rows: list[tuple[int, int]]) -> NDArray[np.uint8]:
    return np.array(rows, dtype=np.uint8).reshape(-1, BITS // 8)


class IndexMachine(RuleBasedStateMachine):
    """Does the same to an index and to a dictionary."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.model = ModelIndex()
        self.index: HammingIndex = place.create(BITS)
        self.known: tuple[Id, ...] = INTEGERS

    @initialize(strings=st.booleans())
    def choose_kind(self, strings: bool) -> None:
        self.known = STRINGS if strings else INTEGERS

    @rule(rows=st.lists(items, max_size=8))
    def add(self, rows: list[Any]) -> None:
        ids = [self.known[row[0]] for row in rows]
        arguments = (
            packed([row[1] for row in rows]),
            ids,
            [row[2] for row in rows],
            [row[3] for row in rows],
        )
        if len(set(ids)) < len(ids) or any(id in self.model.items for id in ids):
            with pytest.raises(InputError, match=r"comes twice|is in the index already"):
                self.index.add(*arguments)
        else:
            self.index.add(*arguments)
            self.model.add(*arguments)

    @rule(chosen=st.lists(places, max_size=6))
    def remove(self, chosen: list[int]) -> None:
        ids = [self.known[number] for number in chosen]
        assert self.index.remove(ids) == self.model.remove(ids)

    @rule(queries=st.lists(codes, max_size=3), k=st.integers(1, 14), wanted=labels)
    def search(self, queries: list[tuple[int, int]], k: int, wanted: list[str]) -> None:
        check_search(self.index, self.model, packed(queries), k, wanted)

    @rule(queries=st.lists(codes, max_size=3), radius=st.integers(0, BITS), wanted=labels)
    def within(self, queries: list[tuple[int, int]], radius: int, wanted: list[str]) -> None:
        check_within(self.index, self.model, packed(queries), radius, wanted)

    @rule()
    def look_at_everything(self) -> None:
        check_contents(self.index, self.model)

    @rule(chosen=places)
    def get_one(self, chosen: int) -> None:
        id = self.known[chosen]
        assert (id in self.index) == (id in self.model.items)
        if id not in self.model.items:
            with pytest.raises(InputError):
                self.index.get([id])

    @rule()
    def open_again(self) -> None:
        self.index.close()
        self.index = self.place.open(BITS)

    @rule()
    def read_meanwhile(self) -> None:
        with self.place.open(BITS, read_only=True) as reader:
            check_contents(reader, self.model)

    @precondition(lambda self: hasattr(self.index, "compact"))
    @rule()
    def compact(self) -> None:
        self.index.compact()  # type: ignore[attr-defined]

    @invariant()
    def same_size(self) -> None:
        assert len(self.index) == len(self.model.items)

    def teardown(self) -> None:
        check_contents(self.index, self.model)
        self.index.close()


def run(make_place: Callable[[int], Place], examples: int, steps: int) -> None:
    """Run the machine, each example at a place of its own."""
    numbers = itertools.count()
    run_state_machine_as_test(
        lambda: IndexMachine(make_place(next(numbers))),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.parametrize("rows", [2, 6, 10_000])
def test_flat_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    use_small_segments(monkeypatch, rows)
    run(lambda number: Place("flat", lambda bits: "flat", tmp_path / str(number)), 15, 20)


def test_flat_index_with_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_segments(monkeypatch, 4, tables=True)
    run(lambda number: Place("flat", lambda bits: "flat", tmp_path / str(number)), 15, 20)


@pytest.mark.slow
def test_milvus_index(lite_file: Path) -> None:
    run(
        lambda number: Place(
            "milvus", lambda bits: f"milvus:{lite_file}?consistency=Strong#stateful", Path(), again=True
        ),
        10,
        15,
    )


@pytest.mark.slow
def test_milvus_server(milvus_server: str) -> None:
    run(
        lambda number: Place(
            "milvus", lambda bits: f"milvus:{milvus_server}?consistency=Strong#stateful", Path(), again=True
        ),
        2,
        8,
    )
