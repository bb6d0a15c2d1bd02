"""Files: written atomically, locked by one writer, checked before memory is allocated for them."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from centerhash.core import files
from centerhash.core.errors import DataError, InputError, OutputError
from centerhash.core.files import WriterLock, try_lock


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part"))


def failing(code: int) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_atomic_writes_the_whole_file_and_makes_folders(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "result.bin"
    with files.atomic(target) as stream:
        stream.write(b"old")
        assert not target.exists()  # not before all is written
    with target.open("rb") as reader:
        files.write_text(target, "new")
        assert reader.read() == b"old"  # a reader keeps what it has opened
    assert target.read_bytes() == b"new"
    assert leftovers(target.parent) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_atomic_keeps_the_old_file_when_the_writer_raises(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "result.bin"
    target.write_bytes(b"old")

    def write_half() -> None:
        with files.atomic(target) as stream:
            stream.write(b"half of the ne")
            raise error("stop")

    with pytest.raises(error):
        write_half()
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.bin"]


def test_results_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "result.txt", "x")
        assert os.umask(0o027) == 0o027  # reading the mask left it alone
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "result.txt").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.EROFS, "read-only"), (errno.EACCES, "permission"), (errno.EIO, os.strerror(errno.EIO))],
)
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    monkeypatch.setattr("tempfile.mkstemp", failing(code))
    with pytest.raises(OutputError, match=rf"'.*result\.txt'.*{advice}"):
        files.write_text(tmp_path / "result.txt", "x")


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_disk_that_fills_up_at_the_end_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    target = tmp_path / "result.txt"
    target.write_text("old")
    monkeypatch.setattr(step, failing(errno.ENOSPC))
    with pytest.raises(OutputError, match="disk is full"):
        files.write_text(target, "new")
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_text(path, "x" * 100_000),
        lambda path: files.write_npz(path, {"a": np.zeros(100_000)}),
    ],
)
def test_a_real_failure_in_the_middle_of_writing_keeps_the_old_file(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    target = tmp_path / "result"
    target.write_text("old")
    with pytest.raises(OutputError, match="result"), file_size_limit(4096):
        write(target)
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_files_and_folders_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for name, word in (
        ("file/sub/result", "a file, not a folder"),
        ("file/result", "file"),
        ("folder", "name"),
    ):
        with pytest.raises(OutputError, match=word):
            files.write_text(tmp_path / name, "y")
    assert (tmp_path / "file").read_text() == "x"
    assert leftovers(tmp_path) == []


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a" / "made"

    def half() -> None:
        with files.atomic_folder(target) as draft:
            (draft / "one").write_text("1")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        half()
    assert list(target.parent.iterdir()) == []
    with files.atomic_folder(target) as draft:
        (draft / "one").write_text("1")
        assert not target.exists()
    assert [path.name for path in target.parent.iterdir()] == ["made"]
    plain = files.make_folder(tmp_path / "b")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    full = files.atomic_folder(target)
    with pytest.raises(OutputError), full as draft:
        (draft / "two").write_text("2")
    assert (target / "one").exists()
    assert leftovers(target.parent) == []


def test_json_keeps_letters_of_all_languages_and_names_that_are_no_text(tmp_path: Path) -> None:
    value = {"class": "Fahrrad 自転車", "map": [0.5, 1], "name": "\udcff"}
    files.write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "自転車" in text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000 + "]" * 100_000, "too deep"),
        ("[1, " * 101 + "2" + "]" * 101, "too deep"),
        ('{"x": [' * 60 + "]}" * 60, "too deep"),
        ('{"name": "\\ud800"}', "half a character"),
        ("9" * 5000, "4300 digits"),
    ],
)
def test_json_that_nothing_can_be_done_with(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        files.parse_json(text)
    assert files.parse_json('["\\ud83d\\udc15", 1]') == ["🐕", 1]
    for depth in (1, 99, 100):
        assert repr(files.parse_json("[" * depth + "]" * depth)) == "[" * depth + "]" * depth
    assert files.parse_json("[" + "[]," * 200 + "1]") == [*([[]] * 200), 1]


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read_plain(tmp_path / "file", 5) == b"12345"
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(10**12)
    for name, most, reason in (
        ("file", 4, "5 bytes"),
        ("pipe", 9, "plain"),
        ("sparse", 9, "TB"),
        (".", 9, "folder"),
    ):
        with pytest.raises(OSError, match=reason):
            files.read_plain(tmp_path / name, most)


def test_a_line_is_on_the_disk_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    path = tmp_path / "new" / "results.jsonl"
    monkeypatch.setattr(files.os, "fsync", lambda _: synced.append(path.read_bytes()))
    files.append_line(path, "erste Zeile: ä")
    files.append_line(path, "second")
    assert synced == ["erste Zeile: ä\n".encode(), "erste Zeile: ä\nsecond\n".encode()]
    monkeypatch.setattr(files.os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(OutputError):
        files.append_line(path, "row")


def test_arrays_come_back_as_they_were_and_objects_are_refused(tmp_path: Path) -> None:
    arrays = {"codes": np.array([[1, -1]], dtype=np.int8), "labels": np.array([[True, False]])}
    files.write_npz(tmp_path / "all.npz", arrays)
    found = files.read_npz(tmp_path / "all.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        files.write_npz(tmp_path / "objects.npz", {"objects": np.array([{"a": 1}], dtype=object)})
    assert [path.name for path in tmp_path.iterdir()] == ["all.npz"]


# --- memory that a file may ask for


def announced(path: Path, shape: str, values: bytes) -> Path:
    """An .npz file of one array of bytes that announces a shape."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("codes.npy", header + values)
    return path


def test_the_budget_is_of_the_files_size(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"123")
    files.check_budget(file, 2**30, "it", "")
    with pytest.raises(DataError, match=r"3\.8 GB .* 1\.1 GB\. Copy it again\."):
        files.check_budget(file, 38 * 10**8, "its table", "Copy it again.")


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(200,)", "(99999999999999999999999,)"])
def test_arrays_that_announce_more_than_there_is(tmp_path: Path, shape: str) -> None:
    with pytest.raises(DataError, match="announces the shape"):
        files.read_npz(announced(tmp_path / "a.npz", shape, b"1234"))
    assert files.read_npz(announced(tmp_path / "b.npz", "(4,)", b"1234"))["codes"].tolist() == list(b"1234")


def test_arrays_of_zeros_that_are_much_larger_than_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("centerhash.core.files.ALWAYS", 10**6)
    stream = io.BytesIO()
    np.savez_compressed(stream, codes=np.zeros(10**7, np.uint8))
    (tmp_path / "a.npz").write_bytes(stream.getvalue())
    with pytest.raises(DataError, match=r"10\.0 MB"):
        files.read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", codes=np.zeros(10**7, np.uint8))  # as large as it says
    assert files.read_npz(tmp_path / "b.npz")["codes"].size == 10**7


# --- checksums

VALUE = {"bits": 64, "classes": ["é", "dog"], "threshold": 0.1}


def test_an_object_with_a_checksum_comes_back_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(json.dumps(files.with_checksum(VALUE), indent=1))
    assert files.read_with_checksum(tmp_path / "file.json") == VALUE


@pytest.mark.parametrize(
    "change", [{"bits": 65}, {"classes": ["e", "dog"]}, {"more": None}, {"checksum": None}]
)
def test_a_change_is_noticed(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="checksum"):
        files.verify_checksum({**files.with_checksum(VALUE), **change}, "it")
    with pytest.raises(ValueError, match="object"):
        files.verify_checksum([1], "it")


# --- the right to write

HOLDER = """
import sys
from pathlib import Path
from centerhash.core.files import WriterLock

lock = WriterLock.take(Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_once_and_can_be_had_again(tmp_path: Path) -> None:
    lock = WriterLock.take(tmp_path / "lock")
    for _ in range(2):  # being refused must not change who holds it
        with pytest.raises(InputError, match=f"process {os.getpid()}"):
            WriterLock.take(tmp_path / "lock")
    (tmp_path / "lock.pid").unlink()
    with pytest.raises(InputError, match="process unknown"):
        WriterLock.take(tmp_path / "lock")
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    WriterLock.take(tmp_path / "lock").release()
    with pytest.raises(OutputError, match="nowhere"):
        WriterLock.take(tmp_path / "nowhere" / "lock")


@pytest.mark.slow
def test_a_process_that_is_killed_gives_its_lock_back(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"taken\n"
            with pytest.raises(InputError):
                WriterLock.take(tmp_path / "lock")
        finally:
            process.kill()
    WriterLock.take(tmp_path / "lock").release()


def test_a_lock_that_is_deleted_on_release_is_held_by_one(tmp_path: Path) -> None:
    first = WriterLock.take(tmp_path / "lock", "{holder} is in {folder}")
    with pytest.raises(InputError, match=f"^{os.getpid()} is in {tmp_path}$"):
        WriterLock.take(tmp_path / "lock", "{holder} is in {folder}")
    first.release(delete=True)
    assert list(tmp_path.iterdir()) == []
    WriterLock.take(tmp_path / "lock").release(delete=True)


def test_a_lock_file_that_was_deleted_meanwhile_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    deleted = list[Path]()

    def lock_late(descriptor: int) -> bool:
        if not deleted:
            deleted.append(tmp_path / "lock")
            deleted[0].unlink()  # by who held it before
        return try_lock(descriptor)

    with mock.patch("centerhash.core.files.try_lock", lock_late):
        lock = WriterLock.take(tmp_path / "lock")
    with pytest.raises(InputError):
        WriterLock.take(tmp_path / "lock")
    lock.release()
