"""Thumbnails of photos."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from centerhash.data.images import load_image


def thumbnail(path: str | Path, side: int, format: str = "JPEG") -> bytes:
    """Return a thumbnail of an image file; its longer side has at most `side` pixels."""
    image, stream = load_image(path, at_least=side), io.BytesIO()
    image.thumbnail((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
    image.save(stream, format, quality=75)
    return stream.getvalue()
