"""Hashes of views and aligned correlations: changed copies are near, other pictures are not."""

from __future__ import annotations

from collections.abc import Callable

import imagehash
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from centerhash.photos import pixels
from centerhash.photos.duplicates import HASH_BITS, near_groups
from centerhash.photos.pixels import FRAMED, SIDE, WHOLE, content_box, oriented, picture_of, view_boxes
from tests.photos.pictures import picture, recompressed, screenshot

CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "recompressed": recompressed,
    "resized": lambda image: image.resize((100, 90)),
    "brightened": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "gray": lambda image: image.convert("L").convert("RGB"),
    "mirrored": ImageOps.mirror,
    "flipped": ImageOps.flip,
    "rotated 90": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "rotated 180": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "rotated 270": lambda image: image.transpose(Image.Transpose.ROTATE_270),
    "transposed": lambda image: image.transpose(Image.Transpose.TRANSPOSE),
    "transverse": lambda image: image.transpose(Image.Transpose.TRANSVERSE),
    "cropped to 90 %": lambda image: image.crop((0, 20, 180, 200)),
    "cropped to 60 %": lambda image: image.crop((33, 51, 153, 171)),
    "screenshot": screenshot,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", range(3))
def test_near_groups(change: str, seed: int) -> None:
    images = (picture(seed), CHANGES[change](picture(seed)), picture(99))
    assert near_groups([picture_of(image) for image in images]) == [[0, 1]]


def test_near_groups_of_flat_pictures() -> None:
    flat = [Image.new("RGB", (50, 50), (level, level, level)) for level in (10, 11, 200)]
    images = [picture(0), *flat, picture(0).copy()]
    assert near_groups([picture_of(image) for image in images]) == [[0, 4]]


def test_hash_of_imagehash() -> None:
    """Both sample 32 x 32 pixels in the same way, so that only the hash is compared."""
    images = [picture(seed, 32).convert("L") for seed in range(40)]
    expected = np.stack([imagehash.phash(image).hash.ravel() for image in images])
    enlarged = [image.resize((SIDE, SIDE), Image.Resampling.NEAREST).convert("RGB") for image in images]
    hashes = np.stack([picture_of(image).views[0] for image in enlarged])
    bits = np.unpackbits(hashes.view(np.uint8)).reshape(len(images), 64)
    # Two frequencies may be equal to the median except for rounding.
    assert (bits != expected).sum(axis=1).max() <= 2


def test_views_of_orientations() -> None:
    gray, views, _ = picture_of(picture(5))
    for orientation in range(pixels.ORIENTATIONS):
        image = Image.fromarray(np.ascontiguousarray(oriented(gray, orientation))).convert("RGB")
        assert int(picture_of(image).views[0] ^ views[orientation]).bit_count() <= 2
    assert views.shape == (len(view_boxes()),)


def test_views_of_windows() -> None:
    image = picture(6, 640)
    views = picture_of(image).views
    for view in (FRAMED + 1, FRAMED + 30, len(views) - 1):
        left, top, width, height = (640 * share for share in view_boxes()[view])
        cut = image.crop((round(left), round(top), round(left + width), round(top + height)))
        assert int(picture_of(cut).views[0] ^ views[view]).bit_count() <= HASH_BITS // 2


def test_content_box() -> None:
    gray = np.asarray(screenshot(picture(1)).convert("L").resize((2 * SIDE, 2 * SIDE)))
    left, top, width, height = content_box(gray)
    assert (left, width) == (0, 1)
    assert top == pytest.approx(110 / 420, abs=0.02)
    assert height == pytest.approx(200 / 420, abs=0.03)
    assert content_box(picture_of(picture(1)).gray) == WHOLE
    assert content_box(np.zeros((SIDE, SIDE), np.uint8)) == WHOLE
