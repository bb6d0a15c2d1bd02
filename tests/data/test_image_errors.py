"""Images that cannot be read."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import ImageError
from centerhash.data.images import load_image
from tests.data.pictures import encoded, photo, reason


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    tiny = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", tiny) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gone.jpg", "No such file"),
        ("folder.jpg", "no regular file"),
        ("empty.jpg", "0 bytes"),
        ("pipe.jpg", "no regular file"),
        ("a\0.jpg", "null byte"),
        ("x" * 300, "name too long"),
        ("text.jpg", "not an image of a known format (JPEG, PNG, "),
    ],
)
def test_load_image_bad_file(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("no image")
    os.mkfifo(tmp_path / "pipe.jpg")
    text = reason(tmp_path / name)
    assert fault in text
    assert name in text


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "0 bytes"),
        (b"\0" * 100, "known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "known format"),
        (b"%PDF-1.4\n", "known format"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "broken PNG file"),
        (png_header(50_000, 50_000), "2,500,000,000 pixels"),
    ],
)
def test_load_image_bad_bytes(data: bytes, fault: str) -> None:
    assert fault in reason(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_load_image_truncated(kind: str) -> None:
    data = encoded(photo(60, 50), kind)
    for share in (0.02, 0.1, 0.5, 0.8):
        assert reason(data[: max(4, int(len(data) * share))]).startswith("cannot read image bytes: "), share


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_load_image_damaged(kind: str) -> None:
    data = encoded(photo(30, 20), kind)
    generator = np.random.default_rng(0)
    for _ in range(60):
        broken = np.frombuffer(data, np.uint8).copy()
        positions = generator.integers(4, len(broken), size=8)
        broken[positions] = generator.integers(0, 256, size=8)
        try:
            loaded = load_image(broken.tobytes(), max_pixels=1_000_000)
        except ImageError as error:
            assert str(error).startswith("cannot read image bytes: ")  # noqa: PT017
        else:
            assert loaded.mode == "RGB"
