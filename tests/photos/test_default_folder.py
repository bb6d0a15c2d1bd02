"""The default index of a folder of pictures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.model.model import HashModel
from centerhash.photos import PhotoIndex
from centerhash.photos.photo_index import default_folder
from centerhash.photos.thumbnails import thumbnail
from tests.photos.pictures import picture, save, save_many


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "cache"))
    save_many(tmp_path / "photos", 2)
    return tmp_path / "photos"


def open_and_close(pictures: Path, model: Path | None = None) -> Path:
    with PhotoIndex.of(pictures, model) as photos:
        return photos.folder


def test_of_twice(pictures: Path, image_run: Path) -> None:
    for model in (image_run, image_run, None):
        assert open_and_close(pictures, model) == pictures.parent / "photos.index"


def test_default_folder_in_cache(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: Path(path).name == "photos.index")
        folder = open_and_close(pictures)
    assert folder.is_relative_to(pictures.parent / "cache")
    # It stays the default folder as long as it exists.
    assert default_folder(pictures) == folder


def test_default_folder_occupied(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adjacent = pictures.parent / "photos.index"
    adjacent.write_text("a list of photos")
    assert default_folder(pictures) != adjacent
    adjacent.unlink()
    assert open_and_close(pictures) == adjacent
    # An index that cannot be written is not the default index.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert default_folder(pictures) != adjacent


def test_of_another_model(pictures: Path, image_run: Path, toy_model: HashModel) -> None:
    folder = open_and_close(pictures, image_run)
    toy_model.save(pictures.parent / "toy")
    with pytest.raises(ConfigError, match=r"photos\.index.*toy"):
        PhotoIndex.of(pictures, pictures.parent / "toy")
    assert open_and_close(pictures) == folder


@pytest.mark.parametrize("name", ["nowhere", "empty", "texts"])
def test_of_without_pictures(pictures: Path, name: str) -> None:
    folder = pictures.parent / name
    if name != "nowhere":
        folder.mkdir()
    if name == "texts":
        (folder / "a.txt").write_text("x")
    with pytest.raises(DataError, match=name):
        PhotoIndex.of(folder)
    assert not default_folder(folder).exists()


def test_thumbnail(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", picture(0))
    assert thumbnail(path, 60)[:2] == b"\xff\xd8"
    assert thumbnail(path, 60, "WEBP")[8:12] == b"WEBP"
