"""Files: written atomically, and checked before memory is allocated for them."""

from __future__ import annotations

import errno
import os
import resource
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core import files
from centerhash.core.errors import DataError, OutputError


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


def test_atomic(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "result.bin"
    with files.atomic(target) as stream:
        stream.write(b"old")
        assert not target.exists()
    with target.open("rb") as reader:
        files.write_text(target, "new")
        assert reader.read() == b"old", "a reader keeps the file that it opened"
    assert target.read_bytes() == b"new"
    assert leftovers(target.parent) == []


def test_atomic_interrupted(tmp_path: Path) -> None:
    target = tmp_path / "result.bin"
    target.write_bytes(b"old")

    def write_half() -> None:
        with files.atomic(target) as stream:
            stream.write(b"half of the ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.bin"]


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_text(path, "x" * 100_000),
        lambda path: files.write_npz(path, {"a": np.zeros(100_000)}),
        lambda path: files.write_text(path / "below a file", "x"),
    ],
)
def test_atomic_write_error(tmp_path: Path, write: Callable[[Path], None]) -> None:
    target = tmp_path / "result"
    target.write_text("old")
    with pytest.raises(OutputError), file_size_limit(4096):
        write(target)
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_atomic_folder(tmp_path: Path) -> None:
    target = tmp_path / "a" / "folder"

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
    assert [path.name for path in target.parent.iterdir()] == ["folder"]
    full = files.atomic_folder(target)
    with pytest.raises(OutputError), full as draft:
        (draft / "two").write_text("2")
    assert (target / "one").exists()
    assert leftovers(target.parent) == []


def test_refuse_links(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    (tmp_path / "link").symlink_to("plain")
    files.refuse_links(tmp_path, ["plain", "missing"])
    with pytest.raises(DataError, match="link"):
        files.refuse_links(tmp_path, ["plain", "link"])


def test_write_json(tmp_path: Path) -> None:
    value = {"class": "Fahrrad 自転車 🐕", "map": [0.5, 1], "inner": [[[]]]}
    files.write_json(tmp_path / "a.json", value)
    assert files.parse_json((tmp_path / "a.json").read_text(encoding="utf-8")) == value


@pytest.mark.parametrize(
    "text",
    ["{", "[" * 100_000 + "]" * 100_000, '{"name": "\\ud800"}', "9" * 5000],
    ids=len,
)
def test_parse_json_error(text: str) -> None:
    with pytest.raises(ValueError):  # the base of several classes
        files.parse_json(text)


@pytest.mark.parametrize(("name", "most"), [("file", 4), ("pipe", 9), ("sparse", 9), (".", 9)])
def test_read_plain(tmp_path: Path, name: str, most: int) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(10**12)
    assert files.read_plain(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError):  # its text names the reason
        files.read_plain(tmp_path / name, most)


def test_append_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    path = tmp_path / "new" / "results.jsonl"
    monkeypatch.setattr(files.os, "fsync", lambda _: synced.append(path.read_bytes()))
    files.append_line(path, "erste Zeile: ä")
    files.append_line(path, "second")
    assert synced == ["erste Zeile: ä\n".encode(), "erste Zeile: ä\nsecond\n".encode()]
    monkeypatch.setattr(files.os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(OutputError):
        files.append_line(path, "row")


def test_write_npz(tmp_path: Path) -> None:
    arrays = {"codes": np.array([[1, -1]], dtype=np.int8), "labels": np.array([[True, False]])}
    files.write_npz(tmp_path / "all.npz", arrays)
    stored = files.read_npz(tmp_path / "all.npz")
    assert list(stored) == list(arrays)
    for name, array in arrays.items():
        assert stored[name].dtype == array.dtype
        np.testing.assert_array_equal(stored[name], array)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        files.write_npz(tmp_path / "objects.npz", {"objects": np.array([{"a": 1}], dtype=object)})
    assert [path.name for path in tmp_path.iterdir()] == ["all.npz"]


def announced(path: Path, shape: str) -> Path:
    """An .npz file of one array of four bytes that announces a shape."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("codes.npy", header + b"1234")
    return path


@pytest.mark.parametrize("shape", ["(1000000000000000,)", "(200,)", "(99999999999999999999999,)"])
def test_read_npz_shape(tmp_path: Path, shape: str) -> None:
    with pytest.raises(DataError):
        files.read_npz(announced(tmp_path / "a.npz", shape))
    assert files.read_npz(announced(tmp_path / "b.npz", "(4,)"))["codes"].tolist() == list(b"1234")


@pytest.mark.parametrize(
    "change", [{}, {"bits": 65}, {"classes": ["e", "dog"]}, {"more": None}, {"checksum": None}]
)
def test_verify_checksum(change: dict[str, Any]) -> None:
    value = {"bits": 64, "classes": ["é", "dog"], "threshold": 0.1}
    stored = {**files.with_checksum(value), **change}
    with pytest.raises(ValueError, match="it does not") if change else nullcontext():
        assert files.verify_checksum(stored, "it") == value
