from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from centerhash.data.images import load_image
from tests.data.pictures import encoded, photo, reason


def colors(image: Image.Image) -> list[Any]:
    return np.asarray(image).reshape(-1, 3).tolist()


def test_rgb_is_kept() -> None:
    image = Image.fromarray(np.array([[[1, 2, 3], [250, 0, 9]]], np.uint8))
    loaded = load_image(encoded(image))
    assert loaded.mode == "RGB"
    assert colors(loaded) == [[1, 2, 3], [250, 0, 9]]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "PPM", "JPEG2000"])
def test_greyscale(kind: str) -> None:
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
def test_palettes_and_transparency_become_rgb_on_white(
    image: Image.Image, options: dict[str, Any], first: list[int], second: list[int]
) -> None:
    kind = options.pop("format", "PNG")
    assert colors(load_image(encoded(image, kind, **options))) == [first, second]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk(kind: str) -> None:
    ink = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # no cyan, all magenta and yellow: red
    loaded = load_image(encoded(ink, kind))
    assert loaded.mode == "RGB"
    red, green, blue = loaded.getpixel((8, 8))  # type: ignore[misc]
    assert red > 250
    assert green < 5
    assert blue < 5


def test_lab() -> None:
    srgb = ImageCms.createProfile("sRGB")
    to_lab = ImageCms.buildTransform(srgb, ImageCms.createProfile("LAB"), "RGB", "LAB")
    lab = ImageCms.applyTransform(Image.new("RGB", (2, 2), (200, 30, 40)), to_lab)
    assert lab is not None
    loaded = np.asarray(load_image(encoded(lab, "TIFF"))).astype(int)
    assert np.abs(loaded - [200, 30, 40]).max() <= 4


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_not_clipped(kind: str) -> None:
    deep = np.array([[0, 128, 129, 257, 32896, 65535]], np.uint16)
    loaded = load_image(encoded(Image.fromarray(deep), kind))
    assert [pixel[0] for pixel in colors(loaded)] == [0, 0, 1, 1, 128, 255]


def test_big_endian_sixteen_bit_tiff() -> None:
    pixels = np.array([[0, 65535]], ">u2").tobytes()
    # tag, type, value: width, height, bits, compression, photometric, strip offset, rows, strip bytes
    shorts = {256: 2, 257: 1, 258: 16, 259: 1, 262: 1, 278: 1}
    tags = sorted([(tag, 3, value) for tag, value in shorts.items()] + [(273, 4, 200), (279, 4, 4)])
    entries = b"".join(
        struct.pack(">HHIHH", tag, 3, 1, value, 0) if kind == 3 else struct.pack(">HHII", tag, 4, 1, value)
        for tag, kind, value in tags
    )
    header = (
        b"MM\x00\x2a" + struct.pack(">I", 8) + struct.pack(">H", len(tags)) + entries + struct.pack(">I", 0)
    )
    assert colors(load_image(header.ljust(200, b"\0") + pixels)) == [[0] * 3, [255] * 3]


def test_sixteen_bit_pgm() -> None:
    data = b"P5 3 1 65535\n" + np.array([0, 200, 65535], ">u2").tobytes()
    assert [pixel[0] for pixel in colors(load_image(data))] == [0, 1, 255]
    dark = b"P5 2 1 65535\n" + np.array([0, 200], ">u2").tobytes()
    assert [pixel[0] for pixel in colors(load_image(dark))] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (np.int32, [0, 7, 255], [0, 7, 255]),
        (np.int32, [0, 32896, 65535], [0, 128, 255]),
        (np.int32, [-100, 0, 155], [0, 100, 255]),
        (np.int32, [0, 200_000, 1_000_000], [0, 51, 255]),
        (np.int32, [-7, -7, -7], [0, 0, 0]),
        (np.float32, [0, 0.25, 1], [0, 64, 255]),
        (np.float32, [0, 7, 200], [0, 7, 200]),
        (np.float32, [0, 257, 65535], [0, 1, 255]),
        (np.float32, [-1, 0, 1.55], [0, 100, 255]),
        (np.float32, [0, 1e6, 4e6], [0, 64, 255]),
    ],
)
def test_whole_numbers_of_32_bits_and_fractions(kind: Any, values: list[float], expected: list[int]) -> None:
    image = Image.fromarray(np.array([values], kind))
    assert [pixel[0] for pixel in colors(load_image(encoded(image, "TIFF")))] == expected


def test_fractions_that_are_not_finite() -> None:
    data = encoded(Image.fromarray(np.array([[0, np.nan]], np.float32)), "TIFF")
    assert reason(data) == "cannot read image bytes: it holds NaN or infinite pixels."


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert colors(load_image(data)) == [[255, 0, 0]] * 16


def test_exif_orientation_is_applied_once() -> None:
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


def test_exif_orientation_of_a_jpeg() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert load_image(encoded(photo(40, 20), "JPEG", exif=exif)).size == (20, 40)


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0\x2a\xff\xff\xff\xff", b"Exif\0\0"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_broken_exif_does_not_cost_the_picture(exif: bytes) -> None:
    data = encoded(photo(16, 8), "JPEG", exif=exif)
    assert load_image(data).size == (16, 8)
