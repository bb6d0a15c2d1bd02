"""Photos of phones."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pillow_heif
from PIL import Image

from centerhash.data import list_images, load_image
from tests.data.pictures import photo


def heic(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    pillow_heif.from_pillow(image).save(stream, quality=90)
    return stream.getvalue()


def test_load_image_heic(tmp_path: Path) -> None:
    image = photo(96, 64)
    (tmp_path / "IMG_1.HEIC").write_bytes(heic(image))
    assert list_images([tmp_path]) == [tmp_path / "IMG_1.HEIC"]
    read = load_image(tmp_path / "IMG_1.HEIC")
    assert (read.mode, read.size) == ("RGB", (96, 64))
    assert np.abs(np.asarray(read, int) - np.asarray(image.convert("RGB"), int)).mean() < 12
