from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from centerhash.core.errors import ConfigError, DataError
from centerhash.model.model import HashModel
from centerhash.search import Index, default_index
from centerhash.search.default_index import default_place, open_default
from tests.toys import write_images


@pytest.fixture
def photos(tmp_path: Path, image_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images; the run stands for the built-in model."""
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default_index, "BUILTIN", (str(image_run),))
    write_images(tmp_path / "photos", 2)
    return tmp_path / "photos"


def open_and_close(photos: Path, model: Path | None = None) -> tuple[Path, str]:
    index, warning = open_default(photos, model)
    index.close()
    return index.folder, warning


def test_the_index_is_next_to_its_images(photos: Path, image_run: Path) -> None:
    for model in (None, image_run, None):
        assert open_and_close(photos, model) == (photos.parent / "photos.index", "")


def test_next_to_a_read_only_folder_the_cache_is_used(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name == "photos.index")
    place, _ = open_and_close(photos)
    assert place.is_relative_to(photos.parent / "cache")
    monkeypatch.undo()
    monkeypatch.setenv("CENTERHASH_CACHE", str(photos.parent / "cache"))
    assert default_place(photos) == place  # as long as that is there


def test_what_has_its_name_is_left_alone(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = photos.parent / "photos.index"
    beside.write_text("a list of photos")
    assert default_place(photos) != beside
    beside.unlink()
    assert open_and_close(photos)[0] == beside
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # an index that cannot be written
    assert default_place(photos) != beside


def test_another_model_than_that_of_the_index_is_rejected(photos: Path, toy_model: HashModel) -> None:
    place, _ = open_and_close(photos)
    toy_model.save(photos.parent / "toy")
    with pytest.raises(ConfigError, match=r"photos\.index.*toy"):
        open_default(photos, photos.parent / "toy")
    Index.open(place).close()  # nobody holds it
    shutil.rmtree(place)
    Index.create(place, toy_model).close()  # of another kind: opened as it is
    assert open_and_close(photos) == (place, "")


def test_a_newer_built_in_model(photos: Path, image_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = open_and_close(photos)
    newer = HashModel.load(image_run)
    changed = {
        name: tensor + 1 if name.startswith("encoder.") and tensor.dtype == torch.float32 else tensor
        for name, tensor in newer.tensors().items()
    }
    HashModel(newer.spec, changed).save(photos.parent / "newer")
    monkeypatch.setattr(default_index, "BUILTIN", (str(photos.parent / "newer"),))
    again, warning = open_and_close(photos)
    assert again == place
    assert str(place) in warning


@pytest.mark.parametrize("name", ["nowhere", "empty", "texts"])
def test_a_folder_without_images_leaves_no_index_behind(photos: Path, name: str) -> None:
    place = photos.parent / name
    if name != "nowhere":
        place.mkdir()
    if name == "texts":
        for file in ("a.txt", "b.mp4"):
            (place / file).write_text("x")
    with pytest.raises(DataError, match="texts 1, videos 1" if name == "texts" else name):
        open_default(place)
    assert not default_place(place).exists()
