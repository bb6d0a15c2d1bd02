"""The commands `datasets` and `download`, called by a command line of their own."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from centerhash.cli.info import datasets, download
from centerhash.data import open_dataset
from centerhash.data.published import DATASETS
from centerhash.data.published.catalogue import PublishedDataset, RemoteFile
from tests.layouts import write_flickr25k, write_nuswide, zipped
from tests.toys import names, started_by, wait_for_process
from tests.webserver import FileServer

app = typer.Typer()
app.command()(datasets)
app.command()(download)


def run(*words: str | Path) -> str:
    """What a command prints, as one line."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def small(monkeypatch: pytest.MonkeyPatch, name: str) -> PublishedDataset:
    """Make a row forget sizes and checksums: the test's copies have others."""
    row = DATASETS[name]
    files = tuple(RemoteFile(file.url, into=file.into) for file in row.files)
    changed = type(row)(**{**vars(row), "files": files})
    monkeypatch.setitem(cast(dict[str, PublishedDataset], DATASETS), name, changed)
    return changed


def test_list(tmp_path: Path) -> None:
    write_flickr25k(tmp_path / "mirflickr25k")
    text = run("datasets", "--root", tmp_path)
    for name in DATASETS:
        assert name in text
    rows = json.loads(run("datasets", "--root", tmp_path, "--json"))
    assert [row["name"] for row in rows if row["path"]] == ["flickr25k", "flickr25k-38"]


def test_download(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, "flickr25k")
    source = write_flickr25k(tmp_path / "source" / "photos")
    server.files["/mirflickr25k_annotations_v080.zip"] = zipped(source / "mirflickr25k_annotations_v080")
    (source / "mirflickr25k_annotations_v080").rename(tmp_path / "annotations")
    server.files["/mirflickr25k.zip"] = zipped(source)
    words = ("download", "flickr25k", "--root", tmp_path / "data", "--mirror", server.url)
    text = run(*words)
    assert "downloaded mirflickr25k.zip, mirflickr25k_annotations_v080.zip, in" in text
    assert "centerhash train flickr25k --root" in text
    assert open_dataset("flickr25k", root=tmp_path / "data").size == 11
    requests = len(server.requests)
    assert "downloaded before" in run(*words)
    assert len(server.requests) == requests


def test_steps_by_hand(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, "nuswide21")
    source = write_nuswide(tmp_path / "source")
    server.files["/Groundtruth.zip"] = zipped(source / "Groundtruth")
    server.files["/ImageList.zip"] = zipped(source / "ImageList")
    text = run("download", "nuswide21", "--root", tmp_path / "data", "--mirror", server.url)
    assert "1. Open https://lms.comp.nus.edu.sg" in text


@pytest.mark.slow
def test_killed_download(server: FileServer, tmp_path: Path) -> None:
    """A real process is killed while bytes arrive; another one requests the rest only."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "photo.jpg").write_bytes(np.random.default_rng(0).bytes(4_000_000))
    server.files["/a.zip"] = zipped(tmp_path / "source")
    server.holds["/a.zip"] = 3_000_000
    home, part = tmp_path / "home", tmp_path / "home" / "a.zip.part"
    md5 = hashlib.md5(server.files["/a.zip"]).hexdigest()
    words = (
        "from pathlib import Path; from centerhash.data.published.catalogue import RemoteFile, download; "
        f"download([RemoteFile({server.url + '/a.zip'!r}, md5={md5!r})], Path({str(home)!r}))"
    )
    with started_by([sys.executable, "-c", words]) as process:
        wait_for_process(process, lambda: part.is_file() and part.stat().st_size >= 2_000_000, "bytes arrive")
        process.signal(signal.SIGKILL)
    kept = part.stat().st_size
    server.release.set()
    with started_by([sys.executable, "-c", words]) as process:
        assert process.wait() == 0, process.err
    assert server.asked == [("/a.zip", None), ("/a.zip", f"bytes={kept}-")]
    assert names(home) == [".unpacked", "photo.jpg"]
    assert (home / "photo.jpg").read_bytes() == (tmp_path / "source" / "photo.jpg").read_bytes()
