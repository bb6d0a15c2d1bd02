"""Two hundred uploads that no honest client sends; the same ones each time."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from tests.serve.toys import encoded, png_header
from tests.toys import noise_image

KINDS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM")
COUNT = 200


def malformed() -> Iterator[bytes]:
    """Bytes to send as a picture."""
    made = [*foreign(), *bombs()]
    yield from made
    generator = np.random.default_rng(20)
    sound = [encoded(noise_image(40, seed), kind) for seed, kind in enumerate(KINDS)]
    for number in range(COUNT - len(made)):
        yield mutated(sound[number % len(sound)], generator)


def mutated(data: bytes, generator: np.random.Generator) -> bytes:
    """A sound picture, damaged in one of five ways, mostly in its header."""
    damaged = bytearray(data)
    way = int(generator.integers(5))
    head = min(len(data), 96)
    if way == 0:  # some bytes of the header are others
        for place in generator.integers(0, head, size=4):
            damaged[place] = int(generator.integers(256))
    elif way == 1:  # cut off
        del damaged[int(generator.integers(1, len(data))) :]
    elif way == 2:  # a number becomes huge
        place = int(generator.integers(2, head - 4))
        damaged[place : place + 4] = b"\xff\xff\xff\x7f"
    elif way == 3:  # a piece is missing
        place = int(generator.integers(2, head))
        del damaged[place : place + int(generator.integers(1, 40))]
    else:  # a piece comes twice
        place = int(generator.integers(2, head))
        damaged[place:place] = damaged[: int(generator.integers(1, 60))]
    return bytes(damaged)


def foreign() -> list[bytes]:
    """What is no picture at all."""
    return [
        b"",
        b"\0",
        b"\n" * 5000,
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
        b"%PDF-1.7\n%%EOF",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
        b"PK\x03\x04" + bytes(60),
        b"\x7fELF" + bytes(60),
        b"GIF89a",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\xff\xff\xff\xffWEBPVP8 ",
        b"BM" + b"\xff" * 60,
        b"P6 99999999 99999999 255 ",
        b"P6 " + b"9" * 5000 + b" 1 255 ",
        b"II*\0\x08\0\0\0\xff\xff" + b"\x01\x01\x04\0\xff\xff\xff\xff\0\0\0\0" * 40,
        bytes(2_000_000),
    ]


def bombs() -> list[bytes]:
    """Small files that stand for huge pictures."""
    data = zlib.compress(bytes(3_000_000))
    body = struct.pack(">I", len(data)) + b"IDAT" + data + struct.pack(">I", zlib.crc32(b"IDAT" + data))
    text = zlib.compress(bytes(50_000_000))
    note = b"zTXt" + b"k\0\0" + text
    chunk = struct.pack(">I", len(note) - 4) + note + struct.pack(">I", zlib.crc32(note))
    frames = io.BytesIO()
    Image.new("P", (8, 8)).save(
        frames, "GIF", save_all=True, append_images=[Image.new("P", (8, 8), n) for n in range(1, 200)]
    )
    return [
        png_header(60_000, 60_000) + body,
        png_header(2**31 - 1, 2**31 - 1) + body,
        png_header(0, 5) + body,
        png_header(9_000, 9_000) + body,
        png_header(8, 8) + chunk + body,
        b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(200),
        frames.getvalue(),
    ]
