"""Every kind of image becomes upright RGB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from centerhash.data.images import load_image
from tests.data.pictures import encoded, photo, reason


def colors(image: Image.Image) -> list[Any]:
    return np.asarray(image).reshape(-1, 3).tolist()


def test_load_image() -> None:
    image = Image.fromarray(np.array([[[1, 2, 3], [250, 0, 9]]], np.uint8))
    loaded = load_image(encoded(image))
    assert loaded.mode == "RGB"
    assert colors(loaded) == [[1, 2, 3], [250, 0, 9]]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "PPM", "JPEG2000"])
def test_load_image_grayscale(kind: str) -> None:
    image = Image.fromarray(np.tile(np.array([[0, 100, 255, 30]], np.uint8), (4, 1)))
    loaded = load_image(encoded(image, kind))
    assert np.asarray(loaded).shape == (4, 4, 3)
    assert np.asarray(loaded)[0].tolist() == [[0] * 3, [100] * 3, [255] * 3, [30] * 3]


def two(mode: str, first: Any, second: Any, palette: list[int] | None = None) -> Image.Image:
    """An image of two pixels."""
    image = Image.new(mode, (2, 1), first)
    image.putpixel((1, 0), second)
    if palette is not None:
        image.putpalette(palette)
    return image


INK = [10, 20, 30, 200, 100, 50]  # a palette of two colors


@pytest.mark.parametrize(
    ("image", "options", "first", "second"),
    [
        (two("1", 0, 1), {}, [0, 0, 0], [255, 255, 255]),
        (two("P", 0, 1, INK), {}, INK[:3], INK[3:]),
        (two("P", 0, 1, INK), {"transparency": 0}, [255, 255, 255], INK[3:]),
        (two("P", 0, 1, [0, 0, 0, 9, 8, 7]), {"transparency": bytes([128, 255])}, [127, 127, 127], [9, 8, 7]),
        (two("LA", (40, 255), (40, 0)), {}, [40, 40, 40], [255, 255, 255]),
        (two("RGB", (1, 2, 3), (9, 9, 9)), {"transparency": (1, 2, 3)}, [255, 255, 255], [9, 9, 9]),
        (two("RGBA", (255, 0, 0, 255), (0, 0, 0, 128)), {}, [255, 0, 0], [127, 127, 127]),
        (two("RGBA", (255, 0, 0, 255), (255, 0, 0, 0)), {"format": "TIFF"}, [255, 0, 0], [255, 255, 255]),
        (
            two("RGBA", (255, 0, 0, 255), (255, 0, 0, 0)),
            {"format": "WEBP", "lossless": True, "exact": True},
            [255, 0, 0],
            [255, 255, 255],
        ),
    ],
)
def test_load_image_transparency(
    image: Image.Image, options: dict[str, Any], first: list[int], second: list[int]
) -> None:
    kind = options.pop("format", "PNG")
    assert colors(load_image(encoded(image, kind, **options))) == [first, second]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_load_image_cmyk(kind: str) -> None:
    ink = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # no cyan, all magenta and yellow: red
    loaded = load_image(encoded(ink, kind))
    assert loaded.mode == "RGB"
    red, green, blue = loaded.getpixel((8, 8))  # type: ignore[misc]
    assert red > 250
    assert green < 5
    assert blue < 5


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_load_image_16_bits(kind: str) -> None:
    deep = np.array([[0, 128, 129, 257, 32896, 65535]], np.uint16)
    loaded = load_image(encoded(Image.fromarray(deep), kind))
    assert [pixel[0] for pixel in colors(loaded)] == [0, 0, 1, 1, 128, 255]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (np.int32, [0, 7, 255], [0, 7, 255]),
        (np.int32, [0, 32896, 65535], [0, 128, 255]),
        (np.int32, [0, 200_000, 1_000_000], [0, 51, 255]),
        (np.int32, [-7, -7, -7], [0, 0, 0]),
        (np.float32, [0, 0.25, 1], [0, 64, 255]),
        (np.float32, [0, 7, 200], [0, 7, 200]),
        (np.float32, [0, 257, 65535], [0, 1, 255]),
        (np.float32, [0, 1e6, 4e6], [0, 64, 255]),
    ],
)
def test_load_image_deep_gray(kind: Any, values: list[float], expected: list[int]) -> None:
    image = Image.fromarray(np.array([values], kind))
    assert [pixel[0] for pixel in colors(load_image(encoded(image, "TIFF")))] == expected


def test_load_image_infinite() -> None:
    data = encoded(Image.fromarray(np.array([[0, np.nan]], np.float32)), "TIFF")
    assert reason(data) == "cannot read image bytes: it holds NaN or infinite pixels."


def test_load_image_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "lime")]
    for kind in ("GIF", "PNG", "TIFF"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        assert colors(load_image(data)) == [[255, 0, 0]] * 16


def test_load_image_orientation() -> None:
    for kind in ("PNG", "TIFF"):
        for orientation in range(1, 9):
            stored = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
            upright = {
                1: stored,
                2: stored[:, ::-1],
                3: stored[::-1, ::-1],
                4: stored[::-1],
                5: stored.T,
                6: stored.T[:, ::-1],  # the camera was turned: rotate clockwise
                7: stored.T[::-1, ::-1],
                8: stored.T[::-1],
            }[orientation]
            exif = Image.Exif()
            exif[0x0112] = orientation
            loaded = load_image(encoded(Image.fromarray(stored), kind, exif=exif))
            assert np.asarray(loaded)[..., 0].tolist() == upright.tolist()
            assert loaded.info == {}
            assert loaded.getexif().get(0x0112) is None


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0\x2a\xff\xff\xff\xff", b"Exif\0\0"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_load_image_broken_exif(exif: bytes) -> None:
    data = encoded(photo(16, 8), "JPEG", exif=exif)
    assert load_image(data).size == (16, 8)
