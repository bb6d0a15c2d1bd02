"""A small index that knows pictures by their mean colours, and ways to talk to its server."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from centerhash.data.images import load_pixels
from centerhash.search import Index
from tests.toys import WIDTH, noise_image

TOKEN = "correct horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class ColourNetwork:
    """Stands for the network, which takes a second to load: features (n, D) from the colours of nine fields."""

    def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        mixing = np.random.default_rng(5).normal(size=(27, WIDTH))
        fields = np.stack([image.reshape(3, 8, 3, 8, 3).mean(axis=(1, 3)).ravel() for image in pixels])
        return ((fields / 128 - 1) @ mixing).astype(np.float32)


class ColourEncoder:
    """Reads images for it."""

    engine = ColourNetwork()

    def pixels(self, image: bytes) -> NDArray[np.uint8]:
        return load_pixels(image, 24, 24)

    def views(self, image: bytes) -> NDArray[np.uint8]:
        return self.pixels(image)[None]

    def features(self, images: Sequence[bytes]) -> NDArray[np.float32]:
        return self.engine.features(np.stack([self.pixels(image) for image in images]))


def colour_index(folder: Path, run: Path, count: int = 0) -> Index:
    """A new index of `count` pictures."""
    index = Index.create(folder, run)
    index.encoder = ColourEncoder  # type: ignore[assignment,method-assign]
    for seed in range(count):
        index.add_bytes(png(seed))
    return index


def ids_of(index: Index) -> list[str]:
    """The ids of all items, in order."""
    return sorted(str(item.id) for item in index)


def png(seed: int = 0, size: int = 48) -> bytes:
    """A picture, a different one per seed."""
    return encoded(noise_image(size, seed))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG of any size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def upload(data: bytes, name: str = "photo.png") -> dict[str, Any]:
    """The argument of an HTTP client that sends a picture."""
    return {"image": (name, data, "application/octet-stream")}


def multipart(data: bytes) -> tuple[bytes, str]:
    """The body and the content type of an upload."""
    head = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    return head + data + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge"


async def call(
    app: Any,
    method: str,
    path: str,
    body: bytes | AsyncIterator[bytes] | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """One request straight to the application; a body in pieces has no Content-Length."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
        return await client.request(method, path, content=body, headers=headers)


def error_of(answer: httpx.Response) -> str:
    """The text of an error, of which there is one shape."""
    (error,) = answer.json().values()
    assert list(answer.json()) == ["error"]
    return str(error)
