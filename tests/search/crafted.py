"""Indexes that somebody has crafted: their checksums are right and their contents are wrong.

`cases` lists them, `tried` makes each out of a sound index in a process with limited memory and uses it in every way. A
case is "harmless" if an index may be like that; of any other, `verify` has to report something.

    python -m tests.search.crafted SOUND PLACE     # tries the cases whose names come by standard input, one per line
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from centerhash.core.errors import CenterhashError, DataError, OutputError
from centerhash.core.files import with_checksum
from centerhash.model.portable import METADATA, _written
from centerhash.model.spec import encoded_centers, encoded_directions
from centerhash.search import Index, verify_index
from centerhash.search.database import (
    CHUNK,
    COMMITS,
    FILE,
    FILES,
    FORMAT,
    LOCK,
    SCHEMA,
    checksum,
    commit_slot,
    taught_checksum,
)
from centerhash.search.items import File, PhotoInfo
from tests.toys import CLASSES, noise_image, process_environment

BITS, ITEMS = 16, 40
TABLES = tuple(name for name, statement in SCHEMA.items() if statement.startswith("CREATE TABLE"))
LARGE = 300 * 2**20  # bytes that no case may take
ADDRESSES = 2**30  # bytes of address space that a case may add to those of the process
SECONDS = 30  # of CPU time, after which a case hangs; ten times as many if it waits
BAD = ("traceback", "large", "hangs", "whole", "contradicts")


@dataclass(frozen=True)
class Case:
    """A way to craft an index."""

    name: str
    craft: Callable[[Path], object]  # changes a copy of the sound index
    harmless: bool = False


# --- the sound index


def network() -> bytes:
    """A network of pixels (1, 8, 8, 3) with all outputs, in a few hundred bytes."""
    from onnx import TensorProto, helper

    generator = np.random.default_rng(0)

    def constant(name: str, width: int) -> Any:
        values = generator.normal(size=3 * width).tolist()
        return helper.make_tensor(name, TensorProto.FLOAT, (3, width), values)

    widths = {"logits": BITS, "probability": len(CLASSES), "share_logits": len(CLASSES), "visual": 16}
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["colors"], axes=[1, 2], keepdims=0),
        *(
            helper.make_node(
                "MatMul", ["colors", f"w_{name}"], [f"{name}_raw" if name in "probability visual" else name]
            )
            for name in widths
        ),
        helper.make_node("Sigmoid", ["probability_raw"], ["probability"]),
        helper.make_node("Sigmoid", ["visual_raw"], ["visual_unit"]),
        helper.make_node("Cast", ["visual_unit"], ["visual"], to=TensorProto.UINT8),
    ]
    outputs = [
        helper.make_tensor_value_info(
            name, TensorProto.UINT8 if name == "visual" else TensorProto.FLOAT, (1, width)
        )
        for name, width in widths.items()
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, (1, 8, 8, 3))
    weights = [constant(f"w_{name}", width) for name, width in widths.items()]
    graph = helper.make_graph(nodes, "colors", [pixels], outputs, weights)
    return bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )


def metadata(data: bytes) -> dict[str, Any]:
    """What the metadata of the network are."""
    centers = np.where(np.random.default_rng(1).random((len(CLASSES), BITS)) < 0.5, -1, 1).astype(np.int8)
    return {
        "format": 2,
        "version": "0",
        "method": "ics-softmax",
        "bits": BITS,
        "features": BITS + 2 * len(CLASSES) + 16,
        "classes": list(CLASSES),
        "centers": encoded_centers(centers),
        "directions": encoded_directions(centers.astype(np.float32)),
        "label_threshold": 0.3,
        "visual_bits": 128,
        "probabilities": True,
        "shares": {"by": "softmax", "beta": None, "entropy": None, "scale": None, "form": "joint"},
        "backbone": "colors",
        "backbone_key": None,
        "preprocessing": {
            "resize": 8,
            "crop": 8,
            "interpolation": "bilinear",
            "shift": [0.0, 0.0, 0.0],
            "scale": [1.0, 1.0, 1.0],
        },
        "seed": 0,
        "digest": "0" * 64,
        "network_size": len(data),
        "network_checksum": crc32(data),
    }


def model_file(data: bytes, values: object) -> bytes:
    """A model.onnx with any metadata, under a right checksum if they can have one."""
    if isinstance(values, dict):
        values = json.dumps(with_checksum(values))
    text = values if isinstance(values, bytes) else str(values).encode()
    return data + _written(14, _written(1, METADATA.encode()) + _written(2, text))


def sound_index(folder: Path) -> Path:
    """An index with items of all kinds, some of which were removed, and an upload."""
    model = folder.with_name(f"{folder.name}-model")
    model.mkdir(parents=True)
    data = network()
    (model / "model.onnx").write_bytes(model_file(data, metadata(data)))
    generator = np.random.default_rng(2)
    with Index.create(folder, model) as index:
        count = ITEMS + 5
        labels = [[CLASSES[row % 6], CLASSES[(row + 1) % 6]] for row in range(count)]
        index.store.add(
            generator.integers(0, 256, (count, 2), dtype=np.uint8),
            [f"{row:016x}" for row in range(count)],
            labels,
            [[File(f"/photos/{row % 3}/{row}.jpg", 100 + row, float(row % 7))] for row in range(count)],
            [
                None if row % 4 == 0 else generator.integers(0, 256, 16, dtype=np.uint8)
                for row in range(count)
            ],
            [dict.fromkeys(names, (200, 100)) if row % 5 else {} for row, names in enumerate(labels)],
            [PhotoInfo(1e9 + row, (None, "Canon")[row % 2], 640, 480) for row in range(count)],
        )
        index.store.remove([f"{row:016x}" for row in range(3, 40, 8)])
        noise_image(16).save(folder / "upload.png")
        index.add_bytes((folder / "upload.png").read_bytes())
        (folder / "upload.png").unlink()
        index.teach("Bella", like=[f"{1:016x}"], unlike=[f"{2:016x}"])
    assert verify_index(folder) == []
    return folder


# --- databases


def lax_database(path: Path) -> None:
    """Write the database again without constraints, for values that no statement would let in."""
    with closing(sqlite3.connect(path)) as sql:
        tables = {name: sql.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}
    for name in FILES[:3]:
        path.with_name(name).unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA application_id = 1667789672")
        sql.execute(f"PRAGMA user_version = {FORMAT}")
        for name, statement in SCHEMA.items():
            lax = (
                statement if name not in TABLES else statement.replace(" NOT NULL", "").replace(" UNIQUE", "")
            )
            sql.execute(lax)
            if name == "items":  # named as that of UNIQUE in the end
                sql.execute("CREATE INDEX ids ON items (id)")
        for name, rows in tables.items():
            marks = ",".join("?" * len(rows[0])) if rows else ""
            sql.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        sql.commit()


def strict_schema(path: Path) -> None:
    """State the constraints that the rows were written without."""
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA writable_schema = ON")
        for name, statement in SCHEMA.items():
            sql.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (statement, name))
        sql.execute(
            "UPDATE sqlite_schema SET sql = NULL, name = 'sqlite_autoindex_items_1' WHERE name = 'ids'"
        )
        sql.commit()
        sql.execute("PRAGMA journal_mode = WAL")


_CHECKSUMS = {"taught": 3, "files": 6}  # tables without a rowid, and which of their columns is the checksum


def sealed(path: Path) -> None:
    """Give every row its right checksum, and note the number of commits."""
    with closing(sqlite3.connect(path)) as sql:
        sql.text_factory = _text
        for name in sorted(TABLES, key=lambda name: name == "state"):  # last, as it sums up others
            if not _is_table(sql, name):
                continue
            if name in _CHECKSUMS:  # it has no rowid
                place = _CHECKSUMS[name]
                rows = sql.execute(f"SELECT * FROM {name}").fetchall()
                sql.execute(f"DELETE FROM {name}")
                made = [(*row[:place], checksum(*row[:place]), *row[place + 1 :]) for row in rows]
                marks = ",".join("?" * len(made[0])) if made else ""
                sql.executemany(f"INSERT INTO {name} VALUES ({marks})", made)
                if name == "taught" and made != rows:
                    total = taught_checksum(sorted(made, key=lambda row: str(row[0])))
                    sql.execute("UPDATE state SET taught = ?", (total,))
                continue
            for row in sql.execute(f"SELECT rowid, * FROM {name}").fetchall():
                try:
                    value = checksum(*row[1:-1])
                except Exception:
                    continue
                sql.execute(f"UPDATE {name} SET checksum = ? WHERE rowid = ?", (value, row[0]))
        sql.commit()
        try:
            [(commits,)] = sql.execute("SELECT commits FROM state").fetchall()
        except (sqlite3.Error, ValueError):
            return
    if isinstance(commits, int) and 0 <= commits < 2**64:
        path.with_name(COMMITS).write_bytes(2 * commit_slot(commits)[1])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _is_table(sql: sqlite3.Connection, name: str) -> bool:
    found = sql.execute("SELECT type FROM sqlite_schema WHERE name = ?", (name,)).fetchall()
    return found == [("table",)]


def by_sql(
    *statements: str, values: Sequence[Any] = (), lax: bool = False, seal: bool = True
) -> Callable[[Path], None]:
    """Craft by SQL statements; the first one may have values."""

    def craft(folder: Path) -> None:
        path = folder / FILE
        if lax:
            lax_database(path)
        with closing(sqlite3.connect(path)) as sql:
            for place, statement in enumerate(statements):
                sql.execute(statement, () if place else values)
            sql.commit()
        if seal:
            sealed(path)
        if lax:
            strict_schema(path)

    return craft


WRONG = {
    "NULL": None,
    "negative": -1,
    "huge": 2**63 - 1,
    "4e9": 2**32 + 7,
    "text": "x",
    "fraction": 1.5,
    "infinite": float("inf"),
    "blob": b"\xff\x00\x01",
    "empty blob": b"",
    "long text": "y" * 2_000_000,
    "long blob": bytes(3_000_000),
}
COLUMNS = {
    "state": (
        "bits",
        "generation",
        "commits",
        "rows",
        "items",
        "images",
        "hidden",
        "edits",
        "terms",
        "taught",
    ),
    "taught": ("name", "parameters", "examples"),
    "items": ("row", "id", "camera", "width", "height", "name", "labels", "scores"),
    "files": ("row", "folder", "name", "size", "modified", "gone"),
    "terms": ("term", "kind", "name", "items", "entries"),
    "postings": ("key", "entries"),
    "codes": ("chunk", "semantic", "visual", "ids", "taken"),
    "flags": ("chunk", "flags", "places"),
}
# what an index may hold: any number of compactions and of commits, an id or a time by which nothing else goes
_HARMLESS = {
    *(("state", name, "4e9") for name in ("generation", "commits", "edits")),
    *(("files", "modified", value) for value in ("NULL", "negative", "huge", "4e9", "fraction")),
    *(("files", "size", value) for value in ("NULL", "huge", "4e9")),
    *((table, "name", "text") for table in ("items", "files", "terms", "taught")),
    *(("items", column, "NULL") for column in ("width", "height", "name")),
    *(
        (table, "name", value)
        for table in ("items", "taught")
        for value in ("negative", "huge", "4e9", "fraction", "infinite")
    ),  # SQLite: as text
    ("codes", "taken", "empty blob"),
}
_OFFSETS = {"items": 1, "terms": 4}  # an item with all parts, and a label
_KEYS = {("items", "row"), ("terms", "term"), ("postings", "key"), ("codes", "chunk"), ("flags", "chunk")}


def column_cases() -> Iterator[Case]:
    """Each column of each table with each wrong value."""
    for table, columns in COLUMNS.items():
        for column in columns:
            for name, value in WRONG.items():
                if (table, column) in _KEYS and not isinstance(value, int):
                    continue  # SQLite itself allows only whole numbers there
                where = f"rowid = (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {_OFFSETS.get(table, 0)})"
                if table in _CHECKSUMS:
                    where = "row = 1" if table == "files" else "true"
                    if value is None and column in ("row", "folder", "name"):
                        continue  # nor there
                craft = by_sql(f"UPDATE {table} SET {column} = ? WHERE {where}", values=[value], lax=True)
                yield Case(f"{table}.{column} {name}", craft, (table, column, name) in _HARMLESS)


def _blob(table: str, column: str, change: Callable[[bytearray], Any]) -> Callable[[Path], None]:
    """Change the blob of the second row of a table, or of the first if it has only one."""

    def craft(folder: Path) -> None:
        path = folder / FILE
        with closing(sqlite3.connect(path)) as sql:
            rows = sql.execute(
                f"SELECT rowid, {column} FROM {table} WHERE length({column}) > 0 ORDER BY rowid LIMIT 2"
            ).fetchall()
            content = bytearray(rows[-1][1])
            made = change(content)
            sql.execute(
                f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (bytes(made or content), rows[-1][0])
            )
            sql.commit()
        sealed(path)

    return craft


def _put(layout: str, offset: int, value: int) -> Callable[[bytearray], None]:
    return lambda content: struct.pack_into(layout, content, offset, value)


def meaning_cases() -> Iterator[Case]:
    """Rows that contradict each other, or that mean nothing."""
    # blobs: labels are u4 each, scores u4 u1 u1, entries of postings u2 u1 u1 u1
    for name, table, column, change in (
        ("an unknown label", "items", "labels", _put("<I", 0, 4_000_000_000)),
        ("a folder as a label", "items", "labels", _put("<I", 0, 8)),
        ("a label twice", "items", "labels", lambda blob: blob[:4] + blob[:4]),
        ("one label less", "items", "labels", lambda blob: blob[:4]),
        ("half a label", "items", "labels", lambda blob: blob[:5]),
        ("many labels", "items", "labels", lambda blob: blob[:4] * 200_000),
        ("an unknown label with a score", "items", "scores", _put("<I", 0, 4_000_000_000)),
        ("a folder with a score", "items", "scores", _put("<I", 0, 8)),
        ("two scores of a label", "items", "scores", lambda blob: blob[:6] + blob[:6]),
        ("half a score", "items", "scores", lambda blob: blob[:8]),
        ("another score", "items", "scores", _put("<B", 4, 3)),
        ("another share", "items", "scores", _put("<B", 5, 3)),
        ("an entry of a row that is not there", "postings", "entries", _put("<H", 0, 65_535)),
        ("an entry out of order", "postings", "entries", _put("<H", 5, 0)),
        ("an entry of an unknown kind", "postings", "entries", _put("<B", 2, 255)),
        ("an entry of no kind", "postings", "entries", _put("<B", 2, 0)),
        ("an entry with another score", "postings", "entries", _put("<B", 3, 7)),
        ("half an entry", "postings", "entries", lambda blob: blob[:7]),
        ("one entry less", "postings", "entries", lambda blob: blob[:-5]),
        ("one entry more", "postings", "entries", lambda blob: blob + struct.pack("<HBBB", 4000, 1, 0, 0)),
        ("entries twice", "postings", "entries", lambda blob: blob * 2),
        ("a code less", "codes", "semantic", lambda blob: blob[:-2]),
        ("a code more", "codes", "semantic", lambda blob: blob + b"ab"),
        ("half a visual code", "codes", "visual", lambda blob: blob[:-1]),
        ("no visual codes", "codes", "visual", lambda blob: b"\0"),
        ("another id's hash", "codes", "ids", _put("<I", 0, 1)),
        ("an unknown flag", "flags", "flags", _put("<B", 0, 0xFF)),
        ("an item marked as removed", "flags", "flags", _put("<B", 0, 0)),
        ("a removed item marked as present", "flags", "flags", _put("<B", 3, 9)),
        ("a flag of a visual code that is not there", "flags", "flags", _put("<B", 0, 15)),
        ("flags of more rows", "flags", "flags", lambda blob: blob * 2),
    ):
        yield Case(name, _blob(table, column, change))
    shown = "SELECT row FROM items ORDER BY row LIMIT 1 OFFSET 2"
    for name, statements in {
        "no state": ["DELETE FROM state"],
        "two states": ["INSERT INTO state SELECT * FROM state"],
        "an item less": [f"DELETE FROM items WHERE row = ({shown})"],
        "an item in another row": [f"UPDATE items SET row = 4000 WHERE row = ({shown})"],
        "an item after the last row": [f"UPDATE items SET row = 99999 WHERE row = ({shown})"],
        "an item before the first row": [f"UPDATE items SET row = -5 WHERE row = ({shown})"],
        "an item more": [
            "INSERT INTO items SELECT 99998, 'more', camera, width, height, name, labels, scores, 0 FROM items LIMIT 1"
        ],
        "a term less": ["DELETE FROM terms WHERE term = 1"],
        "a term more": ["INSERT INTO terms VALUES (1000, 'label', 'more', 0, 0, 0)"],
        "a term counted twice": ["UPDATE terms SET items = items + 1 WHERE term = 0"],
        "a label of the name of another": [
            "UPDATE terms SET name = (SELECT name FROM terms WHERE term = 0) WHERE term = 1"
        ],
        "a label that is a folder": ["UPDATE terms SET kind = 'folder' WHERE term = 4"],
        "no postings": ["DELETE FROM postings"],
        "postings of an unknown term": ["INSERT INTO postings VALUES (1000 << 32, x'0000010000', 0)"],
        "postings of an unknown chunk": ["INSERT INTO postings VALUES (9, x'0000010000', 0)"],
        "postings before all": ["INSERT INTO postings VALUES (-9, x'0000010000', 0)"],
        "empty postings": ["INSERT INTO postings VALUES (5, x'', 0)"],
        "no codes": ["DELETE FROM codes"],
        "codes of an unknown chunk": [
            "INSERT INTO codes SELECT 5, semantic, visual, ids, taken, 0 FROM codes"
        ],
        "codes of a chunk before all": [
            "INSERT INTO codes SELECT -5, semantic, visual, ids, taken, 0 FROM codes"
        ],
        "no flags": ["DELETE FROM flags"],
        "flags of an unknown chunk": ["INSERT INTO flags SELECT 5, flags, places, 0 FROM flags"],
        "an item without its file": [f"DELETE FROM files WHERE row = ({shown})"],
        "a file of no item": [f"UPDATE files SET row = 99999 WHERE row = ({shown})"],
        "an item without an id": [f"UPDATE items SET id = '' WHERE row = ({shown})"],
        "an item with a long id": [f"UPDATE items SET id = hex(zeroblob(400)) WHERE row = ({shown})"],
        "an item of another folder": [f"UPDATE files SET folder = folder + 1 WHERE row = ({shown})"],
        "an id with a zero": [f"UPDATE items SET id = 'a' || char(0) || 'b' WHERE row = ({shown})"],
        "a name with a zero": [f"UPDATE files SET name = 'a' || char(0) || 'b' WHERE row = ({shown})"],
        "a name that leaves its folder": [
            f"UPDATE files SET name = '../../etc/passwd' WHERE row = ({shown})"
        ],
        "an absolute name": [f"UPDATE files SET name = '/etc/passwd' WHERE row = ({shown})"],
        "text that is not UTF-8, an id": [
            f"UPDATE items SET id = CAST(x'ff41fe' AS TEXT) WHERE row = ({shown})"
        ],
        "text that is not UTF-8, a label": ["UPDATE terms SET name = CAST(x'ff41fe' AS TEXT) WHERE term = 4"],
        "half a character, a label": ["UPDATE terms SET name = CAST(x'eda080' AS TEXT) WHERE term = 4"],
        "a label as bytes": ["UPDATE terms SET name = CAST(name AS BLOB) WHERE term = 4"],
        "more rows than codes": ["UPDATE state SET rows = rows + 1"],
        "a billion rows": ["UPDATE state SET rows = 1000000000"],
        "a chunk more": [f"UPDATE state SET rows = {CHUNK + 1}"],
        "a billion terms": ["UPDATE state SET terms = 1000000000"],
        "a billion items": ["UPDATE state SET items = 1000000000, rows = 1000000000, images = 1000000000"],
        "more items than rows": ["UPDATE state SET items = rows + 1"],
        "fewer images": ["UPDATE state SET images = images - 1"],
        "codes of 17 bits": ["UPDATE state SET bits = 17"],
        "codes of 15 bits": ["UPDATE state SET bits = 15"],
        "codes of 60,000 bits": ["UPDATE state SET bits = 60000"],
    }.items():
        yield Case(name, by_sql(*statements))
    yield Case("an id twice", by_sql("UPDATE items SET id = '0000000000000001' WHERE row = 2", lax=True))
    yield Case(
        "rows without their index over ids", by_sql("DELETE FROM items WHERE row = 2", _copied(2), lax=True)
    )
    yield Case("a value of 70 MB", by_sql("UPDATE codes SET semantic = zeroblob(70000000)", seal=False))
    yield Case(
        "a name of 70 MB", by_sql("UPDATE files SET name = zeroblob(70000000) WHERE row = 2", seal=False)
    )
    yield Case("names of 1 MB", by_sql("UPDATE files SET name = hex(zeroblob(500000)) || row"))
    yield Case("labels of 4 MB", by_sql("UPDATE terms SET name = hex(zeroblob(2000000)) || term"))
    yield Case("scores of 20 MB", by_sql("UPDATE items SET scores = zeroblob(20000000) WHERE row < 3"))
    yield Case("a label of no text", by_sql("UPDATE terms SET name = '' WHERE term = 4"), harmless=True)
    yield Case("a wrong checksum", by_sql("UPDATE items SET checksum = 1", seal=False))
    yield Case("a checksum that is text", by_sql("UPDATE flags SET checksum = 'x'", seal=False))
    yield Case("a checksum that is NULL", by_sql("UPDATE state SET checksum = NULL", seal=False))


def _copied(row: int) -> str:
    columns = "id, camera, width, height, name, labels, scores, 0"
    return f"INSERT INTO items SELECT {row}, {columns} FROM items WHERE row = {row - 1}"


def schema_cases() -> Iterator[Case]:
    """Databases with other tables than those of an index."""
    for name in SCHEMA:
        kind = "TABLE" if name in TABLES else "INDEX"
        yield Case(f"without {name}", by_sql(f"DROP {kind} {name}"))
        if kind == "TABLE":
            made = f"CREATE VIEW {name} AS SELECT * FROM other_{name}"
            yield Case(f"{name} is a view", by_sql(f"ALTER TABLE {name} RENAME TO other_{name}", made))
            yield Case(f"{name} with another column", by_sql(f"ALTER TABLE {name} ADD COLUMN more"))
            yield Case(f"{name} renamed", by_sql(f"ALTER TABLE {name} RENAME TO other_{name}"))
    endless = (
        "WITH RECURSIVE more(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM more) "
        "SELECT max(x), 0, 0, 0, 0, 0, 0, 0 FROM more"
    )
    trigger = "CREATE TRIGGER more AFTER {} ON {} BEGIN {}; END"
    for name, statements in {
        "a trigger that deletes": [trigger.format("DELETE", "items", "DELETE FROM flags")],
        "a trigger that writes": [
            trigger.format("INSERT", "items", "INSERT INTO flags VALUES (9, x'00', x'', 0)")
        ],
        "a trigger of states": [trigger.format("INSERT", "state", "DELETE FROM items")],
        "a trigger that is named as a table": [
            trigger.format("DELETE", "items", "DELETE FROM flags").replace("more", "[items ]")
        ],
        "another table": ["CREATE TABLE more (x)"],
        "another index": ["CREATE INDEX more ON items (name)"],
        "a view": ["CREATE VIEW more AS SELECT * FROM items"],
        "a virtual table": ["CREATE VIRTUAL TABLE more USING fts5(x)"],
        "a state without an end": ["ALTER TABLE state RENAME TO s", f"CREATE VIEW state AS {endless}"],
        "statistics": ["ANALYZE"],
        "an unknown application": ["PRAGMA application_id = 7"],
        "a later format": [f"PRAGMA user_version = {FORMAT + 1}"],
        "a negative format": ["PRAGMA user_version = -1"],
        "no write-ahead log": ["PRAGMA journal_mode = DELETE"],
    }.items():
        yield Case(name, by_sql(*statements))
    yield Case("a journal", lambda folder: (folder / f"{FILE}-journal").write_bytes(b"x" * 600))
    yield Case("a trigger with the name of a table", _hidden_trigger)
    for size in (512, 65_536):
        craft = by_sql("PRAGMA journal_mode = DELETE", f"PRAGMA page_size = {size}", "VACUUM", seal=False)
        yield Case(f"pages of {size} bytes", _plainly(craft))
    yield Case("text as UTF-16", _in_utf16)
    for place, name, content in (
        (16, "a page size of 3", b"\0\3"),
        (18, "a later format for writing", b"\xff"),
        (19, "a later format for reading", b"\xff"),
        (20, "reserved bytes", b"\xff"),
        (28, "a huge number of pages", b"\xff\xff\xff\xff"),
        (32, "a free list without an end", struct.pack(">II", 2, 2_000_000_000)),
        (44, "a later schema format", b"\0\0\0\xff"),
        (56, "another encoding", b"\0\0\0\x02"),
    ):
        yield Case(name, _header(place, content))
    yield Case("a page that contains itself", _page_of_itself)
    yield Case("terms without an end", _many_times("terms"))
    yield Case("items without an end", _many_times("items"))
    yield Case("postings without an end", _many_times("postings"))
    yield Case("flags without an end", _many_times("flags"))


def _plainly(craft: Callable[[Path], None]) -> Callable[[Path], None]:
    """Craft by a connection that is never in a transaction, as VACUUM needs."""

    def plain(folder: Path) -> None:
        with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as sql:
            sql.execute("PRAGMA journal_mode = DELETE")
        craft(folder)
        with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as sql:
            sql.execute("PRAGMA journal_mode = WAL")

    return plain


def _hidden_trigger(folder: Path) -> None:
    """Put a trigger before the table whose name it has, in the list of all tables."""
    with closing(sqlite3.connect(folder / FILE)) as sql:
        sql.execute("CREATE TRIGGER terms AFTER INSERT ON items BEGIN DELETE FROM flags; END")
        sql.execute("PRAGMA writable_schema = ON")
        sql.execute("UPDATE sqlite_schema SET rowid = -1 WHERE type = 'trigger'")
        sql.commit()


def _in_utf16(folder: Path) -> None:
    path = folder / FILE
    with closing(sqlite3.connect(path)) as sql:
        dump = "\n".join(sql.iterdump())
    for name in FILES[:3]:
        path.with_name(name).unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA encoding = 'UTF-16'")
        sql.executescript(dump)
        sql.execute("PRAGMA application_id = 1667789672")
        sql.execute(f"PRAGMA user_version = {FORMAT}")
        sql.commit()
        sql.execute("PRAGMA journal_mode = WAL")


def _header(place: int, content: bytes) -> Callable[[Path], None]:
    def craft(folder: Path) -> None:
        data = bytearray((folder / FILE).read_bytes())
        data[place : place + len(content)] = content
        (folder / FILE).write_bytes(data)

    return craft


def _root(path: Path, table: str) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as sql:
        [(root,)] = sql.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
        [(size,)] = sql.execute("PRAGMA page_size").fetchall()
    return root, size


def _interior(size: int, children: Sequence[int], last: int) -> bytes:
    """A page of a table's tree that leads to other pages."""
    cells = [struct.pack(">IB", child, place % 100) for place, child in enumerate(children)]
    page, end = bytearray(size), size
    for place, cell in enumerate(cells):
        end -= len(cell)
        page[end : end + len(cell)] = cell
        struct.pack_into(">H", page, 12 + 2 * place, end)
    struct.pack_into(">BHHHBI", page, 0, 5, 0, len(cells), end, 0, last)
    return bytes(page)


def _page_of_itself(folder: Path) -> None:
    root, size = _root(folder / FILE, "items")
    _header((root - 1) * size, _interior(size, [root] * 9, root))(folder)


def _many_times(table: str) -> Callable[[Path], None]:
    """A tree that leads to the same rows again and again: 100^9 rows in a small file."""

    def craft(folder: Path) -> None:
        path = folder / FILE
        root, size = _root(path, table)
        data = bytearray(path.read_bytes())
        leaf = len(data) // size + 1
        data += data[(root - 1) * size : root * size]
        for level in range(8):
            data += _interior(size, [leaf + level] * 100, leaf + level)
        data[(root - 1) * size : root * size] = _interior(size, [leaf + 8] * 100, leaf + 8)
        struct.pack_into(">I", data, 28, len(data) // size)
        path.write_bytes(data)

    return craft


# --- index.json and model.onnx


def deep(depth: int) -> str:
    """Lists within lists."""
    return "[" * depth + "]" * depth


def file_cases() -> Iterator[Case]:
    """Hostile index.json, and hostile metadata and networks of a model."""

    def spec(**changes: Any) -> Callable[[Path], object]:
        def craft(folder: Path) -> None:
            values = json.loads((folder / "index.json").read_text())
            (folder / "index.json").write_text(json.dumps({**values, **changes}))

        return craft

    for name, changes in {
        "bits that are huge": {"bits": 10**30},
        "bits that are text": {"bits": "x" * 10**6},
        "bits that are negative": {"bits": -1},
        "bits that are true": {"bits": True},
        "many classes": {"classes": ["x"] * 10**6},
        "classes that are numbers": {"classes": [1, 2]},
        "classes in classes": {"classes": [["x"]]},
        "no classes": {"classes": []},
        "a store elsewhere": {"store": "milvus:http://127.0.0.1:9#x"},
        "an unknown store": {"store": "x"},
        "a store that is a list": {"store": ["sqlite"]},
        "an unknown key": {"more": 1},
        "a later format": {"format": 3},
        "a format that is a list": {"format": [[]]},
        "an earlier format": {"format": 1},
    }.items():
        yield Case(f"index.json: {name}", spec(**changes))

    def text(content: str | bytes) -> Callable[[Path], object]:
        data = content if isinstance(content, bytes) else content.encode()
        return lambda folder: (folder / "index.json").write_bytes(data)

    for name, content in {
        "nothing": "",
        "a list": "[]",
        "deep lists": deep(100_000),
        "lists of depth 900": deep(900),
        "deep lists in a field": '{"format": 2, "store": "sqlite", "bits": 16, "classes": ' + deep(900) + "}",
        "a number of a million digits": '{"bits": ' + "9" * 10**6 + "}",
        "no UTF-8": b"\xff\xfe{}",
        "half a character": '{"store": "\\ud800"}',
        "NaN": '{"format": 2, "store": "sqlite", "bits": NaN, "classes": []}',
    }.items():
        yield Case(f"index.json: {name}", text(content))

    data = network()

    def model(values: object, content: bytes = data) -> Callable[[Path], object]:
        return lambda folder: (folder / "model" / "model.onnx").write_bytes(model_file(content, values))

    own = metadata(data)
    for key, value in (
        ("bits", 10**9),
        ("bits", 65_536),
        ("bits", 0),
        ("bits", 8),
        ("features", 10**12),
        ("classes", ["x"] * 300_000),
        ("classes", []),
        ("classes", [None]),
        ("classes", list(CLASSES[:1]) * 6),
        ("centers", "A" * 10**7),
        ("centers", "!"),
        ("centers", None),
        ("directions", "AAAA"),
        ("directions", encoded_directions(np.full((6, BITS), np.nan, np.float32))),
        ("directions", encoded_directions(np.full((6, BITS), np.inf, np.float32))),
        ("label_threshold", 1e308),
        ("visual_bits", 10**9),
        ("visual_bits", 64),
        ("visual_bits", None),
        ("shares", {"by": "ics", "beta": 1e-300, "entropy": 1e300, "scale": 1e300, "form": "joint"}),
        ("shares", {"by": "unknown"}),
        ("preprocessing", {**own["preprocessing"], "resize": 16_384, "crop": 16_384}),
        ("preprocessing", {**own["preprocessing"], "resize": 10**9}),
        ("preprocessing", {**own["preprocessing"], "crop": -1}),
        ("preprocessing", {**own["preprocessing"], "interpolation": "../x"}),
        ("preprocessing", None),
        ("backbone", None),
        ("network_size", 10**15),
        ("network_size", -1),
        ("network_checksum", 10**300),
        ("network_checksum", 0),
        ("seed", 10**300),
        ("method", "x" * 10**6),
        ("digest", "../../x"),
        ("more", {"x": json.loads(deep(300))}),
    ):
        changed = f"{json.dumps(value):.30}"
        harmless = key in ("label_threshold", "seed", "method", "digest")
        yield Case(f"model.onnx: {key} {changed}", model({**own, key: value}), harmless)
    yield Case("model.onnx: deep lists", model(deep(100_000)))
    yield Case("model.onnx: lists of depth 900", model(deep(900)))
    yield Case("model.onnx: no json", model(b"\xff\xff"))
    yield Case("model.onnx: many fields", model(own, b"\x08\x01" * 20_000 + data))
    yield Case(
        "model.onnx: a length of 2^63", lambda folder: _cut_model(folder, b"\x3a" + b"\xff" * 8 + b"\x7f")
    )
    yield Case("model.onnx: nothing", lambda folder: _cut_model(folder, b""))
    for name, made in networks().items():
        values = {**own, "network_size": len(made), "network_checksum": crc32(made)}
        yield Case(f"network: {name}", model(values, made), harmless=True)


def _cut_model(folder: Path, content: bytes) -> None:
    (folder / "model" / "model.onnx").write_bytes(content)


def networks() -> dict[str, bytes]:
    """Networks that do not do what the metadata announce; `verify` does not run them."""
    import onnx
    from onnx import TensorProto, helper

    def changed(change: Callable[[Any], object]) -> bytes:
        found = onnx.load_from_string(network())
        change(found)
        return bytes(found.SerializeToString())

    def elsewhere(found: Any) -> None:
        tensor = found.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "/etc/passwd"

    def values(name: str, number: float) -> Callable[[Any], None]:
        def change(found: Any) -> None:
            for tensor in found.graph.initializer:
                if tensor.name == name:
                    tensor.float_data[:] = [number] * len(tensor.float_data)

        return change

    def wide(found: Any) -> None:
        shape = helper.make_tensor("shape", TensorProto.INT64, (2,), [1, 40])
        found.graph.initializer.append(shape)
        found.graph.node[2].CopyFrom(helper.make_node("Expand", ["w_logits", "shape"], ["logits"]))

    def announced(found: Any) -> None:
        found.graph.initializer[0].dims[:] = [3_000_000_000, 3_000_000_000]

    return {
        "no ONNX": b"\x08\x01" * 50,
        "without a graph": changed(lambda found: found.ClearField("graph")),
        "external data": changed(elsewhere),
        "logits that are not numbers": changed(values("w_logits", float("nan"))),
        "probabilities that are not numbers": changed(values("w_probability", float("nan"))),
        "shares that are not numbers": changed(values("w_share_logits", float("inf"))),
        "infinite logits": changed(values("w_logits", float("inf"))),
        "other outputs": changed(lambda found: found.graph.output.pop()),
        "an output of another width": changed(wide),
        "a tensor of 3e9 x 3e9": changed(announced),
        "an unknown operator": changed(lambda found: setattr(found.graph.node[0], "op_type", "Nothing")),
        "a later opset": changed(lambda found: setattr(found.opset_import[0], "version", 10_000)),
        "a text as the first input": changed(
            lambda found: setattr(found.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING)
        ),
    }


# --- other things in the place of files


def place_cases() -> Iterator[Case]:
    """A folder, a link, a pipe, a device, or a huge file with nothing in it, in the place of each file."""
    names = ["index.json", "model", "model/model.onnx", "images", *FILES]
    for name in names:
        for kind, make in _KINDS.items():
            if (kind == "a folder" and name in ("model", "images")) or (
                kind == "a huge file" and name == f"{LOCK}.pid"
            ):
                continue
            # the lock and its neighbor are overwritten, and SQLite makes its -shm and -wal again
            harmless = kind == "a huge file" and name in (LOCK, f"{FILE}-shm", f"{FILE}-wal", COMMITS)
            yield Case(f"{kind} as {name}", _replaced(name, make), harmless)
    for kind, make in _KINDS.items():
        yield Case(f"{kind} as an upload", _replaced("images/*.png", make))


def _replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def craft(folder: Path) -> None:
        place = next(folder.glob(name)) if "*" in name else folder / name
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        make(place)

    return craft


def _sparse(place: Path) -> None:
    with place.open("wb") as stream:
        stream.truncate(5 * 10**9)


_KINDS: dict[str, Callable[[Path], object]] = {
    "a folder": lambda place: place.mkdir(),
    "a link": lambda place: place.symlink_to("/etc/passwd"),
    "a link to itself": lambda place: place.symlink_to(place),
    "a pipe": os.mkfifo,
    "a huge file": _sparse,
}


def _device(place: Path) -> None:
    os.mknod(place, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero


if os.geteuid() == 0:
    _KINDS["a device"] = _device


def cases() -> list[Case]:
    """All crafted indexes."""
    found = [*column_cases(), *meaning_cases(), *schema_cases(), *file_cases(), *place_cases()]
    assert len({case.name for case in found}) == len(found)
    return found


# --- what becomes of them


def uses(folder: Path, out: Path) -> dict[str, Callable[[], object]]:
    """Everything that a user does with an index."""
    photo = noise_image(32, seed=3)

    def read(use: Callable[[Index], object]) -> Callable[[], object]:
        def run() -> object:
            with Index.open(folder, read_only=True, engine="onnx") as index:
                return use(index)

        return run

    def write(use: Callable[[Index], object]) -> Callable[[], object]:
        def run() -> object:
            with Index.open(folder, engine="onnx") as index:
                return use(index)

        return run

    first = f"{1:016x}"
    return {
        "size": read(len),
        "items": read(lambda index: list(index.items())),
        "labels": read(lambda index: (index.labels(), index.folders())),
        "newest": read(lambda index: index.newest(0, 9)),
        "filtered": read(lambda index: index.newest(0, 9, having="bee", under="/photos")),
        "get": read(lambda index: index.get(first)),
        "by id": read(lambda index: index.search(id=first, k=50)),
        "by labels": read(lambda index: index.search(labels={"cat": 2, "dog": 1}, k=50).to_dict()),
        "by image": read(lambda index: index.search(photo, k=50)),
        "by visual code": read(
            lambda index: index.search(photo, by="visual", having="cat", without="dog", k=50)
        ),
        "missing": read(lambda index: index.missing()),
        "info": read(lambda index: index.info()),
        "images": read(lambda index: [index.image(item.id) for item in index.items()]),
        "duplicates": read(lambda index: index.duplicates(progress=False)),
        "find": read(lambda index: index.find("/photos/1")),
        "export": read(lambda index: index.export(out, "npz", progress=False)),
        "add": write(lambda index: index.add_bytes(_png(9))),
        "add codes": write(
            lambda index: index.store.add(
                np.zeros((1, 2), np.uint8), ["added"], [["cat"]], ["/photos/1/added.jpg"]
            )
        ),
        "remove": write(lambda index: index.remove([first, "/photos/2"])),
        "compact": write(lambda index: index.compact()),
    }


def _png(seed: int) -> bytes:
    import io

    stream = io.BytesIO()
    noise_image(24, seed).save(stream, "PNG")
    return stream.getvalue()


def outcome(case: Case, sound: Path, place: Path, limit: int) -> str:
    """What becomes of one crafted index: "right", "refused", or what must not happen.

    `limit` is the address space in bytes while it is used; to craft it may take more.
    """
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
    folder, out = place / "crafted", place / "out.npz"
    shutil.copytree(sound, folder, symlinks=True)
    try:
        case.craft(folder)
    except Exception as error:
        return f"not crafted: {type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (limit, unlimited))
    refusals, problems = {}, list[str]()
    before = _peak(reset=True)
    try:
        problems = verify_index(folder)
    except CenterhashError as error:
        problems = [str(error)]
    except Exception as error:
        return f"traceback in verify: {type(error).__name__}: {error!s:.120}"
    for name, use in uses(folder, out).items():
        try:
            use()
        except CenterhashError as error:
            if isinstance(error, DataError | OutputError):
                refusals[name] = str(error)
            if not str(error).strip() or "\n" in str(error) or len(str(error)) > 5000:
                return f"traceback in {name}: not one sentence: {error!s:.120}"
        except Exception as error:
            return f"traceback in {name}: {type(error).__name__}: {error!s:.120}"
    if _peak() - before > LARGE:
        return f"large: {(_peak() - before) / 2**20:.0f} MB"
    if not case.harmless and not problems:
        return "whole: verify has found nothing"
    if not problems and refusals and not case.name.startswith("network: "):
        return f"contradicts: verify has found nothing, but {refusals}"[:300]
    if not problems and (left := verify_index(folder)):
        return f"contradicts: verify has found something only after changes: {left[0]}"
    return "refused" if problems or refusals else "right"


def _peak(reset: bool = False) -> int:
    """The largest resident size of this process since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def _removed(place: Path) -> None:
    shutil.rmtree(place / "crafted", ignore_errors=True)
    (place / "out.npz").unlink(missing_ok=True)


def tried(names: Sequence[str], sound: Path, place: Path) -> Iterator[tuple[str, str]]:
    """Try cases in processes with limited memory; one that ends its process is counted, and the rest goes on."""
    left = list(names)
    while left:
        words = [sys.executable, "-m", "tests.search.crafted", str(sound), str(place)]
        with (
            tempfile.TemporaryFile("w+") as asked,
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                words,
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=process_environment(),
            ) as process,
        ):
            asked.write("\n".join(left))
            asked.seek(0)
            assert process.stdout is not None
            for line in process.stdout:
                name, result = json.loads(line)
                left.remove(name)
                yield name, result
            process.wait()
            errors.seek(0)
            words_of_process = errors.read()[-300:]
        if left:
            _removed(place)
            yield left.pop(0), f"hangs, or ended its process: {process.returncode} {words_of_process}"


def main() -> None:
    """Try the cases whose names come by standard input."""
    sound, place = map(Path, sys.argv[1:])
    known = {case.name: case for case in cases()}
    shutil.copytree(sound, place / "warm")
    for use in uses(place / "warm", place / "out.npz").values():  # what is loaded once is no memory of a case
        use()
    shutil.rmtree(place / "warm")
    (place / "out.npz").unlink()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESSES
    for name in sys.stdin.read().splitlines():
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)
        print(json.dumps([name, outcome(known[name], sound, place, limit)]), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        _removed(place)


if __name__ == "__main__":
    main()
