"""Pictures for the tests of photos, and changes of them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from centerhash.data import content_key


def picture(seed: int, side: int = 200) -> Image.Image:
    """Return a picture with coarse and fine structure, a different one per seed."""
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


def save(path: Path, image: Image.Image, taken: str = "") -> Path:
    """Write an image with a date in its EXIF data, and return its path."""
    exif = Image.Exif()
    if taken:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif, quality=90)
    return path


def save_many(folder: Path, count: int) -> list[Path]:
    """Write `count` different pictures, 0.png, 1.png, ..."""
    return [save(folder / f"{number}.png", picture(number, 48)) for number in range(count)]


def id_of(path: Path) -> str:
    """Return the id of the photo in a file."""
    return content_key(path)[:16]


def recompressed(image: Image.Image) -> Image.Image:
    """Return an image after a JPEG of low quality."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=50)
    return Image.open(stream).convert("RGB")


def screenshot(image: Image.Image) -> Image.Image:
    """Return an image between the bars of a phone's screen, with a clock."""
    canvas = Image.new("RGB", (240, 420), (16, 16, 16))
    canvas.paste(image.resize((240, 200)), (0, 110))
    canvas.paste((220, 220, 220), (8, 6, 40, 14))
    return canvas


def set_time(path: Path, seconds: float) -> None:
    """Set when a file was modified."""
    os.utime(path, (seconds, seconds))
