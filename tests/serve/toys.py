"""A small index that knows pictures by their mean colours, and ways to talk to its server."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray
from PIL import Image

from centerhash.data.images import load_pixels
from centerhash.search import Index
from tests.toys import WIDTH, noise_image

TOKEN = "correct horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class ColourEncoder:
    """Stands for the network, which takes a second to load: features (n, D) from the colours of nine fields."""

    def features(self, images: Sequence[bytes]) -> NDArray[np.float32]:
        pixels = [load_pixels(image, 24, 24) for image in images]
        mixing = np.random.default_rng(5).normal(size=(27, WIDTH))
        fields = np.stack([image.reshape(3, 8, 3, 8, 3).mean(axis=(1, 3)).ravel() for image in pixels])
        return ((fields / 128 - 1) @ mixing).astype(np.float32)


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


@dataclass
class Reply:
    """What an application answered, and how much of the request it has read."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    read: int = 0

    @property
    def error(self) -> str:
        message = json.loads(self.body)
        assert list(message) == ["error"]
        return str(message["error"])


async def call(
    app: FastAPI,
    method: str,
    path: str,
    body: Iterable[bytes] | AsyncIterator[bytes] = (),
    headers: dict[str, str] | None = None,
) -> Reply:
    """One request straight to the application, with a body in pieces and without Content-Length unless given."""
    reply = Reply()
    pieces = body if isinstance(body, AsyncIterator) else _pieces(body)

    async def receive() -> dict[str, Any]:
        try:
            piece = await anext(pieces)
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}
        reply.read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": True}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    name, _, query = path.partition("?")
    sent = {"host": "localhost", **(headers or {})}
    if method == "POST" and "content-length" not in sent:
        sent["transfer-encoding"] = "chunked"
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": name,
        "raw_path": name.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(key.lower().encode(), value.encode()) for key, value in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return reply


async def _pieces(body: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in body:
        await asyncio.sleep(0)
        yield piece
