"""The commands `datasets` and `download`, called by a command line of their own."""

from __future__ import annotations

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
from centerhash.core.errors import ConfigError
from centerhash.data import open_dataset
from centerhash.data.published.catalogue import DATASETS, PublishedDataset, RemoteFile
from tests.layouts import tarred, write_nuswide, write_voc, zipped
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


def test_the_list_says_what_is_there(tmp_path: Path) -> None:
    write_voc(tmp_path / "voc")
    text = run("datasets", "--root", tmp_path)
    for name in DATASETS:
        assert name in text
    assert "2,040 random" in text
    rows = json.loads(run("datasets", "--root", tmp_path, "--json"))
    assert [row["name"] for row in rows if row["path"]] == ["voc2007"]


def test_the_page() -> None:
    done = CliRunner().invoke(app, ["datasets", "--markdown"], catch_exceptions=False)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "datasets.md").read_text()
    assert done.output == page, "run `centerhash datasets --markdown > docs/reference/datasets.md`"
    assert all(f"`{name}`" in page for name in DATASETS)
    with pytest.raises(ConfigError, match="--markdown stands alone: omit --json"):
        run("datasets", "--markdown", "--json")


def test_download_and_again(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, "voc2012")
    server.files["/VOCtrainval_11-May-2012.tar"] = tarred(write_voc(tmp_path / "source", "2012"))
    words = ("download", "voc2012", "--root", tmp_path / "data", "--mirror", server.url)
    text = run(*words)
    assert "Pascal VOC 2012: downloaded VOCtrainval_11-May-2012.tar, in" in text
    assert "next: `centerhash train voc2012 --root" in text
    assert open_dataset("voc2012", root=tmp_path / "data").size == 5
    asked = len(server.requests)
    assert "all files were downloaded before" in run(*words)
    assert len(server.requests) == asked


def test_what_is_left_to_do_by_hand(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, "nuswide21")
    source = write_nuswide(tmp_path / "source")
    server.files["/Groundtruth.zip"] = zipped(source / "Groundtruth")
    server.files["/ImageList.zip"] = zipped(source / "ImageList")
    text = run("download", "nuswide21", "--root", tmp_path / "data", "--mirror", server.url)
    assert "still to be done by hand: 1. Open https://lms.comp.nus.edu.sg" in text
    assert "'Agreement and Disclaimer Form'" in text


@pytest.mark.slow
def test_a_killed_download_goes_on_where_it_stopped(server: FileServer, tmp_path: Path) -> None:
    """A real process is killed while bytes arrive; another one asks for the rest only."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "photo.jpg").write_bytes(np.random.default_rng(0).bytes(4_000_000))
    server.files["/a.zip"] = zipped(tmp_path / "source")
    server.holds["/a.zip"] = 3_000_000
    home, part = tmp_path / "home", tmp_path / "home" / "a.zip.part"
    words = (
        "from pathlib import Path; from centerhash.data.published.catalogue import RemoteFile, download; "
        f"download([RemoteFile({server.url + '/a.zip'!r})], Path({str(home)!r}))"
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
