"""The part of an image between borders, and the views that are made of it."""

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from centerhash.data.images import load_pixels, load_views
from centerhash.data.views import inner_box


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def framed(shape: tuple[int, int], box: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """Gray with noise in a box: left, top, right, bottom."""
    image = np.full((*shape, 3), 20, np.uint8)
    left, top, right, bottom = box
    image[top:bottom, left:right] = noise(bottom - top, right - left)
    return image


@pytest.mark.parametrize("box", [(0, 20, 64, 60), (10, 0, 64, 64), (8, 16, 40, 48)])
def test_inner_box(box: tuple[int, int, int, int]) -> None:
    assert inner_box(framed((64, 64), box)) == box


def test_inner_box_none() -> None:
    assert inner_box(framed((64, 64), (1, 0, 64, 64))) is None
    assert inner_box(np.zeros((32, 32, 3), np.uint8)) is None


def test_load_views() -> None:
    photo = np.asarray(Image.fromarray(noise(8, 8)).resize((256, 256), Image.Resampling.BICUBIC))
    screen = np.full((512, 256, 3), 20, np.uint8)
    screen[128:384] = photo
    for resize, crop in ((64, 64), (64, 56)):
        options = {"interpolation": "bicubic", "max_pixels": 10**6}
        views = load_views(screen, resize, crop, **options)  # type: ignore[arg-type]
        assert views.shape == (2, crop, crop, 3)
        assert np.array_equal(views[0], load_pixels(screen, resize, crop, **options))  # type: ignore[arg-type]
        expected = load_pixels(photo, resize, crop, **options)  # type: ignore[arg-type]
        whole, inner = (np.abs(view.astype(int) - expected).mean() for view in views)
        assert inner < whole / 3  # not 0: a border is found to a row of the square, which is blurred
        assert len(load_views(photo, resize, crop, **options)) == 1  # type: ignore[arg-type]
