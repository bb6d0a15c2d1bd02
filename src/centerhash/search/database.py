"""The database of a store, `items.db`: its tables, and reading their rows with all checks.

    state       one row: bits, number of commits, rows, items ...
    items       one row per item: id, folder and name of its file, modification time, labels, label scores
    terms       labels and folders, with the number of their items
    postings    for each term and chunk, the rows of its items with probability and share; key = term << 32 | chunk
    codes       for each chunk of 4,096 rows, semantic and visual codes and a hash of the ids
    flags       for each chunk, a byte per row: present, has a visual code, has label scores, has an image
    taught      one row per taught label: its weights and examples (see `teaching`)

Every database row carries a checksum of its values, and every count stands in a second place, so that damage becomes
an error and not a wrong result. The number of commits is also kept in `items.commits`, because SQLite silently returns
to an older commit if the end of its write-ahead log is lost.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, packed_width
from centerhash.core.errors import CenterhashError, DataError, InputError, OutputError
from centerhash.core.files import refuse_links
from centerhash.search.items import VISUAL_BITS, Item
from centerhash.search.teaching import Taught

Row: TypeAlias = tuple[Any, ...]  # of a database table
Postings: TypeAlias = NDArray[Any]  # (n,) of WIDE
Flags: TypeAlias = NDArray[np.uint8]

FILE, COMMITS, LOCK = "items.db", "items.commits", "lock"
FILES = (FILE, f"{FILE}-wal", f"{FILE}-shm", COMMITS, LOCK, f"{LOCK}.pid")
APPLICATION, FORMAT = 0x63687368, 1  # "chsh"
CHUNK = 1 << 12  # rows of a chunk
MAX_ROWS = 1 << 31
MAX_BYTES = 1 << 26  # of one value
VISUAL_BYTES = VISUAL_BITS // 8
PRESENT, HAS_VISUAL, HAS_SCORES, HAS_IMAGE = 1, 2, 4, 8  # flags of a row
LABEL, FOLDER = "label", "folder"
CARRIED, SCORED = 1, 2  # kinds of an entry: the item carries the label (is in the folder); a score is stored
_FIELDS = [("kind", "u1"), ("probability", "u1"), ("share", "u1")]
ENTRY = np.dtype([("row", "<u2"), *_FIELDS])  # as stored: rows are counted from the beginning of the chunk
WIDE = np.dtype([("row", "<i8"), *_FIELDS])
SCORE = np.dtype([("term", "<u4"), ("probability", "u1"), ("share", "u1")])  # of the column `scores`
ITEM = "row, id, folder, name, modified, labels, scores, checksum"
ADVICE = "restore a backup, or create the index again and add its images"
_SLOT = struct.Struct("<QI")  # of items.commits: a number of commits and its checksum
_ASKED = 10_000  # values in one SQL statement

SCHEMA = {
    "state": "CREATE TABLE state (bits INTEGER, generation INTEGER, commits INTEGER, rows INTEGER, items INTEGER, "
    "images INTEGER, terms INTEGER, taught INTEGER, checksum INTEGER)",
    "items": "CREATE TABLE items (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, folder INTEGER, name, "
    "modified REAL, labels BLOB NOT NULL, scores BLOB NOT NULL, checksum INTEGER NOT NULL)",
    "newest": "CREATE INDEX newest ON items (modified DESC, row DESC) WHERE folder IS NOT NULL",
    "terms": "CREATE TABLE terms (term INTEGER PRIMARY KEY, kind TEXT NOT NULL, name NOT NULL, items INTEGER NOT NULL, "
    "entries INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "postings": "CREATE TABLE postings (key INTEGER PRIMARY KEY, entries BLOB NOT NULL, checksum INTEGER NOT NULL)",
    "codes": "CREATE TABLE codes (chunk INTEGER PRIMARY KEY, semantic BLOB NOT NULL, visual BLOB NOT NULL, "
    "ids BLOB NOT NULL, checksum INTEGER NOT NULL)",
    "flags": "CREATE TABLE flags (chunk INTEGER PRIMARY KEY, flags BLOB NOT NULL, checksum INTEGER NOT NULL)",
    "taught": "CREATE TABLE taught (name TEXT PRIMARY KEY, parameters BLOB NOT NULL, examples TEXT NOT NULL, "
    "checksum INTEGER NOT NULL) WITHOUT ROWID",
}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


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
    items: int = 0
    images: int = 0  # items with a path
    terms: int = 0
    taught: int = 0  # checksum of all taught labels; 0 without any

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return -(-self.rows // CHUNK)

    def row(self) -> Row:
        """Return its database row."""
        return (*astuple(self), checksum(*astuple(self)))


@dataclass(frozen=True)
class Term:
    """A label or a folder: its number, how many items carry it, and how many entries its postings have."""

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
    """Up to CHUNK rows: codes, visual codes, flags and hashes of ids."""

    semantic: Packed  # (n, ceil(K/8))
    visual: Packed  # (n, 16), or (0, 16) if no row has a visual code
    flags: Flags  # (n,)
    ids: NDArray[np.uint32]  # (n,)

    def codes(self, place: int) -> tuple[Packed, Packed | None]:
        """Return the semantic and the visual code of a row."""
        return self.semantic[place], self.visual[place] if self.flags[place] & HAS_VISUAL else None

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
        )

    def blobs(self) -> tuple[bytes, bytes, bytes]:
        """Return the values of the table `codes`: semantic and visual codes and hashes of ids."""
        shown = (self.flags & HAS_VISUAL).any()
        return self.semantic.tobytes(), self.visual.tobytes() if shown else b"", self.ids.tobytes()


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
            self.sql = _connect(path, f"mode={mode}{'&immutable=1' if immutable else ''}")

    def damaged(self, reason: str) -> DataError:
        """Return the error for a damaged database."""
        return DataError(f"'{self.path}' is damaged: {reason}. Next: {ADVICE}.")

    @_decoding
    def select(self, statement: str, values: Sequence[Any]) -> list[Row]:
        """Execute a statement that ends in IN with so many values, some thousands at a time."""
        found: list[Row] = []
        for start in range(0, len(values), _ASKED):
            some = values[start : start + _ASKED]
            found += self.sql.execute(f"{statement} ({marks(len(some))})", some).fetchall()
        return found

    def checked(self, row: Row) -> Row:
        """Return the values of a database row without its checksum, the last one, which must match."""
        *values, stored = row
        if checksum(*values) != stored:
            raise self.damaged("a row does not match its checksum")
        return tuple(values)

    @_decoding
    def state(self) -> State:
        """Read the state."""
        rows = self.sql.execute("SELECT * FROM state").fetchall()
        if len(rows) != 1:
            raise self.damaged(f"it has {len(rows)} states")
        values = self.checked(rows[0])
        state, sound = State(*values), all(type(value) is int and value >= 0 for value in values)
        if not (
            sound and state.images <= state.items <= state.rows <= MAX_ROWS and 0 < state.bits <= 1 << 16
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
        if kind not in (LABEL, FOLDER) or not 0 <= items <= entries:
            raise self.damaged(f"the term {number} makes no sense")
        return Term(number, kind, os.fsdecode(name), items, entries)

    @_decoding
    def terms(self, state: State) -> list[Term]:
        """Read all terms, in the order of their numbers."""
        terms = [self._term(row) for row in self.sql.execute("SELECT * FROM terms ORDER BY term")]
        if [term.number for term in terms] != list(range(state.terms)):
            raise self.damaged(f"{len(terms):,} of {state.terms:,} terms are there")
        return terms

    @_decoding
    def flags(self, state: State, number: int) -> Flags:
        """Read the flags of a chunk, into a new array."""
        row = self.sql.execute("SELECT * FROM flags WHERE chunk = ?", (number,)).fetchone()
        if row is None or len(row[1]) != min(CHUNK, state.rows - number * CHUNK):
            raise self.damaged(f"the flags of chunk {number} are missing")
        return np.frombuffer(bytearray(self.checked(row)[1]), np.uint8)

    @_decoding
    def chunk(self, state: State, number: int, flags: Flags | None = None) -> Chunk:
        """Read a chunk; its flags are read too unless they are given."""
        flags = self.flags(state, number) if flags is None else flags
        row = self.sql.execute("SELECT * FROM codes WHERE chunk = ?", (number,)).fetchone()
        if row is None:
            raise self.damaged(f"the codes of chunk {number} are missing")
        _, semantic, visual, ids = self.checked(row)
        count, width = len(flags), packed_width(state.bits)
        expected = (count * width, count * VISUAL_BYTES if (flags & HAS_VISUAL).any() else 0, 4 * count)
        if (len(semantic), len(visual), len(ids)) != expected:
            raise self.damaged(f"the codes of chunk {number} do not fit its flags")
        codes = np.frombuffer(semantic, np.uint8).reshape(-1, width)
        spare = 8 * width - state.bits
        if spare and (codes[:, -1] & ((1 << spare) - 1)).any():
            raise self.damaged(f"the codes of chunk {number} have more than {state.bits} bits")
        shown = np.frombuffer(visual, np.uint8).reshape(-1, VISUAL_BYTES)
        return Chunk(codes, shown, flags, np.frombuffer(ids, "<u4"))

    @_decoding
    def entries(self, key: int) -> bytes:
        """Read the stored entries of a term in a chunk; none if there are none."""
        row = self.sql.execute("SELECT * FROM postings WHERE key = ?", (key,)).fetchone()
        return b"" if row is None else bytes(self.checked(row)[1])

    @_decoding
    def postings(self, state: State, term: Term) -> Postings:
        """Read all entries of a term, in the order of their rows."""
        first = term.number << 32
        query = "SELECT * FROM postings WHERE key BETWEEN ? AND ? ORDER BY key"
        parts = [np.empty(0, WIDE)]
        for row in self.sql.execute(query, (first, first + (1 << 32) - 1)):
            key, content = self.checked(row)
            part = np.frombuffer(content, ENTRY).astype(WIDE)
            part["row"] += (key - first) * CHUNK
            parts.append(part)
        found = np.concatenate(parts)
        rows = found["row"]
        if len(found) != term.entries:
            raise self.damaged(f"{len(found):,} of {term.entries:,} entries of '{term.name}' are there")
        if len(rows) and (rows[-1] >= state.rows or (np.diff(rows) <= 0).any()):
            raise self.damaged(f"the entries of '{term.name}' are not in order")
        return found

    @_decoding
    def rows_of_chunk(self, number: int) -> list[Row]:
        """Read the rows of `items` of a chunk."""
        query = f"SELECT {ITEM} FROM items WHERE row BETWEEN ? AND ? ORDER BY row"
        return self.sql.execute(query, (number * CHUNK, (number + 1) * CHUNK - 1)).fetchall()

    @_decoding
    def item(
        self, row: Row, names: Sequence[str], code: Packed | None = None, visual: Packed | None = None
    ) -> Item:
        """Return the item of a row of `items`."""
        _, id, folder, name, modified, labels, scores = self.checked(row)
        if not isinstance(id, str) or not isinstance(modified, float | None):
            raise self.damaged("an item has no id, or no time")
        # as the path was split
        path = None if folder is None else os.path.join(names[folder], os.fsdecode(name))  # noqa: PTH118
        scored = {names[term]: (probability, share) for term, probability, share in _scores(scores)}
        own = np.empty(0, np.uint8) if code is None else code
        return Item(id, own, tuple(names[term] for term in _numbers(labels)), path, visual, scored, modified)

    @_decoding
    def taught(self, state: State) -> dict[str, Taught]:
        """Read the taught labels, sorted by name."""
        rows = self.sql.execute("SELECT * FROM taught ORDER BY name").fetchall()
        if taught_checksum(rows) != state.taught:
            raise self.damaged("its taught labels are not those that were stored")
        try:
            return {row[0]: Taught.from_row(self.checked(row), state.bits) for row in rows}
        except ValueError as error:
            raise self.damaged(f"a taught label makes no sense ({error!s:.80})") from error

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
        terms = self.terms(state)
        names, kinds = [term.name for term in terms], [term.kind for term in terms]
        items, images, carried, stored = 0, 0, [0] * len(terms), defaultdict[int, int](int)
        for number in range(state.chunks):
            chunk, expected = self.chunk(state, number), defaultdict[int, list[Row]](list)
            rows = self.rows_of_chunk(number)
            places = [row[0] - number * CHUNK for row in rows]
            if places != np.flatnonzero(chunk.flags & PRESENT).tolist():
                yield f"the items of chunk {number} are not those that its flags mark"
            for place, row in zip(places, rows, strict=True):
                item = self.item(row, names)
                labels, scores = _numbers(row[5]), {term: pair for term, *pair in _scores(row[6])}
                if crc32(item.id.encode()) != chunk.ids[place]:
                    yield f"the item {item.id!r:.80} is in the row of another"
                flags = HAS_SCORES * bool(scores) | HAS_IMAGE * (row[2] is not None)
                if chunk.flags[place] & (HAS_SCORES | HAS_IMAGE) != flags:
                    yield f"the flags of the item {item.id!r:.80} are wrong"
                if any(kinds[term] != LABEL for term in (*labels, *scores)) or (
                    row[2] is not None and kinds[row[2]] != FOLDER
                ):
                    yield f"the item {item.id!r:.80} has a folder as a label, or a label as its folder"
                for term in {*labels, *scores}:
                    kind = CARRIED * (term in labels) | SCORED * (term in scores)
                    expected[term].append((place, kind, *scores.get(term, (0, 0))))
                if row[2] is not None:
                    expected[row[2]].append((place, CARRIED, 0, 0))
                images += row[2] is not None
            items += len(rows)
            for term, entries in expected.items():
                own = np.frombuffer(self.entries(term << 32 | number), ENTRY)
                here = own[own["row"] < len(chunk.flags)]
                if here[chunk.flags[here["row"]] & PRESENT > 0].tolist() != entries:
                    yield f"the postings of '{names[term]}' do not fit the items of chunk {number}"
                carried[term] += sum(entry[1] & CARRIED for entry in entries)
        for key, size in self.sql.execute("SELECT key, length(entries) FROM postings"):
            stored[key >> 32] += size // ENTRY.itemsize
        if dict(stored) != {term.number: term.entries for term in terms if term.entries}:
            yield "the postings are not those of its terms"
        for stated in terms:
            self.postings(state, stated)
            if stated.items != carried[stated.number]:
                yield f"{carried[stated.number]:,} items carry '{stated.name}', not {stated.items:,}"
        if (items, images) != (state.items, state.images):
            yield f"{items:,} items with {images:,} images are there, not {state.items:,} with {state.images:,}"


def _numbers(labels: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(labels) // 4}I", labels)


def _scores(scores: bytes) -> Iterator[tuple[int, int, int]]:
    return struct.iter_unpack("<IBB", scores)


def label_numbers(row: Row) -> tuple[int, ...]:
    """Return the terms of the labels of a row of `items`."""
    return _numbers(row[5])


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
    with explained(path), closing(_connect(path, "mode=rwc")) as sql:
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute(f"PRAGMA application_id = {APPLICATION}")
        sql.execute(f"PRAGMA user_version = {FORMAT}")
        sql.execute("BEGIN")
        for statement in SCHEMA.values():
            sql.execute(statement)
        sql.execute(f"INSERT INTO state VALUES ({marks(9)})", State(bits).row())
        sql.execute("COMMIT")


def _connect(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"
    sql = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10)
    sql.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
    sql.execute("PRAGMA trusted_schema = OFF")
    sql.execute("PRAGMA cell_size_check = ON")
    return sql


def check_files(folder: Path) -> tuple[State, bool]:
    """Raise DataError unless the files of a store are plain files of our format that lack no commit.

    Returns the state, and whether a reader has to open the database as immutable: on read-only media.
    """
    refuse_links(folder, FILES)
    for name in FILES:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG((folder / name).stat().st_mode):
                raise DataError(f"'{folder / name}' is not a file: put the file of the index in its place.")
    path = folder / FILE
    if not path.exists():
        raise DataError(f"'{path}' is missing: {ADVICE}.")
    noted, immutable = noted_commits(folder / COMMITS), _must_be_immutable(path)
    database = Database(path, immutable=immutable)
    try:
        _check_format(database)
        state = database.state()
    finally:
        database.sql.close()
    least = state.rows * (packed_width(state.bits) + 5)  # bytes: code, flags and hash of the id of every row
    if least > sum((folder / name).stat().st_size for name in FILES[:2] if (folder / name).exists()):
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
            with closing(_connect(path, "mode=ro")) as sql:
                sql.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError as error:
            log = path.with_name(f"{path.name}-wal")
            unwritable = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR")
            if not error.sqlite_errorname.startswith(unwritable) or (log.exists() and log.stat().st_size):
                raise
            return True
    return False


def _check_format(database: Database) -> None:
    path, sql = database.path, database.sql
    with explained(path):
        application = sql.execute("PRAGMA application_id").fetchone()[0]
        version = sql.execute("PRAGMA user_version").fetchone()[0]
        stored = dict(sql.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall())
    if application != APPLICATION:
        raise DataError(f"'{path}' is not a database of centerhash: {ADVICE}.")
    if version != FORMAT:
        raise DataError(
            f"'{path}' has the format {version}, this version reads {FORMAT}: install the version that wrote it."
        )
    if stored != SCHEMA:
        raise database.damaged("its tables are not those of an index")


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
