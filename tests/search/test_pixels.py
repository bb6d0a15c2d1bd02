from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from centerhash.core.errors import ImageError
from centerhash.search.duplicates import PIXELS
from centerhash.search.engines.join import pixel_distance
from centerhash.search.pixels import VIEWS, read_views, views_of
from tests.toys import noise_image, write_images


def distance(first: Image.Image, second: Image.Image) -> int:
    return int(pixel_distance(np.stack([views_of(first), views_of(second)]), 0, 1))


def encoded_again(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=50)
    return Image.open(stream).convert("RGB")


@pytest.mark.parametrize(
    "change",
    [
        encoded_again,
        lambda image: image.resize((100, 90)),
        lambda image: ImageEnhance.Brightness(image).enhance(1.2),
        ImageOps.mirror,
        lambda image: image.crop((0, 20, 180, 200)),
    ],
    ids=["encoded", "resized", "brightened", "mirrored", "cropped"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_changed_photo_is_near_and_another_is_not(change, seed: int) -> None:  # type: ignore[no-untyped-def]
    image = noise_image(200, seed)
    assert distance(image, change(image)) <= PIXELS < distance(noise_image(200, 99), change(image))


def test_views_of_files_and_why_others_cannot_be_read(tmp_path: Path) -> None:
    paths = dict(enumerate([*write_images(tmp_path, 3), tmp_path / "gone.png"]))
    seen: list[int] = []
    found, broken = read_views(paths, lambda stage, done, total, note="": seen.append(done))
    assert sorted(found) == [0, 1, 2]
    assert all(views.shape == (VIEWS,) for views in found.values())
    assert list(broken) == [3]
    assert isinstance(broken[3], ImageError)
    assert seen[-1] == 4
