"""What a JPEG costs to decode, from its markers alone."""

from __future__ import annotations

import re
from typing import IO

MAX_SCANS = 100  # encoders write 1 to about 20; each is a pass over the whole picture, however small

_SCAN = b"\xff\xda"
_PIECE = 1 << 20
_END = 0xD9
# a marker: 0xFF and a code, where 0xFF 0x00 is a pixel's byte, 0xFF 0xD0..0xD7 a restart, and 0xFF 0xFF filling
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
_BARE = frozenset({0x01, 0xD8})  # markers without a length: TEM, SOI


def count_scans(stream: IO[bytes]) -> int:
    """How many scans a JPEG has, up to its end marker; exact only where they are more than MAX_SCANS."""
    stream.seek(0)
    seen, last = 0, b""
    while piece := stream.read(_PIECE):
        seen += (last + piece).count(_SCAN)
        last = piece[-1:]
    if seen <= MAX_SCANS:  # nearly all files: counting bytes takes no time
        return seen
    stream.seek(0)
    return _walk(stream.read())


def _walk(data: bytes) -> int:
    """Follow the markers: a thumbnail or a film that is kept inside or behind the picture does not count."""
    scans, place = 0, 0
    while (found := _MARKER.search(data, place)) is not None and data[found.start(1)] != _END:
        code, place = data[found.start(1)], found.end()
        scans += code == _SCAN[1]
        if code not in _BARE:
            place += int.from_bytes(data[place : place + 2], "big")
    return scans
