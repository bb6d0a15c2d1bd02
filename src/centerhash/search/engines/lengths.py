"""How much of a journal was acknowledged, in a file beside it: a journal that was cut is told from one that is short.

The file has two slots, of the journal in place and of the one that is to take its place; a journal is known by the
checksum of its first record. A record is on the disk before its journal's length says so, and readers look no further
than that: what a failed write has left is never seen.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from centerhash.core.files import explain_write_errors

NAME = "journal.length"
SLOT = struct.Struct("<4sIQI")  # mark, key of the journal, length, withdrawals
CHECKSUM = struct.Struct("<I")
MARK = b"\xc7CHL"
APART = 512  # bytes between slots: one write never touches both
SLOTS = 2


class Noted(NamedTuple):
    """The length up to which all records of a journal are acknowledged, and how often a failed write was withdrawn."""

    length: int
    withdrawn: int = 0


def noted(path: Path, key: int) -> Noted | None:
    """What is noted of the journal of this key; None where nothing is, or it is damaged."""
    return next((found for known, found in _slots(path) if known == key), None)


def note(path: Path, key: int, what: Noted, kept: int | None = None) -> None:
    """Note the length of a journal durably; the slot of the journal `kept` stays as it is."""
    with explain_write_errors(path):
        keys = [known for known, _ in _slots(path)]
        place = keys.index(key) if key in keys else int(keys[0] == kept)
        header = SLOT.pack(MARK, key, *what)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as stream:
            if os.fstat(stream.fileno()).st_size < SLOTS * APART:
                stream.truncate(SLOTS * APART)
            stream.seek(place * APART)
            stream.write(header + CHECKSUM.pack(crc32(header)))
            os.fsync(stream.fileno())


def _slots(path: Path) -> list[tuple[int | None, Noted]]:
    """The key and the content of each slot; None where it is empty or damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    return [_slot(content[place * APART :]) for place in range(SLOTS)]


def _slot(content: bytes) -> tuple[int | None, Noted]:
    if len(content) < SLOT.size + CHECKSUM.size:
        return None, Noted(0)
    mark, key, length, withdrawn = SLOT.unpack_from(content)
    (checksum,) = CHECKSUM.unpack_from(content, SLOT.size)
    sound = mark == MARK and checksum == crc32(content[: SLOT.size])
    return (key if sound else None), Noted(length, withdrawn)
