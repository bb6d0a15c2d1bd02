"""Photos of phones: read where the extra is installed, told with the line that installs it where it is not."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from centerhash.core.errors import DataError, ImageError
from centerhash.data import list_images, load_image
from centerhash.data.images import check_image, reads_heic
from centerhash.data.listing import find_images, skipped_text
from centerhash.search.uploads import image_suffix
from tests.data.pictures import photo
from tests.toys import noise_image


def heic(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    pillow_heif.from_pillow(image).save(stream, quality=90)
    return stream.getvalue()


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where the extra is not installed."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    reads_heic.cache_clear()
    yield
    monkeypatch.undo()
    reads_heic.cache_clear()


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


@pytest.mark.usefixtures("without")
def test_without_the_extra_it_is_passed_over_and_told(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(DataError, match=r"HEIC images 1 \(pip install 'centerhash\[heic\]'\)"):
        list_images([tmp_path])
    with pytest.raises(ImageError):
        load_image(tmp_path / "a.heic")
    noise_image().save(tmp_path / "b.png")
    found = find_images([tmp_path])
    assert (list(found.images), found.skipped) == ([tmp_path / "b.png"], {"HEIC images": 1})
    assert "pip install" in skipped_text(found.skipped)
