"""The store of an index: one SQLite file with scanned columns in chunks of 4,096 rows, and ordinary tables.

    store = Store.create(path, Facts(bits=64))
    with store.reading("semantic") as snapshot:
        snapshot.items(rows)

On disk, the table `chunks` has one blob per column and 4,096 rows, with the commit that wrote it and one checksum over
column, chunk, commit and content. `items` and `texts` have a checksum per row. `meta` contains the counts of a commit,
`facts` never changes. An item has a key, which is never used again, and a row, its position in the columns. Rows are in
the order of keys; compaction drops those of removed items. Labels are texts of the attribute "".

Changes (see `writing`) read and rewrite blobs in one SQLite transaction, whose lock is the only one.

In memory, a column is loaded when a search first needs it, and updated later by the chunks of later commits. A column of
fixed width is one array with spare room at its end; label entries are arrays per chunk. A `View` is one commit: new rows
go to the spare room, beyond the rows of all earlier views, and a column whose older rows have changed is copied. So
searches need no lock.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from threading import Thread, current_thread
from typing import Any, Final, NamedTuple, Self, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, InputError, OutputError
from centerhash.core.progress import Progress, silent
from centerhash.index.items import LEVELS, Facts, Filter, Item, Keys, Meta, attribute_column
from centerhash.model.base import FILTER_FROM

Rows: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

CHUNK_ROWS = 4096
LABELS = "labels"
# An entry of a label that the item carries has the number of the label plus this.
CARRIED = 1 << 31
# A view keeps this many rows in the order of an attribute.
CACHED_LARGEST_ROWS = 1 << 14
# SQLite reads blobs 1.6 times as fast from these pages as from pages of 4,096 bytes.
PAGE_BYTES = 16384
WRITER_WAIT_SECONDS = 5.0
MAX_SQL_VARIABLES = 10_000


class Flag:
    """The bits of the column `flags`; values of an enum would make numpy widen the column."""

    HIDDEN: Final = 1
    REMOVED: Final = 2
    NO_GENERAL: Final = 4
    NO_SCORES: Final = 8


_CREATE = f"""
PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL; BEGIN;
CREATE TABLE facts (json TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE meta (version INTEGER NOT NULL, rows INTEGER NOT NULL, items INTEGER NOT NULL, hidden INTEGER NOT NULL,
    texts INTEGER NOT NULL, next_key INTEGER NOT NULL, next_number INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE items (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL);
CREATE TABLE texts (number INTEGER PRIMARY KEY, attribute TEXT NOT NULL, text TEXT NOT NULL, crc INTEGER NOT NULL,
    UNIQUE (attribute, text));
CREATE TABLE chunks (name TEXT NOT NULL, chunk INTEGER NOT NULL, version INTEGER NOT NULL, crc INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (name, chunk));
CREATE INDEX changed ON chunks (name, version);
"""


class LabelChunk(NamedTuple):
    """The label entries of a chunk of rows, sorted by label, then row.

    `labels` are the distinct ones, ascending; those of `CARRIED` come last. `starts` are the positions where the entries
    of each label begin, and the number of all entries. `rows` are positions in the chunk, and scores are in 255ths.
    """

    labels: NDArray[Any]
    starts: NDArray[Any]
    rows: NDArray[Any]
    probabilities: NDArray[Any]
    shares: NDArray[Any]

    @classmethod
    def of(cls, entries: NDArray[np.uint32]) -> Self:
        """Sort entries (4, n) of rows, labels, probabilities and shares by label; those of a label are sorted by row."""
        # A stable sort is fast for entries that are sorted except for their end.
        order = np.argsort(entries[1], kind="stable")
        rows, labels, probabilities, shares = entries.take(order, axis=1)
        starts = np.flatnonzero(np.diff(labels.astype(np.int64), prepend=-1))
        ends = np.append(starts, len(labels)).astype("<u4")
        scores = probabilities.astype("u1"), shares.astype("u1")
        return cls(labels[starts], ends, (rows % CHUNK_ROWS).astype("<u2"), *scores)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the bytes of `to_bytes`."""
        labels, entries = np.frombuffer(data, "<u4", 2).tolist()
        sizes, arrays, offset = (labels, labels + 1, entries, entries, entries), list[Any](), 8
        for dtype, size in zip(("<u4", "<u4", "<u2", "u1", "u1"), sizes, strict=True):
            arrays.append(np.frombuffer(data, dtype, size, offset))
            offset += arrays[-1].nbytes
        return cls(*arrays)

    def to_bytes(self) -> bytes:
        """Return the numbers of labels and of entries, then the arrays."""
        sizes = np.array([len(self.labels), len(self.rows)], "<u4")
        return b"".join(array.tobytes() for array in (sizes, *self))

    def entries(self, number: int) -> NDArray[np.uint32]:
        """Return the entries (4, n) as `of` expects them; `number` is that of the chunk."""
        rows = self.rows + np.uint32(number * CHUNK_ROWS)
        labels = np.repeat(self.labels, np.diff(self.starts))
        return np.stack([rows, labels, self.probabilities, self.shares])

    def of_row(self, row: int) -> list[tuple[int, int, int]]:
        """Return label, probability and share of the entries of a row."""
        positions = (self.rows == row).nonzero()[0]
        labels = self.labels[self.starts.searchsorted(positions, "right") - 1]
        columns = labels, self.probabilities[positions], self.shares[positions]
        return list(zip(*(column.tolist() for column in columns), strict=True))


NO_LABELS = LabelChunk.from_bytes(bytes(12))


@dataclass(frozen=True)
class View:
    """The loaded columns of one commit: arrays with spare room, and a list of chunks of label entries.

    Nobody writes to the first `meta.rows` rows of its arrays, nor to its chunks.
    """

    meta: Meta
    columns: Mapping[str, Any] = field(default_factory=dict)
    _largest: dict[str, Rows] = field(default_factory=dict, init=False)

    def __getitem__(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self.columns[name]
        return column[: self.meta.rows]

    def _without(self, flags: int) -> Bools | None:
        mask = (self["flags"] & flags) == 0
        return None if mask.all() else mask

    @cached_property
    def visible(self) -> Bools | None:
        """The mask of rows whose items are neither hidden nor removed; None: all."""
        return self._without(Flag.HIDDEN | Flag.REMOVED)

    @cached_property
    def has_general(self) -> Bools | None:
        """The mask of rows that have a general code; None: all."""
        return self._without(Flag.NO_GENERAL)

    @cached_property
    def unscored(self) -> Rows:
        """The rows without label scores."""
        return np.flatnonzero(self["flags"] & Flag.NO_SCORES)

    def scores(self, label: int, least: float) -> tuple[Rows, NDArray[np.uint8], NDArray[np.uint8]]:
        """Return ascending rows, probabilities and shares of the entries of a label with at least this probability."""
        chunks, bounds = [NO_LABELS, *self.columns.get(LABELS, ())], np.array([label, label + 1], np.uint32)
        slices = [slice(*chunk.starts[chunk.labels.searchsorted(bounds)].tolist()) for chunk in chunks]
        rows, probabilities, shares = (
            np.concatenate([chunk[column][entries] for chunk, entries in zip(chunks, slices, strict=True)])
            for column in (2, 3, 4)
        )
        sizes = [entries.stop - entries.start for entries in slices]
        kept = np.flatnonzero(probabilities >= least)
        first_rows = np.repeat(np.arange(-1, len(chunks) - 1) * CHUNK_ROWS, sizes)[kept]
        return first_rows + rows[kept], probabilities[kept], shares[kept]

    def having(self, label: int | None) -> Bools:
        """Return a mask of the rows that carry a label or have a probability of at least FILTER_FROM; none for None."""
        mask = np.zeros(self.meta.rows, np.bool_)
        if label is not None:
            mask[self.scores(label, FILTER_FROM * LEVELS)[0]] = True
            mask[self.scores(label + CARRIED, 0)[0]] = True
        return mask

    def largest(self, column: str, count: int, mask: Bools | None) -> Rows:
        """Return the rows of the mask with the largest values, descending; of equal ones, the last row comes first.

        Missing values come last. The first rows of all visible ones are computed once per commit.
        """
        is_cached = mask is self.visible and count <= CACHED_LARGEST_ROWS
        if is_cached and column in self._largest:
            return self._largest[column][:count]
        rows = np.arange(self.meta.rows) if mask is None else np.flatnonzero(mask)
        values = self[column][rows]
        descending = np.where(np.isnan(values), np.inf, -values)[::-1]
        rows = smallest(descending, rows[::-1], CACHED_LARGEST_ROWS if is_cached else count)
        if is_cached:
            self._largest[column] = rows
        return rows[:count]


def smallest(values: NDArray[Any], rows: Rows, count: int) -> Rows:
    """Return the `count` rows of (n,) with the smallest values (n,), ascending; of equal ones, the first comes first."""
    if len(rows) > count > 0:
        kept = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
        values, rows = values[kept], rows[kept]
    return rows[np.argsort(values, kind="stable")[:count]]


def updated(
    old: NDArray[Any], changed: Iterable[tuple[int, NDArray[Any]]], old_rows: int, rows: int
) -> NDArray[Any]:
    """Return an array of `rows` rows with the changed chunks of a column; views may read the `old_rows` of the old one.

    It is the same array if only later rows are new and it has room for them, otherwise a copy.
    """
    array = old
    if len(array) < rows:
        array = np.empty((rows + rows // 8 + CHUNK_ROWS, *old.shape[1:]), old.dtype)
        array[:old_rows] = old[:old_rows]
    for chunk, values in changed:
        top = chunk * CHUNK_ROWS
        used = min(max(old_rows - top, 0), len(values))
        if values[:used].tobytes() != array[top : top + used].tobytes():
            array = array.copy() if array is old else array
            array[top : top + used] = values[:used]
        array[top + used : top + len(values)] = values[used:]
    return array


class Snapshot:
    """One commit for one thread: the loaded columns of its view, and chunks and rows of tables for the rest.

    Inside a transaction no column is loaded, its own changes are read, and `meta` is that of the coming commit.
    """

    def __init__(self, store: Store, connection: _Connection, meta: Meta, view: View) -> None:
        self.store, self.connection, self.meta, self.view = store, connection, meta, view
        self.chunk_count = -(-meta.rows // CHUNK_ROWS)
        # The chunk of each column that was read last, with its number.
        self._last: dict[str, tuple[int, Any]] = {}

    def _chunks(self, condition: str, *values: object) -> Iterator[tuple[int, Any]]:
        """Yield number and content of the chunks that a condition selects: values, or a `LabelChunk`."""
        query = f"SELECT name, chunk, version, crc, data FROM chunks WHERE {condition}"
        for name, chunk, version, crc, data in self.connection.execute(query, values):
            if not isinstance(data, bytes) or checksum(name, chunk, version, data=data) != crc:
                raise self.store.damaged(f"column '{name}', chunk {chunk}")
            size, dtype = min(self.meta.rows - chunk * CHUNK_ROWS, CHUNK_ROWS), self.store.columns.get(name)
            content: Any = LabelChunk.from_bytes(data) if dtype is None else np.frombuffer(data, dtype)
            if size <= 0 or (dtype is not None and len(content) != size):
                raise self.store.damaged(f"column '{name}', chunk {chunk} is not of {size} rows")
            yield chunk, content

    def changed(self, name: str, since: Meta) -> Iterator[tuple[int, Any]]:
        """Yield the chunks that were written since a commit; DataError if a chunk of new rows is missing."""
        missing = set(
            range(since.rows // CHUNK_ROWS, self.chunk_count) if self.meta.rows > since.rows else ()
        )
        # There is no ORDER BY, for which SQLite would sort the blobs.
        for chunk, content in self._chunks("name = ? AND version > ?", name, since.version):
            missing.discard(chunk)
            yield chunk, content
        if missing:
            raise self.store.damaged(f"column '{name}', chunk {min(missing)} is missing")

    def chunk(self, name: str, chunk: int) -> Any:
        """Return a chunk of a column: its values, or a `LabelChunk`."""
        if name in self.view.columns:
            rows = slice(chunk * CHUNK_ROWS, (chunk + 1) * CHUNK_ROWS)
            return self.view.columns[LABELS][chunk] if name == LABELS else self.view[name][rows]
        if name not in self._last or self._last[name][0] != chunk:
            stored = next(self._chunks("name = ? AND chunk = ?", name, chunk), None)
            if stored is None:
                raise self.store.damaged(f"column '{name}', chunk {chunk} is missing")
            self._last[name] = stored
        return self._last[name][1]

    def span(self, name: str, chunks: Iterable[int]) -> NDArray[Any]:
        """Return the values of successive chunks."""
        empty = np.empty(0, self.store.columns[name])
        return np.concatenate([empty, *(self.chunk(name, chunk) for chunk in chunks)])

    def gather(self, name: str, rows: Rows) -> NDArray[Any]:
        """Return the values of a column in these rows; only their chunks are read of a column that is not loaded."""
        if name in self.view.columns:
            return self.view[name][rows]
        chunks, positions = np.unique(rows // CHUNK_ROWS, return_inverse=True)
        return self.span(name, chunks.tolist()).take(positions * CHUNK_ROWS + rows % CHUNK_ROWS, axis=0)

    def write(self, name: str, chunk: int, data: bytes) -> None:
        """Write a chunk of a column in the coming commit."""
        version = self.meta.version
        row = (name, chunk, version, checksum(name, chunk, version, data=data), data)
        self.connection.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)", row)
        self._last.pop(name, None)

    # --- tables

    def table(self, query: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table without their last value, which is their checksum."""
        for *row, crc in self.connection.execute(query, values):
            if checksum(*row) != crc:
                raise self.store.damaged(f"a row of: {query.partition('FROM ')[2].partition(' ')[0]}")
            yield tuple(row)

    def _select(self, query: str, values: Sequence[object], *fixed: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows in which the column that ends the query has one of the values; `fixed` are values before it."""
        for start in range(0, len(values), MAX_SQL_VARIABLES):
            page = values[start : start + MAX_SQL_VARIABLES]
            yield from self.table(f"{query} IN ({', '.join('?' * len(page))})", (*fixed, *page))

    def _numbers(self, query: str, texts: Sequence[str], *fixed: str, thorough: bool) -> dict[str, int]:
        """Return the numbers of the texts that are stored; the query has a gap for NOT INDEXED.

        SQLite's indexes have no checksum. With `thorough`, a text that is not in the index is looked up in the table.
        """
        rows = self._select(query.format(""), list(dict.fromkeys(texts)), *fixed)
        numbers = {row[-1]: row[0] for row in rows}
        missing = [text for text in texts if text not in numbers] if thorough else []
        for _ in self._select(query.format("NOT INDEXED"), missing, *fixed):
            raise self.store.damaged("an index over texts or ids")
        return numbers

    def keys(self, ids: Sequence[str], *, thorough: bool = True) -> dict[str, int]:
        """Return the keys of the ids that are stored."""
        return self._numbers("SELECT key, id, crc FROM items {} WHERE id", ids, thorough=thorough)

    def require_keys(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the keys of ids; InputError if one is not stored."""
        keys = self.keys(ids)
        missing = next((id for id in ids if id not in keys), None)
        if missing is not None:
            raise InputError(f"no item {missing!r} in the index, which holds {self.meta.items:,}.")
        return keys

    def ids(self, keys: Sequence[int]) -> dict[int, str]:
        """Return the ids of the keys that are stored."""
        return dict(self._select("SELECT key, id, crc FROM items WHERE key", keys))

    def text_numbers(self, attribute: str, texts: Sequence[str], *, thorough: bool = True) -> dict[str, int]:
        """Return the numbers of the texts of an attribute that are stored."""
        query = "SELECT number, attribute, text, crc FROM texts {} WHERE attribute = ? AND text"
        return self._numbers(query, texts, attribute, thorough=thorough)

    def texts(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return texts of attributes and names of labels by their numbers; the store caches names of labels."""
        texts: dict[int, Any] = {number: self.store.label_names.get(number) for number in numbers}
        missing = [number for number, text in texts.items() if text is None]
        rows = list(self._select("SELECT number, attribute, text, crc FROM texts WHERE number", missing))
        if len(rows) < len(missing):
            raise self.store.damaged(f"{len(missing) - len(rows)} texts are missing")
        # The texts of a transaction may be rolled back.
        if self.connection.snapshot is self:
            self.store.label_names |= {number: text for number, attribute, text in rows if not attribute}
        return texts | {number: text for number, _, text in rows}

    def add_texts(self, attribute: str, texts: Sequence[str]) -> dict[str, int]:
        """Return the numbers of texts of an attribute; store new ones."""
        numbers, meta = self.text_numbers(attribute, texts, thorough=False), self.meta
        new = [text for text in dict.fromkeys(texts) if text not in numbers]
        rows = [(number, attribute, text) for number, text in enumerate(new, meta.texts)]
        insert(self.connection, "texts", rows)
        self.meta = meta._replace(texts=meta.texts + len(new))
        return numbers | {text: number for number, _, text in rows}

    # --- items

    def rows(self, keys: Keys) -> Rows:
        """Return the rows of ascending keys, -1 for a key that is not in the columns."""
        if not len(keys) or not self.meta.rows:
            return np.full(len(keys), -1)
        if "key" in self.view.columns:
            first_chunk, stored = 0, self.view["key"]
        else:
            # The key of a row is at least the row, and at most the row plus the number of dropped rows.
            dropped, last = self.meta.next_key - self.meta.rows, self.meta.rows - 1
            first_chunk = min(max(0, int(keys[0]) - dropped), last) // CHUNK_ROWS
            stored = self.span("key", range(first_chunk, min(max(0, int(keys[-1])), last) // CHUNK_ROWS + 1))
        rows = np.minimum(np.searchsorted(stored, keys.astype(stored.dtype)), len(stored) - 1)
        return np.where(stored[rows] == keys, rows + first_chunk * CHUNK_ROWS, -1)

    def require_rows(self, keys: Sequence[int]) -> Rows:
        """Return the rows of stored items, ascending; DataError if one is missing."""
        ascending = np.array(sorted(keys), np.int64)
        rows = self.rows(ascending)
        if (rows < 0).any():
            raise self.store.damaged(f"the row of item {int(ascending[rows < 0][0])} is missing")
        return rows

    def items(self, rows: Rows) -> list[Item]:
        """Return the items of rows, in the order of the rows."""
        columns = {name: self.gather(name, rows) for name in self.store.columns}
        keys, flags, general = columns["key"].tolist(), columns["flags"].tolist(), columns.get("general")
        entries = [self.chunk(LABELS, row // CHUNK_ROWS).of_row(row % CHUNK_ROWS) for row in rows.tolist()]
        labels = self.texts({label & (CARRIED - 1) for row in entries for label, _, _ in row})
        ids, attributes = self.ids(keys), dict[str, list[Any]]()
        for name, kind in self.store.facts.attributes.items():
            values = columns[attribute_column(name)].tolist()
            if kind is str:
                texts = self.texts({value - 1 for value in values if value})
                attributes[name] = [texts[value - 1] if value else None for value in values]
            else:
                # NaN is a missing number.
                attributes[name] = [value if value == value else None for value in values]
        items = []
        for position, (key, flag, row) in enumerate(zip(keys, flags, entries, strict=True)):
            if key not in ids:
                raise self.store.damaged(f"the id of item {key} is missing")
            carried = tuple(labels[label - CARRIED] for label, _, _ in row if label >= CARRIED)
            scores = {labels[label]: (level, share) for label, level, share in row if label < CARRIED}
            general_code = None if general is None or flag & Flag.NO_GENERAL else general[position]
            values = {name: column[position] for name, column in attributes.items()}
            code, hidden = columns["semantic"][position], bool(flag & Flag.HIDDEN)
            items.append(Item(key, ids[key], code, general_code, carried, scores, values, hidden))
        return items

    def label_counts(self, mask: Bools | None) -> dict[str, int]:
        """Return the number of rows of a mask that carry each label, sorted by name."""
        counts: dict[int, int] = {}
        for number, chunk in enumerate(self.view.columns[LABELS]):
            first = chunk.labels.searchsorted(np.uint32(CARRIED))
            starts, carried = chunk.starts[first:].astype(np.int64), chunk.labels[first:].tolist()
            numbers = np.diff(starts)
            if mask is not None and carried:
                is_counted = mask[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS][chunk.rows[starts[0] :]]
                numbers = np.add.reduceat(is_counted, starts[:-1] - starts[0], dtype=np.int64)
            for label, count in zip(carried, numbers.tolist(), strict=True):
                counts[label - CARRIED] = counts.get(label - CARRIED, 0) + count
        names = self.texts(counts)
        return dict(sorted((names[label], count) for label, count in counts.items() if count))

    def items_from(self, key: int) -> list[Item]:
        """Return the items of the first chunk that has keys from `key` on."""
        chunks = range(self.chunk_count)
        for chunk in chunks[bisect_left(chunks, key, key=lambda chunk: self.chunk("key", chunk)[-1]) :]:
            is_stored = self.chunk("flags", chunk) & Flag.REMOVED == 0
            rows = np.flatnonzero(is_stored & (self.chunk("key", chunk) >= key))
            if len(rows):
                return self.items(rows + chunk * CHUNK_ROWS)
        return []

    def mask(self, filters: Filter) -> Bools | None:
        """Return a mask of the rows that pass the filters and are not hidden; None: all."""
        masks = [] if self.view.visible is None else [self.view.visible]
        labels = self.text_numbers("", [*filters.having, *filters.without])
        masks += [self.view.having(labels.get(label)) for label in filters.having]
        masks += [~self.view.having(labels.get(label)) for label in filters.without]
        for name, condition in filters.where.items():
            values = self.view[attribute_column(name)]
            if self.store.facts.attributes[name] is float:
                # NaN is in no range.
                masks += [values >= condition[0], values <= condition[1]]
            else:
                numbers = self.text_numbers(name, [str(text) for text in condition]).values()
                masks.append(np.isin(values, [number + 1 for number in numbers]))
        if filters.among is not None:
            rows = self.rows(np.unique(filters.among))
            masks.append(np.zeros(self.meta.rows, np.bool_))
            masks[-1][rows[rows >= 0]] = True
        return reduce(np.logical_and, masks) if masks else None

    def check(self) -> None:
        """Read everything; DataError if something is damaged."""
        items = hidden = 0
        for name in (*self.store.columns, LABELS):
            for _, content in self.changed(name, Meta()):
                if name == "flags":
                    items += int(np.count_nonzero(content & Flag.REMOVED == 0))
                    hidden += int(np.count_nonzero(content & (Flag.REMOVED | Flag.HIDDEN) == Flag.HIDDEN))
        if (items, hidden) != (self.meta.items, self.meta.hidden):
            raise self.store.damaged(f"its columns have {items:,} items, of which {hidden:,} are hidden")
        for table, expected in (("items", self.meta.items), ("texts", self.meta.texts)):
            count = sum(1 for _ in self.table(f"SELECT * FROM {table} NOT INDEXED"))
            if count != expected:
                raise self.store.damaged(f"{count} rows in its table {table} instead of {expected}")
        for (line,) in self.connection.execute("PRAGMA integrity_check(1)"):
            if line != "ok":
                raise self.store.damaged(line)


class _Connection(sqlite3.Connection):
    """The connection of a thread, and its snapshot while a block of `Store.reading` runs."""

    snapshot: Snapshot | None = None


class Store:
    """The items in one SQLite file. Threads may share a store; each has its own connection."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only, self.closed = path, read_only, False
        self._log = path.with_name(f"{path.name}-wal")
        # Readers share files, which a read-only medium cannot store.
        is_empty = not (self._log.exists() and self._log.stat().st_size)
        is_fixed = read_only and not os.access(path.parent, os.W_OK) and is_empty
        mode = "rw" if not read_only else "ro&immutable=1" if is_fixed else "ro"
        self._address = f"{path.absolute().as_uri()}?mode={mode}"
        self._connections: dict[Thread, _Connection] = {}
        self._connecting, self._loading = threading.Lock(), threading.Lock()
        self._view = View(Meta())
        self.label_names: dict[int, str] = {}
        with self._explained_errors():
            row = self._connection().execute("SELECT json, crc FROM facts").fetchone()
            if row is None or checksum(row[0]) != row[1]:
                raise self.damaged("the table facts")
        self.facts = Facts.from_json(row[0])
        self.columns = self.facts.columns
        self.meta()

    @classmethod
    def create(cls, path: Path, facts: Facts) -> Self:
        """Create the file of an empty store and open it; the model's classes are its first labels."""
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript(_CREATE)
            insert(connection, "facts", [(facts.to_json(),)])
            insert(connection, "meta", [Meta(0, texts=len(facts.classes))])
            insert(connection, "texts", [(number, "", name) for number, name in enumerate(facts.classes)])
            connection.execute("COMMIT")
        return cls(path)

    # --- connections

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Turn errors of SQLite into errors that name the file."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                advice = "wait until it has finished, then try again"
                raise InputError(f"another process is writing '{self.path.parent}': {advice}.") from None
            if name.startswith(("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")):
                raise OutputError(f"cannot read or write '{self.path}': {error}.") from error
            if self.closed and isinstance(error, sqlite3.ProgrammingError):
                raise InputError(f"the index '{self.path.parent}' is closed: open it again.") from None
            raise self.damaged(error) from error

    def damaged(self, detail: object) -> DataError:
        """Return the error for a damaged file."""
        return DataError(f"'{self.path}' is damaged ({detail}): restore a backup, or create the index again.")

    def _connection(self) -> _Connection:
        """Return the connection of this thread; a new one closes those of threads that have ended."""
        if (connection := self._connections.get(current_thread())) is not None:
            return connection
        with self._connecting:
            if self.closed:
                raise sqlite3.ProgrammingError("closed")
            for thread in [thread for thread in self._connections if not thread.is_alive()]:
                self._connections.pop(thread).close()
            options: Any = {"uri": True, "isolation_level": None, "check_same_thread": False}
            options |= {"timeout": WRITER_WAIT_SECONDS, "factory": _Connection}
            opened: _Connection = sqlite3.connect(self._address, **options)
            self._connections[current_thread()] = opened
            opened.execute("PRAGMA trusted_schema = OFF")
            # This pragma reads the file.
            if not self.read_only:
                opened.execute("PRAGMA synchronous = FULL")
            return opened

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        with self._connecting:
            self.closed = True
            while self._connections:
                self._connections.popitem()[1].close()

    # --- reading

    def meta(self) -> Meta:
        """Return the row of the table `meta`."""
        with self._explained_errors():
            for *values, crc in self._connection().execute("SELECT * FROM meta"):
                if checksum(*values) == crc:
                    return Meta(*values)
            raise self.damaged("the table meta")

    @contextmanager
    def reading(self, *names: str) -> Iterator[Snapshot]:
        """Yield one commit, from which this thread reads within the block; its view has the columns `names`.

        A block within another one reads the same commit. Inside a transaction, its own changes are read.
        """
        with self._explained_errors():
            connection = self._connection()
            if connection.snapshot is not None:
                with self._loading:
                    self._load(connection.snapshot, names)
                yield connection.snapshot
            elif connection.in_transaction:
                if names:
                    raise InputError("searches are refused inside a transaction: search after its block.")
                meta = self.meta()
                yield Snapshot(self, connection, meta, View(meta))
            else:
                try:
                    # The lock ensures that no other thread has loaded a later commit.
                    with self._loading:
                        connection.execute("BEGIN")
                        connection.snapshot = Snapshot(self, connection, self.meta(), View(Meta()))
                        self._load(connection.snapshot, names)
                    yield connection.snapshot
                finally:
                    connection.snapshot = None
                    # It fails if another thread has closed the store.
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")

    def _load(self, snapshot: Snapshot, names: Sequence[str]) -> None:
        """Load columns into the view of a snapshot, which other threads share unless they have loaded a later commit."""
        is_newest, meta = self._view.meta.version <= snapshot.meta.version, snapshot.meta
        old = snapshot.view = self._view if is_newest else snapshot.view
        needed = {*names, *old.columns}
        if old.meta == meta and len(needed) == len(old.columns):
            return
        # Other threads may still read the rows that a compaction has dropped.
        if meta.rows < old.meta.rows:
            old = View(Meta())
        columns = dict(old.columns)
        for name in needed:
            since = old.meta if name in old.columns else Meta()
            changed = snapshot.changed(name, since)
            if name == LABELS:
                chunks = columns.get(name, [])
                columns[name] = [*chunks, *[NO_LABELS] * (snapshot.chunk_count - len(chunks))]
                for number, chunk in changed:
                    columns[name][number] = chunk
            else:
                column = columns.get(name, np.empty(0, self.columns[name]))
                columns[name] = updated(column, changed, since.rows, meta.rows)
        snapshot.view = View(meta, columns)
        if is_newest:
            self._view = snapshot.view

    # --- writing

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Make the block one durable commit; a block within another one is part of its commit."""
        if self.read_only:
            raise InputError(f"'{self.path.parent}' was opened read-only: open it for writing to change it.")
        with self._explained_errors():
            connection = self._connection()
            if connection.snapshot is not None:
                raise InputError("an index cannot be changed while its thread reads: do so after that block.")
            is_inner = connection.in_transaction
            connection.execute("SAVEPOINT block" if is_inner else "BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("RELEASE block" if is_inner else "COMMIT")
            except BaseException:
                # SQLite has ended the transaction if the disk is full.
                if connection.in_transaction:
                    for statement in ("ROLLBACK TO block", "RELEASE block") if is_inner else ("ROLLBACK",):
                        connection.execute(statement)
                raise

    @contextmanager
    def changing(self) -> Iterator[Snapshot]:
        """Yield a snapshot to write through, in a transaction; a commit is counted if its `meta` changes."""
        with self.transaction() as connection, self.reading() as snapshot:
            before = snapshot.meta = snapshot.meta._replace(version=snapshot.meta.version + 1)
            yield snapshot
            if snapshot.meta != before:
                names = ", ".join(f"{name} = ?" for name in (*Meta._fields, "crc"))
                connection.execute(f"UPDATE meta SET {names}", (*snapshot.meta, checksum(*snapshot.meta)))

    def shrink(self) -> None:
        """Return the space of deleted rows to the disk, unless a transaction runs."""
        with self._explained_errors():
            if not (connection := self._connection()).in_transaction:
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- the file

    def back_up(self, path: Path, progress: Progress = silent) -> None:
        """Copy the file as of one commit, also while another process writes."""

        def report(_status: int, remaining: int, total: int) -> None:
            progress("backup", total - remaining, total)

        with self._explained_errors(), closing(sqlite3.connect(path)) as copy:
            self._connection().backup(copy, pages=1 << 12, progress=report)
            copy.execute("PRAGMA journal_mode = WAL")

    def file_bytes(self) -> int:
        """Return the size of the file and of its write-ahead log."""
        return sum(file.stat().st_size for file in (self.path, self._log) if file.exists())


def insert(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows into a table, each with its checksum."""
    if rows:
        query = f"INSERT INTO {table} VALUES (?{', ?' * len(rows[0])})"
        connection.executemany(query, ((*row, checksum(*row)) for row in rows))


def checksum(*values: object, data: bytes = b"") -> int:
    """Return the checksum of the values of a row of a table; `data` is a blob among them."""
    return crc32(data, crc32("\0".join(map(str, values)).encode()))
