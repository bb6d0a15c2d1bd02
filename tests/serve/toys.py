"""Requests and images for the tests of the server."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

SAMPLES = Path(__file__).parents[2] / "examples" / "photos"
PASSWORD = "correct horse"
BEARER = {"Authorization": f"Bearer {PASSWORD}"}


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG of any size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def upload(data: bytes, name: str = "photo.png") -> dict[str, Any]:
    """The argument of an HTTP client that sends an image."""
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
    """Send one request straight to the application; a body in pieces has no Content-Length."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
        return await client.request(method, path, content=body, headers=headers)


def error_of(answer: httpx.Response) -> str:
    """The text of an error, which always has one shape."""
    assert list(answer.json()) == ["error"]
    return str(answer.json()["error"])
