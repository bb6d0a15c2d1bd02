from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError, InputError, OutputError
from centerhash.data.published.download import RemoteFile, download, fetch, is_unpacked
from tests.layouts import zipped
from tests.toys import names
from tests.webserver import FileServer

DATA = np.random.default_rng(0).bytes(3_000_000)
MD5 = hashlib.md5(DATA).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        running.files["/data/a.bin"] = DATA
        yield running


def remote(server: FileServer, path: str = "/data/a.bin", md5: str | None = MD5) -> RemoteFile:
    return RemoteFile(server.url + path, len(DATA), md5)


def quick(
    file: RemoteFile, target: Path, waits: list[float] | None = None, mirror: str | None = None
) -> Path:
    return fetch(file, target, mirror=mirror, sleep=(waits if waits is not None else []).append)


def test_a_file_arrives_whole_with_nothing_beside_it(server: FileServer, tmp_path: Path) -> None:
    told: list[Any] = []
    path = fetch(remote(server), tmp_path / "a.bin", progress=lambda *values: told.append(values))
    assert path.read_bytes() == DATA
    assert names(tmp_path) == ["a.bin"]
    assert told[-1] == ("a.bin", 3, 3, "MB")
    assert [done for _, done, _, _ in told] == sorted(done for _, done, _, _ in told)


def test_a_file_that_is_there_is_not_asked_for(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(DATA)
    quick(remote(server), tmp_path / "a.bin")
    assert server.requests == []


def test_a_wrong_file_put_there_by_hand_is_refused_and_kept(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"a\.bin' has 14 bytes instead of 3,000,000: delete it and run"):
        quick(remote(server), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b"something else"


def test_cut_connections_go_on_where_they_stopped(server: FileServer, tmp_path: Path) -> None:
    server.cuts["/data/a.bin"] = [1_000_000, 0, 500_000]
    waits: list[float] = []
    assert quick(remote(server), tmp_path / "a.bin", waits).read_bytes() == DATA
    assert [asked for _, asked in server.asked] == [
        None,
        "bytes=1000000-",
        "bytes=1000000-",
        "bytes=1500000-",
    ]
    assert waits == [1, 2, 1]  # longer without progress, short again after it


def test_a_later_call_goes_on_too(server: FileServer, tmp_path: Path) -> None:
    server.cuts["/data/a.bin"] = [700_000]

    def killed(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(remote(server, md5=None), tmp_path / "a.bin", sleep=killed)
    assert names(tmp_path) == ["a.bin.part", "a.bin.part.json"]
    assert quick(remote(server, md5=None), tmp_path / "a.bin").read_bytes() == DATA
    assert server.asked[1:] == [("/data/a.bin", "bytes=700000-")]
    assert names(tmp_path) == ["a.bin"]


def test_a_file_that_changed_meanwhile_is_not_glued(server: FileServer, tmp_path: Path) -> None:
    server.cuts["/data/a.bin"] = [700_000]
    changed = DATA[::-1]

    def change(seconds: float) -> None:
        server.files["/data/a.bin"] = changed

    file = remote(server, md5=None)
    assert fetch(file, tmp_path / "a.bin", sleep=change).read_bytes() == changed
    assert server.requests[1][1]["If-Range"].startswith('"')


def test_a_server_without_versions_is_trusted_only_with_a_checksum(
    server: FileServer, tmp_path: Path
) -> None:
    server.etags = False
    server.cuts["/data/a.bin"] = [700_000]
    assert quick(remote(server), tmp_path / "a.bin").read_bytes() == DATA
    server.cuts["/data/a.bin"] = [700_000]
    assert quick(remote(server, md5=None), tmp_path / "b.bin").read_bytes() == DATA
    assert [asked for _, asked in server.asked] == [None, "bytes=700000-", None, None]


def test_a_server_without_ranges_starts_anew(server: FileServer, tmp_path: Path) -> None:
    server.ranges = False
    server.cuts["/data/a.bin"] = [2_000_000]
    assert quick(remote(server), tmp_path / "a.bin").read_bytes() == DATA


def test_a_part_longer_than_the_file_starts_anew(server: FileServer, tmp_path: Path) -> None:
    server.cuts["/data/a.bin"] = [10]
    with pytest.raises(KeyboardInterrupt):
        fetch(
            remote(server), tmp_path / "a.bin", sleep=lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt)
        )
    (tmp_path / "a.bin.part").write_bytes(DATA + b"more")
    assert quick(remote(server), tmp_path / "a.bin").read_bytes() == DATA


@pytest.mark.parametrize("note", ["", "{", "[]", '{"url": 1}'])
def test_a_part_without_a_whole_note_is_worth_nothing(server: FileServer, tmp_path: Path, note: str) -> None:
    (tmp_path / "a.bin.part").write_bytes(b"0" * 1000)
    (tmp_path / "a.bin.part.json").write_text(note)
    assert quick(remote(server), tmp_path / "a.bin").read_bytes() == DATA
    assert server.asked == [("/data/a.bin", None)]


def test_a_wrong_checksum_is_refused_and_deleted(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"has the MD5 checksum {MD5} instead of 0000. It was deleted"):
        quick(remote(server, md5="0000"), tmp_path / "a.bin")
    assert not (tmp_path / "a.bin").exists()
    assert not (tmp_path / "a.bin.part").exists()


def test_a_wrong_size_is_refused_and_deleted(server: FileServer, tmp_path: Path) -> None:
    server.files["/data/a.bin"] = DATA[:-1]
    with pytest.raises(DataError):
        quick(remote(server), tmp_path / "a.bin")
    assert not (tmp_path / "a.bin.part").exists()


def test_a_missing_file(server: FileServer, tmp_path: Path) -> None:
    waits: list[float] = []
    with pytest.raises(DataError, match=r"/data/b\.bin' is not there \(HTTP 404\)"):
        quick(remote(server, "/data/b.bin"), tmp_path / "b.bin", waits)
    assert waits == []  # another try would not help


def test_a_forbidden_file(server: FileServer, tmp_path: Path) -> None:
    server.errors["/data/a.bin"] = [403]
    with pytest.raises(DataError):
        quick(remote(server), tmp_path / "a.bin")


def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    server.errors["/data/a.bin"] = [503, 429]
    waits: list[float] = []
    assert quick(remote(server), tmp_path / "a.bin", waits).read_bytes() == DATA
    assert waits == [2, 4]


def test_a_dead_server_is_given_up(tmp_path: Path) -> None:
    with FileServer() as gone:
        file = remote(gone)
    waits: list[float] = []
    with pytest.raises(DataError, match=r"could not be fetched \(.*refused.*\) in 6 tries. 0 bytes are kept"):
        quick(file, tmp_path / "a.bin", waits)
    assert waits == [2, 4, 8, 16, 32]


def test_redirects_are_followed_with_the_range(server: FileServer, tmp_path: Path) -> None:
    server.redirects["/old/a.bin"] = f"{server.url}/data/a.bin"
    server.cuts["/data/a.bin"] = [1_000]
    assert quick(remote(server, "/old/a.bin"), tmp_path / "a.bin").read_bytes() == DATA
    assert server.asked[-1] == ("/data/a.bin", "bytes=1000-")


@pytest.mark.parametrize("path", ["/mirror/zips/a.bin", "/mirror/a.bin"])
def test_a_mirror_keeps_the_folders_or_only_the_file(server: FileServer, tmp_path: Path, path: str) -> None:
    server.files = {path: DATA}
    file = RemoteFile("http://example.invalid/zips/a.bin", len(DATA), MD5)
    assert quick(file, tmp_path / "a.bin", mirror=f"{server.url}/mirror/").read_bytes() == DATA


@pytest.mark.parametrize("mirror", ["example.org", "file:///etc", "ftp://example.org", "http://"])
def test_what_is_no_mirror(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(ConfigError):
        quick(RemoteFile("http://example.invalid/a.bin"), tmp_path / "a.bin", mirror=mirror)


# ---------------------------------------------------------------- fetch and unpack


def archives(server: FileServer, folder: Path) -> tuple[RemoteFile, ...]:
    for name in ("one", "two"):
        (folder / name / "photos").mkdir(parents=True)
        (folder / name / "photos" / f"{name}.txt").write_text(name)
        server.files[f"/{name}.zip"] = zipped(folder / name)
    return (RemoteFile(f"{server.url}/one.zip"), RemoteFile(f"{server.url}/two.zip", into="sub"))


def test_archives_are_fetched_unpacked_and_deleted(server: FileServer, tmp_path: Path) -> None:
    files = archives(server, tmp_path / "source")
    home = tmp_path / "home"
    assert download(files, home) == ["one.zip", "two.zip"]
    assert (home / "photos" / "one.txt").read_text() == "one"
    assert (home / "sub" / "photos" / "two.txt").read_text() == "two"
    assert names(home) == [".unpacked", "photos", "sub"]
    assert json.loads((home / ".unpacked" / "two.zip.json").read_text())["into"] == "sub"


def test_finished_steps_are_skipped(server: FileServer, tmp_path: Path) -> None:
    files = archives(server, tmp_path / "source")
    download(files[:1], tmp_path / "home")
    assert download(files, tmp_path / "home", keep_archives=True) == ["two.zip"]
    assert (tmp_path / "home" / "two.zip").is_file()
    assert download(files, tmp_path / "home") == []
    assert [path for path, _ in server.asked] == ["/one.zip", "/two.zip"]


def test_a_damaged_archive_is_not_taken_for_done(server: FileServer, tmp_path: Path) -> None:
    server.files["/one.zip"] = b"PK\x03\x04 no zip"
    file = RemoteFile(f"{server.url}/one.zip")
    with pytest.raises(DataError, match=r"is neither a \.zip nor a \.tar: delete it and download it again"):
        download([file], tmp_path / "home")
    assert not is_unpacked(file, tmp_path / "home")


def test_a_second_process_is_refused(server: FileServer, tmp_path: Path) -> None:
    files = archives(server, tmp_path / "source")
    home = tmp_path / "home"
    refusals: list[str] = []

    def second(*values: object) -> None:
        with pytest.raises(InputError) as caught:
            download(files, home)
        refusals.append(str(caught.value))

    download(files[:1], home, progress=second)
    assert refusals[0] == f"process {os.getpid()} downloads into '{home}': wait for it."
    assert download(files, home) == ["two.zip"]


def test_the_disk_is_looked_at_first(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5_999_999))
    with pytest.raises(OutputError, match=r"needs 0\.01 GB, but its disk has 0\.01 GB left: free some space"):
        download([remote(server)], tmp_path / "home")
    assert server.requests == []  # 3 MB for the archive and as much for what it holds


def test_a_file_of_unknown_size_is_measured_by_its_answer(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_999_999))
    with pytest.raises(OutputError):
        download([RemoteFile(f"{server.url}/data/a.bin")], tmp_path / "home")


def test_a_disk_that_fills_up_is_not_a_cut_connection(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("only Linux has a device that is always full")
    (tmp_path / "a.bin.part").symlink_to(full)
    waits: list[float] = []
    with pytest.raises(OutputError):
        quick(remote(server), tmp_path / "a.bin", waits)
    assert waits == []


def test_a_partial_answer_that_is_short_is_not_the_end(server: FileServer, tmp_path: Path) -> None:
    """Neither size nor checksum is known: only Content-Range says that there is more."""
    server.cuts["/data/a.bin"], server.most = [1_000_000], 900_000
    file = RemoteFile(f"{server.url}/data/a.bin")
    assert quick(file, tmp_path / "a.bin").read_bytes() == DATA
    assert [asked for _, asked in server.asked] == [
        None,
        "bytes=1000000-",
        "bytes=1900000-",
        "bytes=2800000-",
    ]


@pytest.mark.parametrize(
    ("changed", "etags"),
    [(DATA[::-1], True), (DATA[::-1] + b"longer", True), (DATA[::-1] + b"longer", False)],
)
def test_the_rest_of_another_file_is_not_glued_by_a_server_that_does_not_compare(
    server: FileServer, tmp_path: Path, changed: bytes, etags: bool
) -> None:
    server.cuts["/data/a.bin"], server.compares = [700_000], False

    def change(seconds: float) -> None:
        server.files["/data/a.bin"], server.etags = changed, etags

    file = RemoteFile(f"{server.url}/data/a.bin")
    assert fetch(file, tmp_path / "a.bin", sleep=change).read_bytes() == changed
    assert [asked for _, asked in server.asked] == [None, "bytes=700000-", None]


def test_a_folder_where_the_file_should_be(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(OutputError):
        quick(remote(server), tmp_path / "a.bin")
    assert server.requests == []


def test_only_addresses_of_the_web_are_fetched(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ConfigError):
        quick(RemoteFile(f"file://{tmp_path}/secret"), tmp_path / "a.bin")
