"""All items of an index for other programs: numpy, DuckDB and all that reads parquet, faiss, PostgreSQL.

    npz         one code file, for `import_codes` and `centerhash evaluate`, with looks, presences and shares
    npy         a folder: codes.npy (N, ceil(K/8)) uint8, and items.jsonl with id, labels and path of every row
    parquet     one file: id, code (ceil(K/8) bytes), labels (list of text), path
    faiss       a folder: codes.faiss, whose ids are rows, and ids.json, the id of every row
    pgvector    a folder: items.copy for COPY, with create.sql and query.sql

Items stand in the order of their ids. The most significant bit comes first, +1 is 1 and -1 is 0; in bytes, bits past K
are 0. A path that is no Unicode text has its strange bytes as \\udc.. everywhere but in npz.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from centerhash.codes import Packed, packed_width
from centerhash.core.errors import ConfigError, DataError, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import atomic, atomic_folder, write_text
from centerhash.core.progress import Progress
from centerhash.core.version import __version__
from centerhash.search.engines.base import Item
from centerhash.search.transfer import FAISS, IDS, export_codes

if TYPE_CHECKING:
    from centerhash.search.index import Index

_FILES = ("npz", "parquet")  # all others are folders
_PAGE = 10_000  # items between two steps of the bar, and of a row group
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})  # of COPY's text format


class Row(NamedTuple):
    """What other programs get of an item."""

    id: str
    code: bytes
    labels: tuple[str, ...]
    path: str | None


Writer: TypeAlias = Callable[[Iterator[Row], Path, int], None]  # rows, file or folder, bits


def export_items(index: Index, out: Path, to: str, report: Progress) -> int:
    """Write all items in the format `to`, whole or not at all, and return how many there are."""
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    if to not in _FILES and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"'{out}' is there already and is not empty: name a new folder for the export.")
    done = 0

    def items() -> Iterator[Item]:
        nonlocal done
        for done, item in enumerate(index.items(), 1):
            if done % _PAGE == 0:
                report("items", done, max(done, len(index)))
            yield item
        report("items", done, done)

    with index.lock:  # no item goes while the rest is written
        if to == "npz":
            export_codes(index, out, list(items()))
            return done
        with nullcontext(out) if to in _FILES else atomic_folder(out) as place:
            _WRITERS[to]((_row(item, index) for item in items()), place, index.facts.bits)
        return done


def _row(item: Item, index: Index) -> Row:
    place = None if item.path is None else index.uploads.path(item.path)
    path = None if place is None else str(place).encode(errors="backslashreplace").decode()
    return Row(str(item.id), item.code.tobytes(), tuple(item.labels), path)


def _packed(codes: bytes | bytearray, bits: int) -> Packed:
    """Packed codes (N, ceil(K/8)) that stand one after the other."""
    return np.frombuffer(codes, dtype=np.uint8).reshape(-1, packed_width(bits))


def write_npy(rows: Iterator[Row], folder: Path, bits: int) -> None:
    """Write codes.npy (N, ceil(K/8)) and items.jsonl."""
    codes = bytearray()
    with atomic(folder / "items.jsonl") as stream:
        for row in rows:
            codes += row.code
            stream.write((json.dumps({"id": row.id, "labels": row.labels, "path": row.path}) + "\n").encode())
    with atomic(folder / "codes.npy") as stream:
        np.save(stream, _packed(codes, bits))


def write_parquet(rows: Iterator[Row], file: Path, bits: int) -> None:
    """Write one parquet file with a row group per page of items."""
    from centerhash.encoding.shards import as_table

    parquet = require("pyarrow.parquet")

    def table(page: list[Row]) -> Any:
        codes = _packed(b"".join(row.code for row in page), bits)
        facts = {"bits": str(bits), "centerhash": __version__}
        ids, labels = [row.id for row in page], [row.labels for row in page]
        return as_table(ids, codes, labels, facts, [row.path for row in page])

    with atomic(file) as stream, parquet.ParquetWriter(stream, table([]).schema) as writer:
        while page := list(islice(rows, _PAGE)):
            writer.write_table(table(page))


def write_faiss(rows: Iterator[Row], folder: Path, bits: int) -> None:
    """Write codes.faiss, an IndexBinaryIDMap2 over an IndexBinaryFlat, and ids.json."""
    faiss, codes, ids = require("faiss"), bytearray(), []
    for row in rows:
        codes += row.code
        ids.append(row.id)
    packed = _packed(codes, bits)
    # faiss counts bits by eights; those past K are 0 in all codes
    made = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(8 * packed.shape[1]))
    made.add_with_ids(packed, np.arange(len(packed)))
    with atomic(folder / FAISS) as stream:  # faiss itself would not say that a disk is full
        stream.write(faiss.serialize_index_binary(made).tobytes())
    write_text(folder / IDS, json.dumps(ids) + "\n")


_CREATE = """\
-- psql -f create.sql, in this folder; pgvector 0.7 or later
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE items (id text PRIMARY KEY, code bit({bits}) NOT NULL, labels text[] NOT NULL, path text);
\\copy items FROM 'items.copy' WITH (ENCODING 'UTF8')
"""
_QUERY = """\
-- psql -v id=ID -f query.sql: the ten items nearest to the item ID
SELECT items.id, items.code <~> asked.code AS distance, items.labels, items.path
FROM items, items AS asked
WHERE asked.id = :'id' AND items.id <> asked.id
ORDER BY distance, items.id COLLATE "C"
LIMIT 10;
"""


def write_pgvector(rows: Iterator[Row], folder: Path, bits: int) -> None:
    """Write items.copy, a text file for COPY, and the SQL to create the table and to ask it."""
    with atomic(folder / "items.copy") as stream:
        for row in rows:
            stream.write(copy_line(row, bits).encode())
    write_text(folder / "create.sql", _CREATE.format(bits=bits))
    write_text(folder / "query.sql", _QUERY)


def copy_line(row: Row, bits: int) -> str:
    """An item as a line of COPY's text format: id, code as K digits, labels as an array, path or NULL."""
    digits = np.unpackbits(_packed(row.code, bits), count=bits) + ord("0")
    quoted = (label.replace("\\", "\\\\").replace('"', '\\"') for label in row.labels)
    labels = "{" + ",".join(f'"{label}"' for label in quoted) + "}"
    texts = (row.id, digits.tobytes().decode(), labels, *(() if row.path is None else (row.path,)))
    if any("\0" in text for text in texts):
        raise DataError(
            f"the item {row.id!r} has a zero character in its id, labels or path, which PostgreSQL cannot store: "
            "remove it, or export to parquet."
        )
    fields = [text.translate(_ESCAPES) for text in texts]
    return "\t".join([*fields, *(["\\N"] if row.path is None else [])]) + "\n"


_WRITERS: Mapping[str, Writer] = MappingProxyType(
    {"npy": write_npy, "parquet": write_parquet, "faiss": write_faiss, "pgvector": write_pgvector}
)
FORMATS = ("npz", *_WRITERS)
