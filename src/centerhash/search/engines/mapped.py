"""Named arrays in one file that is mapped, not read: a header with a checksum of its own, one for each array and block.

Opening checks the header, the length of the file and the sums of its blocks, in no time; a block is checked when it is
first read (see `checked`), and `damage` reads every byte.

    8 bytes    magic
    4 + 4      length of the header, and its checksum
    header     json, padded with blanks: {"arrays": {name: [type, shape, offset, bytes, checksum]}, "bytes": ...}
    arrays     each padded with zeros to a multiple of 64 bytes; checksums cover the padding
    `blocks`   the last array: the sums of all blocks of the others, in their order; not in files of earlier versions
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.core.files import atomic
from centerhash.search.engines.checked import BLOCK, Array, Checked, block_sum, block_sums

MAGIC = b"CHARRAY2"
UNSUMMED = b"CHARRAY1"  # of earlier versions, without sums of blocks
SUMS = "blocks"
PREFIX = struct.Struct("<8sII")
ALIGNMENT = 64
CHUNK = 1 << 24  # bytes that a checksum takes at a time
ADVICE = "restore it from a backup, or create the index again"


@dataclass(frozen=True)
class Mapped:
    """The arrays of a file, the checksum of its header, which stands for all of its bytes, and their number."""

    arrays: Mapping[str, Checked]
    checksum: int
    bytes: int


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> int:
    """Write the arrays, whole or not at all, and return the checksum of the header."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    sums = [_padded_sums(array) for array in contiguous.values()]
    contiguous[SUMS] = np.concatenate([np.empty(0, np.uint32), *sums])
    header = _header(contiguous)
    with atomic(path) as stream:
        stream.write(PREFIX.pack(MAGIC, len(header), crc32(header)))
        stream.write(header)
        for array in contiguous.values():
            stream.write(_bytes(array))
            stream.write(bytes(_padding(array.nbytes)))
    return crc32(header)


def _padded_sums(array: NDArray[Any]) -> NDArray[np.uint32]:
    """The sums of the blocks of an array and its padding, of which only the last block knows."""
    content = array.reshape(-1).view(np.uint8)
    last = content.size // BLOCK * BLOCK
    padded = np.concatenate([content[last:], np.zeros(_padding(content.size), np.uint8)])
    return np.concatenate([block_sums(content[:last]), block_sums(padded)])


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
    content, header = _opened(path)
    start, summed = PREFIX.size + len(header), content[:8] == MAGIC
    everything = np.frombuffer(content, np.uint8)
    try:
        entries = json.loads(header)["arrays"]
        arrays, parts = dict[str, NDArray[Any]](), dict[str, NDArray[np.uint8]]()
        for name, (dtype, shape, offset, size, _) in entries.items():
            arrays[name] = np.frombuffer(content, dtype, int(np.prod(shape)), start + offset).reshape(shape)
            parts[name] = everything[start + offset : start + offset + size]
        if not summed:
            of_arrays = {name: np.array([entry[4]], np.uint32) for name, entry in entries.items()}
            return Mapped(_checked(path, arrays, parts, of_arrays), crc32(header), len(content))
        sums = arrays.pop(SUMS)
        if crc32(parts[SUMS].data) != entries[SUMS][4]:
            raise _damaged(path, f"`{SUMS}` does not match its checksum")
    except DataError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, f"its header makes no sense ({error})") from None
    edges = np.cumsum([-(-parts[name].size // BLOCK) for name in arrays])[:-1]
    by_name = dict(zip(arrays, np.split(sums, edges), strict=True))
    return Mapped(_checked(path, arrays, parts, by_name, BLOCK), crc32(header), len(content))


def _checked(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    parts: Mapping[str, NDArray[np.uint8]],
    sums: Mapping[str, NDArray[np.uint32]],
    block: int | None = None,
) -> dict[str, Checked]:
    """Arrays that are checked by the sums of their blocks; without a size of these, by one checksum of everything."""
    return {
        name: Checked(
            array,
            parts[name],
            sums[name][: len(sums[name]) if parts[name].size else 0],
            partial(_damaged, path, f"`{name}` does not match its checksum"),
            *((parts[name].size, crc32) if block is None else (block, block_sum)),
        )
        for name, array in arrays.items()
    }


def _opened(path: Path) -> tuple[mmap.mmap, bytes]:
    """The mapped file and its header, both checked as far as it costs nothing."""
    content = _map(path)
    if len(content) < PREFIX.size:
        raise _damaged(path, f"it has only {len(content)} bytes")
    magic, length, checksum = PREFIX.unpack_from(content)
    start = PREFIX.size + length
    header = content[PREFIX.size : start]
    if magic not in (MAGIC, UNSUMMED) or len(header) != length or crc32(header) != checksum:
        raise _damaged(path, "its header does not match its checksum")
    size = start + json.loads(header)["bytes"]
    if len(content) != size:
        raise _damaged(path, f"it has {len(content):,} bytes, not {size:,}")
    return content, header


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
