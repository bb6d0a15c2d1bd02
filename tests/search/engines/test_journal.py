from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.core.errors import DataError, OutputError
from centerhash.search.engines.base import Batch
from centerhash.search.engines.flat import FlatIndex
from centerhash.search.engines.journal import (
    ADD,
    END,
    OVERHEAD,
    REMOVE,
    Journal,
    Record,
    add_record,
    added,
    parse,
    remove_record,
)
from tests.search.engines.flat_toys import BITS, codes, small_segments

PATH = Path("journal")
RECORDS = st.lists(st.builds(Record, st.sampled_from([ADD, REMOVE, END]), st.binary(max_size=20)))


@settings(deadline=None)
@given(RECORDS, st.binary(max_size=40))
def test_whole_records_are_read_up_to_a_torn_one(records: list[Record], garbage: bytes) -> None:
    content = b"".join(record.to_bytes() for record in records)
    assert parse(content, PATH) == (records, len(content))
    torn = Record(ADD, garbage).to_bytes()[:-1]
    assert parse(content + torn, PATH) == (records, len(content))


@settings(deadline=None)
@given(RECORDS.filter(lambda records: len(records) > 1), st.data())
def test_damage_before_a_whole_record_is_never_taken_for_a_torn_write(
    records: list[Record], data: st.DataObject
) -> None:
    content = bytearray(b"".join(record.to_bytes() for record in records))
    content[data.draw(st.integers(0, len(content) - len(records[-1]) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataError, match=r"'journal' is damaged: the record at byte [\d,]+ .*restore it"):
        parse(bytes(content), PATH)


def test_an_add_says_everything_of_its_items() -> None:
    packed = np.array([[1, 2], [10, 13]], np.uint8)  # 10 is a line break
    plain = Batch(packed, ["a\n", "é"], [("x",), ()], ["p\udcff", None])
    assert list(added(add_record(plain))) == [
        ("a\n", (b"\1\2", ("x",), "p\udcff", None, {})),
        ("é", (b"\n\r", (), None, None, {})),
    ]
    whole = replace(plain, visual=[None, b"\n" * 16], seen=[{}, {"x": (255, 7)}])
    assert [entry[3:] for _, entry in added(add_record(whole))] == [
        (None, {}),
        (b"\n" * 16, {"x": (255, 7)}),
    ]
    assert remove_record([1, -(2**63)]).content == b"[1, -9223372036854775808]"
    assert len(Record(END)) == len(Record(END).to_bytes()) == OVERHEAD


def test_a_reader_reads_on_and_notices_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    writer = Journal.replace(path, [Record(ADD, b"one")])
    reader = Journal.open(path, writable=False)
    assert reader.read() == [Record(ADD, b"one")]
    writer.append(Record(ADD, b"two"))
    assert reader.is_current()
    assert reader.read() == [Record(ADD, b"two")]
    assert reader.read() == []
    other = Journal.replace(path, [Record(ADD, b"three")])
    assert not reader.is_current()
    assert not writer.is_current()
    path.unlink()
    assert not other.is_current()
    for journal in (writer, reader, other):
        journal.close()


def test_what_a_failed_write_withdrew_is_gone_from_readers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    with FlatIndex.create(tmp_path, BITS) as index:
        reader = FlatIndex.open(tmp_path, read_only=True)
        for failing in (1, 2):  # of the record, and of the note that it is there
            calls = iter(range(1, 100))

            def failing_fsync(descriptor: int, calls: Iterator[int] = calls, failing: int = failing) -> None:
                if next(calls) == failing:
                    reader.refresh()  # it is in the file at this moment
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                fsync(descriptor)

            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", failing_fsync)
                with pytest.raises(OutputError):
                    index.add(codes(1), [failing])
            index.add(codes(1, seed=failing), [10 * failing])  # as long as what was withdrawn
            reader.refresh()
            assert list(reader.ids()) == list(index.ids())
        assert list(index.ids()) == [10, 20]
        reader.close()


def test_a_change_is_on_the_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[int, int] = {}
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    with FlatIndex.create(tmp_path, BITS) as index:
        monkeypatch.setattr(os, "fsync", noted)
        for change in (lambda: index.add(codes(3), [1, 2, 3]), lambda: index.remove([2])):
            change()
            status = (tmp_path / "journal").stat()
            assert synced.pop(status.st_ino) == status.st_size
        index.compact()
        for path in (tmp_path / "journal", *tmp_path.glob("*.seg")):
            assert synced.pop(path.stat().st_ino) == path.stat().st_size
        assert tmp_path.stat().st_ino in synced


def test_a_crash_between_any_two_steps_leaves_the_old_or_the_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch, 4)
    folder, copies = tmp_path / "index", tmp_path / "copies"
    fsync, unlink, taken = os.fsync, Path.unlink, list[Path]()

    def copy() -> None:
        taken.append(shutil.copytree(folder, copies / str(len(taken))))

    def copying_fsync(descriptor: int) -> None:
        copy()
        fsync(descriptor)
        copy()

    def copying_unlink(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        copy()

    with FlatIndex.create(folder, BITS) as index:
        index.add(codes(10), range(10))
        index.add(codes(3), [20, 21, 22])
        index.remove([1])
        contents = [set(index.ids())]
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", copying_fsync)
            patched.setattr(Path, "unlink", copying_unlink)
            index.add(codes(3), [30, 31, 32])
            contents.append(set(index.ids()))
            index.remove([5])
            contents.append(set(index.ids()))
            index.compact()
        assert index.info()["segments"] == 1
    assert len(taken) > 15
    seen = []
    for path in taken:
        (path / "lock").unlink()
        with FlatIndex.open(path) as index:
            assert index.verify() == []
            seen.append(contents.index(set(index.ids())))
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2}
