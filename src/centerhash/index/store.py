"""The store of an index: one SQLite file, scanned columns in chunks of 4,096 rows, all else in ordinary tables.

    store = Store.create(path, Facts(bits=64))
    store.add(batch)
    with store.reading("semantic") as snapshot:
        snapshot.items(rows)

On disk. `chunks` has one blob per column and 4,096 rows, with the commit that wrote it and one checksum over column,
chunk, commit and content. `items` and `texts` have a checksum per row. `meta` has the number of commits, rows, items and
texts, `facts` what never changes. An item has a key, which is never used again, and a row, its position in the columns.
Rows are in the order of keys; `compact` drops those of removed items. Names of labels are texts of the attribute "".

Writing reads and rewrites blobs in one SQLite transaction, whose lock is the only one. It needs nothing in memory.

In memory. A column is loaded when a search first needs it, and later brought up to date by `WHERE version > mine`. One of
fixed width is one array with spare room at its end; label entries are arrays per chunk. A `View` is one commit: new rows
go to the spare room, beyond the rows of all earlier views, and a column whose older rows have changed is copied. So
searches need no lock.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from threading import Thread, current_thread
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import CenterhashError, DataError, InputError, OutputError
from centerhash.core.progress import Progress, silent
from centerhash.index.items import (
    BARE,
    CARRIED,
    CHUNK,
    FORMAT,
    HIDDEN,
    LABELS,
    NO_PART,
    REMOVED,
    Batch,
    Bools,
    Facts,
    Filter,
    Item,
    Keys,
    Meta,
    Part,
    Rows,
    View,
    attribute_column,
    joined,
    updated,
)

# Of SQLite: blobs are read 1.6 times as fast as from pages of 4,096.
PAGE_BYTES = 16384
# For another process that writes.
WAIT_SECONDS = 5.0
# Of one SQL statement.
VARIABLES = 10_000

_SCHEMA = """
CREATE TABLE facts (json TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE meta (version INTEGER NOT NULL, rows INTEGER NOT NULL, items INTEGER NOT NULL, hidden INTEGER NOT NULL,
    labels INTEGER NOT NULL, texts INTEGER NOT NULL, next_key INTEGER NOT NULL, next_number INTEGER NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE items (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL);
CREATE TABLE texts (number INTEGER PRIMARY KEY, attribute TEXT NOT NULL, text TEXT NOT NULL, crc INTEGER NOT NULL,
    UNIQUE (attribute, text));
CREATE TABLE chunks (name TEXT NOT NULL, chunk INTEGER NOT NULL, version INTEGER NOT NULL, crc INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (name, chunk));
CREATE INDEX changed ON chunks (name, version);
"""
_ADVICE = "restore a backup, or create the index again"


class Snapshot:
    """What one thread reads of one commit: loaded columns of its view, and chunks and rows of tables for all else.

    Inside a transaction no column is loaded, what it has written is read, and `meta` is of the commit to come.
    """

    def __init__(self, store: Store, sql: sqlite3.Connection, meta: Meta, view: View) -> None:
        self.store, self.sql, self.meta, self.view = store, sql, meta, view
        # The chunk of each column that was read last, and its number.
        self._last: dict[str, tuple[int, Any]] = {}

    def damaged(self, what: str) -> DataError:
        """Return the error of a file that does not hold what was written."""
        return DataError(f"'{self.store.path}' is damaged ({what}): {_ADVICE}.")

    # --- columns

    def _chunks(self, condition: str, *values: object) -> Iterator[tuple[int, Any]]:
        """Yield number and content of the chunks that a condition selects: values, or a `Part` of label entries."""
        query = f"SELECT name, chunk, version, crc, data FROM chunks WHERE {condition}"
        for name, chunk, version, crc, data in self.sql.execute(query, values):
            if not isinstance(data, bytes) or _crc(name, chunk, version, data=data) != crc:
                raise self.damaged(f"column '{name}', chunk {chunk}")
            if name == LABELS:
                yield chunk, Part.from_bytes(data)
                continue
            content = self.store.columns[name].read(data)
            if chunk < self.meta.chunks and len(content) != min(self.meta.rows - chunk * CHUNK, CHUNK):
                raise self.damaged(f"column '{name}', chunk {chunk} has {len(content)} rows")
            yield chunk, content

    def changed(self, name: str, since: Meta) -> Iterator[tuple[int, Any]]:
        """Yield the chunks that were written since a commit; none of new rows may be missing."""
        due = set(range(since.rows // CHUNK, self.meta.chunks)) if self.meta.rows > since.rows else set()
        # without ORDER BY, for which SQLite would sort the blobs
        for chunk, content in self._chunks("name = ? AND version > ?", name, since.version):
            due.discard(chunk)
            if chunk < self.meta.chunks:
                yield chunk, content
        if due:
            raise self.damaged(f"column '{name}', chunk {min(due)} is missing")

    def chunk(self, name: str, chunk: int) -> Any:
        """Return a chunk of a column: its values, or a `Part` of label entries."""
        if name in self.view.arrays:
            return self.view[name][chunk * CHUNK : (chunk + 1) * CHUNK]
        if name == LABELS and self.view.parts is not None:
            return self.view.parts[chunk]
        if name not in self._last or self._last[name][0] != chunk:
            found = next(self._chunks("name = ? AND chunk = ?", name, chunk), None)
            if found is None:
                raise self.damaged(f"column '{name}', chunk {chunk} is missing")
            self._last[name] = found
        return self._last[name][1]

    def span(self, name: str, chunks: range) -> NDArray[Any]:
        """Return the values of consecutive chunks."""
        nothing = self.store.columns[name].empty(0)
        return np.concatenate([nothing, *(self.chunk(name, chunk) for chunk in chunks)])

    def _gather(self, name: str, rows: Rows) -> NDArray[Any]:
        """Return the values of a column of some rows; of a column that is not loaded, their chunks are read."""
        if name in self.view.arrays:
            return self.view[name][rows]
        values, chunks = self.store.columns[name].empty(len(rows)), rows // CHUNK
        for chunk in np.unique(chunks).tolist():
            values[chunks == chunk] = self.chunk(name, chunk)[rows[chunks == chunk] % CHUNK]
        return values

    def write(self, name: str, chunk: int, data: bytes) -> None:
        """Write a chunk of a column in the commit to come."""
        version = self.meta.version
        row = (name, chunk, version, _crc(name, chunk, version, data=data), data)
        self.sql.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)", row)
        self._last.pop(name, None)

    # --- tables

    def table(self, query: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table whose last value is their checksum, without that."""
        for *row, crc in self.sql.execute(query, values):
            if _crc(*row) != crc:
                raise self.damaged(f"a row of: {query.partition('FROM ')[2].partition(' ')[0]}")
            yield tuple(row)

    def _among(self, query: str, values: Sequence[object], *first: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query that ends with the name of a column, which has one of the values."""
        for start in range(0, len(values), VARIABLES):
            page = values[start : start + VARIABLES]
            yield from self.table(f"{query} IN ({_marks(page)})", (*first, *page))

    def _numbers(self, query: str, values: Sequence[str], *first: str, thorough: bool) -> dict[str, int]:
        """Return the numbers of those texts that are stored; the query lacks the index to use, and the texts.

        SQLite's indexes have no checksum. If it is to be thorough, a text that is not there is looked for in the table.
        """
        rows = self._among(query.format(""), list(dict.fromkeys(values)), *first)
        numbers = {row[-1]: row[0] for row in rows}
        missing = [value for value in values if value not in numbers] if thorough else []
        for _ in self._among(query.format("NOT INDEXED"), missing, *first):
            raise self.damaged("an index over texts or ids")
        return numbers

    def keys(self, ids: Sequence[str], *, thorough: bool = True) -> dict[str, int]:
        """Return the keys of those ids that are stored."""
        return self._numbers("SELECT key, id, crc FROM items {} WHERE id", ids, thorough=thorough)

    def known_keys(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the keys of ids, or raise InputError for one that is not stored."""
        known = self.keys(ids)
        missing = next((id for id in ids if id not in known), None)
        if missing is not None:
            raise InputError(f"no item {missing!r} in the index, which holds {self.meta.items:,}.")
        return known

    def ids(self, keys: Sequence[int]) -> dict[int, str]:
        """Return the ids of those keys that are stored."""
        return dict(self._among("SELECT key, id, crc FROM items WHERE key", keys))

    def text_numbers(self, attribute: str, texts: Sequence[str], *, thorough: bool = True) -> dict[str, int]:
        """Return the numbers of those texts of an attribute that are stored."""
        query = "SELECT number, attribute, text, crc FROM texts {} WHERE attribute = ? AND text"
        return self._numbers(query, texts, attribute, thorough=thorough)

    def texts(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return texts by their numbers."""
        rows = self._among("SELECT number, attribute, text, crc FROM texts WHERE number", numbers)
        texts = {number: text for number, _, text in rows}
        if len(texts) < len(numbers):
            raise self.damaged(f"{len(numbers) - len(texts)} texts are missing")
        return texts

    @property
    def labels(self) -> Mapping[int, str]:
        """Return the names of all labels by number."""
        if len(self.view.labels) == self.meta.labels:
            return self.view.labels
        rows = self.table("SELECT number, attribute, text, crc FROM texts WHERE attribute = ''")
        labels = {number: text for number, _, text in rows}
        if len(labels) != self.meta.labels:
            raise self.damaged("labels are missing in its table of texts")
        return dict(sorted(labels.items()))

    def add_texts(self, attribute: str, texts: Sequence[str]) -> dict[str, int]:
        """Return the numbers of texts of an attribute; new ones are stored."""
        numbers, meta = self.text_numbers(attribute, texts, thorough=False), self.meta
        new = [text for text in dict.fromkeys(texts) if text not in numbers]
        rows = [(number, attribute, text) for number, text in enumerate(new, meta.texts)]
        self.sql.executemany("INSERT INTO texts VALUES (?, ?, ?, ?)", ((*row, _crc(*row)) for row in rows))
        of_labels = 0 if attribute else len(new)
        self.meta = meta._replace(texts=meta.texts + len(new), labels=meta.labels + of_labels)
        return numbers | {text: number for number, _, text in rows}

    # --- items

    def rows(self, keys: Keys) -> Rows:
        """Return the rows of ascending keys, -1 for those that are not in the columns."""
        if not len(keys) or not self.meta.rows:
            return np.full(len(keys), -1)
        if "key" in self.view.arrays:
            first, stored = 0, self.view["key"]
        else:  # a row is before its key by as many as were dropped at most
            dropped, last = self.meta.next_key - self.meta.rows, self.meta.rows - 1
            first = min(max(0, int(keys[0]) - dropped), last) // CHUNK
            stored = self.span("key", range(first, min(max(0, int(keys[-1])), last) // CHUNK + 1))
        rows = np.minimum(np.searchsorted(stored, keys.astype(stored.dtype)), len(stored) - 1)
        return np.where(stored[rows] == keys, rows + first * CHUNK, -1)

    def rows_of_items(self, keys: Sequence[int]) -> Rows:
        """Return the rows of stored items in the order of their keys."""
        ascending = np.array(sorted(keys), np.int64)
        rows = self.rows(ascending)
        if (rows < 0).any():
            raise self.damaged(f"the row of item {int(ascending[rows < 0][0])} is missing")
        return rows

    def items(self, rows: Rows) -> list[Item]:
        """Return the items of some rows, in their order."""
        columns = {name: self._gather(name, rows) for name in self.store.columns}
        keys, flags, labels = columns["key"].tolist(), columns["flags"].tolist(), self.labels
        ids, general = self.ids(keys), columns.get("general")
        attributes: dict[str, list[Any]] = {}
        for name, kind in self.store.facts.attributes.items():
            values = columns[attribute_column(name)].tolist()
            if kind == "text":
                texts = self.texts(sorted({value - 1 for value in values if value}))
                attributes[name] = [texts[value - 1] if value else None for value in values]
            else:  # NaN is a missing number
                attributes[name] = [value if value == value else None for value in values]
        items = []
        for place, (key, row, flag) in enumerate(zip(keys, rows.tolist(), flags, strict=True)):
            if key not in ids:
                raise self.damaged(f"the id of item {key} is missing")
            entries = self.chunk(LABELS, row // CHUNK).of_row(row % CHUNK)
            carried = tuple(labels[label - CARRIED] for label, _, _ in entries if label >= CARRIED)
            scores = {labels[label]: (level, share) for label, level, share in entries if label < CARRIED}
            seen = None if general is None or flag & BARE else general[place]
            values = {name: column[place] for name, column in attributes.items()}
            code, hidden = columns["semantic"][place], bool(flag & HIDDEN)
            items.append(Item(key, ids[key], code, seen, carried, scores, values, hidden))
        return items

    def items_from(self, key: int) -> list[Item]:
        """Return the next items whose keys are at least this, of one chunk."""
        chunks = range(self.meta.chunks)
        for chunk in chunks[bisect_left(chunks, key, key=lambda chunk: self.chunk("key", chunk)[-1]) :]:
            is_stored = self.chunk("flags", chunk) & REMOVED == 0
            rows = np.flatnonzero(is_stored & (self.chunk("key", chunk) >= key))
            if len(rows):
                return self.items(rows + chunk * CHUNK)
        return []

    def allowed(self, only: Filter) -> Bools | None:
        """Return a mask of the rows that pass a filter and are not hidden; None: all."""
        masks = [] if self.view.shown is None else [self.view.shown]
        masks += [self.view.having(label) for label in only.having]
        masks += [~self.view.having(label) for label in only.without]
        for name, wanted in only.where.items():
            values = self.view[attribute_column(name)]
            if self.store.facts.attributes[name] == "number":
                masks += [values >= wanted[0], values <= wanted[1]]  # NaN is in no range
            else:
                numbers = self.text_numbers(name, [str(text) for text in wanted]).values()
                masks.append(np.isin(values, [number + 1 for number in numbers]))
        if only.among is not None:
            rows = self.rows(np.unique(only.among))
            masks.append(np.zeros(self.meta.rows, np.bool_))
            masks[-1][rows[rows >= 0]] = True
        return reduce(np.logical_and, masks) if masks else None


class _Connection(sqlite3.Connection):
    """The connection of a thread, and what it reads while a block of `Store.reading` runs."""

    snapshot: Snapshot | None = None


class Store:
    """The items in one SQLite file. Threads may share a store; each has its own connection."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only, self.closed = path, read_only, False
        # A medium that is read-only has no room for the files that readers share.
        is_fixed = read_only and not os.access(path.parent, os.W_OK) and not _bytes_of(path, "-wal")
        mode = "rw" if not read_only else "ro&immutable=1" if is_fixed else "ro"
        self._address = f"{path.absolute().as_uri()}?mode={mode}"
        self._connections: dict[Thread, _Connection] = {}
        self._connecting, self._loading = threading.Lock(), threading.Lock()
        self._view = View(Meta())
        with self._explained():
            self.facts = self._read_facts()
        self.columns = self.facts.columns
        self.meta()

    @classmethod
    def create(cls, path: Path, facts: Facts, labels: Sequence[str] = ()) -> Self:
        """Create the file of an empty store and open it; `labels` are numbered first, in their order."""
        with closing(sqlite3.connect(path, isolation_level=None)) as sql:
            sql.executescript(f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL; BEGIN; {_SCHEMA}")
            text, meta = json.dumps(asdict(facts)), Meta(0, labels=len(labels), texts=len(labels))
            sql.execute("INSERT INTO facts VALUES (?, ?)", (text, _crc(text)))
            sql.execute(f"INSERT INTO meta VALUES ({_marks((*meta, 0))})", (*meta, _crc(*meta)))
            rows = ((number, "", name) for number, name in enumerate(labels))
            sql.executemany("INSERT INTO texts VALUES (?, ?, ?, ?)", ((*row, _crc(*row)) for row in rows))
            sql.execute("COMMIT")
        return cls(path)

    def _read_facts(self) -> Facts:
        row = self._connection().execute("SELECT json, crc FROM facts").fetchone()
        try:
            if row is None or _crc(row[0]) != row[1]:
                raise ValueError("they do not match their checksum")
            facts = Facts(**json.loads(row[0]))
            if facts.format != FORMAT:
                raise ValueError(f"their format is {facts.format}, this version reads {FORMAT}")
        except (ValueError, TypeError) as error:
            raise DataError(f"the facts in '{self.path}' cannot be read ({error}): {_ADVICE}.") from None
        return facts

    # --- connections

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of SQLite into errors that name the file."""
        try:
            yield
        except CenterhashError:
            raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise InputError(
                    f"'{self.path.parent}' is being written by another process: wait until it has finished, then try "
                    "again."
                ) from None
            if name.startswith(("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")):
                raise OutputError(f"cannot read or write '{self.path}': {error}.") from error
            if self.closed and isinstance(error, sqlite3.ProgrammingError):
                raise self._is_closed() from None
            raise DataError(f"'{self.path}' is damaged ({error}): {_ADVICE}.") from error

    def _is_closed(self) -> InputError:
        return InputError(f"the index '{self.path.parent}' is closed: open it again.")

    def _connection(self) -> _Connection:
        """Return the connection of this thread; those of threads that have ended are closed."""
        if (known := self._connections.get(current_thread())) is not None:
            return known
        with self._connecting:
            if self.closed:
                raise self._is_closed()
            for thread in [thread for thread in self._connections if not thread.is_alive()]:
                self._connections.pop(thread).close()
            options: Any = {"isolation_level": None, "check_same_thread": False, "factory": _Connection}
            sql: _Connection = sqlite3.connect(self._address, uri=True, timeout=WAIT_SECONDS, **options)
            self._connections[current_thread()] = sql
            sql.execute("PRAGMA trusted_schema = OFF")
            if not self.read_only:  # it reads the file
                sql.execute("PRAGMA synchronous = FULL")
            return sql

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        with self._connecting:
            self.closed = True
            while self._connections:
                self._connections.popitem()[1].close()

    # --- reading

    def meta(self) -> Meta:
        """Return what the table `meta` holds now."""
        with self._explained():
            for *values, crc in self._connection().execute("SELECT * FROM meta"):
                if _crc(*values) == crc:
                    return Meta(*values)
            raise DataError(f"'{self.path}' is damaged (the table meta): {_ADVICE}.")

    @contextmanager
    def reading(self, *names: str) -> Iterator[Snapshot]:
        """Within the block, all that this thread reads is of one commit, whose view has these columns.

        A block within another one reads the commit of that. Inside a transaction, what it has written is read.
        """
        with self._explained():
            sql = self._connection()
            if sql.snapshot is not None:
                with self._loading:
                    self._load(sql.snapshot, names)
                yield sql.snapshot
            elif sql.in_transaction:
                if names:
                    raise InputError("searches are refused inside a transaction: search after its block.")
                meta = self.meta()
                yield Snapshot(self, sql, meta, View(meta, labels=self._view.labels))
            else:
                try:
                    # so that no other thread has loaded a later commit than this one
                    with self._loading:
                        sql.execute("BEGIN")
                        sql.snapshot = Snapshot(self, sql, self.meta(), View(Meta()))
                        self._load(sql.snapshot, names)
                    yield sql.snapshot
                finally:
                    sql.snapshot = None
                    with suppress(sqlite3.Error):  # another thread has closed the store
                        sql.execute("ROLLBACK")

    def _load(self, snapshot: Snapshot, names: Sequence[str]) -> None:
        """Load columns for a snapshot; other threads have them too, unless they have loaded a later commit."""
        if self._view.meta.version <= snapshot.meta.version:
            snapshot.view = self._view = self._loaded(snapshot, self._view, names)
        else:
            snapshot.view = self._loaded(snapshot, snapshot.view, names)

    def _loaded(self, snapshot: Snapshot, old: View, names: Sequence[str]) -> View:
        """Return a view of a commit: the old one, what has changed since, and columns that it did not have."""
        meta, columns = snapshot.meta, {*names, *old.columns}
        if old.meta == meta and columns == old.columns:
            return old
        if meta.rows < old.meta.rows:  # older views still read the rows that were dropped
            old = View(Meta(), labels=old.labels)
        snapshot.view = View(meta, labels=old.labels)
        arrays, parts = dict(old.arrays), old.parts
        for name in columns:
            since = old.meta if name in old.columns else Meta()
            changed = snapshot.changed(name, since)
            if name == LABELS:
                parts = [*(parts or ()), *[NO_PART] * (meta.chunks - len(parts or ()))]
                for chunk, part in changed:
                    parts[chunk] = part
            else:
                arrays[name] = updated(arrays.get(name), self.columns[name], changed, since.rows, meta.rows)
        return View(meta, arrays, parts, snapshot.labels)

    # --- writing

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Make the block one durable commit; a block within another one is part of its commit."""
        if self.read_only:
            raise InputError(f"'{self.path.parent}' was opened read-only: open it for writing to change it.")
        sql = self._connection()
        if sql.snapshot is not None:
            raise InputError(
                "an index cannot be changed while the same thread reads: change it after that block."
            )
        is_inner = sql.in_transaction
        with self._explained():
            sql.execute("SAVEPOINT block" if is_inner else "BEGIN IMMEDIATE")
            try:
                yield sql
                sql.execute("RELEASE block" if is_inner else "COMMIT")
            except BaseException:
                if sql.in_transaction:  # SQLite ends it itself when the disk is full
                    for statement in ("ROLLBACK TO block", "RELEASE block") if is_inner else ("ROLLBACK",):
                        sql.execute(statement)
                raise

    @contextmanager
    def _changing(self) -> Iterator[Snapshot]:
        """Within a transaction, return a snapshot to write through; nothing is written unless its `meta` changes."""
        with self.transaction() as sql, self.reading() as snapshot:
            before = snapshot.meta = snapshot.meta._replace(version=snapshot.meta.version + 1)
            yield snapshot
            if snapshot.meta != before:
                names = ", ".join(f"{name} = ?" for name in (*Meta._fields, "crc"))
                sql.execute(f"UPDATE meta SET {names}", (*snapshot.meta, _crc(*snapshot.meta)))

    def add(self, batch: Batch, *, replace: bool = False) -> int:
        """Add items in one commit and return how many; those of known ids are skipped, or replaced if asked."""
        with self._changing() as snapshot:
            first = snapshot.meta.next_number
            ids = [str(number) for number in range(first, first + len(batch))]
            ids = ids if batch.ids is None else list(batch.ids)
            known = snapshot.keys(ids, thorough=False) if snapshot.meta.items else {}
            if replace:
                self._flag(snapshot, list(known.values()), REMOVED, True)
            elif known:
                rows = [row for row, id in enumerate(ids) if id not in known]
                batch, ids = batch.take(np.array(rows, np.int64)), [ids[row] for row in rows]
            if len(batch):
                self._append(snapshot, batch, ids)
            return len(batch)

    def _append(self, snapshot: Snapshot, batch: Batch, ids: Sequence[str]) -> None:
        first, count = snapshot.meta.rows, len(batch)
        end, keys = first + count, range(snapshot.meta.next_key, snapshot.meta.next_key + count)
        columns = {**batch.columns, "key": np.array(keys)}
        for name, kind in self.facts.attributes.items():
            if kind == "text":
                values = columns[attribute_column(name)].tolist()
                texts = snapshot.add_texts(name, [text for text in values if text is not None])
                numbers = [0 if text is None else texts[text] + 1 for text in values]
                columns[attribute_column(name)] = np.array(numbers)
        columns = {name: columns[name].astype(column.dtype) for name, column in self.columns.items()}
        labels = snapshot.add_texts("", batch.labels)
        label_numbers = np.array([labels[name] for name in batch.labels], np.uint32)
        entries, carried = batch.entries, batch.entries.labels & CARRIED
        entries = entries._replace(labels=label_numbers[entries.labels & (CARRIED - 1)] | carried)
        for chunk in range(first // CHUNK, -(-end // CHUNK)):
            top, bottom = max(chunk * CHUNK, first), min((chunk + 1) * CHUNK, end)
            is_new, selected = top == chunk * CHUNK, slice(top - first, bottom - first)
            for name, values in columns.items():
                before = b"" if is_new else snapshot.chunk(name, chunk).tobytes()
                snapshot.write(name, chunk, before + values[selected].tobytes())
            places = slice(*np.searchsorted(entries.rows, (selected.start, selected.stop)).tolist())
            added = entries.take(places)
            added = added._replace(rows=added.rows + (first - chunk * CHUNK))
            parts = [added] if is_new else [snapshot.chunk(LABELS, chunk).entries(), added]
            snapshot.write(LABELS, chunk, Part.of(joined(parts)).to_bytes())
        stored = ((key, id, _crc(key, id)) for key, id in zip(keys, ids, strict=True))
        snapshot.sql.executemany("INSERT INTO items VALUES (?, ?, ?)", stored)
        is_number = (id for id in ids if id.isascii() and id.isdecimal() and len(id) < 19)
        snapshot.meta = snapshot.meta._replace(
            rows=end,
            items=snapshot.meta.items + count,
            next_key=keys.stop,
            next_number=max(snapshot.meta.next_number, 1 + max(map(int, is_number), default=-1)),
        )

    def _flag(self, snapshot: Snapshot, keys: Sequence[int], flag: int, is_set: bool) -> int:
        """Set or clear a flag of items; return of how many it has changed."""
        rows, changed, hidden = snapshot.rows_of_items(keys), 0, 0
        for chunk in np.unique(rows // CHUNK).tolist():
            flags = snapshot.chunk("flags", chunk).copy()
            places = rows[rows // CHUNK == chunk] % CHUNK
            before = flags[places]
            flags[places] = before | flag if is_set else before & ~np.uint8(flag)
            changed += int(np.count_nonzero(before != flags[places]))
            hidden += int(np.count_nonzero(before & HIDDEN))
            snapshot.write("flags", chunk, flags.tobytes())
        meta = snapshot.meta
        if flag == REMOVED:
            snapshot.sql.executemany("DELETE FROM items WHERE key = ?", ((key,) for key in keys))
            snapshot.meta = meta._replace(items=meta.items - changed, hidden=meta.hidden - hidden)
        else:
            snapshot.meta = meta._replace(hidden=meta.hidden + (changed if is_set else -changed))
        return changed

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items in one commit and return how many were stored; their rows stay until `compact`."""
        with self._changing() as snapshot:
            return self._flag(snapshot, list(snapshot.keys(ids).values()), REMOVED, True)

    def set_hidden(self, ids: Sequence[str], hidden: bool) -> int:
        """Hide items or show them again in one commit; return of how many this has changed."""
        with self._changing() as snapshot:
            return self._flag(snapshot, list(snapshot.known_keys(ids).values()), HIDDEN, hidden)

    def compact(self) -> None:
        """Drop the rows of removed items and give their space back; keys stay as they are."""
        with self._changing() as snapshot:
            every = range(snapshot.meta.chunks)
            rows = np.flatnonzero(snapshot.span("flags", every) & REMOVED == 0)
            if len(rows) == snapshot.meta.rows:
                return
            for chunk, start in enumerate(range(0, len(rows), CHUNK)):
                # of no earlier chunk than this one, so that none is read which has been written
                selected = rows[start : start + CHUNK]
                read = range(int(selected[0]) // CHUNK, int(selected[-1]) // CHUNK + 1)
                for name in self.columns:
                    values = snapshot.span(name, read)[selected - read.start * CHUNK]
                    snapshot.write(name, chunk, values.tobytes())
                parts = [snapshot.chunk(LABELS, old).entries(old * CHUNK) for old in read]
                snapshot.write(LABELS, chunk, Part.of(joined(parts).of_rows(selected)).to_bytes())
            snapshot.sql.execute("DELETE FROM chunks WHERE chunk >= ?", (-(-len(rows) // CHUNK),))
            snapshot.meta = snapshot.meta._replace(rows=len(rows))
        sql = self._connection()
        if not sql.in_transaction:
            with self._explained():
                sql.execute("VACUUM")
                sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- checks and copies

    def verify(self) -> list[str]:
        """Read everything and return a sentence for each damage that was found."""
        problems: list[str] = []
        for check in (self._verify_columns, self._verify_tables, self._verify_file):
            try:
                with self.reading() as snapshot:
                    check(snapshot)
            except (DataError, OutputError) as error:
                problems.append(str(error))
        return problems

    def _verify_columns(self, snapshot: Snapshot) -> None:
        items = hidden = 0
        for name in (*self.columns, LABELS):
            for _, content in snapshot.changed(name, Meta()):
                if name == "flags":
                    items += int(np.count_nonzero(content & REMOVED == 0))
                    hidden += int(np.count_nonzero(content & (REMOVED | HIDDEN) == HIDDEN))
        if (items, hidden) != (snapshot.meta.items, snapshot.meta.hidden):
            raise snapshot.damaged(f"its columns have {items:,} items, of which {hidden:,} are hidden")

    def _verify_tables(self, snapshot: Snapshot) -> None:
        for table, expected in (("items", snapshot.meta.items), ("texts", snapshot.meta.texts)):
            count = sum(1 for _ in snapshot.table(f"SELECT * FROM {table} NOT INDEXED"))
            if count != expected:
                raise snapshot.damaged(f"{count} rows in its table {table} instead of {expected}")

    def _verify_file(self, snapshot: Snapshot) -> None:
        for (line,) in snapshot.sql.execute("PRAGMA integrity_check(1)"):
            if line != "ok":
                raise snapshot.damaged(line)

    def back_up(self, path: Path, progress: Progress = silent) -> None:
        """Copy the file as of one commit, also while another process writes."""

        def report(_status: int, remaining: int, total: int) -> None:
            progress("backup", total - remaining, total)

        with self._explained(), closing(sqlite3.connect(path)) as copy:
            self._connection().backup(copy, pages=1 << 12, progress=report)
            copy.execute("PRAGMA journal_mode = WAL")

    def bytes(self) -> int:
        """Return the size of the file and of its write-ahead log."""
        return sum(_bytes_of(self.path, ending) for ending in ("", "-wal"))


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _crc(*values: object, data: bytes = b"") -> int:
    """Return the checksum of the values of a row of a table; `data` is a long one among them."""
    return crc32(data, crc32("\0".join(map(str, values)).encode()))


def _bytes_of(path: Path, ending: str) -> int:
    file = path.with_name(path.name + ending)
    return file.stat().st_size if file.exists() else 0
