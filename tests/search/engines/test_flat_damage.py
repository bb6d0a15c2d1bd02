from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from io import FileIO
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from centerhash.core import files as centerhash_files
from centerhash.core.errors import DataError, OutputError
from centerhash.search.engines import journal, storage
from centerhash.search.engines.flat import FlatIndex
from tests.search.engines.flat_toys import BITS, codes, files, small_segments


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed index of a segment (ids 0 to 9) and two adds in the journal (10 to 12, 13 to 15), 5 removed."""
    small_segments(monkeypatch)
    with FlatIndex.create(tmp_path / "index", BITS) as index:
        index.add(codes(10), range(10), [("dog", "car")] * 10, [f"{id}.jpg" for id in range(10)])
        index.add(codes(3), [10, 11, 12])
        index.add(codes(3), [13, 14, 15])
        index.remove([5])
        assert index.info()["segments"] == 1
    return tmp_path / "index"


def segment(folder: Path) -> Path:
    [path] = folder.glob("segment-*.seg")
    return path


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def test_every_flipped_bit_of_a_segment_is_found(folder: Path) -> None:
    path = segment(folder)
    sound = path.read_bytes()
    assert storage.problems(folder) == []
    for place in range(0, len(sound), 7):
        flip(path, place)
        [problem] = storage.problems(folder)
        assert problem.startswith(f"'{path}' is damaged")
        assert "restore it from a backup" in problem
        path.write_bytes(sound)


def test_damaged_codes_are_found_by_verify_and_a_damaged_header_on_opening(folder: Path) -> None:
    path = segment(folder)
    with FlatIndex.open(folder) as index:
        flip(path, path.read_bytes().index(codes(10).tobytes()[:4]))
        assert index.verify() == [
            f"'{path}' is damaged: `codes` does not match its checksum. Next: restore it from a backup, or create "
            "the index again."
        ]
    flip(path, 40)
    with pytest.raises(DataError, match=r"segment-000002\.seg' is damaged: its header does not match"):
        FlatIndex.open(folder)
    flip(path, 40)
    FlatIndex.open(folder).close()  # the refused opening has given back the lock


def changed(folder: Path, change: Callable[[FlatIndex], object]) -> None:
    with FlatIndex.open(folder) as index:
        change(index)


def test_damage_is_not_copied_into_a_new_segment(folder: Path) -> None:
    path = segment(folder)
    sound = path.read_bytes()
    for place in range(len(sound) - 1, len(sound) // 2, -61):
        flip(path, place)
        before = files(folder)
        for change in (FlatIndex.compact, lambda index: index.add(codes(9), range(100, 109))):
            with pytest.raises(DataError):
                changed(folder, change)
        assert files(folder) == before
        assert len(storage.problems(folder)) == 1
        path.write_bytes(sound)
    changed(folder, FlatIndex.compact)
    with FlatIndex.open(folder) as index:
        assert len(index) == 15


@pytest.mark.parametrize("share", [0, 0.001, 0.05, 0.5, 0.999])
def test_a_cut_segment_is_refused_by_name(folder: Path, share: float) -> None:
    path = segment(folder)
    os.truncate(path, int(path.stat().st_size * share))
    for read_only in (True, False):
        with pytest.raises(DataError, match=r"segment-000002\.seg' is damaged: it"):
            FlatIndex.open(folder, read_only=read_only)
    assert len(storage.problems(folder)) == 1


def test_a_missing_or_exchanged_segment_is_refused(folder: Path, tmp_path: Path) -> None:
    with FlatIndex.create(tmp_path / "other", BITS) as other:
        other.add(codes(10, seed=1), range(10))
    shutil.copy(segment(tmp_path / "other"), segment(folder))
    with pytest.raises(DataError, match="is not the file that the index wrote"):
        FlatIndex.open(folder)
    assert "is not the file that the index wrote" in storage.problems(folder)[0]
    segment(folder).unlink()
    with pytest.raises(DataError, match=r"segment-000002\.seg' is missing: restore it"):
        FlatIndex.open(folder)
    assert "is missing" in storage.problems(folder)[0]


def test_every_flipped_bit_of_a_journal_is_found(folder: Path) -> None:
    path = folder / "journal"
    sound = path.read_bytes()
    for place in range(0, len(sound), 3):
        flip(path, place)
        damaged = path.read_bytes()
        assert len(storage.problems(folder)) == 1, place
        for read_only in (True, False):
            with pytest.raises(DataError):
                FlatIndex.open(folder, read_only=read_only)
        assert path.read_bytes() == damaged
        path.write_bytes(sound)
    with FlatIndex.open(folder) as index:
        assert len(index) == 15


def test_a_journal_cut_anywhere_is_refused_and_left_as_it_is(folder: Path) -> None:
    sound = (folder / "journal").read_bytes()
    for length in range(0, len(sound), 5):
        (folder / "journal").write_bytes(sound[:length])
        [problem] = storage.problems(folder)
        assert "journal' is damaged" in problem
        for read_only in (True, False):
            with pytest.raises(DataError, match=r"journal' is damaged: .*restore it from a backup"):
                FlatIndex.open(folder, read_only=read_only)
        assert (folder / "journal").read_bytes() == sound[:length]


def test_a_journal_cut_after_a_kill_is_refused_but_for_what_was_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [0]
    with FlatIndex.create(tmp_path / "index", BITS) as index:
        for batch in range(4):
            lengths.append((tmp_path / "index" / "journal").stat().st_size)
            index.add(codes(3), range(3 * batch, 3 * batch + 3))
        killed = shutil.copytree(tmp_path / "index", tmp_path / "killed")
        with monkeypatch.context() as patched:  # the kill comes before the next one is acknowledged
            patched.setattr(journal.Journal, "_note", lambda *_: None)
            index.add(codes(3), range(12, 15))
        torn = shutil.copytree(tmp_path / "index", tmp_path / "torn")
    sound = (killed / "journal").read_bytes()
    for length in range(0, len(sound), 7):
        (killed / "journal").write_bytes(sound[:length])
        assert len(storage.problems(killed)) == 1
        with pytest.raises(DataError):
            FlatIndex.open(killed)
    whole = (torn / "journal").read_bytes()
    for length in range(len(sound), len(whole) + 1, 5):
        (torn / "journal").write_bytes(whole[:length])
        assert storage.problems(torn) == []
        with FlatIndex.open(torn, read_only=True) as reader:
            assert len(reader) == 12
        with FlatIndex.open(torn) as index:
            assert len(index) == (15 if length == len(whole) else 12)
        (torn / "journal.length").write_bytes((killed / "journal.length").read_bytes())


def test_a_lost_length_is_named_and_noted_again(folder: Path) -> None:
    path = folder / "journal.length"
    for content in (None, b"", path.read_bytes()[:10], bytes(8192)):
        path.unlink() if content is None else path.write_bytes(content)
        [problem] = storage.problems(folder)
        assert problem.startswith(f"'{path}' is damaged: it does not say how long the journal is")
        with FlatIndex.open(folder, read_only=True) as reader:
            assert len(reader) == 15
        FlatIndex.open(folder).close()
        assert storage.problems(folder) == []
    path.unlink()
    with (folder / "journal").open("ab") as stream:
        stream.write(b"half a record")
    before = files(folder)
    with pytest.raises(
        DataError, match=r"is no whole record, and its length is not known, because '.*length' is"
    ):
        FlatIndex.open(folder)
    assert files(folder) == before


def test_a_journal_of_an_earlier_version_is_read_and_brought_up_to_date(folder: Path) -> None:
    records, _ = journal.parse((folder / "journal").read_bytes(), Path("journal"))
    early = journal.Record(journal.STATE, records[0].content.replace(b'"format": 2', b'"format": 1'))
    stored = [early, *records[1:], journal.Record(journal.END)]
    (folder / "journal").write_bytes(b"".join(record.to_bytes() for record in stored))
    (folder / "journal.length").unlink()
    assert storage.problems(folder) == []
    with FlatIndex.open(folder, read_only=True) as reader:
        assert len(reader) == 15
    with FlatIndex.open(folder) as index:
        assert index._journal.begun == len(records[0])
        index.add(codes(1), [99])
    assert storage.problems(folder) == []
    with FlatIndex.open(folder) as index:
        assert len(index) == 16
    os.truncate(folder / "journal", (folder / "journal").stat().st_size - 1)
    assert len(storage.problems(folder)) == 1


@pytest.mark.parametrize("garbage", [b"\0" * 100, journal.MARK * 20, b"\xff" * 5])
def test_garbage_that_a_power_cut_left_is_cut_off(folder: Path, garbage: bytes) -> None:
    sound = (folder / "journal").read_bytes()
    (folder / "journal").write_bytes(sound + garbage)
    with FlatIndex.open(folder, read_only=True) as reader:
        assert len(reader) == 15
    with FlatIndex.open(folder) as index:
        assert len(index) == 15
    assert (folder / "journal").read_bytes() == sound


def test_a_journal_of_a_newer_version_is_refused(folder: Path) -> None:
    record = journal.Record(journal.STATE, b'{"format": 3}')
    (folder / "journal").write_bytes(record.to_bytes())
    with pytest.raises(DataError, match="has the format 3, this version reads 1 and 2: install a newer"):
        FlatIndex.open(folder)


def test_a_writer_deletes_what_a_killed_one_left(folder: Path) -> None:
    before = files(folder)
    for name in ("segment-000009.seg", ".segment-000009.seg.ab.part", ".journal.cd.part"):
        (folder / name).write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    FlatIndex.open(folder, read_only=True).close()
    assert len(files(folder)) == len(before) + 4
    FlatIndex.open(folder).close()
    assert files(folder) == before | {"notes.txt": b"mine"}


def full_disk(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_written(stream: FileIO, content: bytes) -> None:
    """Write half of it, until the disk is full."""
    stream.write(content[: len(content) // 2])
    full_disk()


def first_fails() -> Callable[[int], None]:
    """An fsync that fails once."""
    answers = chain([full_disk], repeat(os.fsync))
    return lambda descriptor: next(answers)(descriptor)


@pytest.mark.parametrize("name", ["_write", "fsync"])
def test_a_full_disk_leaves_the_index_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with FlatIndex.open(folder) as index:
        before = files(folder)
        for change in (lambda: index.add(codes(2), [20, 21]), lambda: index.remove([3])):
            with monkeypatch.context() as patched:
                if name == "fsync":
                    patched.setattr(journal.os, name, first_fails())
                else:
                    patched.setattr(journal, name, half_written)
                with pytest.raises(
                    OutputError, match=r"cannot write .*journal': the disk is full: free some"
                ):
                    change()
            assert files(folder) == before
            assert len(index.search(codes(1), 100)[0]) == len(index) == 15
        index.add(codes(2), [20, 21])
    with FlatIndex.open(folder) as index:
        assert len(index) == 17
        assert index.verify() == []


@pytest.mark.parametrize(("module", "name"), [(os, "fsync"), (centerhash_files, "sync_folder")])
def test_a_full_disk_while_a_segment_is_written_leaves_the_index_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    with FlatIndex.open(folder) as index:
        before = files(folder)
        for change in (lambda: index.add(codes(20), range(20, 40)), index.compact):
            with monkeypatch.context() as patched:
                patched.setattr(module, name, full_disk)
                with pytest.raises(
                    OutputError, match=r"cannot write .*segment-000003\.seg': the disk is full"
                ):
                    change()
            assert files(folder) == before
            assert len(index.search(codes(1), 100)[0]) == len(index) == 15
        index.add(codes(20), range(20, 40))
    with FlatIndex.open(folder) as index:
        assert len(index) == 35
        assert index.verify() == []


def test_a_writer_that_cannot_repair_its_journal_gives_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FlatIndex.open(folder) as index:
        with monkeypatch.context() as patched:
            patched.setattr(journal.os, "fsync", full_disk)
            with pytest.raises(OutputError):
                index.add(codes(1), [20])
        for change in (lambda: index.add(codes(1), [21]), index.compact):
            with pytest.raises(
                OutputError, match="could not be repaired after a failed write: open the index"
            ):
                change()
        assert len(index) == 15
    with FlatIndex.open(folder) as index:
        assert len(index) == 15


def test_a_writer_gives_up_when_it_is_unknown_which_journal_is_in_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = centerhash_files.sync_folder
    with FlatIndex.open(folder) as index:

        def fail_for_journal(path: Path) -> None:
            """The folder cannot be synced once the new journal is in place."""
            synced(path)
            if len(list(path.glob("segment-*.seg"))) == 2 and not index._journal.is_current():
                full_disk()

        with monkeypatch.context() as patched:
            patched.setattr(centerhash_files, "sync_folder", fail_for_journal)
            with pytest.raises(OutputError):
                index.compact()
        with pytest.raises(OutputError, match="journal' is not the file it was: open the index again"):
            index.add(codes(1), [20])
        assert len(index.search(codes(1), 100)[0]) == 15
    with FlatIndex.open(folder) as index:
        assert len(index) == 15
        assert index.verify() == []
