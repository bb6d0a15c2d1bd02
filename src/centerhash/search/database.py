"""The database of a store, `items.db`: its tables, and reading their rows with all checks.

    state       one row: bits, number of commits, rows, items ...
    items       one row per item: id, camera, width and height, name of an upload, labels, label scores
    files       one row per path: the row of its item, folder and name, size and modification time, whether it is gone
    terms       labels, cameras and folders, with the number of their items; folders that are scanned
    postings    for each label or camera and chunk, the rows of its items with probability and share;
                key = term << 32 | chunk
    codes       for each chunk of 4,096 rows, semantic and visual codes, a hash of the ids, and when photos were taken
    flags       for each chunk, a byte per row (present, hidden, has a visual code, label scores, an image), and the
                folders of its rows
    taught      one row per taught label: its weights and examples (see `teaching`)
    removed     one row per path of an image that was removed from the index: a scan of its folder leaves it out

Every database row carries a checksum of its values, and every count stands in a second place, so that damage becomes
an error and not a wrong result. The number of commits is also kept in `items.commits`, because SQLite silently returns
to an older commit if the end of its write-ahead log is lost.
"""

from __future__ import annotations

import math
import os
import sqlite3
import stat
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, packed_width
from centerhash.core.errors import CenterhashError, DataError, InputError, OutputError
from centerhash.core.files import refuse_links
from centerhash.search.connections import bytes_of, connect, modes_of, stat_of
from centerhash.search.items import (
    MAX_NAME,
    MAX_SIDE,
    MAX_TEXT,
    TIMES,
    VISUAL_BITS,
    File,
    Item,
    PhotoInfo,
    is_id,
)
from centerhash.search.teaching import MAX_TAUGHT, Taught

Row: TypeAlias = tuple[Any, ...]  # of a database table
Flags: TypeAlias = NDArray[np.uint8]
Times: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[Any]  # (n,) of PLACE

FILE, COMMITS, LOCK = "items.db", "items.commits", "lock"
FILES = (FILE, f"{FILE}-wal", f"{FILE}-shm", COMMITS, LOCK, f"{LOCK}.pid")
JOURNAL = f"{FILE}-journal"  # of SQLite's other mode: it can name files that SQLite deletes, and is never written here
APPLICATION, FORMAT = 0x63687368, 3  # "chsh"
CHUNK = 1 << 12  # rows of a chunk
MAX_ROWS = 1 << 31
MAX_COUNT = 1 << 53  # of commits and compactions
VISUAL_BYTES = VISUAL_BITS // 8
_PAGE_BYTES = 4096  # of a page of SQLite
# flags of a row; an item whose files are all gone is hidden and not present
PRESENT, HAS_VISUAL, HAS_SCORES, HAS_IMAGE, HIDDEN = 1, 2, 4, 8, 16
_ALL_FLAGS = PRESENT | HAS_VISUAL | HAS_SCORES | HAS_IMAGE | HIDDEN
LABEL, CAMERA, FOLDER, ROOT = "label", "camera", "folder", "root"
CARRIED, SCORED = 1, 2  # kinds of an entry: the item carries the label (is of the camera); a score is stored
_FIELDS = [("kind", "u1"), ("probability", "u1"), ("share", "u1")]
ENTRY = np.dtype([("row", "<u2"), *_FIELDS])  # as stored: rows are counted from the beginning of the chunk
SCORE = np.dtype([("term", "<u4"), ("probability", "u1"), ("share", "u1")])  # of the column `scores`
PLACE = np.dtype([("row", "<u2"), ("folder", "<u4")])  # an item that has a file in a folder; rows as in ENTRY
ITEM = "row, id, camera, width, height, name, labels, scores, checksum"
LABELS, SCORES = 6, 7  # places of columns in ITEM
FILES_OF = "SELECT row, folder, name, size, modified, gone, checksum FROM files WHERE row"
ADVICE = "restore a backup, or create the index again and add its images"
_SLOT = struct.Struct("<QI")  # of items.commits: a number of commits and its checksum
_ASKED = 10_000  # values in one SQL statement
_FEW_BYTES = 1 << 20  # of rows that are read without a look at the size of the file

SCHEMA = {
    "state": "CREATE TABLE state (bits INTEGER, generation INTEGER, commits INTEGER, rows INTEGER, items INTEGER, "
    "images INTEGER, hidden INTEGER, edits INTEGER, terms INTEGER, taught INTEGER, removed INTEGER, checksum INTEGER)",
    "items": "CREATE TABLE items (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, camera INTEGER, width INTEGER, "
    "height INTEGER, name TEXT, labels BLOB NOT NULL, scores BLOB NOT NULL, checksum INTEGER NOT NULL)",
    "files": "CREATE TABLE files (row INTEGER NOT NULL, folder INTEGER NOT NULL, name NOT NULL, size INTEGER, "
    "modified REAL, gone INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (row, folder, name)) WITHOUT ROWID",
    "paths": "CREATE UNIQUE INDEX paths ON files (folder, name)",
    "terms": "CREATE TABLE terms (term INTEGER PRIMARY KEY, kind TEXT NOT NULL, name NOT NULL, items INTEGER NOT NULL, "
    "entries INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "postings": "CREATE TABLE postings (key INTEGER PRIMARY KEY, entries BLOB NOT NULL, checksum INTEGER NOT NULL)",
    "codes": "CREATE TABLE codes (chunk INTEGER PRIMARY KEY, semantic BLOB NOT NULL, visual BLOB NOT NULL, "
    "ids BLOB NOT NULL, taken BLOB NOT NULL, checksum INTEGER NOT NULL)",
    "flags": "CREATE TABLE flags (chunk INTEGER PRIMARY KEY, flags BLOB NOT NULL, places BLOB NOT NULL, "
    "checksum INTEGER NOT NULL)",
    "taught": "CREATE TABLE taught (name TEXT PRIMARY KEY, parameters BLOB NOT NULL, examples TEXT NOT NULL, "
    "checksum INTEGER NOT NULL) WITHOUT ROWID",
    "removed": "CREATE TABLE removed (id TEXT NOT NULL, path BLOB NOT NULL, size INTEGER, modified REAL, "
    "checksum INTEGER NOT NULL, PRIMARY KEY (id, path)) WITHOUT ROWID",
}
# type, name and statement of everything in the database; a trigger or a view would run statements of its own
_OBJECTS = [
    *(
        ("index" if " INDEX " in statement else "table", name, statement)
        for name, statement in SCHEMA.items()
    ),
    ("index", "sqlite_autoindex_items_1", None),  # of UNIQUE
]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Postings(NamedTuple):
    """The entries of a term, one per row that carries it or has a score of it."""

    rows: NDArray[Any]  # (n,), ascending
    kinds: NDArray[np.uint8]
    probabilities: NDArray[np.uint8]  # in 255ths
    shares: NDArray[np.uint8]  # in 255ths


def checksum(*values: object) -> int:
    """Return the checksum of the values of a database row."""
    small = [value for value in values if not isinstance(value, bytes)]
    result = crc32(repr(small).encode("utf-8", "surrogatepass"))
    for value in values:
        if isinstance(value, bytes):
            result = crc32(value, result)
    return result


@dataclass(frozen=True)
class State:
    """The one row of the table `state`."""

    bits: int  # K
    generation: int = 0  # counts compactions, which number the rows again
    commits: int = 0
    rows: int = 0  # including removed ones
    items: int = 0  # without hidden ones
    images: int = 0  # of these, with a file
    hidden: int = 0  # items whose files are all gone
    edits: int = 0  # counts changes of rows that were there before
    terms: int = 0
    taught: int = 0  # checksum of all taught labels; 0 without any
    removed: int = 0  # rows of the table `removed`

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return -(-self.rows // CHUNK)

    def row(self) -> Row:
        """Return its database row."""
        return (*astuple(self), checksum(*astuple(self)))


@dataclass(frozen=True)
class Term:
    """A label, camera or folder: its number, how many items carry it, and how many entries its postings have."""

    number: int
    kind: str
    name: str
    items: int = 0
    entries: int = 0

    def row(self) -> Row:
        """Return its database row."""
        values = (self.number, self.kind, stored_text(self.name), self.items, self.entries)
        return (*values, checksum(*values))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Up to CHUNK rows: codes, visual codes, flags, hashes of ids and times."""

    semantic: Packed  # (n, ceil(K/8))
    visual: Packed  # (n, 16), or (0, 16) if no row has a visual code
    flags: Flags  # (n,)
    ids: NDArray[np.uint32]  # (n,)
    taken: Times  # (n,): NaN for items without

    def columns(self, place: int) -> tuple[Packed, Packed | None, float]:
        """Return the semantic and the visual code of a row, and when it was taken."""
        visual = self.visual[place] if self.flags[place] & HAS_VISUAL else None
        return self.semantic[place], visual, float(self.taken[place])

    def joined(self, other: Chunk) -> Chunk:
        """Return this chunk followed by the rows of another one."""
        visual = [
            chunk.visual if len(chunk.visual) else np.zeros((len(chunk.flags), VISUAL_BYTES), np.uint8)
            for chunk in (self, other)
        ]
        return Chunk(
            np.concatenate([self.semantic, other.semantic]),
            np.concatenate(visual),
            np.concatenate([self.flags, other.flags]),
            np.concatenate([self.ids, other.ids]),
            np.concatenate([self.taken, other.taken]),
        )

    def blobs(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the values of the table `codes`: semantic and visual codes, hashes of ids, times."""
        visual = self.visual.tobytes() if (self.flags & HAS_VISUAL).any() else b""
        taken = b"" if np.isnan(self.taken).all() else self.taken.astype("<f8").tobytes()
        return self.semantic.tobytes(), visual, self.ids.tobytes(), taken


def _decoding(
    method: Callable[Concatenate[Database, Parameters], Result],
) -> Callable[Concatenate[Database, Parameters], Result]:
    """Turn what SQLite and the decoding of stored values raise into errors that name the file."""

    @wraps(method)
    def decoded(self: Database, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return method(self, *arguments, **options)
        except CenterhashError:
            raise
        except sqlite3.Error as error:
            raise explain(self.path, error) from error
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error) as error:
            raise self.damaged(f"a value makes no sense ({error!s:.80})") from error

    return decoded


class Database:
    """A connection to the database of a store."""

    def __init__(self, path: Path, mode: str = "ro", *, immutable: bool = False) -> None:
        """Connect to an existing file; `immutable` is for a file on a read-only medium, which nobody changes."""
        self.path = path
        with explained(path):
            self.sql = connect(path, f"mode={mode}{'&immutable=1' if immutable else ''}")

    def damaged(self, reason: str) -> DataError:
        """Return the error for a damaged database."""
        return DataError(f"'{self.path}' is damaged: {reason}. Next: {ADVICE}.")

    @_decoding
    def select(self, statement: str, values: Sequence[Any]) -> list[Row]:
        """Execute a statement that ends in IN with so many values, some thousands at a time."""
        found: list[Row] = []
        for start in range(0, len(values), _ASKED):
            some = values[start : start + _ASKED]
            found += self._rows(f"{statement} ({marks(len(some))})", some)
        return found

    def _rows(self, query: str, values: Sequence[Any] = (), *, ascending: int = 0) -> Iterator[Row]:
        """Execute a statement and yield its rows, which are sorted by so many of their first columns.

        All of them come from different bytes of the file. In a crafted file, rows can share their pages, or pages can
        lead to the same rows again and again.
        """
        last, read, most = None, 0, _FEW_BYTES
        for row in self.sql.execute(query, values):
            read += sum([len(value) for value in row if isinstance(value, (str, bytes))])
            if read > most:
                most = max(most, self._size())
            if read > most or (ascending and last is not None and row[:ascending] <= last):
                raise self.damaged("its rows are not in order, or share their bytes")
            last = row[:ascending]
            yield row

    def _size(self) -> int:
        """Return the bytes of the database and of its write-ahead log."""
        return sum(bytes_of(self.path.with_name(name)) for name in FILES[:2])

    def checked(self, row: Row) -> Row:
        """Return the values of a database row without its checksum, the last one, which must match."""
        *values, stored = row
        if checksum(*values) != stored:
            raise self.damaged("a row does not match its checksum")
        return tuple(values)

    @_decoding
    def state(self) -> State:
        """Read the state."""
        rows = self.sql.execute("SELECT * FROM state LIMIT 2").fetchall()
        if len(rows) != 1:
            raise self.damaged("it has no state" if not rows else "it has several states")
        values = self.checked(rows[0])
        state, sound = State(*values), all(type(value) is int and 0 <= value <= MAX_COUNT for value in values)
        if not (
            sound
            and state.images <= state.items
            and state.items + state.hidden <= state.rows <= MAX_ROWS
            and 0 < state.bits <= 1 << 16
        ):
            raise self.damaged("its state makes no sense")
        return state

    @_decoding
    def term(self, number: int) -> Term:
        """Read one term."""
        row = self.sql.execute("SELECT * FROM terms WHERE term = ?", (number,)).fetchone()
        if row is None:
            raise self.damaged(f"the term {number} is missing")
        return self._term(row)

    def _term(self, row: Row) -> Term:
        number, kind, name, items, entries = self.checked(row)
        sound = type(items) is type(entries) is int and 0 <= items <= entries <= MAX_ROWS
        if (
            not sound
            or kind not in (LABEL, CAMERA, FOLDER, ROOT)
            or (kind in (LABEL, CAMERA) and not isinstance(name, str))
        ):
            raise self.damaged(f"the term {number} makes no sense")
        return Term(number, kind, self._name(name), items, entries)

    def _name(self, stored: str | bytes) -> str:
        """Return a stored text, which is in the one form in which it is written."""
        name = os.fsdecode(stored)
        if len(name) > MAX_TEXT or "\0" in name or stored_text(name) != stored:
            raise self.damaged("a name makes no sense")
        return name

    @_decoding
    def terms(self, state: State) -> list[Term]:
        """Read all terms, in the order of their numbers."""
        terms = [self._term(row) for row in self._rows("SELECT * FROM terms ORDER BY term", ascending=1)]
        if len(terms) != state.terms or any(term.number != place for place, term in enumerate(terms)):
            raise self.damaged(f"{len(terms):,} of {state.terms:,} terms are there")
        if len({(term.kind, term.name) for term in terms}) != len(terms):
            raise self.damaged("two of its terms have the same name")
        return terms

    @_decoding
    def flags(self, state: State, number: int) -> tuple[Flags, Places]:
        """Read the flags of a chunk, into a new array, and the folders of its rows."""
        row = self.sql.execute("SELECT * FROM flags WHERE chunk = ?", (number,)).fetchone()
        count = min(CHUNK, state.rows - number * CHUNK)
        if row is None or len(row[1]) != count:
            raise self.damaged(f"the flags of chunk {number} are missing")
        _, stored_flags, stored = self.checked(row)
        flags, places = np.frombuffer(bytearray(stored_flags), np.uint8), np.frombuffer(stored, PLACE)
        if (flags > _ALL_FLAGS).any():
            raise self.damaged(f"the flags of chunk {number} make no sense")
        if len(places) and (places["row"].max() >= count or places["folder"].max() >= state.terms):
            raise self.damaged(f"the folders of chunk {number} make no sense")
        return flags, places

    def place(self, state: State, row: Row) -> tuple[int, int]:
        """Return the chunk of a row of `items`, and its position in the chunk."""
        if not 0 <= row[0] < state.rows:
            raise self.damaged(f"there is an item in row {row[0]} of {state.rows:,}")
        return divmod(int(row[0]), CHUNK)

    @_decoding
    def chunk(self, state: State, number: int, flags: Flags | None = None) -> Chunk:
        """Read a chunk; its flags are read too unless they are given."""
        flags = self.flags(state, number)[0] if flags is None else flags
        row = self.sql.execute("SELECT * FROM codes WHERE chunk = ?", (number,)).fetchone()
        if row is None:
            raise self.damaged(f"the codes of chunk {number} are missing")
        _, semantic, visual, ids, times = self.checked(row)
        count, width = len(flags), packed_width(state.bits)
        shown = count * VISUAL_BYTES if (flags & HAS_VISUAL).any() else 0
        expected = (count * width, shown, 4 * count, 8 * count if times else 0)
        if (len(semantic), len(visual), len(ids), len(times)) != expected:
            raise self.damaged(f"the codes of chunk {number} do not fit its flags")
        codes = np.frombuffer(semantic, np.uint8).reshape(-1, width)
        spare = 8 * width - state.bits
        if spare and (codes[:, -1] & ((1 << spare) - 1)).any():
            raise self.damaged(f"the codes of chunk {number} have more than {state.bits} bits")
        taken = np.frombuffer(times, "<f8") if times else np.full(count, np.nan)
        if ((taken < TIMES[0]) | (taken >= TIMES[1])).any():
            raise self.damaged(f"the times of chunk {number} make no sense")
        visible = np.frombuffer(visual, np.uint8).reshape(-1, VISUAL_BYTES)
        return Chunk(codes, visible, flags, np.frombuffer(ids, "<u4"), taken)

    @_decoding
    def entries(self, key: int) -> bytes:
        """Read the stored entries of a term in a chunk; none if there are none."""
        row = self.sql.execute("SELECT * FROM postings WHERE key = ?", (key,)).fetchone()
        content = b"" if row is None else self.checked(row)[1]
        if not isinstance(content, bytes):
            raise self.damaged(f"the postings {key} make no sense")
        return content

    @_decoding
    def postings(self, state: State, term: Term) -> Postings:
        """Read all entries of a term, in the order of their rows."""
        first = term.number << 32
        query = "SELECT * FROM postings WHERE key BETWEEN ? AND ? ORDER BY key"
        chunks, parts = [0], [np.empty(0, ENTRY)]
        for row in self._rows(query, (first, first + (1 << 32) - 1), ascending=1):
            key, content = self.checked(row)
            chunks.append(key - first)
            parts.append(np.frombuffer(content, ENTRY))
        entries = np.concatenate(parts)
        if len(entries) != term.entries:
            raise self.damaged(f"{len(entries):,} of {term.entries:,} entries of '{term.name}' are there")
        found = Postings(*(np.ascontiguousarray(entries[name]) for name in ENTRY.names or ()))
        kinds = found.kinds
        if not ((found.rows < CHUNK) & (kinds > 0) & (kinds <= CARRIED | SCORED)).all():
            raise self.damaged(f"an entry of '{term.name}' makes no sense")
        rows = np.repeat(np.array(chunks) * CHUNK, [len(part) for part in parts]) + found.rows
        if len(rows) and (rows[-1] >= state.rows or (np.diff(rows) <= 0).any()):
            raise self.damaged(f"the entries of '{term.name}' are not in order")
        return found._replace(rows=rows)

    @_decoding
    def rows_of_chunk(self, number: int) -> list[Row]:
        """Read the rows of `items` of a chunk."""
        query = f"SELECT {ITEM} FROM items WHERE row BETWEEN ? AND ? ORDER BY row"
        return list(self._rows(query, (number * CHUNK, (number + 1) * CHUNK - 1), ascending=1))

    @_decoding
    def files_of_chunk(self, number: int) -> dict[int, list[Row]]:
        """Read the rows of `files` of the items of a chunk, by the row of the item."""
        bounds = (number * CHUNK, (number + 1) * CHUNK - 1)
        return self._by_item(self._rows(f"{FILES_OF} BETWEEN ? AND ?", bounds))

    @_decoding
    def files_of(self, rows: Sequence[int]) -> dict[int, list[Row]]:
        """Read the rows of `files` of the items of these rows, by the row of the item."""
        return self._by_item(self.select(f"{FILES_OF} IN", rows))

    def _by_item(self, rows: Iterable[Row]) -> dict[int, list[Row]]:
        found = defaultdict[int, list[Row]](list)
        for row in rows:
            found[row[0]].append(self.checked(row))
        return found

    @_decoding
    def file(self, values: Row, names: Sequence[str]) -> File:
        """Return the file of the values of a row of `files`."""
        _, folder, name, size, modified, gone = values
        if (
            not _are_facts(size, modified)
            or gone not in (0, 1)
            or type(folder) is not int
            or folder < 0
            or "/" in (own := self._name(name))
        ):
            raise self.damaged("the name, size, time or folder of a file makes no sense")
        path = os.path.join(names[folder], own)  # noqa: PTH118 - as the path was split
        return File(path, size, modified, bool(gone))

    @_decoding
    def id_of(self, row: Row) -> str:
        """Return the id of a row of `items`."""
        id = self.checked(row)[1]
        if not isinstance(id, str) or not is_id(id):
            raise self.damaged("an item has no id")
        return id

    @_decoding
    def item(
        self,
        row: Row,
        names: Sequence[str],
        files: Iterable[Row] = (),
        code: Packed | None = None,
        visual: Packed | None = None,
        taken: float = math.nan,
    ) -> Item:
        """Return the item of a row of `items`, given the values of the rows of its files and its columns."""
        _, id, camera, width, height, name, labels, scores = self.checked(row)
        sides = all(side is None or (type(side) is int and 0 < side <= MAX_SIDE) for side in (width, height))
        named = name is None or (isinstance(name, str) and 0 < len(name) <= MAX_NAME)
        if not isinstance(id, str) or not is_id(id) or not sides or not named:
            raise self.damaged("an item has no id, or its size or name makes no sense")
        if camera is not None and (type(camera) is not int or camera < 0):
            raise self.damaged(f"the camera of the item {id!r:.80} makes no sense")
        scored = {names[term]: (probability, share) for term, probability, share in _scores(scores)}
        carried = tuple(names[term] for term in _numbers(labels))
        if len(scored) * SCORE.itemsize != len(scores) or len(set(carried)) != len(carried):
            raise self.damaged(f"the item {id!r:.80} has a label twice")
        time = None if math.isnan(taken) else taken
        return Item(
            id,
            np.empty(0, np.uint8) if code is None else code,
            carried,
            tuple(sorted(self.file(values, names) for values in files)),
            visual,
            scored,
            PhotoInfo(time, None if camera is None else names[camera], width, height, name),
        )

    @_decoding
    def taught(self, state: State) -> dict[str, Taught]:
        """Read the taught labels, sorted by name."""
        rows = list(self._rows("SELECT * FROM taught ORDER BY name", ascending=1))
        if len(rows) > MAX_TAUGHT or taught_checksum(rows) != state.taught:
            raise self.damaged("its taught labels are not those that were stored")
        try:
            return {row[0]: Taught.from_row(self.checked(row), state.bits) for row in rows}
        except ValueError as error:
            raise self.damaged(f"a taught label makes no sense ({error!s:.80})") from error

    @_decoding
    def removed(self, state: State) -> dict[str, tuple[str, File]]:
        """Read the files of removed images by path, with the ids of the images."""
        found = dict[str, tuple[str, File]]()
        query = "SELECT id, path, size, modified, checksum FROM removed ORDER BY id, path"
        for row in self._rows(query, ascending=2):
            id, stored, size, modified = self.checked(row)
            path = os.fsdecode(stored)
            if (
                not (isinstance(id, str) and is_id(id) and isinstance(stored, bytes))
                or not (0 < len(path) <= MAX_TEXT and "\0" not in path)
                or not _are_facts(size, modified)
            ):
                raise self.damaged("a file of a removed image makes no sense")
            found[path] = id, File(path, size, modified)
        if len(found) != state.removed:
            raise self.damaged(f"{len(found):,} of {state.removed:,} files of removed images are there")
        return found

    # --- verification

    @_decoding
    def problems(self) -> list[str]:
        """Read every row and compare the tables with each other; return one sentence per damage."""
        for (line,) in self.sql.execute("PRAGMA integrity_check(1)").fetchall():
            if line != "ok":
                return [str(self.damaged(f"SQLite reports '{line}'"))]
        try:
            return [str(self.damaged(reason)) for reason in self._contradictions()]
        except DataError as error:
            return [str(error)]

    def _contradictions(self) -> Iterator[str]:
        """Yield how tables contradict each other."""
        state = self.state()
        self.taught(state)  # raises if one is damaged
        removed = self.removed(state)
        removed_ids = {id for id, _ in removed.values()}
        terms = self.terms(state)
        names, kinds = [term.name for term in terms], [term.kind for term in terms]
        counts, carried, stored = Counter[str](), [0] * len(terms), defaultdict[int, int](int)
        present, expected_entries = np.zeros(state.rows, bool), [0] * len(terms)
        for table, rows_of_table in (
            ("items", state.items + state.hidden),
            ("codes", state.chunks),
            ("flags", state.chunks),
        ):
            [(count,)] = self.sql.execute(f"SELECT count(*) FROM {table}").fetchall()
            if count != rows_of_table:
                yield f"the table {table} has {count:,} rows, not {rows_of_table:,}"
        for number in range(state.chunks):
            chunk, expected = self.chunk(state, number), defaultdict[int, list[Row]](list)
            rows, files, folders = self.rows_of_chunk(number), self.files_of_chunk(number), list[Row]()
            present[number * CHUNK : (number + 1) * CHUNK] = chunk.flags & (PRESENT | HIDDEN) > 0
            places = [row[0] - number * CHUNK for row in rows]
            if places != np.flatnonzero(chunk.flags & (PRESENT | HIDDEN)).tolist():
                yield f"the items of chunk {number} are not those that its flags mark"
                continue
            counts["files"] += sum(len(own) for own in files.values())
            for place, row in zip(places, rows, strict=True):
                own = files.pop(row[0], [])
                item = self.item(row, names, own, *chunk.columns(place))
                labels, scores = label_numbers(row), {term: pair for term, *pair in _scores(row[SCORES])}
                if item.id in removed_ids or any(file.path in removed for file in item.files):
                    yield f"the item {item.id!r:.80} or one of its files is listed as removed"
                if crc32(item.id.encode()) != chunk.ids[place]:
                    yield f"the item {item.id!r:.80} is in the row of another"
                flags = HIDDEN if item.hidden else PRESENT
                flags |= HAS_SCORES * bool(scores) | HAS_IMAGE * bool(own)
                if int(chunk.flags[place]) & ~HAS_VISUAL != flags:
                    yield f"the flags of the item {item.id!r:.80} are wrong"
                camera = () if row[2] is None else (row[2],)
                if (
                    any(kinds[term] != LABEL for term in (*labels, *scores))
                    or any(kinds[term] != CAMERA for term in camera)
                    or any(kinds[file[1]] != FOLDER for file in own)
                ):
                    yield f"a label, camera or folder of the item {item.id!r:.80} is of another kind"
                for term in {*labels, *scores, *camera}:
                    kind = CARRIED * (term in (*labels, *camera)) | SCORED * (term in scores)
                    expected[term].append((place, kind, *scores.get(term, (0, 0))))
                    carried[term] += bool(kind & CARRIED and not item.hidden)
                folders += sorted({(place, file[1]) for file in own if not file[5]})
                counts["hidden" if item.hidden else "items"] += 1
                counts["images"] += bool(own) and not item.hidden
            if files:
                yield f"the files of chunk {number} are of items that are not there"
            if self.flags(state, number)[1].tolist() != folders:
                yield f"the folders of chunk {number} are not those of its files"
            for term, entries in expected.items():
                posted = np.frombuffer(self.entries(term << 32 | number), ENTRY)
                here = posted[posted["row"] < len(chunk.flags)]
                if here[chunk.flags[here["row"]] & (PRESENT | HIDDEN) > 0].tolist() != entries:
                    yield f"the postings of '{names[term]}' do not fit the items of chunk {number}"
                expected_entries[term] += len(entries)
        for key, size in self.sql.execute("SELECT key, length(entries) FROM postings"):
            stored[key >> 32] += size // ENTRY.itemsize
            if not size or size % ENTRY.itemsize:
                yield f"the postings {key} are empty, or end in the middle of an entry"
        terms = [
            term for term in terms if term.kind != ROOT
        ]  # whose entries are 1 or 0: whether it is scanned
        if dict(stored) != {term.number: term.entries for term in terms if term.entries}:
            yield "the postings are not those of its terms"
        for stated in terms:
            found = self.postings(state, stated)
            if np.count_nonzero(present[found.rows]) != expected_entries[stated.number]:
                yield f"the postings of '{stated.name}' lead to items that do not carry it"
            if stated.items != carried[stated.number]:
                yield f"{carried[stated.number]:,} items carry '{stated.name}', not {stated.items:,}"
        for name in ("items", "images", "hidden"):
            if counts[name] != getattr(state, name):
                yield f"{counts[name]:,} {name} are there, not {getattr(state, name):,}"
        if counts["files"] != self.sql.execute("SELECT count(*) FROM files").fetchone()[0]:
            yield "there are files of items that are not there"


def _are_facts(size: object, modified: object) -> bool:
    """Return whether these can be the size and the modification time of a file."""
    timed = modified is None or (isinstance(modified, float) and math.isfinite(modified))
    return timed and (size is None or (isinstance(size, int) and size >= 0))


def _numbers(labels: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(labels) // 4}I", labels)


def _scores(scores: bytes) -> Iterator[tuple[int, int, int]]:
    return struct.iter_unpack("<IBB", scores)


def label_numbers(row: Row) -> tuple[int, ...]:
    """Return the terms of the labels of a row of `items`."""
    return _numbers(row[LABELS])


def taught_checksum(rows: Sequence[Row]) -> int:
    """Return the checksum of all rows of the table `taught`, sorted by name; 0 without any."""
    return checksum(*(row[-1] for row in rows)) if rows else 0


def marks(count: int) -> str:
    """Return so many placeholders of SQL."""
    return ",".join("?" * count)


def stored_text(text: str) -> str | bytes:
    """Return a text as it is stored: names of files that are no valid Unicode as bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text


# --- files and errors


def create(path: Path, bits: int) -> None:
    """Create an empty database for codes of `bits` (K) bits."""
    with explained(path), closing(connect(path, "mode=rwc")) as sql:
        sql.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        sql.execute("PRAGMA encoding = 'UTF-8'")
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute(f"PRAGMA application_id = {APPLICATION}")
        sql.execute(f"PRAGMA user_version = {FORMAT}")
        sql.execute("BEGIN")
        for statement in SCHEMA.values():
            sql.execute(statement)
        sql.execute(f"INSERT INTO state VALUES ({marks(12)})", State(bits).row())
        sql.execute("COMMIT")


def check_files(folder: Path) -> tuple[State, bool]:
    """Raise DataError unless the files of a store are plain files of our format that lack no commit.

    Returns the state, and whether a reader has to open the database as immutable: on read-only media.
    """
    refuse_links(folder, FILES)
    path = folder / FILE
    for name in FILES:
        found = stat_of(folder / name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise DataError(f"'{folder / name}' is not a file: put the file of the index in its place.")
        if found is None and name == FILE:
            raise DataError(f"'{path}' is missing: {ADVICE}.")
    if os.path.lexists(folder / JOURNAL):
        raise DataError(f"'{folder / JOURNAL}' belongs to no index, and is not read: {ADVICE}.")
    noted, immutable = noted_commits(folder / COMMITS), _must_be_immutable(path)
    modes = modes_of(path)
    database = Database(path, immutable=immutable)
    try:
        _check_format(database, modes)
        state = database.state()
    finally:
        database.sql.close()
    least = state.rows * (packed_width(state.bits) + 5)  # bytes: code, flags and hash of the id of every row
    if least > database._size():
        raise DataError(f"'{path}' is damaged: it is too small for {state.rows:,} rows. Next: {ADVICE}.")
    if state.commits < noted:
        raise DataError(
            f"'{path}' lacks {noted - state.commits:,} of {noted:,} commits, which were in '{path.name}-wal': put that "
            f"file back, or {ADVICE}."
        )
    return state, immutable


def _must_be_immutable(path: Path) -> bool:
    with explained(path):
        try:
            with closing(connect(path, "mode=ro")) as sql:
                sql.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError as error:
            log = path.with_name(f"{path.name}-wal")
            unwritable = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR")
            if not error.sqlite_errorname.startswith(unwritable) or bytes_of(log):
                raise
            return True
    return False


def _check_format(database: Database, modes: bytes) -> None:
    path, sql = database.path, database.sql
    with explained(path):
        application = sql.execute("PRAGMA application_id").fetchone()[0]
        version = sql.execute("PRAGMA user_version").fetchone()[0]
        stored = sql.execute(
            f"SELECT type, name, sql FROM sqlite_schema LIMIT {len(_OBJECTS) + 1}"
        ).fetchall()
        encoding = sql.execute("PRAGMA encoding").fetchone()[0]
        page = sql.execute("PRAGMA page_size").fetchone()[0]
    if application != APPLICATION:
        raise DataError(f"'{path}' is not a database of centerhash: {ADVICE}.")
    if version != FORMAT:
        raise DataError(
            f"'{path}' has the format {version}, this version reads {FORMAT}: install the version that wrote it."
        )
    if len(stored) != len(_OBJECTS) or set(stored) != set(_OBJECTS):
        raise database.damaged("its tables are not those of an index")
    if (modes or b"\2\2", encoding, page) != (b"\2\2", "UTF-8", _PAGE_BYTES):  # compaction could not copy it
        raise database.damaged("its mode, its encoding or its page size is not that of an index")


def noted_commits(path: Path) -> int:
    """Read the number of commits that is kept next to the database; 0 if the file is missing."""
    try:
        with path.open("rb") as stream:
            content = stream.read(2 * _SLOT.size)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from None
    slots = [content[start : start + _SLOT.size] for start in range(0, len(content), _SLOT.size)]
    whole = [_SLOT.unpack(slot) for slot in slots if len(slot) == _SLOT.size]
    found = [commits for commits, stored in whole if stored == checksum(commits)]
    if not found:
        raise DataError(
            f"'{path}' is damaged, so it is unknown whether '{FILE}' lacks its last commits. Next: {ADVICE}; or delete "
            "this file if the index was closed properly."
        )
    return int(max(found))


def commit_slot(commits: int) -> tuple[int, bytes]:
    """Return where and what to write into `items.commits`: two slots take turns, so that one is always whole."""
    return commits % 2 * _SLOT.size, _SLOT.pack(commits, checksum(commits))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into one of ours that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain(path, error) from error


def explain(path: Path, error: sqlite3.Error) -> CenterhashError:
    """Return our error for one of SQLite."""
    name, reason = str(getattr(error, "sqlite_errorname", "")), str(error)
    if name == "SQLITE_FULL":
        return OutputError(
            f"cannot write '{path}': the disk is full: free some space, then run the same command again."
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return InputError(f"another program has locked '{path}': close it there, then try again.")
    if name.startswith(("SQLITE_PROTOCOL", "SQLITE_IOERR_SHM", "SQLITE_IOERR_LOCK")):
        return DataError(
            f"the file system of '{path}' has no shared memory or file locks, like most network drives: keep the "
            "index on a local disk."
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        return OutputError(f"cannot write '{path}': no permission, or the file system is read-only.")
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_NOMEM")):
        return DataError(f"cannot read or write '{path}': {reason}. Check the disk and the permissions.")
    return DataError(f"'{path}' is damaged: SQLite reports '{reason}'. Next: {ADVICE}.")
