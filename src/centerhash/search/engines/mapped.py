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
import math
import mmap
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any
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
_MOST = 0xFFFFFFFF  # the longest checksum in decimals
ADVICE = "restore it from a backup, or create the index again"


@dataclass(frozen=True)
class Mapped:
    """The arrays of a file, the checksum of its header, which stands for all of its bytes, and their number."""

    arrays: Mapping[str, Checked]
    checksum: int
    bytes: int


@dataclass(frozen=True)
class Column:
    """An array (n, ...) that is made a few rows at a time while it is written: it is never whole in memory."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[NDArray[Any]]]


def write_arrays(path: Path, arrays: Mapping[str, Array | Column]) -> int:
    """Write the arrays, whole or not at all, and return the checksum of the header."""
    columns = {name: _column(array) for name, array in arrays.items()}
    blocks = sum(-(-_stored_bytes(column) // BLOCK) for column in columns.values())
    sums = np.empty(blocks, np.uint32)
    columns[SUMS] = _column(sums)  # the last: by then they are known
    room, checksums, known = len(_header(columns, dict.fromkeys(columns, _MOST))), dict[str, int](), 0
    with atomic(path) as stream:
        stream.seek(PREFIX.size + room)
        for name, column in columns.items():
            checksums[name], found = _written(stream, column)
            if name != SUMS:
                sums[known : known + len(found)] = found
                known += len(found)
        header = _header(columns, checksums).ljust(room)
        stream.seek(0)
        stream.write(PREFIX.pack(MAGIC, len(header), crc32(header)) + header)
    return crc32(header)


def _column(array: Array | Column) -> Column:
    if isinstance(array, Column):
        return array
    whole = np.ascontiguousarray(array)
    return Column(whole.dtype, whole.shape, lambda: [whole])


def _stored_bytes(column: Column) -> int:
    """The bytes of a column with its padding."""
    size = math.prod(column.shape) * column.dtype.itemsize
    return size + _padding(size)


def _padding(size: int) -> int:
    return -size % ALIGNMENT


def _written(stream: IO[bytes], column: Column) -> tuple[int, NDArray[np.uint32]]:
    """Write a column and its padding; return the checksum of both, and the sums of their blocks."""
    checksum, size, rest, sums = 0, 0, np.empty(0, np.uint8), [np.empty(0, np.uint32)]

    def write(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Write bytes and return those of them that are no whole block yet, after the rest of those before."""
        nonlocal checksum, size
        stream.write(content.data)
        checksum, size = crc32(content.data, checksum), size + content.size
        content = np.concatenate([rest, content]) if rest.size else content
        whole = content.size // BLOCK * BLOCK
        sums.append(block_sums(content[:whole]))
        return content[whole:]

    for block in column.blocks():
        rest = write(np.ascontiguousarray(block).reshape(-1).view(np.uint8))
    rest = write(np.zeros(_padding(size), np.uint8))
    assert size == _stored_bytes(column)
    return checksum, np.concatenate([*sums, block_sums(rest)])


def _header(columns: Mapping[str, Column], checksums: Mapping[str, int]) -> bytes:
    """The padded header; its own length decides the offsets, so these count from its end."""
    entries, end = {}, 0
    for name, column in columns.items():
        size = _stored_bytes(column)
        entries[name] = [column.dtype.str, list(column.shape), end, size, checksums[name]]
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
        if crc32(memoryview(content)[begin : begin + size]) != stored:
            return str(_damaged(path, f"`{name}` does not match its checksum"))
    return None
