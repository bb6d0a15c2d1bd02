"""The store of an index on one machine: items in SQLite, codes scanned in memory.

Rows are numbered in the order in which items were added. A process holds all codes in memory and scans them; the rest is
read from the database (see `database`). One process writes, any number read; every read is one transaction and sees one
commit. A commit is durable when it returns (write-ahead log, synchronous=FULL).
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_bits, packed_width
from centerhash.core.errors import InputError
from centerhash.core.files import explain_write_errors, make_folder, sync_folder
from centerhash.core.progress import Progress
from centerhash.model.base import FILTERED
from centerhash.search.connections import bytes_of
from centerhash.search.database import (
    CAMERA,
    CARRIED,
    CHUNK,
    FILE,
    FILES,
    FOLDER,
    HAS_IMAGE,
    HAS_SCORES,
    HAS_VISUAL,
    ITEM,
    LABEL,
    PRESENT,
    ROOT,
    SCORED,
    VISUAL_BYTES,
    Chunk,
    Database,
    Flags,
    Postings,
    Row,
    State,
    Term,
    Times,
    check_files,
    create,
    explained,
)
from centerhash.search.items import LEVELS, Batch, Counts, File, Filter, Item, ItemStore
from centerhash.search.names import folders_named, like_pattern, names_part
from centerhash.search.rankings import Columns, Ranking, code_distances
from centerhash.search.teaching import PRESENT as SURE
from centerhash.search.teaching import PackedCodes, Taught
from centerhash.search.uploads import IMAGES
from centerhash.search.writer import DRAFT, Writer

_KEPT_BYTES = 1 << 26  # of postings kept in memory
_NEWEST = 1 << 14  # rows of the newest items kept in memory, at least
_PAGE = 1 << 14  # items that compaction holds in memory
_PAGES = 4096  # of the database, copied between two reports of a backup


@dataclass(frozen=True, eq=False)
class Loaded:
    """The columns of one commit in memory."""

    state: State
    columns: Columns
    flags: Flags  # (N,)
    present: Flags | None  # (N,): 1 for rows that are neither removed nor hidden; None: all
    semantic: Packed  # those of the columns, with room for further rows, as `visual` and `taken`
    visual: Packed
    taken: Times
    places: tuple[NDArray[np.int64], NDArray[np.uint32]]  # rows that have a file, ascending, and its folder

    def values(self, row: int) -> tuple[Packed, Packed | None, float]:
        """Return the semantic and the visual code of a row, and when it was taken."""
        visual = self.visual[row] if self.flags[row] & HAS_VISUAL else None
        return self.semantic[row], visual, float(self.taken[row])


class Vocabulary:
    """The names of the terms of a generation, which keep their numbers."""

    def __init__(self, generation: int, terms: Sequence[Term]) -> None:
        self.generation = generation
        self.names = [term.name for term in terms]
        self.numbers = {(term.kind, term.name): term.number for term in terms}
        self.folders = [term.name for term in terms if term.kind == FOLDER]


class Store(ItemStore):
    """An exact store in the folder of an index; use `create` or `open`. Threads may share it."""

    def __init__(
        self, folder: Path, bits: int, commits: int, writer: Writer | None, *, immutable: bool = False
    ) -> None:
        """Use `create` or `open`."""
        super().__init__(bits)
        self.folder, self.path = folder, folder / FILE
        self._writer, self._immutable = writer, immutable
        self._idle: list[Database] = []  # connections that no thread uses
        self._own = threading.local()  # `snapshot` of a thread
        self._closed = False
        self._loading = threading.Lock()
        self._loaded: Loaded | None = None
        self._vocabulary = Vocabulary(-1, [])
        self._kept: tuple[int, dict[int, Postings]] = (-1, {})  # of a commit
        self._taught: tuple[int, dict[str, Taught]] = (0, {})  # by their checksum in the state
        self._probable: tuple[int, dict[str, NDArray[np.float32]]] = (-1, {})  # of a commit
        self._newest: tuple[int, NDArray[np.int64]] = (
            -1,
            np.empty(0, np.int64),
        )  # the first rows of a commit
        self._seen = commits  # at the last `refresh`

    @classmethod
    def create(cls, folder: str | Path, bits: int) -> Self:
        """Create an empty store for codes of `bits` (K) bits in a folder, and open it for writing."""
        bits, folder = check_bits(bits), make_folder(folder)
        if (folder / FILE).exists():
            raise InputError(f"there is an index in '{folder}' already: open it, or choose another folder.")
        create(folder / FILE, bits)
        with explain_write_errors(folder):
            sync_folder(folder)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False, wait: float = 0) -> Self:
        """Open a store for reading, or as its only writer; `wait` so many seconds for another one."""
        folder = Path(folder)
        state, immutable = check_files(folder)
        writer = None if read_only else Writer.open(folder, wait)
        return cls(folder, state.bits, state.commits, writer, immutable=immutable)

    # --- reading

    @contextmanager
    def _reading(self) -> Iterator[tuple[Database, State]]:
        """Read in one transaction; within a transaction of the writer or a snapshot, read in that."""
        writer = self._writer
        if writer is not None and writer.thread == threading.get_ident():
            yield writer.database, writer.state
            return
        snapshot: tuple[Database, Loaded] | None = getattr(self._own, "snapshot", None)
        if snapshot is not None:
            yield snapshot[0], snapshot[1].state
            return
        if self._closed:
            raise InputError(f"the index '{self.folder}' is closed: open it again.")
        database = self._idle.pop() if self._idle else Database(self.path, immutable=self._immutable)
        try:
            with explained(self.path):
                database.sql.execute("BEGIN")
                yield database, database.state()
        finally:
            with suppress(sqlite3.Error):
                database.sql.execute("ROLLBACK")
            if self._closed:
                database.sql.close()
            else:
                self._idle.append(database)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Within the block, all that this thread reads is of one commit, in one transaction."""
        with self._searching() as found:
            before, self._own.snapshot = getattr(self._own, "snapshot", None), found
            try:
                yield
            finally:
                self._own.snapshot = before

    def back_up(self, path: Path, progress: Progress) -> None:
        """Copy the database as it is at one moment; other processes may write meanwhile."""

        def report(status: int, remaining: int, total: int) -> None:
            progress("backup", total - remaining, total)

        with (
            self._reading() as (database, _),
            explained(path),
            closing(sqlite3.connect(path)) as copy,
        ):
            database.sql.backup(copy, pages=_PAGES, progress=report)

    def _state(self) -> State:
        with self._reading() as (_, state):
            return state

    def __len__(self) -> int:
        return self._state().items

    @property
    def version(self) -> Hashable:
        """Return the number of commits."""
        return self._state().commits

    def refresh(self) -> bool:
        """Return whether the items have changed since the last call; every search sees the last commit anyway."""
        before, self._seen = self._seen, self._state().commits
        return before != self._seen

    def _terms(self, database: Database, state: State) -> Vocabulary:
        """Return the names of all terms; within a generation, terms are only added."""
        known = self._vocabulary
        if (known.generation, len(known.names)) != (state.generation, state.terms):
            self._vocabulary = known = Vocabulary(state.generation, database.terms(state))
        return known

    def items(self, *, hidden: bool = False) -> Iterator[Item]:
        """Iterate over all items of one commit, in the order in which they were added."""
        with self._reading() as (database, state):
            names, count = self._terms(database, state).names, 0
            for number in range(state.chunks):
                chunk, files = database.chunk(state, number), database.files_of_chunk(number)
                for row in database.rows_of_chunk(number):
                    item = database.item(
                        row, names, files.get(row[0], ()), *chunk.columns(database.place(state, row)[1])
                    )
                    if hidden or not item.hidden:
                        yield item
                        count += 1
            expected = state.items + (state.hidden if hidden else 0)
            if count != expected:
                raise database.damaged(f"{count:,} of {expected:,} items are there")

    def paths(self) -> Iterator[tuple[str, str]]:
        """Iterate over the id and each path of every item, in the order in which they were added."""
        with self._reading() as (database, state):
            names, count = self._terms(database, state).names, 0
            for number in range(state.chunks):
                files = database.files_of_chunk(number)
                for row in database.rows_of_chunk(number) if files else ():  # codes of others have none
                    if row[0] not in files:
                        continue
                    id, own = (
                        database.id_of(row),
                        sorted(database.file(each, names) for each in files[row[0]]),
                    )
                    count += 1
                    for file in own:
                        if own[0].gone or not file.gone:
                            yield id, file.path
            if count != state.images + state.hidden:
                raise database.damaged(f"{count:,} of {state.images + state.hidden:,} images are there")

    def files(self, folder: str) -> dict[str, tuple[str, File]]:
        """Return the files directly in a folder by name, with the id of their item."""
        with self._reading() as (database, state):
            terms = self._terms(database, state)
            number = terms.numbers.get((FOLDER, folder))
            if number is None:
                return {}
            statement = "SELECT f.row, folder, f.name, size, modified, gone, f.checksum, id FROM files f"
            query = f"{statement} JOIN items USING (row) WHERE folder = ?"
            found = {}
            for *row, id in database.sql.execute(query, (number,)):
                file = database.file(database.checked(tuple(row)), terms.names)
                found[os.path.basename(file.path)] = id, file  # noqa: PTH119 - of many files
            return found

    @property
    def hidden(self) -> int:
        """Return the number of items whose files are all gone."""
        return self._state().hidden

    def cameras(self) -> dict[str, int]:
        """Return every camera with the number of its items, sorted by name."""
        return dict(sorted(self._counts(CAMERA).items()))

    def every_folder(self) -> list[str]:
        """Return all folders in which items have or had files."""
        with self._reading() as (database, state):
            return self._terms(database, state).folders

    def roots(self) -> list[str]:
        """Return the folders that were added as a whole, sorted."""
        with self._reading() as (database, state):
            return sorted(term.name for term in database.terms(state) if term.kind == ROOT and term.entries)

    def labels(self) -> dict[str, int]:
        """Return every label that an item carries with the number of its items, sorted by name."""
        counts = self._counts(LABEL)
        if self.taught():
            with self._searching() as (database, loaded):
                for name in self._taught_labels(database, loaded.state):
                    carried = self._carrying(database, loaded, LABEL, [name])
                    counts[name] = int(np.count_nonzero(carried & (loaded.flags & PRESENT)))
        return dict(sorted(counts.items()))

    def folders(self) -> dict[str, int]:
        """Return the folders of all paths with the number of items directly in each."""
        with self._searching() as (database, loaded):
            names = self._terms(database, loaded.state).names
            counts = np.bincount(loaded.places[1], minlength=len(names))
            return {names[number]: int(counts[number]) for number in np.flatnonzero(counts)}

    def _counts(self, kind: str) -> dict[str, int]:
        with self._reading() as (database, state):
            terms = database.terms(state)
        return {term.name: term.items for term in terms if term.kind == kind and term.items}

    def present(self, ids: Sequence[str]) -> list[str]:
        """Return those of these ids that are stored, in the same order."""
        with self._reading() as (database, _):
            found = {row[0] for row in database.select("SELECT id FROM items WHERE id IN", ids)}
        return [id for id in ids if id in found]

    def _get(self, ids: Sequence[str]) -> list[Item | None]:
        with self._reading() as (database, state):
            rows = database.select(f"SELECT {ITEM} FROM items WHERE id IN", ids)
            found = {item.id: item for item in self._items_of(database, state, rows)}
            self._check_missing(database, state, [id for id in ids if id not in found])
            return [found.get(id) for id in ids]

    def _check_missing(self, database: Database, state: State, ids: Sequence[str]) -> None:
        """Raise DataError if one of these ids is stored, but SQLite's index over the ids does not find it."""
        hashes = np.array([crc32(id.encode()) for id in ids], np.uint32)
        for number in range(state.chunks if ids else 0):
            places = np.flatnonzero(np.isin(database.chunk(state, number).ids, hashes))
            rows = (number * CHUNK + places).tolist()
            for id, row in database.select("SELECT id, row FROM items NOT INDEXED WHERE row IN", rows):
                if id in ids:
                    raise database.damaged(
                        f"its index over the ids does not lead to row {row}, the item {id!r}"
                    )

    def _items_of(self, database: Database, state: State, rows: Sequence[Row]) -> list[Item]:
        """Return the items of rows of the table `items`; their codes come from memory if they are there."""
        names, loaded = self._terms(database, state).names, self._loaded
        chunks, items, files = dict[int, Chunk](), [], database.files_of([row[0] for row in rows])
        for row in rows:
            number, place = database.place(state, row)
            if (
                loaded is not None
                and loaded.state.generation == state.generation
                and row[0] < loaded.state.rows
            ):
                code, visual, taken = loaded.values(row[0])
            else:
                chunks[number] = chunk = chunks.get(number) or database.chunk(state, number)
                code, visual, taken = chunk.columns(place)
            own = None if visual is None else visual.copy()  # an item does not hold the columns in memory
            items.append(database.item(row, names, files.get(row[0], ()), code.copy(), own, taken))
        return items

    def _items_at(self, database: Database, state: State, rows: Sequence[int]) -> list[Item]:
        """Return the items of these rows, which are all present."""
        stored = database.select(f"SELECT {ITEM} FROM items WHERE row IN", rows)
        found = {
            row[0]: item for row, item in zip(stored, self._items_of(database, state, stored), strict=True)
        }
        for row in rows:
            if row not in found:
                raise database.damaged(f"the item of row {row} is missing")
        return [found[row] for row in rows]

    # --- searching

    @contextmanager
    def _searching(self) -> Iterator[tuple[Database, Loaded]]:
        """Read in one transaction, with the columns of its commit."""
        snapshot: tuple[Database, Loaded] | None = getattr(self._own, "snapshot", None)
        if snapshot is not None:
            yield snapshot
            return
        while True:
            with self._reading() as (database, state):
                with self._loading:
                    loaded = self._loaded
                    if loaded is None or loaded.state.commits < state.commits:
                        self._loaded = loaded = _load(database, state, loaded)
                if loaded.state.commits == state.commits:
                    yield database, loaded
                    return
            # another thread has loaded a later commit: read that

    def _search(self, ranking: Ranking, k: int, only: Filter) -> list[tuple[Item, int]]:
        with self._searching() as (database, loaded):

            def scores(label: str, least: float) -> tuple[Any, Any, Any]:
                found = self._postings(database, loaded.state, LABEL, label)
                fitting = np.flatnonzero((found.kinds & SCORED > 0) & (found.probabilities >= least))
                return found.rows[fitting], found.probabilities[fitting], found.shares[fitting]

            def taught(label: str) -> NDArray[np.float32] | None:
                return self._probabilities(database, loaded, label)

            columns = replace(loaded.columns, scores=scores, taught=taught)
            rows = ranking.first(columns, k, self._allowed(database, loaded, only))
            distances = code_distances(columns.semantic[rows], ranking.code).tolist()
            items = self._items_at(database, loaded.state, rows.tolist())
            return list(zip(items, distances, strict=True))

    def _allowed(self, database: Database, loaded: Loaded, only: Filter) -> Flags | None:
        """Return the mask (N,) of the rows that are present and pass the filter; None: all."""
        if not only:
            return loaded.present
        state = loaded.state
        allowed = np.ones(state.rows, np.uint8) if loaded.present is None else loaded.present.copy()
        for label in only.having:
            allowed &= self._carrying(database, loaded, LABEL, [label])
        for label in only.without:
            allowed &= 1 - self._carrying(database, loaded, LABEL, [label])
        if only.cameras is not None:
            allowed &= self._carrying(database, loaded, CAMERA, only.cameras)
        if only.under is not None:
            terms = self._terms(database, state)
            below = [name for name in terms.folders if _is_under(name, only.under)]
            allowed &= self._inside(loaded, terms, below)
        taken = loaded.taken[: state.rows]  # NaN is in no range
        if only.after is not None:
            allowed &= taken >= only.after
        if only.before is not None:
            allowed &= taken < only.before
        for word in only.named:
            allowed &= self._named(database, loaded, word)
        return allowed

    def _carrying(self, database: Database, loaded: Loaded, kind: str, names: Sequence[str]) -> Flags:
        """Return the mask (N,) of the rows that carry one of these labels, or are of one of these cameras.

        A label that is probable enough counts as carried.
        """
        mask = np.zeros(loaded.state.rows, np.uint8)
        for name in names:
            mask[self._rows_carrying(database, loaded, kind, name)] = 1
        return mask

    def _rows_carrying(self, database: Database, loaded: Loaded, kind: str, name: str) -> NDArray[Any]:
        """Return the rows that carry a label, or are of a camera."""
        found = self._postings(database, loaded.state, kind, name)
        probable = (found.kinds & SCORED > 0) & (found.probabilities >= FILTERED * LEVELS)
        rows: NDArray[Any] = found.rows[(found.kinds & CARRIED > 0) | probable]
        likely = self._probabilities(database, loaded, name) if kind == LABEL else None
        return rows if likely is None else np.union1d(rows, np.flatnonzero(likely >= SURE))

    def counts(self, only: Filter) -> Counts:
        """Count the items that pass the filter by label, camera and folder."""
        with self._searching() as (database, loaded):
            terms, allowed = self._terms(database, loaded.state), self._allowed(database, loaded, only)
            if allowed is None:
                allowed = np.ones(loaded.state.rows, np.uint8)
            keys = {*terms.numbers, *((LABEL, name) for name in self._taught_labels(database, loaded.state))}
            found: dict[str, dict[str, int]] = {LABEL: {}, CAMERA: {}}
            for kind, name in sorted(keys):
                if kind in found and (
                    count := np.count_nonzero(allowed[self._rows_carrying(database, loaded, kind, name)])
                ):
                    found[kind][name] = int(count)
            rows, places = loaded.places
            inside = np.bincount(places[allowed[rows] > 0], minlength=len(terms.names))
            folders = {terms.names[number]: int(inside[number]) for number in np.flatnonzero(inside)}
            return Counts(found[LABEL], found[CAMERA], folders)

    def _named(self, database: Database, loaded: Loaded, word: str) -> Flags:
        """Return the mask (N,) of the rows with a word in the name of a file or of its folders."""
        terms = self._terms(database, loaded.state)
        named = folders_named(word, terms.folders)
        mask = self._inside(loaded, terms, named)
        mask[[row for row, name in _with_name(database, word) if names_part(word, name)]] = 1
        return mask

    def _inside(self, loaded: Loaded, terms: Vocabulary, folders: Iterable[str]) -> Flags:
        """Return the mask (N,) of the rows with a file in one of these folders."""
        chosen = np.zeros(len(terms.names), bool)
        chosen[[terms.numbers[FOLDER, name] for name in folders]] = True
        rows, places = loaded.places
        mask = np.zeros(loaded.state.rows, np.uint8)
        mask[rows[chosen[places]]] = 1
        return mask

    def has_name(self, word: str) -> bool:
        """Return whether a word begins a part of the name of a file or folder."""
        with self._reading() as (database, state):
            if folders_named(word, self._terms(database, state).folders):
                return True
            return any(names_part(word, name) for _, name in _with_name(database, word))

    def _postings(self, database: Database, state: State, kind: str, name: str) -> Postings:
        """Return all entries of a term; none of one that is not stored."""
        number = self._terms(database, state).numbers.get((kind, name))
        if number is None:
            return Postings(np.empty(0, np.int64), *np.empty((3, 0), np.uint8))
        commits, kept = self._kept
        if commits != state.commits:
            kept = {}
            self._kept = (state.commits, kept)
        found = kept.get(number)
        if found is None:
            found = database.postings(state, database.term(number))
            if (
                sum(column.nbytes for postings in (*kept.values(), found) for column in postings)
                <= _KEPT_BYTES
            ):
                kept[number] = found
        return found

    # --- taught labels

    def taught(self) -> dict[str, Taught]:
        """Return the taught labels by name, sorted."""
        with self._reading() as (database, state):
            return dict(self._taught_labels(database, state))

    def _taught_labels(self, database: Database, state: State) -> dict[str, Taught]:
        known = self._taught
        if known[0] != state.taught:
            self._taught = known = (state.taught, database.taught(state))
        return known[1]

    def _probabilities(self, database: Database, loaded: Loaded, name: str) -> NDArray[np.float32] | None:
        """Return the probability (N,) of a taught label in every row, 1 or 0 for its examples; None for other labels."""
        label = self._taught_labels(database, loaded.state).get(name)
        if label is None:
            return None
        commits, kept = self._probable
        if commits != loaded.state.commits:
            kept = {}
            self._probable = (loaded.state.commits, kept)
        found = kept.get(name)
        if found is None:
            columns = loaded.columns
            found = label.probabilities(PackedCodes(columns.semantic, columns.visual, columns.has_visual))
            for like in (True, False):
                found[self._rows_of(database, loaded, label.example_ids(like=like))] = like
            if sum(array.nbytes for array in [*kept.values(), found]) <= _KEPT_BYTES:
                kept[name] = found
        return found

    def _rows_of(self, database: Database, loaded: Loaded, ids: Sequence[str]) -> list[int]:
        """Return the rows of those of these ids that are stored."""
        rows = [row for (row,) in database.select("SELECT row FROM items WHERE id IN", ids)]
        if not all(0 <= row < loaded.state.rows for row in rows):
            raise database.damaged("an item is in a row that is not there")
        return rows

    def save_taught(self, labels: Mapping[str, Taught | None]) -> None:
        """Store taught labels, and remove those that are None, in one commit."""
        with self.transaction() as writer:
            writer.save_taught(labels)

    def removed(self) -> dict[str, tuple[str, File]]:
        """Return the files of removed images by path, with the ids of the images."""
        with self._reading() as (database, state):
            return database.removed(state) if state.removed else {}

    def was_removed(self, id: str) -> bool:
        """Return whether an image was removed, and has not been added since."""
        with self._reading() as (database, state):
            return bool(state.removed and database.select("SELECT id FROM removed WHERE id IN", [id]))

    def note_removed(self, files: Sequence[tuple[str, File]]) -> None:
        """Remember files of removed images by the ids of these, in one commit."""
        with self.transaction() as writer:
            writer.note_removed(files)

    def forget_removed(self, paths: Sequence[str]) -> None:
        """Forget that the images at these paths were removed."""
        with self.transaction() as writer:
            writer.forget_removed([], paths)

    def sample_codes(self, count: int, without: Sequence[str]) -> PackedCodes:
        """Return the codes of random items, always the same ones, except those of some ids."""
        with self._searching() as (database, loaded):
            allowed = (loaded.flags & PRESENT).astype(bool)
            allowed[self._rows_of(database, loaded, without)] = False
            every = np.flatnonzero(allowed)
            rows = every[np.random.default_rng(0).choice(len(every), min(count, len(every)), replace=False)]
            columns = loaded.columns
            visual = columns.visual[rows] if len(columns.visual) else columns.visual
            return PackedCodes(columns.semantic[rows], visual, columns.has_visual[rows])

    def _images(self, database: Database, loaded: Loaded, only: Filter) -> NDArray[np.int64]:
        """Return the rows of the items with an image that pass the filter, last added first."""
        shown = loaded.flags & (PRESENT | HAS_IMAGE) == PRESENT | HAS_IMAGE
        allowed = self._allowed(database, loaded, only) if only else None
        return np.flatnonzero(shown if allowed is None else shown & (allowed > 0))[::-1]

    def newest(self, offset: int, limit: int, only: Filter) -> tuple[list[Item], int]:
        """Return a page of the items with an image, last taken first, and the number of all that pass the filter."""
        with self._searching() as (database, loaded):
            state, count = loaded.state, offset + limit
            commits, rows = self._newest
            total = state.images
            if only or commits != state.commits or len(rows) < min(count, total):
                every = self._images(database, loaded, only)
                rows = newest_rows(every, loaded.taken, count if only else max(2 * count, _NEWEST))
                if only:
                    total = len(every)
                elif len(every) == total:
                    self._newest = (state.commits, rows)
                else:
                    raise database.damaged(f"the flags do not mark {total:,} images")
            return self._items_at(database, state, rows[offset:count].tolist()), total

    def months(self, only: Filter) -> dict[str, int]:
        """Return the months in which photos that pass the filter were taken ("2024-06"), newest first, with counts."""
        with self._searching() as (database, loaded):
            times = loaded.taken[self._images(database, loaded, only)]
        days = np.floor(times[~np.isnan(times)] / 86400).astype(np.int64)
        first = days.min(initial=0)
        counts = np.bincount(days - first)
        taken = np.flatnonzero(counts)
        months, places = np.unique(
            (first + taken).astype("datetime64[D]").astype("datetime64[M]"), return_inverse=True
        )
        totals = np.bincount(places, counts[taken])
        return {str(month): int(total) for month, total in zip(months[::-1], totals[::-1], strict=True)}

    def info(self) -> dict[str, Any]:
        """Return the number of removed items that still take space, of files that scans leave out, and of bytes."""
        state, taken = self._state(), sum(bytes_of(self.folder / name) for name in FILES)
        removed = state.rows - state.items - state.hidden
        return {"removed": removed, "left_out": state.removed, "bytes": taken}

    def verify(self) -> list[str]:
        """Read everything and return one sentence for each damage found."""
        with self._reading() as (database, _):
            found: list[str] = database.problems()
            return found

    # --- writing

    @contextmanager
    def transaction(self) -> Iterator[Writer]:
        """Make all changes within the block one commit: durable, and seen by others, at its end."""
        with self.lock:
            if self._closed:
                raise InputError(f"the index '{self.folder}' is closed: open it again.")
            if self._writer is None:
                raise InputError(f"the index '{self.folder}' was opened read-only: open it for writing.")
            with explained(self.path), self._writer.transaction():
                yield self._writer

    def _add(self, batch: Batch, replace: bool) -> None:
        with self.transaction() as writer:
            if replace:
                writer.remove(batch.ids)
            writer.append(batch)

    def _change_files(self, found: Sequence[tuple[str, File]], gone: Sequence[str]) -> None:
        with self.transaction() as writer:
            writer.change_files(found, gone)

    def set_roots(self, added: Sequence[str], removed: Sequence[str] = ()) -> None:
        """Note folders that were added as a whole, and those that no longer count as such."""
        with self.transaction() as writer:
            writer.set_roots(added, removed)

    def _remove(self, ids: Sequence[str]) -> int:
        with self.transaction() as writer:
            return writer.remove(ids)

    def compact(self) -> None:
        """Number the rows again without removed ones, and reclaim their space; others keep reading meanwhile."""
        with self.lock:
            with self.transaction() as writer:
                state = writer.state
            if state.rows > state.items + state.hidden:
                with (
                    explain_write_errors(self.folder),
                    tempfile.TemporaryDirectory(prefix=DRAFT, dir=self.folder) as draft,
                    Store.create(draft, self.bits) as fresh,
                ):
                    items = self.items(hidden=True)
                    while page := list(islice(items, _PAGE)):
                        fresh.add_items(page)
                    fresh.save_taught(self.taught())
                    fresh.set_roots(self.roots())
                    fresh.note_removed(list(self.removed().values()))
                    with fresh.transaction() as other:
                        other.state = replace(
                            other.state, generation=state.generation + 1, commits=state.commits
                        )
                    writer.take_over(other)
            with explained(self.path):
                writer.database.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Release files and the right to write; a second call does nothing."""
        with self.lock:
            self._closed = True
            while self._idle:
                self._idle.pop().sql.close()
            if self._writer is not None:
                self._writer.close()
                self._writer = None


def newest_rows(rows: NDArray[np.int64], taken: Times, count: int) -> NDArray[np.int64]:
    """Return the first `count` of these rows, last taken first; of equal times, and without a time, in their order."""
    times = -np.nan_to_num(taken[rows], nan=-np.inf)
    if len(rows) > count > 0:
        near = times <= np.partition(times, count - 1)[count - 1]
        rows, times = rows[near], times[near]
    first: NDArray[np.int64] = rows[np.argsort(times, kind="stable")[:count]]
    return first


def _with_name(database: Database, word: str) -> Iterator[tuple[int, str]]:
    """Yield row and name of the files whose name may contain a word; uploads, named by their id, are left out."""
    found = database.sql.execute(
        "SELECT files.row, files.name FROM files JOIN terms ON terms.term = files.folder "
        "WHERE files.name LIKE ? ESCAPE '!' AND NOT files.gone AND terms.name <> ?",
        (like_pattern(word), IMAGES),
    )
    return ((row, os.fsdecode(name)) for row, name in found)


def _is_under(folder: str, places: Iterable[str]) -> bool:
    """Return whether a folder is one of the places, which end in a separator, or below one."""
    return any(f"{folder}{place[-1]}".startswith(place) for place in places)


def _load(database: Database, state: State, before: Loaded | None) -> Loaded:
    """Read the columns of a commit; of those of an earlier one, only what has changed."""
    if before is not None and before.state.generation != state.generation:
        before = None
    old = 0 if before is None else before.state.rows
    begin = old // CHUNK  # the first chunk that may have more rows now
    # the chunks whose flags and folders are the same
    kept = begin if before is not None and before.state.edits == state.edits else 0
    flags = np.zeros(state.rows, np.uint8)
    rows, folders = [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
    if before is not None and kept:
        flags[: kept * CHUNK] = before.flags[: kept * CHUNK]
        count = int(np.searchsorted(before.places[0], kept * CHUNK))
        rows, folders = [before.places[0][:count]], [before.places[1][:count]]
    for number in range(kept, state.chunks):
        flags[number * CHUNK : (number + 1) * CHUNK], places = database.flags(state, number)
        rows.append(places["row"] + np.int64(number * CHUNK))
        folders.append(places["folder"])
    if np.count_nonzero(flags & PRESENT) != state.items:
        raise database.damaged(f"the flags do not mark {state.items:,} items")
    shown = state.rows if (flags & HAS_VISUAL).any() else 0
    semantic = _grown(None if before is None else before.semantic, old, state.rows, packed_width(state.bits))
    visual = _grown(None if before is None else before.visual, old, shown, VISUAL_BYTES)
    taken = np.empty(state.rows)
    taken[:old] = () if before is None else before.taken[:old]
    for number in range(begin, state.chunks):
        own = slice(number * CHUNK, min((number + 1) * CHUNK, state.rows))
        chunk = database.chunk(state, number, flags[own])
        semantic[own], taken[own] = chunk.semantic, chunk.taken
        if shown:
            visual[own] = chunk.visual if len(chunk.visual) else 0
    columns = Columns(
        semantic[: state.rows],
        visual[:shown],
        (flags & HAS_VISUAL > 0).astype(np.uint8),
        (flags & HAS_SCORES > 0).astype(np.uint8),
        lambda _, __: (np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.uint8)),
    )
    present: NDArray[np.uint8] | None = None if state.items == state.rows else flags & np.uint8(PRESENT)
    everywhere = np.concatenate(rows), np.concatenate(folders)
    return Loaded(state, columns, flags, present, semantic, visual, taken, everywhere)


def _grown(before: Packed | None, old: int, rows: int, width: int) -> Packed:
    """Return an array for so many rows that begins with the `old` ones; the same array if it has room."""
    if before is not None and len(before) >= rows:
        return before
    array = np.empty((rows + rows // 8, width), np.uint8)
    kept = 0 if before is None else min(old, len(before))
    if before is not None:
        array[:kept] = before[:kept]
    array[kept:old] = 0  # rows of before the first visual code
    return array
