"""Crafted databases: wrong values, rows that contradict each other, other tables, pages without an end."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from centerhash.search.database import (
    CHUNK,
    COMMITS,
    FILE,
    FILES,
    FORMAT,
    SCHEMA,
    checksum,
    commit_slot,
    taught_checksum,
)
from tests.search.sound_index import Case

TABLES = tuple(name for name, statement in SCHEMA.items() if statement.startswith("CREATE TABLE"))


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


_CHECKSUMS = {
    "taught": 3,
    "files": 6,
    "removed": 4,
}  # tables without a rowid, and which of their columns is the checksum


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
        "removed",
    ),
    "taught": ("name", "parameters", "examples"),
    "removed": ("id", "path", "size", "modified"),
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
    *(
        (table, "modified", value)
        for table in ("files", "removed")
        for value in ("NULL", "negative", "huge", "4e9", "fraction")
    ),
    *((table, "size", value) for table in ("files", "removed") for value in ("NULL", "huge", "4e9")),
    *(("removed", "id", value) for value in ("negative", "huge", "4e9", "text", "fraction", "infinite")),
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
                    where = {"files": "row = 1", "removed": "path = x'2f70686f746f732f612e6a7067'"}.get(
                        table, "true"
                    )
                    if value is None and column in ("row", "folder", "name", "id", "path"):
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
        "a removed file less": ["DELETE FROM removed WHERE id = 'removed'"],
        "a removed file more": ["INSERT INTO removed VALUES ('more', x'2f78', 1, 1.0, 0)"],
        "a removed file that an item has": [
            "UPDATE removed SET path = CAST('/photos/1/1.jpg' AS BLOB) WHERE id = 'removed'"
        ],
        "a removed image that is an item": [
            "UPDATE removed SET id = '0000000000000001' WHERE id = 'removed'"
        ],
        "a removed path twice": [
            "INSERT INTO removed SELECT 'more', path, size, modified, 0 FROM removed LIMIT 1",
            "UPDATE state SET removed = removed + 1",
        ],
        "a removed path with a zero": ["UPDATE removed SET path = x'2f00' WHERE id = 'removed'"],
        "a billion removed files": ["UPDATE state SET removed = 1000000000"],
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
    yield Case("removed paths of 4 MB", by_sql("UPDATE removed SET path = zeroblob(4000000) || id"))
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
