"""Reading the codes of a binary index of faiss: those that keep codes whole, alone or under ids of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.codes import Packed, check_packed, packed_width
from centerhash.core.errors import DataError, InputError
from centerhash.core.extras import require

MAGIC = b"IB"  # that files of all binary indexes begin with
FILE, IDS = "codes.faiss", "ids.json"  # of an exported folder


def is_faiss(path: Path) -> bool:
    """Whether a file is one of faiss, by its name or its first bytes."""
    if path.suffix == ".faiss" or not path.is_file():
        return path.suffix == ".faiss"
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_faiss(path: Path, bits: int) -> tuple[Packed, list[str]]:
    """The codes (N, ceil(K/8)) and names of an IndexBinaryFlat, of one under an IndexBinaryIDMap or an HNSW graph.

    Names are those in an ids.json beside it, else the ids of a map, else the file and the row: codes-0, codes-1 ...
    """
    faiss = require("faiss")
    try:
        stored = faiss.deserialize_index_binary(np.fromfile(path, np.uint8))
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from None
    except RuntimeError as error:
        reason = str(error).rpartition("Error: ")[2].splitlines()[0][:200]
        raise DataError(f"'{path}' is no binary index of faiss, or it is damaged: {reason}") from None
    mapped = isinstance(stored, faiss.IndexBinaryIDMap)
    inner = faiss.downcast_IndexBinary(stored.index) if mapped else stored
    if isinstance(inner, faiss.IndexBinaryHNSW):
        inner = faiss.downcast_IndexBinary(inner.storage)
    if not isinstance(inner, faiss.IndexBinaryFlat):
        raise DataError(
            f"'{path}' holds an {type(inner).__name__}, which does not keep codes in their order: what can be imported "
            "is an IndexBinaryFlat, alone or under an IndexBinaryIDMap or IndexBinaryHNSW. Write the codes as one."
        )
    if inner.d != 8 * packed_width(bits):
        raise DataError(f"'{path}' holds codes of {inner.d} bits, the index of {bits}: encode by its model.")
    packed = faiss.vector_to_array(inner.xb).reshape(inner.ntotal, -1)
    try:
        check_packed(packed, bits)
    except InputError as error:
        raise DataError(f"'{path}': {error}") from None
    ids = faiss.vector_to_array(stored.id_map).tolist() if mapped else None
    return packed, _names(path, len(packed), ids)


def _names(path: Path, count: int, ids: list[int] | None) -> list[str]:
    """A name for each code."""
    beside = path.with_name(IDS)
    if path.name == FILE and beside.is_file():
        named: Any = json.loads(beside.read_text(encoding="utf-8"))
        rows = range(count) if ids is None else ids
        if not isinstance(named, list) or any(not 0 <= row < len(named) for row in rows):
            raise DataError(f"'{beside}' does not name the {count:,} codes of '{path}': export them again.")
        return [str(named[row]) for row in rows]
    return [f"{path.stem}-{row}" for row in range(count)] if ids is None else list(map(str, ids))
