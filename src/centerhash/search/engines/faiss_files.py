"""Files of faiss: binary codes that other programs wrote or will read.

Read and written here byte by byte, without faiss: such a file may come from anywhere, and a length in it is believed
only when the file is as long as it says.

    IBxF                 4 bytes, IndexBinaryFlat
    header               d int32, code size int32, items int64, trained uint8, metric int32
    codes                bytes int64, then one code after the other
    IBMp or IBM2         4 bytes, IndexBinaryIDMap or IDMap2: header, the flat index above, ids int64, then int64 each
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from centerhash.codes import Packed
from centerhash.core.errors import DataError, InputError
from centerhash.core.files import atomic, write_text
from centerhash.search.engines.base import HammingIndex, Id

FLAT, MAPS, MAP2 = b"IBxF", (b"IBMp", b"IBM2"), b"IBM2"
HEADER = struct.Struct("<iiqBi")
LENGTH = struct.Struct("<q")
HAMMING = 1  # what faiss writes as the metric of binary indexes; it has no meaning
AT_ONCE = 1 << 14  # items that are exported at a time


class _Header(NamedTuple):
    bits: int
    width: int
    items: int
    trained: int
    metric: int


def ids_file(path: str | Path) -> Path:
    """The file beside a faiss file that holds string ids, one per line: faiss itself has only integers."""
    return Path(f"{path}.ids.txt")


def import_faiss(path: str | Path) -> tuple[Packed, list[Id]]:
    """Return the codes (N, bytes) and ids of an IndexBinaryFlat, IndexBinaryIDMap or IndexBinaryIDMap2 file.

    Without ids of its own a file has those of `ids_file`, if that is there, else the positions 0, 1, 2, ...
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            return _read(stream, path)
    except FileNotFoundError:
        raise DataError(f"no such file: '{path}'.") from None
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from None


def _read(stream: IO[bytes], path: Path) -> tuple[Packed, list[Id]]:
    kind = stream.read(4)
    mapped = kind in MAPS
    if mapped:
        outer = _read_header(stream, path)
        kind = stream.read(4)
    if kind != FLAT:
        raise DataError(
            f"'{path}' begins with {kind!r}: only IndexBinaryFlat, and IndexBinaryIDMap or IDMap2 of it, can be "
            "imported, since others do not hold the codes in order. Convert it with faiss first."
        )
    header = _read_header(stream, path)
    if mapped and outer[:3] != header[:3]:
        raise _damaged(path, "its two headers contradict each other")
    codes = np.frombuffer(_read_vector(stream, path, header.items * header.width, 1), np.uint8)
    packed = codes.reshape(header.items, header.width)
    ids: list[Id]
    if mapped:
        ids = np.frombuffer(_read_vector(stream, path, header.items, 8), "<i8").tolist()
    else:
        ids = _beside(path, header.items)
    if stream.read(1):
        raise _damaged(path, "something follows its end")
    return packed, ids


def _read_header(stream: IO[bytes], path: Path) -> _Header:
    """Read d, code size and number of items, which must fit to each other."""
    header = _Header(*HEADER.unpack(_read_bytes(stream, path, HEADER.size)))
    if header.bits < 8 or header.bits != 8 * header.width or header.items < 0:
        raise _damaged(
            path, f"it claims {header.items:,} codes of {header.bits} bits in {header.width} bytes each"
        )
    return header


def _read_vector(stream: IO[bytes], path: Path, count: int, size: int) -> bytes:
    """Read `count` values of `size` bytes behind their number."""
    (claimed,) = LENGTH.unpack(_read_bytes(stream, path, LENGTH.size))
    if claimed != count:
        raise _damaged(path, f"it claims {claimed:,} values where {count:,} belong")
    return _read_bytes(stream, path, count * size)


def _read_bytes(stream: IO[bytes], path: Path, size: int) -> bytes:
    """Read exactly that many bytes, which are asked for only if the file has them."""
    left = path.stat().st_size - stream.tell()
    if left < size:
        raise _damaged(path, f"it ends {size - left:,} bytes too early")
    return stream.read(size)


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"'{path}' is damaged, or no file of faiss: {reason}. Write it again.")


def _beside(path: Path, count: int) -> list[Id]:
    """The ids of a file that has none."""
    try:
        lines = ids_file(path).read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return list(range(count))
    except UnicodeDecodeError as error:
        raise DataError(f"'{ids_file(path)}' is no UTF-8 text: {error}.") from None
    if len(lines) != count:
        raise DataError(f"'{ids_file(path)}' has {len(lines):,} lines for {count:,} codes: one id per line.")
    return list(lines)


def export_faiss(index: HammingIndex, path: str | Path) -> None:
    """Write the codes of an index, in the order of their ids, as a file that faiss reads.

    Integer ids are stored in it (IndexBinaryIDMap2). String ids become the positions of an IndexBinaryFlat, and are
    written to `ids_file`. faiss counts bits by eights: codes of other lengths end in zeros. Labels and paths stay out.
    """
    ids = list(index.ids())
    integers = not ids or isinstance(ids[0], int)
    if not integers:
        write_text(ids_file(path), "".join(f"{_line(id)}\n" for id in ids))
    width = (index.bits + 7) // 8
    header = HEADER.pack(8 * width, width, len(ids), 1, HAMMING)
    with atomic(path) as stream:
        if integers:
            stream.write(MAP2 + header)
        stream.write(FLAT + header + LENGTH.pack(len(ids) * width))
        for codes in _codes(index, ids):
            stream.write(codes.tobytes())
        if integers:
            stream.write(LENGTH.pack(len(ids)) + np.array(ids, "<i8").tobytes())


def _line(id: Id) -> str:
    if "\n" in str(id) or "\r" in str(id):
        raise InputError(
            f"the id {id!r} has a line break, but ids are exported one per line: rename the item."
        )
    return str(id)


def _codes(index: HammingIndex, ids: list[Id]) -> Iterator[Packed]:
    """The codes of all items, some at a time."""
    left = iter(ids)
    while some := list(islice(left, AT_ONCE)):
        yield np.stack([item.code for item in index.get(some)])
