"""Small images for the page, made once and kept in bounded memory."""

from __future__ import annotations

import hashlib
import io
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from PIL import Image

from centerhash.data.images import load_image

SIDE = 360  # pixels of the longer side: sharp in a grid cell on a phone with two dots per pixel


@dataclass(frozen=True)
class Thumbnail:
    """An encoded small image, and the tag by which a browser knows that it has it already."""

    data: bytes
    etag: str
    media_type: str = "image/webp"


def make_thumbnail(path: Path) -> Thumbnail:
    """Decode, shrink and encode one image; ImageError where it cannot be read."""
    image = load_image(path, at_least=SIDE)
    image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0)
    stream = io.BytesIO()
    image.save(stream, "WEBP", quality=80, method=2)
    data = stream.getvalue()
    return Thumbnail(data, f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"')


class ThumbnailCache:
    """The thumbnails used last, up to a number of bytes; for several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Thumbnail] = OrderedDict()
        self._lock = Lock()
        self.size = 0  # bytes in use

    def get(self, key: str) -> Thumbnail | None:
        """The thumbnail of `key`, if it is kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: str, thumbnail: Thumbnail) -> None:
        """Keep a thumbnail, and let go of those unused for longest."""
        with self._lock:
            self._drop(key)
            self._kept[key] = thumbnail
            self.size += len(thumbnail.data)
            while self.size > self._max_bytes:
                self._drop(next(iter(self._kept)))

    def forget(self, key: str) -> None:
        """Let go of one thumbnail: its image was removed."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        dropped = self._kept.pop(key, None)
        self.size -= len(dropped.data) if dropped is not None else 0
