"""The store of an index: one SQLite file, scanned columns in chunks of 4,096 rows, all else in ordinary tables.

    store = Store.create(path, Facts(bits=64))
    store.add(batch)
    with store.reading("semantic") as snapshot:
        snapshot.items(rows)

On disk. `chunks` has one blob per column and 4,096 rows, with the commit that wrote it and one checksum over column,
chunk, commit and content. `items`, `labels` and `texts` have a checksum per row. `meta` has the number of commits, rows,
items, labels and texts, `facts` what never changes. An item has a key, which is never used again, and a row, its position
in the columns. Rows are in the order of keys; `compact` drops those of removed items.

Writing reads and rewrites blobs in one SQLite transaction, whose lock is the only one. It needs nothing in memory.

In memory. A column is loaded when a search first needs it, and later brought up to date by `WHERE version > mine`. One of
fixed width is one array with spare room at its end; label entries are arrays per chunk. A `View` is one commit: new rows
go to the spare room, beyond the rows of all earlier views, and a column whose older rows have changed is copied. So
searches need no lock.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
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
    NO_PART,
    NOTHING,
    REMOVED,
    UNSCORED,
    Batch,
    Bools,
    Facts,
    Filter,
    Item,
    Keys,
    Meta,
    Part,
    Rows,
    Value,
    View,
    attribute_column,
    columns_of,
    joined,
    updated,
)

PAGE_BYTES = 16384  # of SQLite: blobs are read 1.6 times as fast as from pages of 4,096
WAIT_SECONDS = 5.0  # for another process that writes
VARIABLES = 10_000  # of one SQL statement

_SCHEMA = """
CREATE TABLE facts (json TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE meta (version INTEGER NOT NULL, rows INTEGER NOT NULL, items INTEGER NOT NULL, hidden INTEGER NOT NULL,
    labels INTEGER NOT NULL, texts INTEGER NOT NULL, next_key INTEGER NOT NULL, next_number INTEGER NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE items (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL);
CREATE TABLE labels (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL);
CREATE TABLE texts (number INTEGER PRIMARY KEY, attribute TEXT NOT NULL, text TEXT NOT NULL, crc INTEGER NOT NULL,
    UNIQUE (attribute, text));
CREATE TABLE chunks (name TEXT NOT NULL, chunk INTEGER NOT NULL, version INTEGER NOT NULL, crc INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (name, chunk));
CREATE INDEX changed ON chunks (name, version);
"""
_ADVICE = "restore a backup, or create the index again"


class Snapshot:
    """What one thread reads of one commit: loaded columns of its view, and blobs and rows of tables for all else.

    Inside a transaction no column is loaded, and what the transaction has written is read.
    """

    def __init__(self, store: Store, sql: sqlite3.Connection, meta: Meta, view: View) -> None:
        self.path, self.columns, self.sql, self.meta, self.view = store.path, store.columns, sql, meta, view
        self._attributes = store.facts.attributes
        self._parts: dict[int, Part] = {}

    def damaged(self, what: str) -> DataError:
        """Return the error of a file that does not hold what was written."""
        return DataError(f"'{self.path}' is damaged ({what}): {_ADVICE}.")

    def _blobs(self, condition: str, *values: object) -> Iterator[tuple[int, bytes]]:
        """Yield chunk and content of the blobs that a condition selects."""
        query = f"SELECT name, chunk, version, crc, data FROM chunks WHERE {condition}"
        for name, chunk, version, crc, data in self.sql.execute(query, values):
            if not isinstance(data, bytes) or _crc(name, chunk, version, data=data) != crc:
                raise self.damaged(f"column '{name}', chunk {chunk}")
            yield chunk, data

    def blob(self, name: str, chunk: int) -> bytes:
        """Return the content of a chunk of a column."""
        for _, data in self._blobs("name = ? AND chunk = ?", name, chunk):
            return data
        raise self.damaged(f"column '{name}', chunk {chunk} is missing")

    def changed(self, name: str, before: Meta) -> Iterator[tuple[int, bytes]]:
        """Yield the blobs that were written since a commit; none of new rows may be missing."""
        due = set(range(before.rows // CHUNK, self.meta.chunks)) if self.meta.rows > before.rows else set()
        # without ORDER BY, for which SQLite would sort the blobs
        for chunk, data in self._blobs("name = ? AND version > ?", name, before.version):
            due.discard(chunk)
            if chunk < self.meta.chunks:
                yield chunk, data
        if due:
            raise self.damaged(f"column '{name}', chunk {min(due)} is missing")

    def checked(self, name: str, chunk: int, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of a chunk if there are as many as there should be."""
        if len(values) != min(self.meta.rows - chunk * CHUNK, CHUNK):
            raise self.damaged(f"column '{name}', chunk {chunk} has {len(values)} rows")
        return values

    def values(self, name: str, chunk: int) -> NDArray[Any]:
        """Return the rows of a chunk of a column of fixed width."""
        if name in self.view.arrays:
            return self.view[name][chunk * CHUNK : (chunk + 1) * CHUNK]
        return self.checked(name, chunk, self.columns[name].read(self.blob(name, chunk)))

    def part(self, chunk: int) -> Part:
        """Return the label entries of a chunk."""
        if self.view.parts is not None:
            return self.view.parts[chunk]
        if chunk not in self._parts:
            self._parts = {chunk: Part.from_bytes(self.blob("labels", chunk))}
        return self._parts[chunk]

    def table(self, query: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table whose last value is their checksum, without that."""
        for *row, crc in self.sql.execute(query, values):
            if _crc(*row) != crc:
                raise self.damaged(f"a row of: {query.partition('FROM ')[2].partition(' ')[0]}")
            yield tuple(row)

    def _numbers(self, query: str, values: Sequence[str], *first: str, thorough: bool) -> dict[str, int]:
        """Return the numbers of those texts that are stored; the query lacks the index to use, and the texts.

        SQLite's indexes have no checksum. If it is to be thorough, a text that is not there is looked for in the table.
        """
        numbers: dict[str, int] = {}
        for index in ("", "NOT INDEXED") if thorough else ("",):
            missing = [value for value in dict.fromkeys(values) if value not in numbers]
            for row in self._among(query.format(index), missing, *first):
                if index:
                    raise self.damaged("an index over texts or ids")
                numbers[row[-1]] = row[0]
        return numbers

    def _among(self, query: str, values: Sequence[object], *first: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query that ends with the name of a column, which has one of the values."""
        for start in range(0, len(values), VARIABLES):
            page = values[start : start + VARIABLES]
            yield from self.table(f"{query} IN ({_marks(page)})", (*first, *page))

    def keys(self, ids: Sequence[str], *, thorough: bool = True) -> dict[str, int]:
        """Return the keys of those ids that are stored."""
        return self._numbers("SELECT key, id, crc FROM items {} WHERE id", ids, thorough=thorough)

    def ids(self, keys: Sequence[int]) -> dict[int, str]:
        """Return the ids of those keys that are stored."""
        return dict(self._among("SELECT key, id, crc FROM items WHERE key", keys))

    def text_numbers(self, attribute: str, texts: Sequence[str], *, thorough: bool = True) -> dict[str, int]:
        """Return the numbers of those texts of an attribute that are stored."""
        query = "SELECT number, attribute, text, crc FROM texts {} WHERE attribute = ? AND text"
        return self._numbers(query, texts, attribute, thorough=thorough)

    def texts(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return texts of attributes by their numbers."""
        rows = self._among("SELECT number, attribute, text, crc FROM texts WHERE number", numbers)
        texts = {number: text for number, _, text in rows}
        if len(texts) < len(numbers):
            raise self.damaged(f"{len(numbers) - len(texts)} texts are missing")
        return texts

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Return the names of all labels by number."""
        known = self.view.labels
        if len(known) == self.meta.labels:
            return known
        query = "SELECT number, name, crc FROM labels WHERE number >= ? ORDER BY number"
        rows = list(self.table(query, (len(known),)))
        if [number for number, _ in rows] != list(range(len(known), self.meta.labels)):
            raise self.damaged("the table of labels")
        return (*known, *(name for _, name in rows))

    def rows(self, keys: Keys) -> Rows:
        """Return the rows of ascending keys, -1 for those that are not in the columns."""
        if "key" in self.view.arrays:
            stored = self.view["key"]
            rows = np.searchsorted(stored, keys.astype(stored.dtype))
            exists = rows < len(stored)
            exists[exists] = stored[rows[exists]] == keys[exists]
            return np.where(exists, rows, -1)
        positions = np.full(len(keys), -1)
        dropped, start = self.meta.next_key - self.meta.rows, 0
        while start < len(keys) and self.meta.rows:
            # a row is at most as many before its key as rows were dropped
            key, last = int(keys[start]), self.meta.rows - 1
            chunks = range(min(max(0, key - dropped), last) // CHUNK, min(key, last) // CHUNK + 1)
            after = bisect_right(chunks, key, lo=1, key=lambda chunk: self.values("key", chunk)[0])
            chunk = chunks[after - 1]
            stored = self.values("key", chunk)
            end = max(start + 1, int(np.searchsorted(keys, stored[-1], "right")))
            rows = np.minimum(np.searchsorted(stored, keys[start:end].astype(stored.dtype)), len(stored) - 1)
            exists = stored[rows] == keys[start:end]
            positions[start:end] = np.where(exists, rows + chunk * CHUNK, -1)
            start = end
        return positions

    def rows_of_items(self, keys: Keys) -> Rows:
        """Return the rows of ascending keys of stored items."""
        rows = self.rows(keys)
        if (rows < 0).any():
            raise self.damaged(f"the row of item {int(keys[rows < 0][0])} is missing")
        return rows

    def _gather(self, name: str, rows: Rows) -> NDArray[Any]:
        """Return the values of a column of some rows; of a column that is not loaded, their chunks are read."""
        if name in self.view.arrays:
            return self.view[name][rows]
        values = self.columns[name].empty(len(rows))
        chunks = rows // CHUNK
        for chunk in np.unique(chunks).tolist():
            values[chunks == chunk] = self.values(name, chunk)[rows[chunks == chunk] % CHUNK]
        return values

    def items(self, rows: Rows) -> list[Item]:
        """Return the items of some rows, in their order."""
        columns = {name: self._gather(name, rows) for name in self.columns}
        keys, flags = columns["key"].tolist(), columns["flags"].tolist()
        ids, general = self.ids(keys), columns.get("general")
        attributes = {}
        for name, kind in self._attributes.items():
            values: list[Any] = columns[attribute_column(name)].tolist()
            if kind == "text":
                texts: Mapping[int, Value] = {0: None, **self.texts(sorted({*values} - {0}))}
                attributes[name] = [texts[value] for value in values]
            else:
                attributes[name] = [None if value != value else value for value in values]
        items = []
        for place, (key, row, flag) in enumerate(zip(keys, rows.tolist(), flags, strict=True)):
            if key not in ids:
                raise self.damaged(f"the id of item {key} is missing")
            carried, scores = [], {}
            for label, probability, share in self.part(row // CHUNK).of_row(row % CHUNK):
                if label >= CARRIED:
                    carried.append(self.labels[label - CARRIED])
                else:
                    scores[self.labels[label]] = (probability, share)
            seen = None if general is None or flag & BARE else general[place]
            of_item = {name: values[place] for name, values in attributes.items()}
            code, is_hidden = columns["semantic"][place], bool(flag & HIDDEN)
            items.append(Item(key, ids[key], code, seen, tuple(carried), scores, of_item, is_hidden))
        return items

    def items_from(self, key: int) -> list[Item]:
        """Return the next items whose keys are at least this, of one chunk."""
        chunks = range(self.meta.chunks)
        for chunk in chunks[bisect_left(chunks, key, key=lambda chunk: self.values("key", chunk)[-1]) :]:
            is_next = self.values("key", chunk) >= key
            rows = np.flatnonzero(is_next & (self.values("flags", chunk) & REMOVED == 0))
            if len(rows):
                return self.items(rows + chunk * CHUNK)
        return []

    def allowed(self, only: Filter) -> Bools | None:
        """Return a mask of the rows that pass a filter and are not hidden; None: all."""
        view, masks = self.view, [] if self.view.shown is None else [self.view.shown]
        for label in only.having:
            masks.append(np.zeros(self.meta.rows, np.bool_))
            for rows in view.rows_having(label):
                masks[-1][rows] = True
        for name, wanted in only.where.items():
            values = view[attribute_column(name)]
            if self._attributes[name] == "number":
                low, high = wanted
                masks += [values >= low, values <= high]  # NaN is in no range
            else:
                numbers = self.text_numbers(name, [str(text) for text in wanted])
                masks.append(np.isin(values, list(numbers.values())))
        if only.among is not None:
            rows = self.rows(np.unique(only.among))
            masks.append(np.zeros(self.meta.rows, np.bool_))
            masks[-1][rows[rows >= 0]] = True
        if only.without:
            masks.append(np.ones(self.meta.rows, np.bool_))
            for label in only.without:
                for rows in view.rows_having(label):
                    masks[-1][rows] = False
        return reduce(np.logical_and, masks) if masks else None


@dataclass
class _Session:
    """The connection of a thread, and what it reads while a block of `Store.reading` runs."""

    sql: sqlite3.Connection
    snapshot: Snapshot | None = None

    @property
    def is_writing(self) -> bool:
        return self.sql.in_transaction and self.snapshot is None


class Store:
    """The items in one SQLite file. Threads may share a store; each has its own connection."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only, self.closed = path, read_only, False
        self._sessions: dict[Thread, _Session] = {}
        self._immutable = False
        self._loading, self._connecting = threading.Lock(), threading.Lock()
        self._view = View(NOTHING)
        with self._explained():
            self.facts = self._read_facts()
        self.columns = columns_of(self.facts)
        self.every_column = (*self.columns, "labels")
        self.meta()

    @classmethod
    def create(cls, path: Path, facts: Facts, labels: Sequence[str] = ()) -> Self:
        """Create the file of an empty store and open it; `labels` are stored first, in their order."""
        with closing(sqlite3.connect(path, isolation_level=None)) as sql:
            sql.executescript(f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL; BEGIN; {_SCHEMA}")
            text = json.dumps(asdict(facts))
            sql.execute("INSERT INTO facts VALUES (?, ?)", (text, _crc(text)))
            meta = Meta(0, 0, 0, 0, len(labels), 0, 0, 0)
            sql.execute(f"INSERT INTO meta VALUES ({_marks((*meta, 0))})", (*meta, _crc(*meta)))
            rows = list(enumerate(labels))
            sql.executemany("INSERT INTO labels VALUES (?, ?, ?)", ((*row, _crc(*row)) for row in rows))
            sql.execute("COMMIT")
        return cls(path)

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
                raise InputError(f"the index '{self.path.parent}' is closed: open it again.") from None
            raise DataError(f"'{self.path}' is damaged ({error}): {_ADVICE}.") from error

    def _session(self) -> _Session:
        """Return the connection of this thread; those of threads that have ended are closed."""
        session = self._sessions.get(current_thread())
        if session is not None:
            return session
        with self._connecting:
            if self.closed:
                raise InputError(f"the index '{self.path.parent}' is closed: open it again.")
            for thread in [thread for thread in self._sessions if not thread.is_alive()]:
                self._sessions.pop(thread).sql.close()
            session = _Session(self._connect())
            self._sessions[current_thread()] = session
            return session

    def _connect(self) -> sqlite3.Connection:
        mode = "mode=rw" if not self.read_only else "mode=ro&immutable=1" if self._immutable else "mode=ro"
        address = f"{self.path.absolute().as_uri()}?{mode}"
        sql = sqlite3.connect(
            address, uri=True, isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False
        )
        sql.execute("PRAGMA trusted_schema = OFF")
        if not self.read_only:  # it reads the file
            sql.execute("PRAGMA synchronous = FULL")
        return sql

    def _read_facts(self) -> Facts:
        try:
            row = self._session().sql.execute("SELECT json, crc FROM facts").fetchone()
        except sqlite3.OperationalError as error:
            # a medium that is read-only has no room for the files that readers share
            unwritable = error.sqlite_errorname.startswith(
                ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR")
            )
            if not self.read_only or self._immutable or not unwritable or _bytes_of(self.path, "-wal"):
                raise
            self._sessions.pop(current_thread()).sql.close()
            self._immutable = True
            return self._read_facts()
        try:
            if row is None or _crc(row[0]) != row[1]:
                raise ValueError("they do not match their checksum")
            facts = Facts(**json.loads(row[0]))
            if facts.format != FORMAT:
                raise ValueError(f"their format is {facts.format}, this version reads {FORMAT}")
        except (ValueError, TypeError) as error:
            raise DataError(f"the facts in '{self.path}' cannot be read ({error}): {_ADVICE}.") from None
        return facts

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        with self._connecting:
            self.closed = True
            while self._sessions:
                self._sessions.popitem()[1].sql.close()

    # --- reading

    def meta(self) -> Meta:
        """Return what the table `meta` holds now."""
        with self._explained():
            for *values, crc in self._session().sql.execute("SELECT * FROM meta"):
                if _crc(*values) == crc:
                    return Meta(*values)
            raise DataError(f"'{self.path}' is damaged (the table meta): {_ADVICE}.")

    @contextmanager
    def reading(self, *names: str) -> Iterator[Snapshot]:
        """Within the block, all that this thread reads is of one commit, whose view has these columns.

        A block within another one reads the commit of that. It is refused inside a transaction.
        """
        with self._explained():
            session = self._session()
            if session.snapshot is not None:
                with self._loading:
                    self._load(session.snapshot, names)
                yield session.snapshot
                return
            if session.is_writing:
                raise InputError("searches are refused inside a transaction: search after its block.")
            while True:
                session.sql.execute("BEGIN")
                try:
                    snapshot = session.snapshot = Snapshot(self, session.sql, self.meta(), View(NOTHING))
                    with self._loading:
                        # if another thread has loaded a later commit, that is read
                        is_latest = self._view.meta.version <= snapshot.meta.version
                        if is_latest:
                            self._load(snapshot, names)
                    if is_latest:
                        yield snapshot
                        return
                finally:
                    session.snapshot = None
                    with suppress(sqlite3.ProgrammingError):  # another thread has closed the store
                        session.sql.execute("ROLLBACK")

    def _load(self, snapshot: Snapshot, names: Sequence[str]) -> None:
        """Load columns for a snapshot; other threads have them too, unless they have loaded a later commit."""
        if self._view.meta.version <= snapshot.meta.version:
            snapshot.view = self._view = self._loaded(snapshot, self._view, names)
        else:
            snapshot.view = self._loaded(snapshot, snapshot.view, names)

    @contextmanager
    def current(self) -> Iterator[Snapshot]:
        """Read one commit, or inside a transaction what it has written."""
        session = self._session()
        if not session.is_writing:
            with self.reading() as snapshot:
                yield snapshot
            return
        with self._explained():
            meta = self.meta()
            # a transaction only adds to the labels that are committed
            labels = self._view.labels
            known = labels if len(labels) <= meta.labels else ()
            yield Snapshot(self, session.sql, meta, View(meta, labels=known))

    def _loaded(self, snapshot: Snapshot, old: View, names: Sequence[str]) -> View:
        """Return a view of a commit: the old one, what has changed since, and columns that it did not have."""
        meta, columns = snapshot.meta, {*names, *old.columns}
        if old.meta == meta and columns == old.columns:
            return old
        if meta.rows < old.meta.rows:  # older views still read the rows that were dropped
            old = View(NOTHING, labels=old.labels)
        snapshot.view = View(meta, labels=old.labels)
        arrays, parts = dict(old.arrays), old.parts
        for name in columns:
            before = old.meta if name in old.columns else NOTHING
            changed = snapshot.changed(name, before)
            try:
                if name == "labels":
                    parts = [*(parts or ()), *[NO_PART] * (meta.chunks - len(parts or ()))]
                    for chunk, data in changed:
                        parts[chunk] = Part.from_bytes(data)
                else:
                    read = self.columns[name].read
                    blocks = ((chunk, snapshot.checked(name, chunk, read(data))) for chunk, data in changed)
                    arrays[name] = updated(
                        arrays.get(name), self.columns[name], blocks, before.rows, meta.rows
                    )
            except ValueError as error:
                if isinstance(error, InputError):
                    raise
                raise snapshot.damaged(f"column '{name}': {error}") from None
        return View(meta, arrays, parts, snapshot.labels)

    # --- writing

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Make the block one durable commit; a block within another one is part of its commit."""
        if self.read_only:
            raise InputError(f"'{self.path.parent}' was opened read-only: open it for writing to change it.")
        session = self._session()
        if session.snapshot is not None:
            raise InputError(
                "an index cannot be changed while the same thread reads: change it after that block."
            )
        sql, is_inner = session.sql, session.is_writing
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
    def _changing(self) -> Iterator[tuple[Snapshot, Callable[..., None]]]:
        """Within a transaction, return what is read, whose `meta` is of the next commit, and a function that writes."""
        with self.transaction() as sql, self.current() as snapshot:
            snapshot.meta = snapshot.meta._replace(version=snapshot.meta.version + 1)

            def write(name: str, chunk: int, data: bytes) -> None:
                version = snapshot.meta.version
                row = (name, chunk, version, _crc(name, chunk, version, data=data), data)
                sql.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)", row)

            yield snapshot, write
            names = ", ".join(f"{name} = ?" for name in (*Meta._fields, "crc"))
            sql.execute(f"UPDATE meta SET {names}", (*snapshot.meta, _crc(*snapshot.meta)))

    def add(self, batch: Batch, *, replace: bool = False) -> int:
        """Add items in one commit and return how many; those of known ids are skipped, or replaced if asked."""
        with self.transaction():
            with self.current() as snapshot:
                if batch.ids is None:
                    first = snapshot.meta.next_number
                    ids: Sequence[str] = [str(number) for number in range(first, first + len(batch))]
                else:
                    ids = batch.ids
                known = snapshot.keys(ids, thorough=False) if snapshot.meta.items else {}
            if replace and known:
                self._flag(sorted(known.values()), REMOVED, set_it=True)
            elif known:
                rows = [row for row, id in enumerate(ids) if id not in known]
                batch, ids = batch.take(rows), [ids[row] for row in rows]
            if len(batch):
                self._append(batch, ids)
            return len(batch)

    def _append(self, batch: Batch, ids: Sequence[str]) -> None:
        with self._changing() as (snapshot, write):
            meta, count = snapshot.meta, len(batch)
            entries = batch.entries
            numbers = self._label_numbers(snapshot, batch.names)
            labels = numbers[entries.labels & (CARRIED - 1)] + (entries.labels & CARRIED)
            entries = entries._replace(labels=labels.astype("<u4"))
            keys = range(meta.next_key, meta.next_key + count)
            flags = BARE * batch.is_bare.astype("u1") + UNSCORED * batch.is_unscored.astype("u1")
            values: dict[str, NDArray[Any]] = {
                "semantic": batch.semantic,
                "key": np.array(keys, "<u4"),
                "flags": flags.astype("u1"),
                **({} if batch.general is None else {"general": batch.general}),
                **{
                    attribute_column(name): self._attribute_values(snapshot, name, column)
                    for name, column in batch.attributes.items()
                },
            }
            meta, first, end = snapshot.meta, meta.rows, meta.rows + count
            for chunk in range(first // CHUNK, -(-end // CHUNK)):
                top, bottom = max(chunk * CHUNK, first), min((chunk + 1) * CHUNK, end)
                is_new, selected = top == chunk * CHUNK, slice(top - first, bottom - first)
                for name in self.columns:
                    before = b"" if is_new else snapshot.values(name, chunk).tobytes()
                    write(name, chunk, before + values[name][selected].tobytes())
                places = slice(*np.searchsorted(entries.rows, (selected.start, selected.stop)).tolist())
                added = entries.take(places)
                added = added._replace(rows=added.rows + (first - chunk * CHUNK))
                parts = [added] if is_new else [snapshot.part(chunk).entries(), added]
                write("labels", chunk, Part.of(joined(parts)).to_bytes())
            rows = ((key, id, _crc(key, id)) for key, id in zip(keys, ids, strict=True))
            snapshot.sql.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
            largest = max(
                (int(id) for id in ids if id.isascii() and id.isdecimal() and len(id) < 19), default=-1
            )
            snapshot.meta = meta._replace(
                rows=end,
                items=meta.items + count,
                next_key=meta.next_key + count,
                next_number=max(meta.next_number, largest + 1),
            )

    def _label_numbers(self, snapshot: Snapshot, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of labels (n,); new ones are stored."""
        known = {name: number for number, name in enumerate(snapshot.labels)}
        new = [(number, name) for number, name in enumerate((n for n in names if n not in known), len(known))]
        rows = ((*row, _crc(*row)) for row in new)
        snapshot.sql.executemany("INSERT INTO labels VALUES (?, ?, ?)", rows)
        snapshot.meta = snapshot.meta._replace(labels=snapshot.meta.labels + len(new))
        known.update((name, number) for number, name in new)
        return np.array([known[name] for name in names], np.int64)

    def _attribute_values(
        self, snapshot: Snapshot, name: str, values: NDArray[np.float64] | Sequence[str | None]
    ) -> NDArray[Any]:
        """Return the values of an attribute as its column stores them; new texts are stored."""
        if isinstance(values, np.ndarray):
            return values.astype("<f8")
        different = list(dict.fromkeys(text for text in values if text is not None))
        known = snapshot.text_numbers(name, different, thorough=False)
        new = [text for text in different if text not in known]
        first = snapshot.meta.texts + 1  # 0 is a missing text
        rows = [(number, name, text) for number, text in enumerate(new, first)]
        snapshot.sql.executemany(
            "INSERT INTO texts VALUES (?, ?, ?, ?)", ((*row, _crc(*row)) for row in rows)
        )
        snapshot.meta = snapshot.meta._replace(texts=snapshot.meta.texts + len(new))
        known.update((text, number) for number, _, text in rows)
        return np.array([0 if text is None else known[text] for text in values], "<u4")

    def _flag(self, keys: Sequence[int], flag: int, *, set_it: bool) -> int:
        """Set or clear a flag of items by their ascending keys; return of how many it has changed."""
        with self._changing() as (snapshot, write):
            rows, meta, counts = snapshot.rows_of_items(np.array(keys, np.int64)), snapshot.meta, [0, 0]
            for chunk in np.unique(rows // CHUNK).tolist():
                flags = snapshot.values("flags", chunk).copy()
                places = rows[rows // CHUNK == chunk] % CHUNK
                before = flags[places]
                flags[places] = before | flag if set_it else before & ~np.uint8(flag)
                counts[0] += int(np.count_nonzero(before != flags[places]))
                counts[1] += int(np.count_nonzero(before & HIDDEN))
                write("flags", chunk, flags.tobytes())
            if flag == REMOVED:
                snapshot.sql.executemany("DELETE FROM items WHERE key = ?", ((key,) for key in keys))
                changed = meta._replace(items=meta.items - len(keys), hidden=meta.hidden - counts[1])
            else:
                changed = meta._replace(hidden=meta.hidden + (counts[0] if set_it else -counts[0]))
            snapshot.meta = changed
            return counts[0]

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items in one commit and return how many were stored; their rows stay until `compact`."""
        with self.transaction():
            with self.current() as snapshot:
                keys = sorted(snapshot.keys(ids).values())
            return self._flag(keys, REMOVED, set_it=True) if keys else 0

    def set_hidden(self, ids: Sequence[str], hidden: bool) -> int:
        """Hide items or show them again in one commit; return of how many this has changed."""
        with self.transaction():
            with self.current() as snapshot:
                keys = snapshot.keys(ids)
            missing = next((id for id in ids if id not in keys), None)
            if missing is not None:
                raise InputError(f"no item {missing!r} in the index.")
            return self._flag(sorted(keys.values()), HIDDEN, set_it=hidden) if keys else 0

    def compact(self) -> None:
        """Drop the rows of removed items and give their space back; keys stay as they are."""
        with self._changing() as (snapshot, write):
            chunks = range(snapshot.meta.chunks)
            kept = [
                np.flatnonzero(snapshot.values("flags", chunk) & REMOVED == 0) + chunk * CHUNK
                for chunk in chunks
            ]
            rows = np.concatenate([np.empty(0, np.int64), *kept])
            if len(rows) == snapshot.meta.rows:
                return
            for chunk, start in enumerate(range(0, len(rows), CHUNK)):
                # no earlier chunk than this one, so that none is read which has been written
                selected = rows[start : start + CHUNK]
                first, last = (int(row) // CHUNK for row in selected[[0, -1]])
                read = range(first, last + 1)
                for name in self.columns:
                    values = np.concatenate([snapshot.values(name, old) for old in read])
                    write(name, chunk, values[selected - first * CHUNK].tobytes())
                parts = [Part.from_bytes(snapshot.blob("labels", old)).entries() for old in read]
                entries = joined(
                    [
                        part._replace(rows=part.rows.astype(np.int64) + old * CHUNK)
                        for old, part in zip(read, parts, strict=True)
                    ]
                )
                positions = np.searchsorted(selected, entries.rows)
                positions[positions == len(selected)] = 0
                is_kept = np.flatnonzero(selected[positions] == entries.rows)
                write("labels", chunk, Part.of(entries._replace(rows=positions).take(is_kept)).to_bytes())
            snapshot.sql.execute("DELETE FROM chunks WHERE chunk >= ?", (-(-len(rows) // CHUNK),))
            snapshot.meta = snapshot.meta._replace(rows=len(rows))
        sql = self._session().sql
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
        for name, column in self.columns.items():
            for chunk, data in snapshot.changed(name, NOTHING):
                values = snapshot.checked(name, chunk, column.read(data))
                if name == "flags":
                    items += int(np.count_nonzero(values & REMOVED == 0))
                    hidden += int(np.count_nonzero(values & (REMOVED | HIDDEN) == HIDDEN))
        for _, data in snapshot.changed("labels", NOTHING):
            Part.from_bytes(data)
        if (items, hidden) != (snapshot.meta.items, snapshot.meta.hidden):
            raise snapshot.damaged(
                f"{items:,} items in its columns, {snapshot.meta.items:,} in its table meta"
            )

    def _verify_tables(self, snapshot: Snapshot) -> None:
        meta, counts = snapshot.meta, []
        for table in ("items", "labels", "texts"):
            counts.append(sum(1 for _ in snapshot.table(f"SELECT * FROM {table} NOT INDEXED")))
        if counts != [meta.items, meta.labels, meta.texts]:
            raise snapshot.damaged(
                f"{counts} rows in its tables instead of {[meta.items, meta.labels, meta.texts]}"
            )

    def _verify_file(self, snapshot: Snapshot) -> None:
        for (line,) in snapshot.sql.execute("PRAGMA integrity_check(1)"):
            if line != "ok":
                raise snapshot.damaged(line)

    def back_up(self, path: Path, progress: Progress = silent) -> None:
        """Copy the file as of one commit, also while another process writes."""

        def report(_status: int, remaining: int, total: int) -> None:
            progress("backup", total - remaining, total)

        with self._explained(), closing(sqlite3.connect(path)) as copy:
            self._session().sql.backup(copy, pages=1 << 12, progress=report)
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
