"""Pictures for the tests of reading them."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import ImageError
from centerhash.data.images import load_image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file that holds the image."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def reason(source: str | Path | bytes, **options: Any) -> str:
    """Why an image cannot be read."""
    with pytest.raises(ImageError) as caught:
        load_image(source, **options)
    return str(caught.value)


def photo(width: int, height: int) -> Image.Image:
    """A smooth picture with some detail, alike under JPEG."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    red = 127 + 120 * np.sin(x / width * 9)
    green = 127 + 120 * np.cos(y / height * 7)
    blue = 255 * (x + y) / (width + height)
    return Image.fromarray(np.stack([red, green, blue], axis=2).astype(np.uint8))


def jpeg_of_scans(side: int, scans: int) -> bytes:
    """A grey progressive JPEG of `scans` scans, all but the first of two bytes each."""

    def segment(code: int, data: bytes) -> bytes:
        return bytes([0xFF, code]) + struct.pack(">H", len(data) + 2) + data

    one_code = bytes([1] + [0] * 15)
    begin = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64)
    begin += segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    begin += segment(0xC4, b"\x00" + one_code + b"\0") + segment(0xC4, b"\x10" + one_code + b"\xe0")
    first = segment(0xDA, b"\1\1\0\0\0\0") + bytes((side // 8 + 1) ** 2 // 8 + 1)
    empty = segment(0xDA, b"\1\1\0\1\x3f\0") + b"\0\0"
    return begin + first + empty * (scans - 1) + b"\xff\xd9"
