"""An index, a model or a run that came from elsewhere reads, writes and deletes nothing outside its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError, InputError
from centerhash.model.model import HashModel
from centerhash.search import Index, verify_index
from centerhash.search.database import FILES
from centerhash.training.run import train
from tests.toys import cli, refused, toy_config

SECRET = b"not yours"
ID = "0123456789abcdef"
UPLOAD = f"images/{ID}.png"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of files that nobody may touch."""
    folder = tmp_path / "victims"
    folder.mkdir()
    for name in ("secret.txt", f"{ID}.png"):
        (folder / name).write_bytes(SECRET)
    return folder


def untouched(victim: Path) -> bool:
    found = {path.name: path.read_bytes() for path in victim.iterdir()}
    return found == dict.fromkeys(("secret.txt", f"{ID}.png"), SECRET)


def made(folder: Path, run: Path, path: str | None) -> Path:
    """An index with one item whose stored path is this one, and a file among its uploads that is none."""
    with Index.create(folder, run) as index:
        index.store.add(np.zeros((1, 2), np.uint8), [ID], [["cat"]], [path])
    if path is not None:
        (folder / "images").mkdir()
        (folder / "images" / "secret.txt").write_bytes(SECRET)
    return folder


@pytest.mark.parametrize(
    "path",
    [
        "../victims/secret.txt",
        "images/../../victims/secret.txt",
        f"{UPLOAD}/../../../victims/{ID}.png",
        "index.json",
        "items.db",
        "images/secret.txt",
        f"{UPLOAD}\n",
    ],
)
def test_only_uploads_are_ever_deleted(feature_run: Path, tmp_path: Path, victim: Path, path: str) -> None:
    folder = made(tmp_path / "index", feature_run, path)
    [problem] = verify_index(folder)
    assert ID in problem
    with Index.open(folder) as index:
        assert index.get(ID).path is None
        assert index.missing() == [ID]
        assert index.newest()[0][0].path is None
        with pytest.raises(InputError, match=ID):
            index.image(ID)
        assert index.remove(ID) == 1
        index.compact()
        assert index.verify() == []
    assert untouched(victim)
    assert (folder / "index.json").is_file()
    assert (folder / "images" / "secret.txt").is_file()


def test_files_are_never_deleted(feature_run: Path, tmp_path: Path, victim: Path) -> None:
    folder = made(tmp_path / "index", feature_run, str(victim / f"{ID}.png"))
    with Index.open(folder) as index:
        assert index.get(ID).path == str(victim / f"{ID}.png")
        index.remove(victim)
        index.compact()
        assert len(index) == 0
    assert untouched(victim)


def test_an_upload_that_is_a_link(feature_run: Path, tmp_path: Path, victim: Path) -> None:
    folder = made(tmp_path / "index", feature_run, UPLOAD)
    (folder / UPLOAD).write_bytes(SECRET)
    linked = shutil.copytree(folder, tmp_path / "linked")
    (linked / UPLOAD).unlink()
    (linked / UPLOAD).symlink_to(victim / f"{ID}.png")
    with Index.open(folder) as index:
        assert index.get(ID).path == f"{folder.resolve()}/{UPLOAD}"
        index.remove(ID)
    assert [file.name for file in (folder / "images").iterdir()] == ["secret.txt"]
    with Index.open(linked) as index:
        assert index.get(ID).path is None
        assert len(index.verify()) == 1
        index.remove(ID)
        index.compact()
    assert untouched(victim)


@pytest.mark.parametrize("name", ["images", "model", "index.json", *FILES])
def test_links_in_an_index_are_rejected(feature_run: Path, tmp_path: Path, victim: Path, name: str) -> None:
    folder = made(tmp_path / "index", feature_run, None)
    target = victim if name == "images" else tmp_path / "elsewhere"
    if (folder / name).exists():
        (folder / name).rename(target)
    elif name != "images":
        target.write_bytes(SECRET)
    before = target.read_bytes() if target.is_file() else sorted(target.iterdir())
    (folder / name).symlink_to(target)
    for read_only in (True, False):
        with pytest.raises(DataError, match=rf"{name}' is a link"):
            Index.open(folder, read_only=read_only)
    assert f"{name}' is a link" in verify_index(folder)[0]
    for words in (["compact", folder], ["remove", folder, ID]):
        assert "is a link" in refused(cli("index", *words))
    assert (target.read_bytes() if target.is_file() else sorted(target.iterdir())) == before
    assert untouched(victim)


def test_a_link_that_appears_later_is_rejected_too(feature_run: Path, tmp_path: Path, victim: Path) -> None:
    with Index.open(made(tmp_path / "index", feature_run, None)) as index:
        (index.folder / "images").symlink_to(victim)
        for change in (lambda: index.uploads.write("0" * 16, b"BM"), index.compact):
            with pytest.raises(DataError, match="images' is a link"):
                change()
    assert untouched(victim)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "backbone.safetensors", "config.json"])
def test_links_in_a_run(feature_run: Path, feature_folder: Path, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(feature_run, tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(feature_run / name)
    with pytest.raises(DataError, match=rf"{name}' is a link"):
        train(feature_folder, config=toy_config(), out=run) if name == "config.json" else HashModel.load(run)
