from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError, OutputError
from centerhash.data import fetch
from centerhash.data.fetch import NotFoundError, download
from tests.toys import names
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
    """The pauses between tries, none of which is waited for."""
    seen: list[float] = []
    monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=seen.append))
    return seen


@pytest.fixture
def in_a_pause(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Does something before the next try."""
    return lambda act: monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=lambda seconds: act()))


def killed() -> None:
    raise KeyboardInterrupt


def ranges(server: FileServer) -> list[str | None]:
    return [asked for _, asked in server.asked]


def get(server: FileServer, target: Path, path: str = "/a.bin", **known: Any) -> bytes:
    return download(server.url + path, target, **known).read_bytes()


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_arrives_whole_with_nothing_beside_it(
    server: FileServer, tmp_path: Path, announced: bool
) -> None:
    told: list[Any] = []
    server.announces = announced
    assert get(server, tmp_path / "a.bin", progress=lambda *values: told.append(values)) == DATA
    assert names(tmp_path) == ["a.bin"]
    assert told[-1] == ("a.bin", 3, 3, "MB")
    assert [done for _, done, _, _ in told] == sorted(done for _, done, _, _ in told)


def test_a_file_that_is_there_is_verified_and_not_requested(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(DATA)
    assert get(server, tmp_path / "a.bin", size=len(DATA), md5=MD5) == DATA
    (tmp_path / "a.bin").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"a\.bin' has 14 bytes instead of 3,000,000"):
        get(server, tmp_path / "a.bin", size=len(DATA))
    assert (tmp_path / "a.bin").read_bytes() == b"something else"
    assert server.requests == []


def test_checksums(server: FileServer, tmp_path: Path) -> None:
    assert get(server, tmp_path / "a.bin", md5=MD5) == DATA
    with pytest.raises(DataError, match="checksum"):
        get(server, tmp_path / "b.bin", md5="0000")
    assert not (tmp_path / "b.bin").exists()
    assert not (tmp_path / "b.bin.part").exists()


def test_a_wrong_size_is_refused_and_deleted(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2,999,999"):
        get(server, tmp_path / "a.bin", size=len(DATA) - 1)
    assert not (tmp_path / "a.bin.part").exists()


def test_cut_connections_resume(server: FileServer, tmp_path: Path, waits: list[float]) -> None:
    server.cuts["/a.bin"] = [1_000_000, 0, 500_000]
    assert get(server, tmp_path / "a.bin") == DATA
    assert ranges(server) == [None, "bytes=1000000-", "bytes=1000000-", "bytes=1500000-"]
    assert waits == [1, 2, 1]  # longer without progress, short again after it


def test_a_later_call_resumes_too(server: FileServer, tmp_path: Path, in_a_pause: Any) -> None:
    server.cuts["/a.bin"] = [CUT]
    in_a_pause(killed)
    with pytest.raises(KeyboardInterrupt):
        get(server, tmp_path / "a.bin")
    assert names(tmp_path) == ["a.bin.part", "a.bin.part.json"]
    assert get(server, tmp_path / "a.bin") == DATA
    assert ranges(server)[1:] == [f"bytes={CUT}-"]
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("compares", [True, False])
@pytest.mark.parametrize(
    ("changed", "etags"),
    [(DATA[::-1], True), (DATA[::-1] + b"longer", True), (DATA[::-1] + b"longer", False)],
)
def test_the_rest_of_a_file_that_changed_meanwhile_is_not_glued(
    server: FileServer, tmp_path: Path, in_a_pause: Any, changed: bytes, etags: bool, compares: bool
) -> None:
    server.cuts["/a.bin"], server.compares = [CUT], compares

    def change() -> None:
        server.files["/a.bin"], server.etags = changed, etags

    in_a_pause(change)
    assert get(server, tmp_path / "a.bin") == changed
    assert ranges(server) == [None, f"bytes={CUT}-", *([] if compares else [None])]
    assert server.requests[1][1]["If-Range"].startswith('"')


def test_a_server_without_versions_is_trusted_only_with_a_checksum(
    server: FileServer, tmp_path: Path
) -> None:
    server.etags = False
    server.cuts["/a.bin"] = [CUT]
    assert get(server, tmp_path / "a.bin", md5=MD5) == DATA
    server.cuts["/a.bin"] = [CUT]
    assert get(server, tmp_path / "b.bin") == DATA
    assert ranges(server) == [None, f"bytes={CUT}-", None, None]


def test_a_server_without_ranges_starts_again(server: FileServer, tmp_path: Path) -> None:
    server.ranges = False
    server.cuts["/a.bin"] = [2_000_000]
    assert get(server, tmp_path / "a.bin") == DATA


def test_a_partial_response_that_is_short_is_not_the_end(server: FileServer, tmp_path: Path) -> None:
    """Neither size nor checksum is known: only Content-Range says that there is more."""
    server.cuts["/a.bin"], server.most = [1_000_000], 900_000
    assert get(server, tmp_path / "a.bin") == DATA
    assert ranges(server) == [None, "bytes=1000000-", "bytes=1900000-", "bytes=2800000-"]


def test_a_part_longer_than_the_file_starts_again(
    server: FileServer, tmp_path: Path, in_a_pause: Any
) -> None:
    server.cuts["/a.bin"] = [10]
    in_a_pause(killed)
    with pytest.raises(KeyboardInterrupt):
        get(server, tmp_path / "a.bin")
    (tmp_path / "a.bin.part").write_bytes(DATA + b"more")
    in_a_pause(lambda: None)
    assert get(server, tmp_path / "a.bin") == DATA


@pytest.mark.parametrize("note", ["", "{", "[]", '{"url": 1}'])
def test_a_part_without_a_whole_note_is_worth_nothing(server: FileServer, tmp_path: Path, note: str) -> None:
    (tmp_path / "a.bin.part").write_bytes(b"0" * 1000)
    (tmp_path / "a.bin.part.json").write_text(note)
    assert get(server, tmp_path / "a.bin") == DATA
    assert ranges(server) == [None]


@pytest.mark.parametrize(("status", "kind"), [(404, NotFoundError), (410, NotFoundError), (403, DataError)])
def test_a_file_that_cannot_be_had_is_not_tried_again(
    server: FileServer, tmp_path: Path, waits: list[float], status: int, kind: type[Exception]
) -> None:
    server.errors["/a.bin"] = [status]
    with pytest.raises(kind, match=f"HTTP {status}"):
        get(server, tmp_path / "a.bin")
    assert waits == []


def test_a_busy_server_is_tried_again(server: FileServer, tmp_path: Path, waits: list[float]) -> None:
    server.errors["/a.bin"] = [503, 429]
    assert get(server, tmp_path / "a.bin") == DATA
    assert waits == [2, 4]


def test_a_server_that_refuses_is_given_up_after_two_tries(tmp_path: Path, waits: list[float]) -> None:
    with FileServer() as gone:
        pass
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+' cannot be reached .*refused"):
        get(gone, tmp_path / "a.bin")
    assert waits == [2]


def test_a_server_that_never_answers_is_given_up_after_two_short_waits(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(fetch.FIRST_TIMEOUTS) <= 15
    monkeypatch.setattr(fetch, "FIRST_TIMEOUTS", (0.05, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, but nobody reads
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin"
        with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+' cannot be reached .*timed out"):
            download(address, tmp_path / "a.bin")
    assert waits == [2]


def test_a_server_that_has_answered_and_dies_is_tried_more_often(
    server: FileServer, tmp_path: Path, waits: list[float]
) -> None:
    server.errors["/a.bin"] = [503] * 6
    with pytest.raises(DataError, match=r"HTTP 503.* in 6 tries. 0 bytes"):
        get(server, tmp_path / "a.bin")
    assert waits == [2, 4, 8, 16, 32]


def test_redirects_are_followed_with_the_range(server: FileServer, tmp_path: Path) -> None:
    server.redirects["/old.bin"] = f"{server.url}/a.bin"
    server.cuts["/a.bin"] = [1_000]
    assert get(server, tmp_path / "a.bin", "/old.bin") == DATA
    assert server.asked[-1] == ("/a.bin", "bytes=1000-")


def test_the_disk_is_measured_first(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_999_999))
    with pytest.raises(OutputError, match=r"needs 0\.00 GB"):
        get(server, tmp_path / "a.bin")


def test_a_disk_that_fills_up_is_not_a_cut_connection(
    server: FileServer, tmp_path: Path, waits: list[float]
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("only Linux has a device that is always full")
    (tmp_path / "a.bin.part").symlink_to(full)
    with pytest.raises(OutputError, match=r"a\.bin\.part"):
        get(server, tmp_path / "a.bin")
    assert waits == []


def test_a_folder_where_the_file_should_be(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(OutputError):
        get(server, tmp_path / "a.bin")
    assert server.requests == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a", "http://", "example.org"])
def test_only_addresses_of_the_web_are_downloaded(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        download(url, tmp_path / "a.bin")
