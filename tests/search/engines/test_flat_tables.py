"""A flat index whose segments have tables answers as one without; what happens to their files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.search.engines import multi_index, scan, storage
from centerhash.search.engines.base import Filter
from centerhash.search.engines.flat import FlatIndex
from centerhash.search.engines.rankings import ByBoth
from centerhash.search.engines.tables import SUFFIX
from tests.search.engines.flat_toys import BITS, Model, codes, small_segments


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be enough for a segment and for tables, and tables be always quicker."""
    small_segments(monkeypatch)
    monkeypatch.setattr(storage, "LARGE", 16)
    monkeypatch.setattr(multi_index, "scan_looks", lambda codes, queries: 1 << 40)


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where all codes of a segment are looked at."""

    def fail(*_: Any) -> Iterator[Any]:
        raise AssertionError("scanned")

    monkeypatch.setattr(scan, "nearest", fail)
    monkeypatch.setattr(scan, "within", fail)


def tables(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{SUFFIX}"))


def segments(folder: Path) -> list[str]:
    return sorted(path.with_suffix(SUFFIX).name for path in folder.glob("*.seg"))


@pytest.mark.parametrize("kind", [int, "{:03d}".format])
def test_adds_removals_and_filters(tmp_path: Path, kind: Any) -> None:
    model, folder = Model(), tmp_path / "index"
    with FlatIndex.create(folder, BITS) as index:
        model.add(index, [kind(id) for id in range(0, 200, 2)], 1)
        assert tables(folder) == segments(folder)
        model.check(index)
        model.add(index, [kind(id) for id in (3, 1, 9)], 2)  # in the journal
        model.remove(index, [kind(id) for id in (0, 4, 9, 100, 198)])
        model.check(index)
        model.add(index, [kind(id) for id in range(201, 401, 2)], 3, distinct=2)
        model.check(index)
        index.compact()
        assert tables(folder) == segments(folder)
        assert len(segments(folder)) == 1
        model.check(index)
        model.remove(index, [kind(id) for id in range(0, 200, 2) if kind(id) in model.items])
        model.check(index)
    with FlatIndex.open(folder, read_only=True) as index:
        model.check(index)
        assert index.verify() == []


@pytest.mark.usefixtures("no_scan")
def test_nothing_is_scanned(tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path / "index", BITS) as index:
        index.add(codes(300), range(300), [["dog"]] * 200 + [[]] * 100)
        index.search(codes(3, 1), 5)
        index.search(codes(3, 1), 5, ["dog"])
        index.within(codes(3, 1), 4)


def test_a_few_of_many_labels_and_both_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, visual = codes(400, distinct=3), codes(400, 5, bits=128)
    labels = [["rare"] if row % 50 == 0 else ["often"] for row in range(400)]
    asked = ByBoth(code=packed[7], visual=visual[7])
    answers = []
    for large in (16, 10**9):
        monkeypatch.setattr(storage, "LARGE", large)
        with FlatIndex.create(tmp_path / str(large), BITS) as index:
            index.add(packed, range(400), labels, visual=list(visual))
            assert bool(tables(tmp_path / str(large))) is (large == 16)
            found = [index.search(packed[:4], 6, [label]) for label in ("rare", "often")]
            looked = index.rank(asked, 9, Filter(without=("rare",)))
            answers.append([list(hits) for hits in (*found[0], *found[1], looked)])
    assert answers[0] == answers[1]


def answers(folder: Path) -> list[list[Any]]:
    with FlatIndex.open(folder, read_only=True) as index:
        return [list(hits) for hits in index.search(codes(5, 9), 7)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with FlatIndex.create(tmp_path / "index", BITS) as index:
        index.add(codes(200, distinct=5), range(200))
    return tmp_path / "index"


def test_answers_are_right_without_tables_and_compact_writes_them_again(folder: Path) -> None:
    expected, [name] = answers(folder), tables(folder)
    sound = (folder / name).read_bytes()
    (folder / name).unlink()
    assert answers(folder) == expected
    assert storage.problems(folder) == []
    with FlatIndex.open(folder) as index:
        index.compact()
    assert (folder / name).read_bytes() == sound
    assert answers(folder) == expected


def test_damaged_tables_change_no_answer_are_reported_and_written_again(folder: Path) -> None:
    expected, [name] = answers(folder), tables(folder)
    path = folder / name
    sound = path.read_bytes()
    damages = [sound[:-40], b"", sound + b"x"]
    for place in range(0, len(sound), 97):
        flipped = bytearray(sound)
        flipped[place] ^= 4
        damages.append(bytes(flipped))
    for content in damages:
        path.write_bytes(content)
        assert answers(folder) == expected
        [problem] = storage.problems(folder)
        assert name in problem
        assert "Answers are right without it. Next: `centerhash index compact` writes it again." in problem
    with FlatIndex.open(folder) as index:
        index.compact()
    assert path.read_bytes() == sound


def test_tables_of_another_segment_are_not_used(folder: Path, tmp_path: Path) -> None:
    expected, [name] = answers(folder), tables(folder)
    with FlatIndex.create(tmp_path / "other", BITS) as index:
        index.add(codes(200, 77, distinct=5), range(200))
    (tmp_path / "other" / name).replace(folder / name)
    assert answers(folder) == expected
    assert "does not fit its segment" in storage.problems(folder)[0]


def test_a_writer_deletes_tables_that_no_segment_needs(folder: Path) -> None:
    [name] = tables(folder)
    (folder / f"segment-000077{SUFFIX}").write_bytes(b"left behind")
    with FlatIndex.open(folder) as index:
        assert tables(folder) == [name]
        index.remove([3])
        index.compact()
        assert tables(folder) == segments(folder) != [name]


def test_a_full_disk_leaves_no_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, before = answers(folder), tables(folder)

    def full(*_: object) -> None:
        raise OSError("full")

    with FlatIndex.open(folder) as index:
        with monkeypatch.context() as patch:
            patch.setattr("centerhash.search.engines.tables.write_arrays", full)
            with pytest.raises(OSError, match="full"):
                index.add(codes(100, 3), range(200, 300))
        assert len(index) == 200
        assert tables(folder) == segments(folder) == before
    assert answers(folder) == expected


def test_a_query_that_tables_give_up_is_scanned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(folder)
    monkeypatch.setattr(multi_index, "scan_looks", lambda codes, queries: 0)
    assert answers(folder) == expected


def test_tables_that_do_not_pay_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_index, "scan_looks", lambda codes, queries: 100)
    with FlatIndex.create(tmp_path / "index", 64) as index:
        index.add(codes(2000, 1, 64), range(2000))
        assert tables(tmp_path / "index") == []
        index.add(np.repeat(codes(20, 2, 64), 200, axis=0), range(2000, 6000))
        index.compact()
        assert tables(tmp_path / "index") == segments(tmp_path / "index")


def test_a_random_index_answers_as_without_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several segments with tables, of which each is searched only as far as the ones before leave it open."""
    packed, queries = codes(3000, 1, 64, 4), codes(40, 2, 64, 4)
    found = []
    for large in (16, 10**9):
        monkeypatch.setattr(storage, "LARGE", large)
        with FlatIndex.create(tmp_path / str(large), 64) as index:
            for part in range(5):
                index.add(packed[part::5], np.arange(3000)[part::5].tolist())
                monkeypatch.setattr(storage, "MERGED_ROWS", 1)
            assert index.info()["segments"] == 5
            found.append([list(hits) for k in (1, 10, 300) for hits in index.search(queries, k)])
    assert found[0] == found[1]


def test_filters_find_the_same_with_tables_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(8)
    packed, queries = codes(600, 1, 32, 4), codes(6, 2, 32, 4)
    labels = [[name for name in "abc" if generator.random() < 0.6] for _ in range(600)]
    paths = [f"/images/{'x' if row % 3 else 'y'}/{row}.jpg" for row in range(600)]
    filters = [
        *[Filter(("a",)), Filter(("a", "b")), Filter((), ("c",)), Filter(("a",), ("b", "c"))],
        *[Filter(under=("/images/x/",)), Filter(("b",), ("a",), ("/images/y/", "/none/")), Filter(under=())],
        *[Filter(("unknown",)), Filter((), ("unknown",)), Filter(("a",), ("a",))],
    ]
    found = []
    for large in (16, 10**9):
        monkeypatch.setattr(storage, "LARGE", large)
        with FlatIndex.create(tmp_path / str(large), 32) as index:
            index.add(packed, range(600), labels, paths)
            index.remove(range(0, 600, 7))
            found.append(
                [
                    list(hits)
                    for only in filters
                    for answer in (
                        *(index.search(queries, k, only=only) for k in (1, 20, 400)),
                        index.within(queries, 9, only=only),
                    )
                    for hits in answer
                ]
            )
    assert found[0] == found[1]
    assert sum(map(len, found[0])) > 1000
