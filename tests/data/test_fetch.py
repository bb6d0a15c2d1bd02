"""Downloads from a real server, whole or in parts, and archives that must not be trusted."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError, OutputError
from centerhash.data import fetch
from centerhash.data.fetch import download, unpack
from tests.layouts import tarred, zipped
from tests.toys import Killed, names
from tests.webserver import FileServer

DATA = np.random.default_rng(0).bytes(3_000_000)
MD5 = hashlib.md5(DATA).hexdigest()
CUT = 700_000


@pytest.fixture
def server(server: FileServer) -> FileServer:
    server.files["/a.bin"] = DATA
    return server


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses before requests, none of which is waited for."""
    seen: list[float] = []
    monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=seen.append))
    return seen


def get(server: FileServer, target: Path, **known: Any) -> bytes:
    return download(server.url + "/a.bin", target, **known).read_bytes()


def ranges(server: FileServer) -> list[str | None]:
    return [bytes_range for _, bytes_range in server.asked]


# ---------------------------------------------------------------- downloads


@pytest.mark.parametrize("announces", [True, False])
def test_download(server: FileServer, tmp_path: Path, announces: bool) -> None:
    steps: list[Any] = []
    server.announces = announces
    assert get(server, tmp_path / "a.bin", progress=lambda *values: steps.append(values)) == DATA
    assert names(tmp_path) == ["a.bin"]
    assert steps[-1] == ("a.bin", 3, 3, "MB")


@pytest.mark.parametrize("known", [{"size": 2_999_999}, {"md5": "0000"}])
def test_download_verification(server: FileServer, tmp_path: Path, known: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=str(next(iter(known.values())))):
        get(server, tmp_path / "a.bin", **known)
    assert names(tmp_path) == []
    for _ in range(2):  # a file that is there is not requested
        assert get(server, tmp_path / "a.bin", size=len(DATA), md5=MD5) == DATA
    assert len(server.requests) == 2
    (tmp_path / "a.bin").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"a\.bin"):
        get(server, tmp_path / "a.bin", size=len(DATA), md5=MD5)
    assert (tmp_path / "a.bin").read_bytes() == b"something else"


def test_download_cut_connections(server: FileServer, tmp_path: Path, waits: list[float]) -> None:
    server.cuts["/a.bin"] = [1_000_000, 0, 500_000]
    assert get(server, tmp_path / "a.bin", md5=MD5) == DATA
    assert ranges(server) == [None, "bytes=1000000-", "bytes=1000000-", "bytes=1500000-"]
    assert waits == [0, 1, 2, 4]


def test_download_changed_file(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(DATA[:CUT])
    server.files["/a.bin"] = DATA[::-1]
    with pytest.raises(DataError, match=MD5):
        get(server, tmp_path / "a.bin", md5=MD5)
    server.files["/a.bin"] = DATA
    assert get(server, tmp_path / "a.bin", md5=MD5) == DATA


@pytest.mark.parametrize("have", [CUT, len(DATA)])
def test_download_resumed(server: FileServer, tmp_path: Path, have: int) -> None:
    (tmp_path / "a.bin.part").write_bytes(DATA[:have])
    assert get(server, tmp_path / "a.bin", size=len(DATA), md5=MD5) == DATA
    assert ranges(server) == ([f"bytes={CUT}-"] if have == CUT else [])


@pytest.mark.parametrize(
    ("statuses", "requests"), [([404], 1), ([403], 1), ([503] * 9, len(fetch.PAUSE_SECONDS))]
)
def test_download_refused(server: FileServer, tmp_path: Path, statuses: list[int], requests: int) -> None:
    server.errors["/a.bin"] = list(statuses)
    with pytest.raises(DataError, match=str(statuses[0])):
        get(server, tmp_path / "a.bin")
    assert len(server.requests) == requests


def test_download_unreachable(tmp_path: Path) -> None:
    with FileServer() as gone:
        pass
    with pytest.raises(DataError, match="refused"):
        get(gone, tmp_path / "a.bin")


def test_download_full_disk(server: FileServer, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has a device that is always full")
    (tmp_path / "a.bin.part").symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"a\.bin\.part"):
        get(server, tmp_path / "a.bin")


# ---------------------------------------------------------------- archives


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def zip_of(files: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tar_of(path: Path, name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Path:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, link, 0o6777
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("good.txt"))
        archive.addfile(entry)
    return path


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_unpack(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "source"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / ("long " * 40 + "é.txt")).write_text("one")
    (folder / "a" / "b" / "two.txt").write_text("two" * 1000)
    archive = tmp_path / f"x.{kind}"
    archive.write_bytes(zipped(folder) if kind == "zip" else tarred(folder, "w:gz" if "gz" in kind else "w"))
    steps: list[tuple[object, ...]] = []
    unpack(archive, tmp_path / "out", progress=lambda *values: steps.append(values))
    assert files_below(tmp_path / "out") == files_below(folder)
    assert steps[-1] == (f"unpack x.{kind}", 0, 1, "MB")


def test_unpack_into_folder(tmp_path: Path) -> None:
    unpack(zip_of({"d/e/a": b"1", "d/b": b"2"}, tmp_path / "1.zip"), tmp_path / "out")
    unpack(zip_of({"d/e/c": b"3", "d/b": b"4"}, tmp_path / "2.zip"), tmp_path / "out")
    assert files_below(tmp_path / "out") == {"d/e/a": b"1", "d/b": b"4", "d/e/c": b"3"}


@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "/evil.txt"])
def test_unpack_names_outside(tmp_path: Path, name: str) -> None:
    (tmp_path / "home").mkdir()
    unpack(zip_of({name: b"evil"}, tmp_path / "x.zip"), tmp_path / "home" / "out")
    assert len(files_below(tmp_path / "home" / "out")) == 1, "a zip loses what leads out"
    with pytest.raises(DataError) if ".." in name else pytest.MonkeyPatch.context():
        unpack(tar_of(tmp_path / "x.tar", name), tmp_path / "home" / "out")
    assert names(tmp_path) == sorted(["home", "x.tar", "x.zip"])
    assert names(tmp_path / "home") == ["out"]
    assert not Path("/evil.txt").exists()


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc"),
        (tarfile.SYMTYPE, "../.."),
        (tarfile.LNKTYPE, "../../x"),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_unpack_links(tmp_path: Path, kind: bytes, link: str) -> None:
    with pytest.raises(DataError):
        unpack(tar_of(tmp_path / "x.tar", "odd", kind, link), tmp_path / "out")
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("kind", ["zip", "w", "w:gz"])
def test_unpack_truncated(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(DATA[number * 30_000 :][:30_000])
    data = zipped(folder) if kind == "zip" else tarred(folder, kind)
    for share in (0.3, 0.7):
        (tmp_path / "x").write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DataError, match="x'"):
            unpack(tmp_path / "x", tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_unpack_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=999))
    with pytest.raises(OutputError):
        unpack(zip_of({"a.txt": b"x" * 1000}, tmp_path / "x.zip"), tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_unpack_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zip_of({"a.txt": b"1", "b.txt": b"2"}, tmp_path / "x.zip")

    def kill(*values: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(fetch.shutil, "rmtree", lambda folder, **_: None)  # as if the process were gone
        with pytest.raises(Killed):
            unpack(archive, tmp_path / "out", progress=kill)
    assert names(tmp_path / "out") == [".unpacking-x.zip"]
    unpack(archive, tmp_path / "out")
    assert names(tmp_path / "out") == ["a.txt", "b.txt"]
