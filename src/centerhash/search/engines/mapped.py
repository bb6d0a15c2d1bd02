"""Named arrays in one file that is mapped, not read: a header with a checksum of its own, and one for each array.

Opening checks the header and the length of the file, in no time; `damage` reads every byte.

    8 bytes    magic
    4 + 4      length of the header, and its checksum
    header     json, padded with blanks: {"arrays": {name: [type, shape, offset, bytes, checksum]}, "bytes": ...}
    arrays     each padded with zeros to a multiple of 64 bytes; checksums cover the padding
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.core.files import atomic

MAGIC = b"CHARRAY1"
PREFIX = struct.Struct("<8sII")
ALIGNMENT = 64
CHUNK = 1 << 24  # bytes that a checksum takes at a time
ADVICE = "restore it from a backup, or create the index again"


@dataclass(frozen=True)
class Mapped:
    """The arrays of a file, the checksum of its header, which stands for all of its bytes, and their number."""

    arrays: Mapping[str, NDArray[Any]]
    checksum: int
    bytes: int


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> int:
    """Write the arrays, whole or not at all, and return the checksum of the header."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = _header(contiguous)
    with atomic(path) as stream:
        stream.write(PREFIX.pack(MAGIC, len(header), crc32(header)))
        stream.write(header)
        for array in contiguous.values():
            stream.write(_bytes(array))
            stream.write(bytes(_padding(array.nbytes)))
    return crc32(header)


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _padding(size: int) -> int:
    return -size % ALIGNMENT


def _checksum(array: NDArray[Any]) -> int:
    return crc32(bytes(_padding(array.nbytes)), crc32(_bytes(array)))


def _header(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The padded header; its own length decides the offsets, so these count from its end."""
    entries, end = {}, 0
    for name, array in arrays.items():
        size = array.nbytes + _padding(array.nbytes)
        entries[name] = [array.dtype.str, list(array.shape), end, size, _checksum(array)]
        end += size
    text = json.dumps({"arrays": entries, "bytes": end}).encode()
    return text + b" " * _padding(PREFIX.size + len(text))


def map_arrays(path: Path) -> Mapped:
    """Map the arrays of a file, or raise DataError if it is missing, cut or has a damaged header."""
    return _arrays(*_opened(path))


def _opened(path: Path) -> tuple[mmap.mmap, bytes]:
    """The mapped file and its header, both checked as far as it costs nothing."""
    content = _map(path)
    if len(content) < PREFIX.size:
        raise _damaged(path, f"it has only {len(content)} bytes")
    magic, length, checksum = PREFIX.unpack_from(content)
    start = PREFIX.size + length
    header = content[PREFIX.size : start]
    if magic != MAGIC or len(header) != length or crc32(header) != checksum:
        raise _damaged(path, "its header does not match its checksum")
    size = start + json.loads(header)["bytes"]
    if len(content) != size:
        raise _damaged(path, f"it has {len(content):,} bytes, not {size:,}")
    return content, header


def _arrays(content: mmap.mmap, header: bytes) -> Mapped:
    start = PREFIX.size + len(header)
    arrays = {
        name: np.frombuffer(content, dtype, int(np.prod(shape)), start + offset).reshape(shape)
        for name, (dtype, shape, offset, _, _) in json.loads(header)["arrays"].items()
    }
    return Mapped(arrays, crc32(header), len(content))


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise DataError(f"'{path}' is missing: {ADVICE}.") from None
    except ValueError:  # an empty file cannot be mapped
        raise _damaged(path, "it is empty") from None
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from None


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"'{path}' is damaged: {reason}. Next: {ADVICE}.")


def damage(path: Path, checksum: int) -> str | None:
    """Read the whole file and say what is wrong with it, if anything; `checksum` is that of its header."""
    try:
        content, header = _opened(path)
    except DataError as error:
        return str(error)
    if crc32(header) != checksum:
        return str(_damaged(path, "it is not the file that the index wrote"))
    for name, (_, _, offset, size, stored) in json.loads(header)["arrays"].items():
        begin = PREFIX.size + len(header) + offset
        found = 0
        for top in range(begin, begin + size, CHUNK):
            found = crc32(content[top : min(top + CHUNK, begin + size)], found)
        if found != stored:
            return str(_damaged(path, f"`{name}` does not match its checksum"))
    return None
