from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError, InputError
from centerhash.search.engines import storage
from centerhash.search.engines.base import Id
from centerhash.search.engines.flat import FlatIndex
from tests.search.engines.flat_toys import BITS, Model, codes, files, listed, small_segments


def number(place: int) -> Id:
    return place * 7919 % 1009 - 500


def name(place: int) -> Id:
    return f"{'é😀z'[place % 3]}/{place}"


KINDS = pytest.mark.parametrize("make", [number, name], ids=["integers", "strings"])


@KINDS
@pytest.mark.parametrize("rows", [1 << 13, 8], ids=["journal", "segments"])
def test_an_index_answers_as_a_loop_over_all_items_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[int], Id], rows: int
) -> None:
    small_segments(monkeypatch, rows)
    monkeypatch.setattr(storage, "MERGED_ROWS", 40)
    model, ids = Model(), [make(place) for place in range(100)]
    with FlatIndex.create(tmp_path / "index", BITS) as index:
        reader = FlatIndex.open(tmp_path / "index", read_only=True)
        for seed, (begin, end) in enumerate([(0, 1), (1, 4), (4, 30), (30, 35), (35, 80), (80, 100)]):
            model.add(index, ids[begin:end], seed)
            model.remove(index, ids[begin:end:3])
            model.check(index)
        model.add(index, [id for id in ids if id not in model.items], seed=9)  # removed ids may come again
        model.check(index)
        assert reader.refresh()
        model.check(reader)
        assert not reader.refresh()
        assert index.verify() == []
    with FlatIndex.open(tmp_path / "index") as index:
        model.check(index)
        index.compact()
        model.check(index)
        model.check(reader)  # its files are deleted, but mapped
        assert reader.refresh()
        model.check(reader)
        assert index.info()["segments"] == 1
        assert index.verify() == []
    reader.close()


def test_ties_are_in_the_order_of_ids_whatever_part_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch, 4)
    same = np.zeros((3, 2), np.uint8)
    with FlatIndex.create(tmp_path, BITS) as index:
        index.add(same, [9, -3, 12])
        index.add(same, [10, 4, -7])
        index.add(same, [2**63 - 1, 0, -(2**63)])
        index.add(same[:1], [5])
        [hits] = index.search(same[:1], 6)
        assert hits.ids == (-(2**63), -7, -3, 0, 4, 5)
        assert hits.distances.tolist() == [0] * 6
        [hits] = index.within(same[:1], 0)
        assert hits.ids == tuple(index.ids())


@pytest.mark.slow
def test_many_equal_codes_need_no_more_memory_than_k(tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path, BITS) as index:
        index.add(np.zeros((50_000, 2), np.uint8), range(50_000, 0, -1))
        index.add(np.zeros((3, 2), np.uint8), [-1, 60_000, -2])
        for hits in index.search(np.zeros((20, 2), np.uint8), 4):
            assert hits.ids == (-2, -1, 1, 2)


@pytest.mark.parametrize("compact", [False, True])
def test_a_label_is_found_however_few_items_carry_it(tmp_path: Path, compact: bool) -> None:
    rows = [("common", *(("rare",) if id % 20 == 0 else ())) for id in range(200)]
    with FlatIndex.create(tmp_path, BITS) as index:
        index.add(codes(200), range(200), rows)
        index.compact()
        index.remove([0, 1, 40])
        if compact:
            index.compact()
        for labels, expected in (
            (["rare"], {20, *range(60, 200, 20)}),
            (["rare", "common"], {20, *range(60, 200, 20)}),
            (["common"], set(range(200)) - {0, 1, 40}),
        ):
            for hits in (*index.search(codes(2), 200, labels), *index.within(codes(2), BITS, labels)):
                assert set(hits.ids) == expected
                assert len(hits) == len(expected)
        assert index.labels() == {"common": 197, "rare": 8}


def test_many_small_adds_make_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch, 4)
    with FlatIndex.create(tmp_path, BITS) as index:
        for id, code in enumerate(codes(120)):
            index.add(code[None], [id])
        assert index.info()["segments"] <= 6
        assert len(list(tmp_path.iterdir())) <= 8
        index.remove(range(0, 120, 2))
        before = index.info()
        assert (len(index), before["removed"] > 0, before["ids"]) == (60, True, "integer")
        assert before["bytes"] == sum(len(content) for content in files(tmp_path).values())
        index.compact()
        after = index.info()
        assert (len(index), after["removed"], after["segments"]) == (60, 0, 1)
        assert after["bytes"] < before["bytes"]
        content = files(tmp_path)
        index.compact()  # nothing to do
        assert files(tmp_path) == content


def test_removals_alone_do_not_let_the_journal_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("centerhash.search.engines.flat.JOURNAL_BYTES", 200)
    model = Model()
    with FlatIndex.create(tmp_path, BITS) as index:
        model.add(index, range(200), seed=1)
        for id in range(50):
            model.remove(index, [id])
            assert (tmp_path / "journal").stat().st_size < 600
        model.check(index)
    with FlatIndex.open(tmp_path) as index:
        model.check(index)
        model.remove(index, range(200))
        model.check(index)
        index.compact()
        model.check(index)
        assert index.info()["segments"] == 0


def test_file_names_that_are_no_utf8_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ["", "a b\n.jpg", "caf\udce9.jpg", None]
    with FlatIndex.create(tmp_path, BITS) as index:
        index.add(codes(4), range(4), [["Ä\n"]] * 4, paths)
        assert [item.path for item in index.get(range(4))] == paths
        index.compact()
        assert [item.path for item in index.get(range(4))] == paths
        assert index.labels() == {"Ä\n": 4}


def test_an_add_is_all_or_nothing(tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path, BITS) as index:
        index.add(codes(3), [1, 2, 3])
        before = files(tmp_path)
        with pytest.raises(InputError):
            index.add(codes(3), [7, 2, 8])
        with pytest.raises(InputError):
            index.add(codes(1), ["a"])
        assert files(tmp_path) == before
        assert list(index.ids()) == [1, 2, 3]


def test_ids_of_the_other_kind_are_not_there(tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path, BITS) as index:
        index.add(codes(2), [1, 2])
        index.compact()
        others: list[Any] = ["1", 1.0, True, None, 2**70]
        assert [id in index for id in others] == [False] * 5
        assert 1 in index
        assert np.int32(2) in index
        assert index.remove(["1"]) == 0
        with pytest.raises(InputError):
            index.get(["1"])


def test_nothing_is_found_in_an_empty_index(tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path, BITS) as index:
        assert [len(hits) for hits in index.search(codes(2))] == [0, 0]
        assert index.search(codes(0)) == []
        assert list(index.ids()) == []
        assert index.labels() == {}
        assert index.verify() == []
        assert index.info()["ids"] is None
        index.compact()
        index.add(codes(0), [])
        assert len(index) == 0


def test_a_reader_sees_only_what_was_there_until_it_asks(tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path, BITS) as index, FlatIndex.open(tmp_path, read_only=True) as reader:
        index.add(codes(2), [1, 2])
        assert len(reader) == 0
        assert reader.refresh()
        assert list(reader.ids()) == [1, 2]
        assert not index.refresh()
        for change in (lambda: reader.add(codes(1), [3]), lambda: reader.remove([1]), reader.compact):
            with pytest.raises(InputError, match="opened with read_only=True: open it for writing"):
                change()


def test_misuse_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        FlatIndex.create(tmp_path / "index", 0)
    for read_only in (False, True):
        with pytest.raises(DataError):
            FlatIndex.open(tmp_path / "nothing", read_only=read_only)
    assert not (tmp_path / "nothing").exists()
    index = FlatIndex.create(tmp_path / "index", BITS)
    with pytest.raises(InputError, match=r"is being written by process \d+: wait .* read_only=True"):
        FlatIndex.open(tmp_path / "index")
    index.close()
    index.close()
    with pytest.raises(InputError, match="is closed: open it again"):
        index.search(codes(1))
    with pytest.raises(InputError):
        FlatIndex.create(tmp_path / "index", BITS)


@pytest.mark.slow
def test_threads_may_search_while_one_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch, 30)
    query, seen, done = np.zeros((1, 2), np.uint8), set[int](), threading.Event()
    with FlatIndex.create(tmp_path, BITS) as index:

        def look() -> None:
            while not done.is_set():
                [hits] = index.within(query, BITS)
                assert list(hits.ids) == [id for _, id in sorted(listed(hits))]  # type: ignore[type-var]
                seen.add(len(hits))

        watchers = [threading.Thread(target=look) for _ in range(2)]
        for watcher in watchers:
            watcher.start()
        for batch in range(40):
            index.add(codes(10, batch), range(batch * 10, batch * 10 + 10))
        done.set()
        for watcher in watchers:
            watcher.join()
        assert {count % 10 for count in seen} == {0}
        assert len(index) == 400
