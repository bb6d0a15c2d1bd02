"""The door of every index: what it refuses, before any engine sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.codes import Packed
from centerhash.core.errors import InputError
from centerhash.search.engines.base import Batch, Filter, HammingIndex, Hits, Id, Item, check_ids
from centerhash.search.engines.rankings import Ranking


class Recorder(HammingIndex):
    """An engine that only writes down what reaches it, and holds the ids it is given."""

    def __init__(self, bits: int = 12, there: Sequence[Id] = ()) -> None:
        super().__init__(bits)
        self.there, self.calls = list(there), list[Any]()
        self.closed = False

    def __len__(self) -> int:
        return len(self.there)

    def __contains__(self, id: object) -> bool:
        return id in self.there

    def ids(self) -> Iterator[Id]:
        return iter(self.there)

    def labels(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.closed = True

    def _add(self, batch: Batch) -> None:
        self.calls.append((batch.packed.tolist(), batch.ids, batch.labels, batch.paths))

    def _remove(self, ids: Sequence[Id]) -> int:
        self.calls.append(ids)
        return len(ids)

    def _get(self, ids: Sequence[Id]) -> list[Item | None]:
        return [Item(id, np.zeros(2, np.uint8)) if id in self.there else None for id in ids]

    def _search(self, packed: Packed, k: int, only: Filter) -> list[Hits]:
        self.calls.append((packed.tolist(), k, only.having))
        return []

    def _within(self, packed: Packed, radius: int, only: Filter) -> list[Hits]:
        self.calls.append((packed.tolist(), radius, only.having))
        return []

    def _rank(self, ranking: Ranking, k: int, only: Filter) -> Hits:
        raise NotImplementedError


CODES = np.array([[1, 16], [255, 240]], dtype=np.uint8)


def test_what_reaches_the_engine() -> None:
    with Recorder() as index:
        index.add(CODES, [np.int32(3), 4], [["b", "a", "b"], []], ["x.jpg", None])
        index.add(CODES, ["a", "b"])
        assert index.remove([5, 5, np.uint8(6)]) == 2
        index.search(CODES, labels=["b", "a", "b"])
        index.within(CODES[:1], 12)
    assert index.closed
    assert index.calls == [
        ([[1, 16], [255, 240]], [3, 4], [("b", "a"), ()], ["x.jpg", None]),
        ([[1, 16], [255, 240]], ["a", "b"], [(), ()], [None, None]),
        [5, 6],
        ([[1, 16], [255, 240]], 10, ("b", "a")),
        ([[1, 16]], 12, ()),
    ]


def test_nothing_to_do_does_not_reach_the_engine() -> None:
    index = Recorder()
    index.add(CODES[:0], [])
    assert index.remove([]) == 0
    assert index.get([]) == []
    assert index.calls == []


@pytest.mark.parametrize("codes", [CODES[0], CODES[:, :1], np.array([[0, 8]], dtype=np.uint8)])
def test_codes_of_another_shape(codes: Any) -> None:
    index = Recorder()
    for use in (
        lambda: index.add(codes, [1, 2]),
        lambda: index.search(codes),
        lambda: index.within(codes, 1),
    ):
        with pytest.raises(InputError, match=r"centerhash\.pack"):
            use()
    assert index.calls == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([True], r"an id is an integer or a string, got True \(bool\)"),
        ([1.0], r"got 1.0 \(float\)"),
        ([None], r"got None \(NoneType\)"),
        ([b"a"], r"got b'a' \(bytes\)"),
        ([2**63], "an integer id has 64 bits, got 9223372036854775808"),
        ([-(2**63) - 1], "an integer id has 64 bits"),
        ([""], "a string id has 1 to 512 bytes, got 0"),
        (["ü" * 257], "a string id has 1 to 512 bytes, got 514"),
        ([1, "1"], "ids are all integers or all strings"),
    ],
)
def test_ids_that_are_none(ids: list[Any], message: str) -> None:
    index = Recorder()
    for use in (index.get, index.remove, check_ids, lambda ids: index.add(CODES[: len(ids)], ids)):
        with pytest.raises(InputError, match=message):
            use(ids)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)) | st.lists(st.text(min_size=1, max_size=128)))
def test_good_ids_pass_as_they_are(ids: list[Id]) -> None:
    assert check_ids(ids) == ids


def test_numbers_of_entries_must_agree() -> None:
    index = Recorder()
    for arguments, name in (
        (([1],), "ids has 1"),
        (([1, 2], [()]), "labels has 1"),
        (([1, 2], None, [None] * 3), "paths has 3"),
    ):
        with pytest.raises(InputError, match=f"{name} entries for 2 codes"):
            index.add(CODES, *arguments)


def test_ids_are_new_and_come_once() -> None:
    index = Recorder(there=[7])
    with pytest.raises(InputError, match="the id 5 comes twice: give every item its own id"):
        index.add(CODES, [5, 5])
    with pytest.raises(InputError, match="the id 7 is in the index already: remove it first to replace it"):
        index.add(CODES, [5, 7])
    with pytest.raises(InputError, match=r"no item 5 in the index, which holds 1\."):
        index.get([7, 5])
    assert [item.id for item in index.get([7, 7])] == [7, 7]


def test_k_is_at_least_1_and_a_radius_a_number_of_bits() -> None:
    for number in (0, -1):
        with pytest.raises(InputError, match=f"k must be at least 1, got {number}"):
            Recorder().search(CODES, number)
    for number in (-1, 13):
        with pytest.raises(InputError, match=f"the radius must be 0 to 12, the number of bits, got {number}"):
            Recorder().within(CODES, number)


def test_hits_are_read_as_pairs() -> None:
    hits = Hits(("b", "a"), np.array([0, 3]))
    assert len(hits) == 2
    assert list(hits) == [("b", 0), ("a", 3)]
    assert {type(far) for _, far in hits} == {int}


@pytest.mark.parametrize(
    ("labels", "paths", "reason"),
    [
        (["cat"], None, "the labels of an item are a list of strings, got 'cat'"),
        ([["cat", 3]], None, "are a list of strings"),
        ([["\ud800"]], None, "is no valid Unicode text"),
        (None, [3], "the path of an item is a string or None, got 3"),
    ],
)
def test_labels_and_paths_are_checked_at_the_door(labels: Any, paths: Any, reason: str) -> None:
    index = Recorder(8)
    with pytest.raises(InputError, match=reason):
        index.add(np.zeros((1, 1), np.uint8), ["a"], labels, paths)
    assert not index.calls


def test_a_label_filter_is_no_string_and_an_id_is_text() -> None:
    index = Recorder(8)
    with pytest.raises(InputError):
        index.search(np.zeros((1, 1), np.uint8), 1, "cat")
    with pytest.raises(InputError):
        index.add(np.zeros((1, 1), np.uint8), ["\ud800"])
