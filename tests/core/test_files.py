from __future__ import annotations

import errno
import json
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core import files
from centerhash.core.errors import OutputError


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
        stream.write(b"new")
        assert not target.exists()  # not before all is written
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


def test_atomic_replaces_the_old_file_for_new_readers_only(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    target.write_text("old")
    with target.open() as reader:
        files.write_text(target, "new")
        assert reader.read() == "old"
    assert target.read_text() == "new"


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
    [
        (errno.EROFS, "the file system is read-only: choose another folder"),
        (errno.EACCES, "no permission to write there: choose another folder"),
        (errno.ENOSPC, "the disk is full: free some space, then run the same command again"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    monkeypatch.setattr("tempfile.mkstemp", failing(code))
    with pytest.raises(OutputError) as caught:
        files.write_text(tmp_path / "result.txt", "x")
    assert str(caught.value) == f"cannot write '{tmp_path / 'result.txt'}': {advice}."
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_disk_that_fills_up_at_the_end_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    target = tmp_path / "result.txt"
    target.write_text("old")
    monkeypatch.setattr(step, failing(errno.ENOSPC))
    with pytest.raises(OutputError, match="the disk is full"):
        files.write_text(target, "new")
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_a_real_failure_in_the_middle_of_writing_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    target.write_text("old")
    too_large = pytest.raises(
        OutputError,
        match=r"cannot write '.*result\.txt': the file would be larger than this system or a limit",
    )
    with too_large, file_size_limit(4096):
        files.write_text(target, "x" * 100_000)
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_a_real_failure_in_the_middle_of_an_array_keeps_the_old_file(tmp_path: Path) -> None:
    files.write_npz(tmp_path / "a.npz", {"a": np.arange(3)})
    with pytest.raises(OutputError), file_size_limit(4096):
        files.write_npz(tmp_path / "a.npz", {"a": np.zeros(100_000)})
    with np.load(tmp_path / "a.npz") as archive:
        assert archive["a"].tolist() == [0, 1, 2]
    assert leftovers(tmp_path) == []


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="a part of the path is a file, not a folder"):
        files.write_text(tmp_path / "file" / "sub" / "result.txt", "y")
    with pytest.raises(OutputError):
        files.write_text(tmp_path / "file" / "result.txt", "y")
    assert (tmp_path / "file").read_text() == "x"


def test_a_folder_where_the_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    with pytest.raises(OutputError, match="a folder of that name is in the way: choose another name"):
        files.write_text(tmp_path / "result", "y")
    assert leftovers(tmp_path) == []


def test_make_folder_twice(tmp_path: Path) -> None:
    assert files.make_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert files.make_folder(str(tmp_path / "a" / "b")).is_dir()


def test_json_keeps_letters_of_all_languages(tmp_path: Path) -> None:
    value = {"class": "Fahrrad 自転車", "map": [0.5, 1]}
    files.write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "自転車" in text


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    codes, labels = np.array([[1, -1]], dtype=np.int8), np.array([[True, False]])
    files.write_npz(tmp_path / "all.npz", {"codes": codes, "labels": labels})
    with np.load(tmp_path / "all.npz") as archive:
        assert sorted(archive.files) == ["codes", "labels"]
        assert archive["codes"].dtype == np.int8
        np.testing.assert_array_equal(archive["codes"], codes)
        np.testing.assert_array_equal(archive["labels"], labels)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        files.write_npz(tmp_path / "all.npz", {"objects": objects})
    assert list(tmp_path.iterdir()) == []


def test_lines_are_added_at_the_end_and_folders_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    files.append_line(path, "erste Zeile: ä")
    files.append_line(path, "second")
    assert path.read_bytes() == "erste Zeile: ä\nsecond\n".encode()


def test_a_line_is_on_the_disk_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    path = tmp_path / "results.jsonl"
    monkeypatch.setattr(files.os, "fsync", lambda _: synced.append(path.read_bytes()))
    files.append_line(path, "row")
    assert synced == [b"row\n"]


def test_a_full_disk_is_explained_when_a_line_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(OutputError):
        files.append_line(tmp_path / "results.jsonl", "row")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000 + "]" * 100_000, "too deep inside each other"),
        ('{"name": "\\ud800"}', "half a character"),
        ("9" * 5000, "4300 digits"),
    ],
)
def test_json_that_nothing_can_be_done_with(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        files.parse_json(text)


def test_json_with_whole_characters() -> None:
    assert files.parse_json('["\\ud83d\\udc15", 1]') == ["🐕", 1]


def test_names_that_are_no_text_are_written(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"name": "\udcff"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"name": "\udcff"}


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
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(
        files.make_folder(tmp_path / "b").stat().st_mode
    )
    full = files.atomic_folder(target)
    with pytest.raises(OutputError), full as draft:
        (draft / "two").write_text("2")
    assert (target / "one").exists()
    assert leftovers(target.parent) == []
