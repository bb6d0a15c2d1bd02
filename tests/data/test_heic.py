"""Photos of phones."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from centerhash.core.errors import ImageError
from centerhash.data import list_images, load_image
from centerhash.data.images import check_image
from centerhash.search.uploads import image_suffix
from tests.data.pictures import photo
from tests.toys import noise_image


def heic(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    pillow_heif.from_pillow(image).save(stream, quality=90)
    return stream.getvalue()


def test_a_heic_image_is_read_like_any_other(tmp_path: Path) -> None:
    image = photo(96, 64)
    (tmp_path / "IMG_1.HEIC").write_bytes(heic(image))
    assert list_images([tmp_path]) == [tmp_path / "IMG_1.HEIC"]
    read = load_image(tmp_path / "IMG_1.HEIC")
    assert (read.mode, read.size, check_image(tmp_path / "IMG_1.HEIC")) == ("RGB", (96, 64), (96, 64))
    assert np.abs(np.asarray(read, int) - np.asarray(image.convert("RGB"), int)).mean() < 12


def test_a_phone_that_was_held_upright(tmp_path: Path) -> None:
    image = photo(96, 64).convert("RGB")
    exif = Image.Exif()
    exif[274] = 6
    made = pillow_heif.from_pillow(image)
    stream = io.BytesIO()
    made.save(stream, exif=exif.tobytes(), quality=90)
    assert load_image(stream.getvalue()).size == (64, 96)


def test_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(ImageError):
        load_image(heic(noise_image(64))[:200])


def test_an_upload_is_kept_under_its_suffix() -> None:
    assert image_suffix(heic(noise_image(64))) == ".heic"
