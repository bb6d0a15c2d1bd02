from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from centerhash.core.errors import ConfigError, DataError
from centerhash.model.model import HashModel
from centerhash.search import Index, beside
from centerhash.search.default_index import open_default, place_beside
from tests.toys import write_images


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "cache"))
    write_images(tmp_path / "photos", 2)
    return tmp_path / "photos"


def test_the_index_lies_beside_its_images(photos: Path, image_run: Path) -> None:
    index, warning = open_default(photos, image_run)
    index.close()
    assert (index.folder, warning) == (photos.parent / "photos.index", "")
    again, warning = open_default(photos, image_run)
    again.close()
    assert (again.folder, warning) == (index.folder, "")


def test_where_nothing_may_be_written_it_lies_in_the_cache(
    photos: Path, image_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: "cache" in str(path))
    place = place_beside(photos)
    assert place.is_relative_to(photos.parent / "cache")
    open_default(photos, image_run)[0].close()
    assert place_beside(photos) == place
    monkeypatch.undo()


def test_something_else_of_that_name_is_left_alone(photos: Path) -> None:
    (photos.parent / "photos.index").write_text("a list of photos")
    assert place_beside(photos) != photos.parent / "photos.index"


def test_an_index_that_cannot_be_written_is_left_alone(
    photos: Path, image_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_default(photos, image_run)[0].close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert place_beside(photos) != photos.parent / "photos.index"


def test_another_model_than_that_of_the_index_is_refused(
    photos: Path, image_run: Path, toy_model: HashModel
) -> None:
    open_default(photos, image_run)[0].close()
    toy_model.save(photos.parent / "toy")
    with pytest.raises(ConfigError, match="another model than"):
        open_default(photos, photos.parent / "toy")
    Index.open(photos.parent / "photos.index").close()  # still whole, and nobody holds it


def test_an_index_of_another_version_of_the_built_in_model_is_kept(
    photos: Path, image_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "BUILTIN", (str(image_run),))
    open_default(photos)[0].close()
    newer = HashModel.load(image_run)
    changed = {
        name: tensor + 1 if name.startswith("encoder.") and tensor.dtype == torch.float32 else tensor
        for name, tensor in newer.tensors().items()
    }
    HashModel(newer.spec, changed).save(photos.parent / "newer")
    monkeypatch.setattr(beside, "BUILTIN", (str(photos.parent / "newer"),))
    index, warning = open_default(photos)
    index.close()
    assert "another version of the built-in model, and keeps it" in warning


def test_an_index_of_ones_own_model_is_taken_as_it_is(
    photos: Path, image_run: Path, toy_model: HashModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "BUILTIN", (str(image_run),))
    Index.create(photos.parent / "photos.index", toy_model).close()
    index, warning = open_default(photos)
    index.close()
    assert warning == ""


@pytest.mark.parametrize("name", ["nowhere", "empty", "texts"])
def test_a_folder_without_images_leaves_no_index_behind(photos: Path, image_run: Path, name: str) -> None:
    place = photos.parent / name
    if name != "nowhere":
        place.mkdir()
    if name == "texts":
        (place / "a.txt").write_text("x")
        (place / "b.mp4").write_text("x")
    with pytest.raises(DataError, match="passed over texts 1, videos 1" if name == "texts" else name):
        open_default(place, image_run)
    assert not place_beside(place).exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read(photos: Path, image_run: Path) -> None:
    photos.chmod(0)
    try:
        with pytest.raises(DataError):
            open_default(photos, image_run)
    finally:
        photos.chmod(0o700)
    shutil.rmtree(photos)
