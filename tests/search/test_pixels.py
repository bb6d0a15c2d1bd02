from __future__ import annotations

import io
from collections.abc import Callable

import imagehash
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from centerhash.search import pixels
from centerhash.search.duplicates import CORRELATION, HASH_BITS, near_links
from centerhash.search.pixels import FRAMED, SIDE, WHOLE, content_box, oriented, picture_of, view_boxes


def scene(seed: int, side: int = 200) -> Image.Image:
    """A picture with coarse and fine structure, a different one per seed."""
    generator = np.random.default_rng(seed)
    layers = [
        np.asarray(
            Image.fromarray(generator.integers(0, 256, (cells, cells, 3), dtype=np.uint8)).resize(
                (side, side), Image.Resampling.BICUBIC
            ),
            np.float64,
        )
        for cells in (4, 9, 24)
    ]
    return Image.fromarray((0.5 * layers[0] + 0.3 * layers[1] + 0.2 * layers[2]).astype(np.uint8))


def encoded_again(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=50)
    return Image.open(stream).convert("RGB")


def screenshot(image: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", (240, 420), (16, 16, 16))
    canvas.paste(image.resize((240, 200)), (0, 110))
    canvas.paste((220, 220, 220), (8, 6, 40, 14))  # the clock
    return canvas


CHANGES: dict[str, tuple[Callable[[Image.Image], Image.Image], str | None]] = {
    "encoded": (encoded_again, None),
    "resized": (lambda image: image.resize((100, 90)), None),
    "brightened": (lambda image: ImageEnhance.Brightness(image).enhance(1.2), None),
    "grey": (lambda image: image.convert("L").convert("RGB"), None),
    "mirrored": (ImageOps.mirror, "mirrored"),
    "flipped": (ImageOps.flip, "mirrored"),
    "rotated 90": (lambda image: image.transpose(Image.Transpose.ROTATE_90), "rotated"),
    "rotated 180": (lambda image: image.transpose(Image.Transpose.ROTATE_180), "rotated"),
    "rotated 270": (lambda image: image.transpose(Image.Transpose.ROTATE_270), "rotated"),
    "transposed": (lambda image: image.transpose(Image.Transpose.TRANSPOSE), "rotated and mirrored"),
    "transverse": (lambda image: image.transpose(Image.Transpose.TRANSVERSE), "rotated and mirrored"),
    "cropped to 90 %": (lambda image: image.crop((0, 20, 180, 200)), "cropped"),
    "cropped to 60 %": (lambda image: image.crop((33, 51, 153, 171)), "cropped"),
    "screenshot": (screenshot, "framed"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", range(3))
def test_a_changed_photo_is_near_and_a_stranger_is_not(change: str, seed: int) -> None:
    apply, name = CHANGES[change]
    images = (scene(seed), apply(scene(seed)), scene(99))
    twins, links = near_links([picture_of(image) for image in images])
    assert twins == [0, 1, 2]
    assert list(links) == [(0, 1)]
    assert links[0, 1].change == name
    assert (links[0, 1].correlation or 0) >= CORRELATION


def test_equal_pictures_are_twins_and_flat_ones_are_not_compared() -> None:
    flat = [Image.new("RGB", (50, 50), (level, level, level)) for level in (10, 11, 200)]
    images = [scene(0), *flat, scene(0).copy()]
    twins, links = near_links([picture_of(image) for image in images])
    assert twins == [0, 1, 2, 3, 0]
    assert links == {}


def test_the_hash_is_that_of_imagehash() -> None:
    """Of 32 x 32 pixels both sample the same, so that only the hash is compared."""
    images = [scene(seed, 32).convert("L") for seed in range(40)]
    grey = [np.repeat(np.repeat(np.asarray(image), 2, axis=0), 2, axis=1) for image in images]
    expected = np.stack([imagehash.phash(image).hash.ravel() for image in images])
    found = np.stack([pixels.views_of(each)[0] for each in grey])
    bits = np.unpackbits(found.view(np.uint8)).reshape(len(images), 64)
    assert (bits != expected).sum(
        axis=1
    ).max() <= 2  # two frequencies may be equal to the median but for rounding


def test_views_of_an_orientation_are_the_hashes_of_the_oriented_picture() -> None:
    grey = picture_of(scene(5)).grey
    views = pixels.views_of(grey)
    for orientation in range(pixels.ORIENTATIONS):
        turned = pixels.views_of(np.ascontiguousarray(oriented(grey, orientation)))[0]
        assert int(turned ^ views[orientation]).bit_count() <= 2
    assert views.shape == (len(view_boxes()),)


def test_views_of_a_window_are_near_the_hash_of_the_window() -> None:
    image = scene(6, 640)
    views = picture_of(image).views
    for view in (FRAMED + 1, FRAMED + 30, len(views) - 1):
        left, top, width, height = (640 * share for share in view_boxes()[view])
        cut = image.crop((round(left), round(top), round(left + width), round(top + height)))
        assert int(picture_of(cut).views[0] ^ views[view]).bit_count() <= HASH_BITS // 2


def test_bars_are_found_whatever_their_text() -> None:
    left, top, width, height = content_box(
        np.asarray(screenshot(scene(1)).convert("L").resize((2 * SIDE, 2 * SIDE)))
    )
    assert (left, width) == (0, 1)
    assert top == pytest.approx(110 / 420, abs=0.02)
    assert height == pytest.approx(200 / 420, abs=0.03)
    assert content_box(picture_of(scene(1)).grey) == WHOLE
    assert content_box(np.zeros((SIDE, SIDE), np.uint8)) == WHOLE
