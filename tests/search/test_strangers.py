"""An index, a model or a run that came from elsewhere reads, writes and deletes nothing outside its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError, InputError
from centerhash.model.model import HashModel
from centerhash.search import Index, verify_index
from centerhash.search.engines.journal import STATE, Record
from centerhash.training.run import train
from tests.toys import cli, refused, toy_config

SECRET = b"not yours"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of files that nobody may touch."""
    folder = tmp_path / "victims"
    folder.mkdir()
    for name in ("secret.txt", "0123456789abcdef.png", "segment-000099.seg"):
        (folder / name).write_bytes(SECRET)
    return folder


def untouched(victim: Path) -> bool:
    found = {path.name: path.read_bytes() for path in victim.iterdir()}
    return found == dict.fromkeys(("secret.txt", "0123456789abcdef.png", "segment-000099.seg"), SECRET)


def made(folder: Path, run: Path, path: str | None) -> Path:
    """An index with one item whose stored path is this one."""
    with Index.create(folder, run) as index:
        index.store.add(np.zeros((1, 2), np.uint8), ["0123456789abcdef"], paths=[path])
    return folder


@pytest.mark.parametrize(
    "path",
    [
        "../victims/secret.txt",
        "images/../../victims/secret.txt",
        "images/0123456789abcdef.png/../../../victims/0123456789abcdef.png",
        "index.json",
        "images/secret.txt",
        "images//0123456789abcdef.png",
        "images/0123456789abcdef.png\n",
        "",
    ],
)
def test_only_uploads_are_ever_deleted(feature_run: Path, tmp_path: Path, victim: Path, path: str) -> None:
    folder = made(tmp_path / "index", feature_run, path)
    (folder / "images").mkdir()
    (folder / "images" / "secret.txt").write_bytes(SECRET)
    [problem] = verify_index(folder)
    assert problem.startswith("the item '0123456789abcdef' names the file")
    with Index.open(folder) as index:
        assert index.get("0123456789abcdef").path is None
        assert index.missing() == ["0123456789abcdef"]
        with pytest.raises(InputError):
            index.image("0123456789abcdef")
        assert index.remove("0123456789abcdef") == 1
        index.compact()
        assert index.verify() == []
    assert untouched(victim)
    assert (folder / "index.json").is_file()
    assert (folder / "images" / "secret.txt").is_file()


def test_an_upload_is_deleted_with_its_item(feature_run: Path, tmp_path: Path) -> None:
    folder = made(tmp_path / "index", feature_run, "images/0123456789abcdef.png")
    (folder / "images").mkdir()
    (folder / "images" / "0123456789abcdef.png").write_bytes(SECRET)
    with Index.open(folder) as index:
        assert index.get("0123456789abcdef").path == f"{folder.resolve()}/images/0123456789abcdef.png"
        index.remove("0123456789abcdef")
    assert list((folder / "images").iterdir()) == []


def test_an_upload_that_is_a_link_is_not_read(feature_run: Path, tmp_path: Path, victim: Path) -> None:
    folder = made(tmp_path / "index", feature_run, "images/0123456789abcdef.png")
    (folder / "images").mkdir()
    (folder / "images" / "0123456789abcdef.png").symlink_to(victim / "0123456789abcdef.png")
    with Index.open(folder) as index:
        assert index.get("0123456789abcdef").path is None
        assert len(index.verify()) == 1
        index.remove("0123456789abcdef")
        index.compact()
    assert untouched(victim)


@pytest.mark.parametrize(
    "name", ["images", "items", "model", "index.json", "items/journal", "items/lock", "items/lock.pid"]
)
def test_links_in_an_index_are_refused(feature_run: Path, tmp_path: Path, victim: Path, name: str) -> None:
    folder = made(tmp_path / "index", feature_run, None)
    target = victim if name == "images" else tmp_path / "elsewhere"
    if name != "images":
        (folder / name).rename(target) if (folder / name).exists() else target.write_bytes(SECRET)
    before = target.read_bytes() if target.is_file() else sorted(target.iterdir())
    (folder / name).symlink_to(target)
    with pytest.raises(DataError, match=rf"{name}' is a link, which is not followed: put"):
        Index.open(folder)
    assert f"{name}' is a link" in verify_index(folder)[0]
    for words in (["compact", folder], ["remove", folder, "0123456789abcdef"]):
        assert "is a link" in refused(cli("index", *words))
    assert (target.read_bytes() if target.is_file() else sorted(target.iterdir())) == before
    assert untouched(victim)


def test_a_link_that_appears_later_is_refused_too(feature_run: Path, tmp_path: Path, victim: Path) -> None:
    with Index.open(made(tmp_path / "index", feature_run, None)) as index:
        (index.folder / "images").symlink_to(victim)
        for change in (lambda: index.uploads.write("0" * 16, b"BM"), index.compact):
            with pytest.raises(DataError, match="images' is a link"):
                change()
    assert untouched(victim)


@pytest.mark.parametrize(
    "name", ["../../victims/segment-000099.seg", "/etc/passwd", "segment-1.seg/../../x", 5]
)
def test_a_journal_names_only_segments_beside_it(
    feature_run: Path, tmp_path: Path, victim: Path, name: object
) -> None:
    folder = made(tmp_path / "index", feature_run, None)
    shown = f'"{name}"' if isinstance(name, str) else str(name)
    head = f'{{"format": 1, "bits": 16, "ids": null, "next_file": 3, "segments": [[{shown}, 1]]}}'
    (folder / "items" / "journal").write_bytes(Record(STATE, head.encode()).to_bytes())
    with pytest.raises(DataError, match=r"journal' is damaged: "):
        Index.open(folder)
    assert untouched(victim)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "backbone.safetensors"])
def test_links_in_a_model_are_refused(feature_run: Path, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(feature_run, tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(feature_run / name)
    with pytest.raises(DataError, match=rf"{name}' is a link"):
        HashModel.load(run)


def test_links_in_a_run_are_refused(feature_folder: Path, feature_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(feature_run, tmp_path / "run")
    (run / "config.json").rename(tmp_path / "config.json")
    (run / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(DataError, match=r"config\.json' is a link"):
        train(feature_folder, config=toy_config(), out=run)


def test_paths_that_are_imported_are_absolute(feature_run: Path, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", feature_run) as index:
        with pytest.raises(InputError, match=r"the path of an item is absolute, got '\.\./secret\.txt'"):
            index.add_codes(np.zeros((1, 2), np.uint8), ["a"], paths=["../secret.txt"])
        assert len(index) == 0
