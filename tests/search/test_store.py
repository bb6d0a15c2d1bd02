from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.core.errors import DataError, InputError, OutputError
from centerhash.search import rankings, store
from centerhash.search.database import COMMITS, FILE, State, marks
from centerhash.search.items import File, Filter, Item, PhotoInfo
from centerhash.search.rankings import ByBoth, BySemantic
from centerhash.search.store import Store, newest_rows
from tests.reference.index import (
    BITS,
    ListStore,
    check_contents,
    check_searches,
    codes,
    found,
    random_items,
    same_item,
)


@pytest.fixture(params=[True, False], ids=["numpy", "compiled"])
def scanned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few items are scanned by numpy, many by compiled loops; the results are the same."""
    if not request.param:
        monkeypatch.setattr(rankings, "PLAIN", 0)
        monkeypatch.setattr(rankings, "SMALL", 0)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few items fill several chunks."""
    for module in ("database", "store", "writer"):
        monkeypatch.setattr(f"centerhash.search.{module}.CHUNK", 16)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Store, ListStore]]:
    """A store and its model: items from several adds, of which some were removed."""
    model = ListStore()
    with Store.create(tmp_path / "store", BITS) as made:
        for first, count in ((0, 60), (100, 1), (200, 40)):
            items = random_items(count, first, first)
            made.add_items(items)
            model.add(items)
        gone = [f"{row:04d}" for row in range(0, 30, 2)]
        assert made.remove([*gone, "none"]) == model.remove(gone) == 15
        yield made, model


@pytest.mark.usefixtures("scanned", "small_chunks")
def test_every_search_is_that_of_a_loop(pair: tuple[Store, ListStore]) -> None:
    check_searches(*pair)
    check_contents(*pair)


@pytest.mark.usefixtures("small_chunks")
def test_compaction_and_reopening_change_nothing(pair: tuple[Store, ListStore]) -> None:
    made, model = pair
    before = made.info()
    made.compact()
    assert (before["removed"], made.info()["removed"]) == (15, 0)
    check_contents(made, model)
    made.close()
    with Store.open(made.folder, read_only=True) as reader:
        check_contents(reader, model)
        check_searches(reader, model)
        assert reader.verify() == []


def test_a_reader_and_its_threads_see_every_commit(pair: tuple[Store, ListStore]) -> None:
    made, model = pair
    with Store.open(made.folder, read_only=True) as reader:
        assert not reader.refresh()
        versions = [reader.version]
        for first in (300, 310):
            items = random_items(10, first, first)
            made.add_items(items)
            model.add(items)
            assert reader.refresh()
            assert not reader.refresh()
            versions.append(reader.version)
            check_searches(reader, model)
        assert made.remove(["0300"]) == model.remove(["0300"])
        made.compact()
        check_contents(reader, model)
        check_searches(reader, model)
        assert len({*versions, reader.version}) == 4


def test_a_snapshot_is_one_commit_for_its_thread_alone(tmp_path: Path) -> None:
    codes = np.arange(8, dtype=np.uint8).reshape(4, 2)
    nearest = BySemantic(codes[0])
    with Store.create(tmp_path, 16) as writer, Store.open(tmp_path, read_only=True) as reader:
        writer.add(codes[:2], ["a", "b"])
        with ThreadPoolExecutor(1) as pool, reader.snapshot():
            assert len(reader) == 2
            writer.add(codes[2:], ["c", "d"])
            for _ in range(2):  # another thread loads the later commit
                assert (len(reader), len(list(reader.items())), reader.present(["a", "c"])) == (2, 2, ["a"])
                assert [item.id for item, _ in reader.search(nearest, 9)] == ["a", "b"]
                assert len(pool.submit(reader.search, nearest, 9).result()) == 4
            with reader.snapshot():
                assert len(reader) == 2
            assert len(reader) == 2
        assert len(reader) == len(reader.search(nearest, 9)) == 4


def test_searches_never_see_half_a_change(tmp_path: Path) -> None:
    code, stop = codes(1)[0], threading.Event()

    def look(reader: Store) -> int:
        looked = 0
        while not stop.is_set() or not looked:
            ids = [id for id, _ in found(reader, BySemantic(code), 1000)]
            assert len(ids) % 5 == 0
            assert len(set(ids)) == len(ids)
            looked += 1
        return looked

    made = Store.create(tmp_path, BITS)
    with made, Store.open(tmp_path, read_only=True) as reader, ThreadPoolExecutor(3) as pool:
        work = [pool.submit(look, one) for one in (made, reader, reader)]
        try:
            for batch in range(30):
                made.add(codes(5, batch), [f"{batch}-{place}" for place in range(5)])
                if batch % 4 == 3:
                    made.remove([f"{batch - 2}-{place}" for place in range(5)])
                if batch % 10 == 9:
                    made.compact()
        finally:
            stop.set()
        assert all(one.result() for one in work)


def test_a_transaction_is_one_commit_or_none(tmp_path: Path) -> None:
    with Store.create(tmp_path, BITS) as made, Store.open(tmp_path, read_only=True) as reader:
        with made.transaction():
            for batch in range(3):
                made.add(codes(2, batch), [f"{batch}a", f"{batch}b"], [["cat"]] * 2)
            assert made.present(["0a", "1b"]) == ["0a", "1b"]
            assert len(reader) == 0
        assert (len(reader), made.version) == (6, 1)

        def fail() -> None:
            with made.transaction():
                made.add(codes(1), ["x"], [["dog"]])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert (len(made), made.labels()) == (6, {"cat": 6})

        def half() -> None:
            with made.transaction(), suppress(DataError):
                made.add(codes(1), ["y"])
                with made.transaction() as writer:
                    writer.database.sql.execute("no SQL")

        with pytest.raises(InputError):
            half()
        made.add(codes(1), ["x"], [["emu"]])
        assert made.labels() == {"cat": 6, "emu": 1}
        assert made.verify() == []


def test_an_id_is_added_once_unless_it_is_replaced(tmp_path: Path) -> None:
    with Store.create(tmp_path, BITS) as made:
        made.add(codes(2), ["a", "b"], [["cat"], []], ["/photos/a.jpg", None])
        for ids in (["a"], ["c", "c"]):
            with pytest.raises(InputError):
                made.add(codes(len(ids)), ids)
        made.add(codes(1, 9), ["a"], [["dog"]], replace=True)
        assert (made.labels(), made.folders(), len(made)) == ({"dog": 1}, {}, 2)
        assert [item.id for item in made.items()] == ["b", "a"]
        assert made.get(["a"])[0].code.tolist() == codes(1, 9)[0].tolist()


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"ids": ["a"]}, "ids"),
        ({"ids": ["a", ""]}, "id"),
        ({"ids": ["a", 1]}, "id"),
        ({"ids": ["a", "x" * 513]}, "id"),
        ({"ids": ["a", "\ud800"]}, "id"),
        ({"labels": [["cat"], "dog"]}, "labels"),
        ({"labels": [["cat"], [1]]}, "label"),
        ({"files": [None, 1]}, "path"),
        ({"files": [None, "a\0"]}, "path"),
        ({"files": ["a", [File("b"), File("a")]]}, "'a'"),
        ({"photos": [PhotoInfo(), PhotoInfo(1e12)]}, "9999"),
        ({"photos": [PhotoInfo(), PhotoInfo(float("nan"))]}, "nan"),
        ({"photos": [PhotoInfo(), PhotoInfo(width=0)]}, "width"),
        ({"photos": [PhotoInfo(), PhotoInfo(camera="")]}, "camera"),
        ({"visual": np.zeros((2, 8), np.uint8)}, "visual"),
        ({"visual": [None]}, "visual"),
        ({"scores": [{}, {"dog": (1, 256)}]}, "dog"),
        ({"packed": np.zeros((2, 3), np.uint8)}, "codes"),
    ],
)
def test_what_cannot_be_stored_is_rejected(tmp_path: Path, columns: dict[str, object], name: str) -> None:
    with Store.create(tmp_path, BITS) as made:
        with pytest.raises(InputError, match=name):
            made.add(**{"packed": codes(2), "ids": ["a", "b"], **columns})  # type: ignore[arg-type]
        assert (len(made), made.version) == (0, 0)


def test_odd_texts_and_times_come_back_as_they_were(tmp_path: Path) -> None:
    odd = os.fsdecode(b"/photos/\xff\xfe")
    items = [
        Item(
            "x" * 512,
            codes(1)[0],
            ("100%", 'a "b"', "\n"),
            (File(f"{odd}/\udc80.jpg", 7, 1.5),),
            None,
            {},
            PhotoInfo(1e9 + 0.25, "ü", 3, 4, "‮ name"),
        ),
        Item("ü", codes(1)[0], (), (File("images/0123456789abcdef.jpg"),), None, {"ü": (0, 255)}),
        Item("'; DROP TABLE items", codes(1)[0], ("ü",), (File("relative.jpg", 0, -3.25),)),
    ]
    with Store.create(tmp_path, BITS) as made:
        made.add_items(items)
        assert all(map(same_item, made.items(), items))
        assert made.folders() == {odd: 1, "images": 1, "": 1}
        assert found(made, BySemantic(codes(1)[0]), 5, Filter(under=(f"{odd}/",))) == [(items[0].id, 0)]
        assert made.verify() == []


def test_size_and_time_of_a_file_are_read_when_they_are_not_given(tmp_path: Path) -> None:
    file = tmp_path / "photo.jpg"
    file.touch()
    os.utime(file, (5, 1234.5))
    with Store.create(tmp_path / "store", BITS) as made:
        made.add(codes(3), ["a", "b", "c"], files=[str(file), str(tmp_path / "gone.jpg"), None])
        assert [item.files for item in made.items()] == [
            (File(str(file), 0, 1234.5),),
            (File(str(tmp_path / "gone.jpg")),),
            (),
        ]


def test_memory_grows_with_room_to_spare(tmp_path: Path) -> None:
    with Store.create(tmp_path, BITS) as made:
        made.add(codes(100), [str(row) for row in range(100)])
        made.search(BySemantic(codes(1)[0]), 1)
        before = made._loaded
        made.add(codes(5), [f"more {row}" for row in range(5)], visual=np.ones((5, 16), np.uint8))
        hits = made.search(ByBoth(codes(1)[0], np.ones((1, 16), np.uint8)), 200)
        assert before is not None
        assert made._loaded is not None
        assert made._loaded.semantic is before.semantic
        assert len(hits) == 105
        assert sum(item.visual is not None for item, _ in hits) == 5


def test_a_label_or_folder_is_found_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_KEPT_BYTES", 100)  # not all postings are kept in memory
    names = [f"label {number}" for number in range(300)]
    with Store.create(tmp_path, BITS) as made:
        made.add(
            codes(600),
            [str(row) for row in range(600)],
            [[names[row % 300]] for row in range(600)],
            [f"/photos/{row // 2}/{row}.jpg" for row in range(600)],
        )
        for number in (0, 7, 299):
            only = Filter((names[number],))
            assert {id for id, _ in found(made, BySemantic(codes(1)[0]), 9, only)} == {
                str(number),
                str(number + 300),
            }
            below = Filter(under=(f"/photos/{number}/",))
            assert {id for id, _ in found(made, BySemantic(codes(1)[0]), 9, below)} == {
                str(2 * number),
                str(2 * number + 1),
            }


# --- opening


def test_one_process_writes_and_others_read(tmp_path: Path) -> None:
    with Store.create(tmp_path, BITS) as made:
        with pytest.raises(InputError, match=str(os.getpid())):
            Store.open(tmp_path)
        with Store.open(tmp_path, read_only=True) as reader:
            for change in (lambda: reader.add(codes(1), ["a"]), lambda: reader.remove(["a"]), reader.compact):
                with pytest.raises(InputError, match="read-only"):
                    change()
        with pytest.raises(InputError, match="index"):
            Store.create(tmp_path, BITS)
    with Store.open(tmp_path) as again:
        again.add(codes(1), ["a"])
    for action in (lambda: len(made), lambda: made.add(codes(1), ["b"]), lambda: made.get(["a"])):
        with pytest.raises(InputError, match="closed"):
            action()
    made.close()


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() == 0, reason="needs a user who may not write everywhere"
)
def test_a_folder_that_cannot_be_written_is_read(pair: tuple[Store, ListStore]) -> None:
    made, model = pair
    made.close()
    made.folder.chmod(0o500)
    try:
        with Store.open(made.folder, read_only=True) as reader:
            check_contents(reader, model)
        with pytest.raises(OutputError):
            Store.open(made.folder)
    finally:
        made.folder.chmod(0o700)


def test_a_closed_store_is_read_as_an_immutable_file(
    pair: tuple[Store, ListStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, model = pair
    made.close()
    connect = sqlite3.connect

    def without_shared_memory(address: str, **options: object) -> sqlite3.Connection:
        if "immutable" not in address:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorname = "SQLITE_CANTOPEN"
            raise error
        return connect(address, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", without_shared_memory)
    with Store.open(made.folder, read_only=True) as reader:
        check_contents(reader, model)
    (made.folder / f"{FILE}-wal").write_bytes(b"commits that only a writable file shows")
    with pytest.raises(DataError, match=FILE):
        Store.open(made.folder, read_only=True)


def test_what_is_no_database_of_ours_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    Store.create(sound, BITS).close()

    def change(*statements: str) -> None:
        with sqlite3.connect(tmp_path / "case" / FILE) as db:
            for statement in statements:
                db.execute(statement)
        db.close()

    def replaced(name: str, content: bytes | None) -> None:
        file = tmp_path / "case" / name
        file.unlink()
        if content is None:
            file.mkdir()
        else:
            file.write_bytes(content)

    cases = {
        FILE: [
            lambda: replaced(FILE, b""),
            lambda: replaced(FILE, b"no database" * 1000),
            lambda: replaced(FILE, None),
            lambda: (tmp_path / "case" / FILE).unlink(),
            lambda: change("PRAGMA user_version = 99"),
            lambda: change("PRAGMA application_id = 1"),
            lambda: change("DROP TABLE flags"),
            lambda: change("CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END"),
            lambda: change("CREATE VIEW v AS SELECT * FROM items"),
            lambda: change("DELETE FROM state"),
            lambda: change("UPDATE state SET rows = 1000000000000"),
        ],
        COMMITS: [
            lambda: replaced(COMMITS, b""),
            lambda: replaced(COMMITS, b"x" * 24),
            lambda: replaced(COMMITS, None),
        ],
    }
    for name, damages in cases.items():
        for damage in damages:
            shutil.copytree(sound, tmp_path / "case")
            damage()
            for read_only in (True, False):
                with pytest.raises(DataError, match=name):
                    Store.open(tmp_path / "case", read_only=read_only)
            shutil.rmtree(tmp_path / "case")


def test_without_its_counter_an_index_opens_and_gets_a_new_one(pair: tuple[Store, ListStore]) -> None:
    made, model = pair
    made.close()
    (made.folder / COMMITS).unlink()
    with Store.open(made.folder, read_only=True) as reader:
        check_contents(reader, model)
    Store.open(made.folder).close()
    assert (made.folder / COMMITS).exists()


def test_what_a_killed_compaction_left_is_deleted(pair: tuple[Store, ListStore]) -> None:
    made, model = pair
    made.close()
    shutil.copytree(made.folder, made.folder / ".compact-killed")
    with Store.open(made.folder) as again:
        check_contents(again, model)
    assert not (made.folder / ".compact-killed").exists()


def test_rows_that_the_file_cannot_hold_are_not_allocated(tmp_path: Path) -> None:
    Store.create(tmp_path, BITS).close()
    state = State(BITS, rows=1 << 30, items=1 << 30, commits=1)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("DELETE FROM state")
        db.execute(f"INSERT INTO state VALUES ({marks(len(state.row()))})", state.row())
    db.close()
    with pytest.raises(DataError, match=FILE):
        Store.open(tmp_path, read_only=True)


def test_a_locked_database_is_said(pair: tuple[Store, ListStore], monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = pair
    other = sqlite3.connect(made.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    made._writer.database.sql.execute("PRAGMA busy_timeout = 1")  # type: ignore[union-attr]
    with pytest.raises(InputError, match="locked"):
        made.add(codes(1), ["new"])
    other.execute("ROLLBACK")
    other.close()
    made.add(codes(1), ["new"])
    assert "new" in made


def test_an_item_holds_no_column_of_the_store(pair: tuple[Store, ListStore]) -> None:
    made, _ = pair
    for item in (made.search(BySemantic(codes(1)[0]), 1)[0][0], made.get(["0001"])[0]):
        assert item.code.base is None or item.code.base.nbytes < 64
        replace(item, id="x")


@given(
    times=st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(float("nan"))), max_size=20),
    count=st.integers(0, 25),
)
def test_newest_rows_are_those_of_a_plain_sort(times: list[float], count: int) -> None:
    rows = np.arange(len(times))[::-1]
    by_hand = sorted(rows, key=lambda row: np.inf if np.isnan(times[row]) else -times[row])
    assert newest_rows(rows, np.array(times, float), count).tolist() == by_hand[:count]
