"""Small pictures of photos, and the default index of a folder of pictures."""

from __future__ import annotations

import io
import os
from hashlib import blake2b
from pathlib import Path

from PIL import Image

from centerhash.data.images import load_image
from centerhash.index import is_index
from centerhash.networks.cache import default_cache


def thumbnail(path: str | Path, side: int, format: str = "JPEG") -> bytes:
    """Return a small picture of an image file, its longer side of `side` pixels."""
    image, stream = load_image(path, at_least=side), io.BytesIO()
    image.thumbnail((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
    image.save(stream, format, quality=75)
    return stream.getvalue()


def default_folder(pictures: str | Path) -> Path:
    """Return the folder of the default index of a folder of pictures.

    It is `photos.index` next to `photos`, or in the cache if that place is not writable or holds something else.
    """
    home = Path(pictures).resolve()
    name = f"{home.name or 'images'}.index"
    beside = home.parent / name
    digest = blake2b(os.fsencode(home), digest_size=4).hexdigest()
    cached = default_cache() / "indexes" / digest / name
    if is_index(beside) and os.access(beside, os.W_OK):
        return beside
    is_free = not beside.exists() and os.access(home.parent, os.W_OK)
    return beside if is_free and not is_index(cached) else cached
