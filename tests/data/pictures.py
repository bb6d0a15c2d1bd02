"""Pictures for the tests of reading them."""

from __future__ import annotations

import io
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
