from __future__ import annotations

import hashlib
import io
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import centerhash as ch
from centerhash.core.errors import CenterhashError
from centerhash.model import remote
from centerhash.model.model import HashModel
from tests.toys import WIDTH, cli, names, refused
from tests.webserver import FileServer

FEATURES = np.random.default_rng(0).normal(size=(9, WIDTH)).astype(np.float32)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    """A server, and an empty cache."""
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "cache"))
    with FileServer() as made:
        yield made


def zipped(files: dict[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = ((stat.S_IFLNK if name in links else stat.S_IFREG) | 0o644) << 16
            archive.writestr(entry, content)
    return stream.getvalue()


def run_files(run: Path, under: str = "") -> dict[str, bytes]:
    return {under + path.name: path.read_bytes() for path in run.iterdir()}


def served(server: FileServer, content: bytes) -> str:
    server.files["/run.zip"] = content
    return f"{server.url}/run.zip#sha256={hashlib.sha256(content).hexdigest()}"


def problem(source: str, cache: Path) -> str:
    with pytest.raises(CenterhashError) as caught:
        ch.load(source)
    assert "\n" not in str(caught.value)
    left = [path for path in cache.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    assert left == [], "what is refused leaves nothing behind"
    return str(caught.value)


@pytest.mark.parametrize("under", ["", "run/"])
def test_a_zipped_run_is_a_model_and_is_fetched_once(
    server: FileServer, feature_run: Path, tmp_path: Path, under: str
) -> None:
    source = served(server, zipped(run_files(feature_run, under)))
    found, expected = ch.load(source), HashModel.load(feature_run)
    assert np.array_equal(found.encode_features(FEATURES), expected.encode_features(FEATURES))
    assert found.folder is not None
    assert names(found.folder) == ["model.json", "model.safetensors"]
    server.files.clear()
    assert (
        ch.load(source.replace("sha256=" + found.folder.name, "sha256=" + found.folder.name.upper())).bits
        == 16
    )
    assert len(server.requests) == 1


def test_a_wrong_checksum_is_told(server: FileServer, feature_run: Path, tmp_path: Path) -> None:
    address = served(server, zipped(run_files(feature_run))).partition("#")[0]
    text = problem(f"{address}#sha256={'0' * 64}", tmp_path / "cache")
    assert f"'{address}' has another checksum: sha256 " in text
    assert f"expected {'0' * 64}" in text


@pytest.mark.parametrize("end", ["", "#", "#sha256=12", "#md5=" + "0" * 32, "#sha256=" + "g" * 64])
def test_an_address_without_a_checksum_is_refused(server: FileServer, tmp_path: Path, end: str) -> None:
    text = problem(f"{server.url}/run.zip{end}", tmp_path / "cache")
    assert "a model at an address needs its checksum" in text
    assert server.requests == []


def test_nothing_there_and_nobody_there(server: FileServer, tmp_path: Path) -> None:
    fragment = f"#sha256={'0' * 64}"
    assert "HTTP 404" in problem(f"{server.url}/gone.zip{fragment}", tmp_path / "cache")
    text = problem(f"http://127.0.0.1:9/run.zip{fragment}", tmp_path / "cache")
    assert "cannot fetch 'http://127.0.0.1:9/run.zip': " in text
    assert "Try again with a connection." in text


def test_a_cut_connection_is_told(server: FileServer, feature_run: Path, tmp_path: Path) -> None:
    source = served(server, zipped(run_files(feature_run)))
    server.cuts["/run.zip"] = [1000]
    assert "/run.zip" in problem(source, tmp_path / "cache")
    assert ch.load(source).bits == 16


def test_too_large_archives_and_files_are_refused(
    server: FileServer, feature_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    source = served(server, zipped({**run_files(feature_run), "bomb": bytes(10**7)}))
    monkeypatch.setattr(remote, "LARGEST_ZIP", 10**6)
    assert "announces" in problem(source, cache)
    monkeypatch.setattr(remote, "LARGEST_ZIP", 1000)
    assert "the archive of " in problem(source, cache)
    monkeypatch.setattr(remote, "LARGEST_ZIP", 2**34)
    monkeypatch.setitem(remote.LARGEST, "model.safetensors", 10)
    assert "model.safetensors of " in problem(source, cache)


@pytest.mark.parametrize(
    ("extra", "links", "reason"),
    [
        ({"../evil": b"x"}, (), "leads out of the folder"),
        ({"/evil": b"x"}, (), "leads out of the folder"),
        ({"link": b"/etc/passwd"}, ("link",), "a link or a device"),
        ({"other/model.json": b"{}"}, (), "it holds 2 files model.json"),
    ],
)
def test_archives_that_are_traps_are_refused(
    server: FileServer,
    feature_run: Path,
    tmp_path: Path,
    extra: dict[str, bytes],
    links: tuple[str, ...],
    reason: str,
) -> None:
    source = served(server, zipped({**run_files(feature_run), **extra}, links))
    assert reason in problem(source, tmp_path / "cache")
    assert not (tmp_path / "evil").exists()


def test_a_link_in_the_place_of_a_file_of_the_model_is_refused(
    server: FileServer, feature_run: Path, tmp_path: Path
) -> None:
    files = {**run_files(feature_run), "model.safetensors": b"/etc/passwd"}
    source = served(server, zipped(files, ("model.safetensors",)))
    assert "a link or a device" in problem(source, tmp_path / "cache")


def test_what_is_no_model(server: FileServer, feature_run: Path, tmp_path: Path) -> None:
    files, cache = run_files(feature_run), tmp_path / "cache"
    for content, reason in (
        (b"no zip", "it is no zip file"),
        (zipped({"a.txt": b""}), "it holds 0 files model.json"),
        (zipped({"model.json": files["model.json"]}), "it holds no model.safetensors"),
        (zipped({**files, "model.json": b"{}"}), "is no model of centerhash: "),
    ):
        text = problem(served(server, content), cache)
        assert "is no model of centerhash: " in text
        assert reason in text


def test_commands_take_an_address(server: FileServer, feature_run: Path, tmp_path: Path) -> None:
    source = served(server, zipped(run_files(feature_run)))
    np.save(tmp_path / "features.npy", FEATURES)
    done = cli("encode", source, tmp_path / "features.npy", "--out", tmp_path / "codes.npz")
    assert done.code == 0, done.err
    words = ("encode", source[:-1] + ("0" if source[-1] != "0" else "1"), tmp_path / "features.npy")
    assert "has another checksum" in refused(cli(*words, "--out", tmp_path / "codes.npz"))
    parts = cli("encode", source, tmp_path / "features.npy", "--out", tmp_path / "parts")
    assert parts.code == 0, parts.err
