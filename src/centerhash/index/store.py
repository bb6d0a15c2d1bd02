"""The store of an index: one SQLite file, scanned columns in chunks of 4,096 rows, all else in ordinary tables.

    store = Store.create(path, Facts(bits=64))
    with store.reading("semantic") as snapshot:
        snapshot.items(rows)

On disk. `chunks` has one blob per column and 4,096 rows, with the commit that wrote it and one checksum over column,
chunk, commit and content. `items` and `texts` have a checksum per row. `meta` has the number of commits, rows, items and
texts, `facts` what never changes. An item has a key, which is never used again, and a row, its position in the columns.
Rows are in the order of keys; compaction drops those of removed items. Labels are texts of the attribute "".

Writing (see `writing`) reads and rewrites blobs in one SQLite transaction, whose lock is the only one. It needs nothing
in memory.

In memory. A column is loaded when a search first needs it, and later brought up to date by `WHERE version > mine`. One of
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
# Added to the number of a label in the entries of items that carry it.
CARRIED = 1 << 31
LABELS = "labels"
# A view keeps this many rows in the order of an attribute.
TOP_ROWS = 1 << 14
# SQLite reads blobs 1.6 times as fast from these pages as from those of 4,096 bytes.
PAGE_BYTES = 16384
WRITER_WAIT_SECONDS = 5.0
SQL_VARIABLES = 10_000


class Flag:
    """The bits of the column `flags`; an enum would make numpy widen the column."""

    HIDDEN: Final = 1
    REMOVED: Final = 2
    NO_GENERAL: Final = 4
    NO_SCORES: Final = 8


_SCHEMA = """
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


# --- label entries


class Entries(NamedTuple):
    """Label entries of items: arrays of equal length, with rows in ascending order."""

    rows: NDArray[Any]
    labels: NDArray[Any]  # numbers of labels, plus CARRIED in entries of items that carry them
    probabilities: NDArray[Any]  # in 255ths
    shares: NDArray[Any]  # in 255ths

    def take(self, selected: NDArray[Any] | slice) -> Self:
        """Return some of the entries."""
        return type(self)(*(column[selected] for column in self))


class Part(NamedTuple):
    """The label entries of a chunk of rows, sorted by label, then row."""

    labels: NDArray[Any]  # those that occur, ascending; CARRIED ones come last
    starts: NDArray[Any]  # where the entries of each begin, and the number of all
    rows: NDArray[Any]  # within the chunk
    probabilities: NDArray[Any]
    shares: NDArray[Any]

    @classmethod
    def of(cls, parts: Sequence[Entries]) -> Self:
        """Sort entries by label; those of a label are given by their rows already."""
        entries = Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        order = np.argsort(entries.labels, kind="stable")  # quick for what is sorted but for its end
        rows, labels, probabilities, shares = entries.take(order)
        starts = np.flatnonzero(np.diff(labels.astype(np.int64), prepend=-1))
        ends = np.append(starts, len(order)).astype("<u4")
        return cls(labels[starts].astype("<u4"), ends, rows.astype("<u2"), probabilities, shares)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` returned."""
        labels, entries = np.frombuffer(data, "<u4", 2).tolist()
        sizes, arrays, offset = (labels, labels + 1, entries, entries, entries), list[Any](), 8
        for dtype, size in zip(("<u4", "<u4", "<u2", "u1", "u1"), sizes, strict=True):
            arrays.append(np.frombuffer(data, dtype, size, offset))
            offset += arrays[-1].nbytes
        return cls(*arrays)

    def to_bytes(self) -> bytes:
        """Return the arrays, after the numbers of labels and of entries."""
        sizes = np.array([len(self.labels), len(self.rows)], "<u4")
        return b"".join(array.tobytes() for array in (sizes, *self))

    def entries(self) -> Entries:
        """Return all entries."""
        labels = np.repeat(self.labels, np.diff(self.starts))
        return Entries(self.rows, labels, self.probabilities, self.shares)

    def of_row(self, row: int) -> list[tuple[int, int, int]]:
        """Return label, probability and share of the entries of a row."""
        positions = (self.rows == row).nonzero()[0]
        labels = self.labels[self.starts.searchsorted(positions, "right") - 1]
        columns = labels, self.probabilities[positions], self.shares[positions]
        return list(zip(*(column.tolist() for column in columns), strict=True))


NO_PART = Part.from_bytes(bytes(12))


# --- columns in memory


@dataclass(frozen=True)
class View:
    """The loaded columns of one commit. Nobody writes to the first `meta.rows` rows of its columns, nor to its parts."""

    meta: Meta
    columns: Mapping[str, Any] = field(
        default_factory=dict
    )  # arrays with spare room; of label entries, lists of parts

    def __getitem__(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self.columns[name]
        return column[: self.meta.rows]

    def _without(self, flags: int) -> Bools | None:
        mask = (self["flags"] & flags) == 0
        return None if mask.all() else mask

    @cached_property
    def shown(self) -> Bools | None:
        """Return which rows are items that are not hidden; None: all."""
        return self._without(Flag.HIDDEN | Flag.REMOVED)

    @cached_property
    def has_general(self) -> Bools | None:
        """Return which rows have a general code; None: all."""
        return self._without(Flag.NO_GENERAL)

    @cached_property
    def unscored(self) -> Rows:
        """Return the rows without label scores."""
        return np.flatnonzero(self["flags"] & Flag.NO_SCORES)

    def scores(self, label: int, least: float) -> tuple[Rows, NDArray[np.uint8], NDArray[np.uint8]]:
        """Return rows (ascending), probabilities and shares of the entries of a label from a probability on."""
        parts, bounds = [NO_PART, *self.columns.get(LABELS, ())], np.array([label, label + 1], np.uint32)
        places = [slice(*part.starts[part.labels.searchsorted(bounds)].tolist()) for part in parts]
        rows, probabilities, shares = (
            np.concatenate([part[column][place] for part, place in zip(parts, places, strict=True)])
            for column in (2, 3, 4)
        )
        sizes = [place.stop - place.start for place in places]
        kept = np.flatnonzero(probabilities >= least)
        first = np.repeat(np.arange(-1, len(parts) - 1) * CHUNK_ROWS, sizes)[kept]
        return first + rows[kept], probabilities[kept], shares[kept]

    def having(self, label: int | None) -> Bools:
        """Return which rows carry a label, or have it with a probability of at least FILTER_FROM; none for None."""
        mask = np.zeros(self.meta.rows, np.bool_)
        if label is not None:
            mask[self.scores(label, FILTER_FROM * LEVELS)[0]] = True
            mask[self.scores(label + CARRIED, 0)[0]] = True
        return mask

    @cached_property
    def _tops(self) -> dict[str, Rows]:
        return {}

    def top(self, column: str, count: int, mask: Bools | None) -> Rows:
        """Return the rows in the mask with the largest values, descending; of equal ones the last comes first.

        Missing values come last. Of all that are not hidden, the first ones are computed once for a commit.
        """
        is_kept = mask is self.shown and count <= TOP_ROWS
        if is_kept and column in self._tops:
            return self._tops[column][:count]
        rows = np.arange(self.meta.rows) if mask is None else np.flatnonzero(mask)
        values = self[column][rows]
        largest = smallest(
            np.where(np.isnan(values), np.inf, -values)[::-1], rows[::-1], TOP_ROWS if is_kept else count
        )
        if is_kept:
            self._tops[column] = largest
        return largest[:count]


def smallest(values: NDArray[Any], rows: Rows, count: int) -> Rows:
    """Return those rows (n,) that have the smallest values (n,), ascending; of equal ones the first comes first."""
    if len(rows) > count > 0:
        kept = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
        values, rows = values[kept], rows[kept]
    return rows[np.argsort(values, kind="stable")[:count]]


def updated(
    old: NDArray[Any] | None,
    dtype: np.dtype[Any],
    changed: Iterable[tuple[int, NDArray[Any]]],
    known: int,
    rows: int,
) -> NDArray[Any]:
    """Return an array with the changed chunks of a column; views may be reading the `known` first rows of the old one.

    It is the same array if only later rows are new and it has room for them, else a copy.
    """
    array = old
    if array is None or len(array) < rows:
        array = np.empty(rows + rows // 8 + CHUNK_ROWS, dtype)
        if old is not None:
            array[:known] = old[:known]
    for chunk, values in changed:
        top = chunk * CHUNK_ROWS
        used = min(max(known - top, 0), len(values))
        if values[:used].tobytes() != array[top : top + used].tobytes():
            array = array.copy() if array is old else array
            array[top : top + used] = values[:used]
        array[top + used : top + len(values)] = values[used:]
    return array


# --- what a thread reads


class Snapshot:
    """What one thread reads of one commit: loaded columns of its view, and chunks and rows of tables for all else.

    Inside a transaction no column is loaded, what it has written is read, and `meta` is of the commit to come.
    """

    def __init__(self, store: Store, sql: _Connection, meta: Meta, view: View) -> None:
        self.store, self.sql, self.meta, self.view = store, sql, meta, view
        self.chunks = -(-meta.rows // CHUNK_ROWS)  # of each column
        # The chunk of each column that was read last, and its number.
        self._last: dict[str, tuple[int, Any]] = {}

    def _chunks(self, condition: str, *values: object) -> Iterator[tuple[int, Any]]:
        """Yield number and content of the chunks that a condition selects: values, or a `Part` of label entries."""
        query = f"SELECT name, chunk, version, crc, data FROM chunks WHERE {condition}"
        for name, chunk, version, crc, data in self.sql.execute(query, values):
            if not isinstance(data, bytes) or crc_of(name, chunk, version, data=data) != crc:
                raise self.store.damaged(f"column '{name}', chunk {chunk}")
            size = min(self.meta.rows - chunk * CHUNK_ROWS, CHUNK_ROWS)
            content: Any = (
                Part.from_bytes(data) if name == LABELS else np.frombuffer(data, self.store.columns[name])
            )
            if size <= 0 or (name != LABELS and len(content) != size):
                raise self.store.damaged(f"column '{name}', chunk {chunk} is not of {size} rows")
            yield chunk, content

    def changed(self, name: str, since: Meta) -> Iterator[tuple[int, Any]]:
        """Yield the chunks that were written since a commit; none of new rows may be missing."""
        due = set(range(since.rows // CHUNK_ROWS, self.chunks)) if self.meta.rows > since.rows else set()
        # without ORDER BY, for which SQLite would sort the blobs
        for chunk, content in self._chunks("name = ? AND version > ?", name, since.version):
            due.discard(chunk)
            yield chunk, content
        if due:
            raise self.store.damaged(f"column '{name}', chunk {min(due)} is missing")

    def chunk(self, name: str, chunk: int) -> Any:
        """Return a chunk of a column: its values, or a `Part` of label entries."""
        if name in self.view.columns:
            rows = slice(chunk * CHUNK_ROWS, (chunk + 1) * CHUNK_ROWS)
            return self.view.columns[LABELS][chunk] if name == LABELS else self.view[name][rows]
        if name not in self._last or self._last[name][0] != chunk:
            found = next(self._chunks("name = ? AND chunk = ?", name, chunk), None)
            if found is None:
                raise self.store.damaged(f"column '{name}', chunk {chunk} is missing")
            self._last[name] = found
        return self._last[name][1]

    def span(self, name: str, chunks: Iterable[int]) -> NDArray[Any]:
        """Return the values of some chunks."""
        nothing = np.empty(0, self.store.columns[name])
        return np.concatenate([nothing, *(self.chunk(name, chunk) for chunk in chunks)])

    def gather(self, name: str, rows: Rows) -> NDArray[Any]:
        """Return the values of a column of some rows; of a column that is not loaded, their chunks are read."""
        if name in self.view.columns:
            return self.view[name][rows]
        chunks, places = np.unique(rows // CHUNK_ROWS, return_inverse=True)
        return self.span(name, chunks.tolist()).take(places * CHUNK_ROWS + rows % CHUNK_ROWS, axis=0)

    def write(self, name: str, chunk: int, data: bytes) -> None:
        """Write a chunk of a column in the commit to come."""
        version = self.meta.version
        row = (name, chunk, version, crc_of(name, chunk, version, data=data), data)
        self.sql.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)", row)
        self._last.pop(name, None)

    # --- tables

    def table(self, query: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table whose last value is their checksum, without that."""
        for *row, crc in self.sql.execute(query, values):
            if crc_of(*row) != crc:
                raise self.store.damaged(f"a row of: {query.partition('FROM ')[2].partition(' ')[0]}")
            yield tuple(row)

    def _among(self, query: str, values: Sequence[object], *first: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query that ends with the name of a column, which has one of the values."""
        for start in range(0, len(values), SQL_VARIABLES):
            page = values[start : start + SQL_VARIABLES]
            yield from self.table(f"{query} IN ({_marks(page)})", (*first, *page))

    def _numbers(self, query: str, values: Sequence[str], *first: str, thorough: bool) -> dict[str, int]:
        """Return the numbers of those texts that are stored; the query lacks the index to use, and the texts.

        SQLite's indexes have no checksum. If it is to be thorough, a text that is not there is looked for in the table.
        """
        rows = self._among(query.format(""), list(dict.fromkeys(values)), *first)
        numbers = {row[-1]: row[0] for row in rows}
        missing = [value for value in values if value not in numbers] if thorough else []
        for _ in self._among(query.format("NOT INDEXED"), missing, *first):
            raise self.store.damaged("an index over texts or ids")
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

    def texts(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return texts of attributes and names of labels by their numbers; those of labels are kept."""
        known, numbers = self.store.known_texts, list(numbers)
        missing = [number for number in numbers if number not in known]
        rows = list(self._among("SELECT number, attribute, text, crc FROM texts WHERE number", missing))
        if len(rows) < len(missing):
            raise self.store.damaged(f"{len(missing) - len(rows)} texts are missing")
        if self.sql.snapshot is self:  # what a transaction has written may be undone
            known.update((number, text) for number, attribute, text in rows if not attribute)
        texts = {number: text for number, _, text in rows}
        return {number: texts[number] if number in texts else known[number] for number in numbers}

    def add_texts(self, attribute: str, texts: Sequence[str]) -> dict[str, int]:
        """Return the numbers of texts of an attribute; new ones are stored."""
        numbers, meta = self.text_numbers(attribute, texts, thorough=False), self.meta
        new = [text for text in dict.fromkeys(texts) if text not in numbers]
        rows = [(number, attribute, text) for number, text in enumerate(new, meta.texts)]
        insert(self.sql, "texts", rows)
        self.meta = meta._replace(texts=meta.texts + len(new))
        return numbers | {text: number for number, _, text in rows}

    # --- items

    def rows(self, keys: Keys) -> Rows:
        """Return the rows of ascending keys, -1 for those that are not in the columns."""
        if not len(keys) or not self.meta.rows:
            return np.full(len(keys), -1)
        if "key" in self.view.columns:
            first, stored = 0, self.view["key"]
        else:  # a row is before its key by as many as were dropped at most
            dropped, last = self.meta.next_key - self.meta.rows, self.meta.rows - 1
            first = min(max(0, int(keys[0]) - dropped), last) // CHUNK_ROWS
            stored = self.span("key", range(first, min(max(0, int(keys[-1])), last) // CHUNK_ROWS + 1))
        rows = np.minimum(np.searchsorted(stored, keys.astype(stored.dtype)), len(stored) - 1)
        return np.where(stored[rows] == keys, rows + first * CHUNK_ROWS, -1)

    def rows_of_items(self, keys: Sequence[int]) -> Rows:
        """Return the rows of stored items in the order of their keys."""
        ascending = np.array(sorted(keys), np.int64)
        rows = self.rows(ascending)
        if (rows < 0).any():
            raise self.store.damaged(f"the row of item {int(ascending[rows < 0][0])} is missing")
        return rows

    def items(self, rows: Rows) -> list[Item]:
        """Return the items of some rows, in their order."""
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
            else:  # NaN is a missing number
                attributes[name] = [value if value == value else None for value in values]
        items = []
        for place, (key, flag, row) in enumerate(zip(keys, flags, entries, strict=True)):
            if key not in ids:
                raise self.store.damaged(f"the id of item {key} is missing")
            carried = tuple(labels[label - CARRIED] for label, _, _ in row if label >= CARRIED)
            scores = {labels[label]: (level, share) for label, level, share in row if label < CARRIED}
            seen = None if general is None or flag & Flag.NO_GENERAL else general[place]
            values = {name: column[place] for name, column in attributes.items()}
            code, hidden = columns["semantic"][place], bool(flag & Flag.HIDDEN)
            items.append(Item(key, ids[key], code, seen, carried, scores, values, hidden))
        return items

    def label_counts(self, mask: Bools | None) -> dict[str, int]:
        """Return how many of the rows in a mask carry each label, sorted by name."""
        counts: dict[int, int] = {}
        for chunk, part in enumerate(self.view.columns[LABELS]):
            first = part.labels.searchsorted(np.uint32(CARRIED))
            starts, carried = part.starts[first:].astype(np.int64), part.labels[first:].tolist()
            numbers = np.diff(starts)
            if mask is not None and carried:
                is_counted = mask[chunk * CHUNK_ROWS : (chunk + 1) * CHUNK_ROWS][part.rows[starts[0] :]]
                numbers = np.add.reduceat(is_counted, starts[:-1] - starts[0], dtype=np.int64)
            for label, number in zip(carried, numbers.tolist(), strict=True):
                counts[label - CARRIED] = counts.get(label - CARRIED, 0) + number
        names = self.texts(counts)
        return dict(sorted((names[label], count) for label, count in counts.items() if count))

    def items_from(self, key: int) -> list[Item]:
        """Return the next items whose keys are at least this, of one chunk."""
        chunks = range(self.chunks)
        for chunk in chunks[bisect_left(chunks, key, key=lambda chunk: self.chunk("key", chunk)[-1]) :]:
            is_stored = self.chunk("flags", chunk) & Flag.REMOVED == 0
            rows = np.flatnonzero(is_stored & (self.chunk("key", chunk) >= key))
            if len(rows):
                return self.items(rows + chunk * CHUNK_ROWS)
        return []

    def allowed(self, only: Filter) -> Bools | None:
        """Return a mask of the rows that pass a filter and are not hidden; None: all."""
        masks = [] if self.view.shown is None else [self.view.shown]
        labels = self.text_numbers("", [*only.having, *only.without])
        masks += [self.view.having(labels.get(label)) for label in only.having]
        masks += [~self.view.having(labels.get(label)) for label in only.without]
        for name, wanted in only.where.items():
            values = self.view[attribute_column(name)]
            if self.store.facts.attributes[name] is float:
                masks += [values >= wanted[0], values <= wanted[1]]  # NaN is in no range
            else:
                numbers = self.text_numbers(name, [str(text) for text in wanted]).values()
                masks.append(np.isin(values, [number + 1 for number in numbers]))
        if only.among is not None:
            rows = self.rows(np.unique(only.among))
            masks.append(np.zeros(self.meta.rows, np.bool_))
            masks[-1][rows[rows >= 0]] = True
        return reduce(np.logical_and, masks) if masks else None

    def check(self) -> None:
        """Read everything, or raise DataError."""
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
        for (line,) in self.sql.execute("PRAGMA integrity_check(1)"):
            if line != "ok":
                raise self.store.damaged(line)


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
        self.known_texts: dict[int, str] = {}
        with self._explained():
            row = self._connection().execute("SELECT json, crc FROM facts").fetchone()
            if row is None or crc_of(row[0]) != row[1]:
                raise self.damaged("the table facts")
        self.facts = Facts.from_json(row[0])
        self.columns = self.facts.columns
        self.meta()

    @classmethod
    def create(cls, path: Path, facts: Facts) -> Self:
        """Create the file of an empty store and open it; the model's classes are its first labels."""
        with closing(sqlite3.connect(path, isolation_level=None)) as sql:
            sql.executescript(f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL; BEGIN; {_SCHEMA}")
            text, meta = facts.to_json(), Meta(0, texts=len(facts.classes))
            insert(sql, "facts", [(text,)])
            insert(sql, "meta", [meta])
            insert(sql, "texts", [(number, "", name) for number, name in enumerate(facts.classes)])
            sql.execute("COMMIT")
        return cls(path)

    # --- connections

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of SQLite into errors that name the file."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                advice = "wait until it has finished, then try again"
                raise InputError(
                    f"'{self.path.parent}' is being written by another process: {advice}."
                ) from None
            if name.startswith(("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")):
                raise OutputError(f"cannot read or write '{self.path}': {error}.") from error
            if self.closed and isinstance(error, sqlite3.ProgrammingError):
                raise InputError(f"the index '{self.path.parent}' is closed: open it again.") from None
            raise self.damaged(error) from error

    def damaged(self, what: object) -> DataError:
        """Return the error of a file that does not hold what was written."""
        advice = "restore a backup, or create the index again"
        return DataError(f"'{self.path}' is damaged ({what}): {advice}.")

    def _connection(self) -> _Connection:
        """Return the connection of this thread; those of threads that have ended are closed."""
        if (known := self._connections.get(current_thread())) is not None:
            return known
        with self._connecting:
            if self.closed:
                raise sqlite3.ProgrammingError("closed")
            for thread in [thread for thread in self._connections if not thread.is_alive()]:
                self._connections.pop(thread).close()
            options: Any = {"isolation_level": None, "check_same_thread": False, "factory": _Connection}
            sql: _Connection = sqlite3.connect(
                self._address, uri=True, timeout=WRITER_WAIT_SECONDS, **options
            )
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
                if crc_of(*values) == crc:
                    return Meta(*values)
            raise self.damaged("the table meta")

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
                yield Snapshot(self, sql, meta, View(meta))
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
        meta, needed = snapshot.meta, {*names, *old.columns}
        if old.meta == meta and len(needed) == len(old.columns):
            return old
        if meta.rows < old.meta.rows:  # older views still read the rows that were dropped
            old = View(Meta())
        columns = dict(old.columns)
        for name in needed:
            since = old.meta if name in old.columns else Meta()
            changed = snapshot.changed(name, since)
            if name == LABELS:
                parts = columns.get(name, [])
                columns[name] = [*parts, *[NO_PART] * (snapshot.chunks - len(parts))]
                for chunk, part in changed:
                    columns[name][chunk] = part
            else:
                columns[name] = updated(columns.get(name), self.columns[name], changed, since.rows, meta.rows)
        return View(meta, columns)

    # --- writing

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Make the block one durable commit; a block within another one is part of its commit."""
        if self.read_only:
            raise InputError(f"'{self.path.parent}' was opened read-only: open it for writing to change it.")
        with self._explained():
            sql = self._connection()
            if sql.snapshot is not None:
                raise InputError(
                    "an index cannot be changed while its thread reads: change it after that block."
                )
            is_inner = sql.in_transaction
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
    def changing(self) -> Iterator[Snapshot]:
        """Within a transaction, return a snapshot to write through; nothing is written unless its `meta` changes."""
        with self.transaction() as sql, self.reading() as snapshot:
            before = snapshot.meta = snapshot.meta._replace(version=snapshot.meta.version + 1)
            yield snapshot
            if snapshot.meta != before:
                names = ", ".join(f"{name} = ?" for name in (*Meta._fields, "crc"))
                sql.execute(f"UPDATE meta SET {names}", (*snapshot.meta, crc_of(*snapshot.meta)))

    def shrink(self) -> None:
        """Give the space of deleted rows back, unless a transaction runs."""
        with self._explained():
            if not (sql := self._connection()).in_transaction:
                sql.execute("VACUUM")
                sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- checks and copies

    def verify(self) -> list[str]:
        """Read everything and return a sentence about the first damage that was found."""
        try:
            with self.reading() as snapshot:
                snapshot.check()
        except (DataError, OutputError) as error:
            return [str(error)]
        return []

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


def insert(sql: sqlite3.Connection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows, each with its checksum."""
    if rows:
        marks = _marks((*rows[0], "crc"))
        sql.executemany(f"INSERT INTO {table} VALUES ({marks})", ((*row, crc_of(*row)) for row in rows))


def crc_of(*values: object, data: bytes = b"") -> int:
    """Return the checksum of the values of a row of a table; `data` is a long one among them."""
    return crc32(data, crc32("\0".join(map(str, values)).encode()))


def _bytes_of(path: Path, ending: str) -> int:
    file = path.with_name(path.name + ending)
    return file.stat().st_size if file.exists() else 0
