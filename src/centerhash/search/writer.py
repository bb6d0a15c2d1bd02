"""The writer of a store: the lock of its folder, and one transaction at a time.

A transaction changes the tables of `database` together, with their checksums and counts. A commit is durable when it
returns; its number is then noted next to the database.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import IO, Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import InputError
from centerhash.core.files import WriterLock, atomic, explain_write_errors
from centerhash.search.database import (
    CAMERA,
    CARRIED,
    CHUNK,
    COMMITS,
    ENTRY,
    FILE,
    FOLDER,
    HAS_IMAGE,
    HAS_SCORES,
    HAS_VISUAL,
    HIDDEN,
    ITEM,
    LABEL,
    LOCK,
    MAX_ROWS,
    PLACE,
    PRESENT,
    ROOT,
    SCORE,
    SCORED,
    VISUAL_BYTES,
    Chunk,
    Database,
    Places,
    Row,
    State,
    Term,
    check_files,
    checksum,
    commit_slot,
    explained,
    label_numbers,
    marks,
    stored_text,
    taught_checksum,
)
from centerhash.search.items import Batch, File
from centerhash.search.teaching import Taught

_CACHE_KB = 1 << 18  # the index over the ids is written in random order
DRAFT = ".compact-"  # begins the name of the folder in which compaction writes


class Writer:
    """The right to write, and one transaction at a time."""

    def __init__(self, database: Database, lock: WriterLock, counter: IO[bytes]) -> None:
        """Use `open`."""
        self.database, self.lock, self.counter = database, lock, counter
        self.thread: int | None = None  # the thread that is in a transaction
        self.state = State(0)
        self.terms: dict[tuple[str, str], Term] = {}  # by kind and name
        self._keys: list[tuple[str, str]] = []  # kind and name by number
        self._known = -1  # the commit that `terms` is of
        self._failed = False  # a nested block has failed, so that the transaction must not be committed

    @classmethod
    def open(cls, folder: Path, wait: float = 0) -> Self:
        """Lock the folder, and connect."""
        with ExitStack() as undo:
            lock = WriterLock.take(folder / LOCK, wait=wait)
            undo.callback(lock.release)
            state, _ = check_files(folder)  # again: another writer may have changed them before the lock
            with explain_write_errors(folder):
                for left in folder.glob(f"{DRAFT}*"):  # by a compaction that was killed
                    shutil.rmtree(left, ignore_errors=True)
            file = folder / COMMITS
            if not file.exists():
                with atomic(file) as stream:
                    stream.write(2 * commit_slot(state.commits)[1])
            with explain_write_errors(file):
                counter = undo.enter_context(file.open("r+b"))
            database = Database(folder / FILE, "rw")
            undo.callback(database.sql.close)
            with explained(folder / FILE):
                database.sql.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
                database.sql.execute("PRAGMA synchronous = FULL")
            writer = cls(database, lock, counter)
            writer._note(database.state().commits)
            undo.pop_all()
            return writer

    def _note(self, commits: int) -> None:
        """Write the number of commits durably next to the database."""
        place, content = commit_slot(commits)
        with explain_write_errors(self.database.path.with_name(COMMITS)):
            self.counter.seek(place)
            self.counter.write(content)
            self.counter.flush()
            os.fsync(self.counter.fileno())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is done within the block, or nothing of it; blocks may be nested."""
        if self.thread == threading.get_ident():
            try:
                yield
            except BaseException:
                self._failed = True
                raise
            return
        sql = self.database.sql
        sql.execute("BEGIN IMMEDIATE")
        try:
            self.state = before = self.database.state()
            if self._known != before.commits:
                self.terms = {(term.kind, term.name): term for term in self.database.terms(before)}
                self._keys = list(self.terms)
            self.thread, self._failed = threading.get_ident(), False
            yield
            if self._failed:
                raise InputError("a part of this transaction has failed, so that nothing of it is stored.")
            if self.state != before:
                self.state = replace(self.state, commits=self.state.commits + 1)
                sql.execute("DELETE FROM state")
                sql.execute(f"INSERT INTO state VALUES ({marks(12)})", self.state.row())
            sql.execute("COMMIT")
            self._known = self.state.commits
        except BaseException:
            self._known = -1
            with suppress(sqlite3.Error):
                sql.execute("ROLLBACK")
            raise
        finally:
            self.thread = None
        if self.state != before:
            self._note(self.state.commits)

    def _store(self, table: str, *values: Any) -> None:
        """Insert or replace a row of a table, with its checksum."""
        statement = f"INSERT OR REPLACE INTO {table} VALUES ({marks(len(values) + 1)})"
        self.database.sql.execute(statement, (*values, checksum(*values)))

    def append(self, batch: Batch) -> None:
        """Add items after the last row."""
        first, count = self.state.rows, len(batch)
        if first + count > MAX_ROWS:
            raise InputError(f"an index holds at most {MAX_ROWS:,} rows: compact it, or use Milvus.")
        paths = [file.path for files in batch.files for file in files]
        self._release(paths)
        self.forget_removed(batch.ids, paths)
        labels = [
            struct.pack(f"<{len(names)}I", *(self._number(LABEL, name) for name in names))
            for names in batch.labels
        ]
        scores = [
            b"".join(struct.pack("<IBB", self._number(LABEL, name), *pair) for name, pair in row.items())
            for row in batch.scores
        ]
        cameras = [
            None if photo.camera is None else self._number(CAMERA, photo.camera) for photo in batch.photos
        ]
        rows = []
        for place, photo in enumerate(batch.photos):
            facts = (cameras[place], photo.width, photo.height, photo.name)
            values = (first + place, batch.ids[place], *facts, labels[place], scores[place])
            rows.append((*values, checksum(*values)))
        self.database.sql.executemany(f"INSERT INTO items VALUES ({marks(9)})", rows)
        places = self._insert_files(
            (first + place, file) for place, files in enumerate(batch.files) for file in files
        )
        shown = self._append_columns(batch, first, places)
        self._append_postings(labels, scores, cameras, first, shown)
        images = sum(bool(files) and not files[0].gone for files in batch.files)
        self.state = replace(
            self.state,
            rows=first + count,
            items=self.state.items + int(shown.sum()),
            images=self.state.images + images,
            hidden=self.state.hidden + count - int(shown.sum()),
            terms=len(self.terms),
        )

    def _number(self, kind: str, name: str) -> int:
        """Return the number of a term, which may be new."""
        term = self.terms.get((kind, name))
        if term is None:
            term = self.terms[kind, name] = Term(len(self.terms), kind, name)
            self._keys.append((kind, name))
        return term.number

    def _append_columns(
        self, batch: Batch, first: int, places: Sequence[tuple[int, int]]
    ) -> NDArray[np.bool_]:
        """Write the chunks of codes and flags of new rows; the first chunk may hold earlier rows.

        `places` are rows and folders of files. Returns which rows (n,) are not hidden.
        """
        count, shown = len(batch), np.array([code is not None for code in batch.visual])
        visual, flags = np.zeros((count, VISUAL_BYTES), np.uint8), np.full(count, PRESENT, np.uint8)
        if shown.any():
            visual[shown] = np.stack([code for code in batch.visual if code is not None])
        flags[shown] |= HAS_VISUAL
        flags[[bool(row) for row in batch.scores]] |= HAS_SCORES
        flags[[bool(files) for files in batch.files]] |= HAS_IMAGE
        hidden = np.array([bool(files) and files[0].gone for files in batch.files])
        flags[hidden] ^= PRESENT | HIDDEN
        ids = np.array([crc32(id.encode()) for id in batch.ids], "<u4")
        taken = np.array([np.nan if photo.taken is None else photo.taken for photo in batch.photos])
        where = np.array(places, np.int64).reshape(-1, 2)
        for number in range(first // CHUNK, -(-(first + count) // CHUNK)):
            own = slice(max(number * CHUNK - first, 0), (number + 1) * CHUNK - first)
            chunk = Chunk(batch.packed[own], visual[own], flags[own], ids[own], taken[own])
            folders = _places(where[where[:, 0] // CHUNK == number] - (number * CHUNK, 0))
            if number * CHUNK < first:
                before, earlier = self.database.flags(self.state, number)
                chunk = self.database.chunk(self.state, number, before).joined(chunk)
                folders = np.concatenate([earlier, folders])
            self._store("codes", number, *chunk.blobs())
            self._store("flags", number, chunk.flags.tobytes(), folders.tobytes())
        return ~hidden

    def _append_postings(
        self,
        labels: Sequence[bytes],
        scores: Sequence[bytes],
        cameras: Sequence[int | None],
        first: int,
        shown: NDArray[np.bool_],
    ) -> None:
        """Add new rows to the postings of their labels and cameras, and count those that are not hidden."""
        scored = np.frombuffer(b"".join(scores), SCORE)
        placed = [(place, camera) for place, camera in enumerate(cameras) if camera is not None]
        inside = np.array(placed, np.int64).reshape(-1, 2)
        rows = [
            np.repeat(np.arange(len(scores)), [len(row) // SCORE.itemsize for row in scores]),
            np.repeat(np.arange(len(labels)), [len(row) // 4 for row in labels]),
            inside[:, 0],
        ]
        terms = [scored["term"], np.frombuffer(b"".join(labels), "<u4"), inside[:, 1]]
        keys = np.concatenate(terms).astype(np.int64) << 32 | (np.concatenate(rows) + first)
        entries = np.zeros(len(keys), ENTRY)
        entries["row"] = (keys & 0xFFFFFFFF) % CHUNK
        entries["kind"][: len(scored)], entries["kind"][len(scored) :] = SCORED, CARRIED
        entries["probability"][: len(scored)] = scored["probability"]
        entries["share"][: len(scored)] = scored["share"]
        order = np.argsort(keys, kind="stable")
        keys, entries = keys[order], entries[order]
        again = np.flatnonzero(keys[1:] == keys[:-1])  # both scored and carried: one entry
        entries["kind"][again] |= CARRIED
        keys, entries = np.delete(keys, again + 1), np.delete(entries, again + 1)
        numbers, found = keys >> 32, keys & 0xFFFFFFFF
        chunks = found // CHUNK
        edges = np.flatnonzero((np.diff(numbers, prepend=-1) != 0) | (np.diff(chunks, prepend=-1) != 0))
        for start, end in pairwise([*edges.tolist(), len(keys)]):
            key, content = int(numbers[start]) << 32 | int(chunks[start]), entries[start:end].tobytes()
            if chunks[start] * CHUNK < first:
                content = self.database.entries(key) + content
            self._store("postings", key, content)
        used = np.bincount(numbers, minlength=len(self.terms))
        counted = (entries["kind"] & CARRIED > 0) & shown[found - first]
        carried = np.bincount(numbers[counted], minlength=len(self.terms))
        new = range(self.state.terms, len(self.terms))
        changed = {*np.flatnonzero(used).tolist(), *new}
        self._count({number: (int(carried[number]), int(used[number])) for number in changed})

    def _count(self, changes: dict[int, tuple[int, int]]) -> None:
        """Add to the numbers of items and of entries of terms, and store the terms."""
        for number, (items, entries) in changes.items():
            term = self.terms[self._keys[number]]
            counted = replace(term, items=term.items + items, entries=term.entries + entries)
            if counted.items < 0:
                raise self.database.damaged(f"more items carry '{term.name}' than are counted")
            self.terms[self._keys[number]] = counted
            statement = f"INSERT OR REPLACE INTO terms VALUES ({marks(6)})"
            self.database.sql.execute(statement, counted.row())

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items; their rows stay until the store is compacted, marked as not present."""
        found = self.database.select("SELECT row FROM items WHERE id IN", ids)
        self._settle({row for (row,) in found}, remove=True)
        return len(found)

    def change_files(self, found: Sequence[tuple[str, File]], gone: Sequence[str]) -> None:
        """Store files of items, and which paths are gone: see `ItemStore.change_files`."""
        sql, rows, changed = self.database.sql, dict[str, int](), set[int]()
        rows.update(self.database.select("SELECT id, row FROM items WHERE id IN", [id for id, _ in found]))
        known = [(rows[id], file) for id, file in found if id in rows]
        for path in gone:
            for values in self._files_at(path):
                changed.add(values[0])
                self._store("files", *values[:5], 1)
        for row, _ in known:
            changed.add(row)
            sql.execute("DELETE FROM files WHERE row = ? AND gone", (row,))
        changed |= self._free(file.path for _, file in known)
        self.forget_removed([], [file.path for _, file in known])
        self._insert_files(known)
        self._add_terms()
        self._settle(changed)

    def _files_at(self, path: str) -> list[Row]:
        """Return the values of the row of `files` of a path, if there is one."""
        folder, name = os.path.split(path)
        term = self.terms.get((FOLDER, folder))
        if term is None:
            return []
        statement = "SELECT row, folder, name, size, modified, gone, checksum FROM files WHERE folder = ? AND name = ?"
        found = self.database.sql.execute(statement, (term.number, stored_text(name))).fetchall()
        return [self.database.checked(row) for row in found]

    def _free(self, paths: Iterable[str]) -> set[int]:
        """Take paths from the items that have them, and return the rows of these."""
        rows = set()
        for path in paths:
            for row, folder, name, *_ in self._files_at(path):
                rows.add(row)
                statement = "DELETE FROM files WHERE row = ? AND folder = ? AND name = ?"
                self.database.sql.execute(statement, (row, folder, name))
        return rows

    def _release(self, paths: Sequence[str]) -> None:
        """Take paths from the items that have them; an item without a path left is removed."""
        self._settle(self._free(paths))

    def _insert_files(self, files: Iterable[tuple[int, File]]) -> list[tuple[int, int]]:
        """Store files with the rows of their items; return row and folder of those that are not gone."""
        values, places = [], []
        for row, file in files:
            folder, name = os.path.split(file.path)
            number = self._number(FOLDER, folder)
            own = (row, number, stored_text(name), file.size, file.modified, int(file.gone))
            values.append((*own, checksum(*own)))
            if not file.gone:
                places.append((row, number))
        self.database.sql.executemany(f"INSERT INTO files VALUES ({marks(7)})", values)
        return places

    def _add_terms(self) -> None:
        """Store new terms."""
        self._count(dict.fromkeys(range(self.state.terms, len(self.terms)), (0, 0)))
        self.state = replace(self.state, terms=len(self.terms))

    def set_roots(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Note folders that were added as a whole, and those that no longer count as such."""
        for wanted, names in ((0, removed), (1, added)):
            for name in names:
                number = self._number(ROOT, name)
                term = self.terms[ROOT, name]
                self._count({number: (0, wanted - term.entries)})
        self.state = replace(self.state, terms=len(self.terms), edits=self.state.edits + 1)

    def _settle(self, rows: set[int], *, remove: bool = False) -> None:
        """Bring flags, folders and counts in line with the files of these items, which may be none any more.

        Items without a file left, of those that had one, are removed; with `remove` all are.
        """
        if not rows:
            return
        database, counts, changes = self.database, [0, 0, 0], defaultdict[int, int](int)
        chosen = sorted(rows)
        stored = {row[0]: row for row in database.select(f"SELECT {ITEM} FROM items WHERE row IN", chosen)}
        files = {} if remove else database.files_of(chosen)
        gone, names = [], [name for _, name in self._keys]
        for values in stored.values():
            database.place(self.state, values)
            database.item(values, names)
        for number, group in groupby(chosen, lambda row: row // CHUNK):
            own = [row for row in group if row in stored]
            flags, places = database.flags(self.state, number)
            folders = []
            for row in own:
                place = row - number * CHUNK
                before, here = int(flags[place]), [file for file in files.get(row, ()) if not file[5]]
                after = before & ~(PRESENT | HIDDEN)
                if remove or (before & HAS_IMAGE and row not in files):
                    gone.append(row)
                else:
                    after |= HIDDEN if row in files and not here else PRESENT
                    after |= HAS_IMAGE if row in files else 0
                flags[place] = after
                folders += [(place, file[1]) for file in here]
                counts[0] += (after & PRESENT) - (before & PRESENT)
                counts[1] += _is_shown(after) - _is_shown(before)
                counts[2] += bool(after & HIDDEN) - bool(before & HIDDEN)
                camera = stored[row][2]
                for term in (
                    *label_numbers(database.checked(stored[row])),
                    *(() if camera is None else (camera,)),
                ):
                    changes[term] += (after & PRESENT) - (before & PRESENT)
            kept = places[~np.isin(places["row"], [row - number * CHUNK for row in own])]
            every = np.concatenate([kept, _places(folders)])
            every = every[np.lexsort((every["folder"], every["row"]))]
            self._store("flags", number, flags.tobytes(), every.tobytes())
        for table in ("items", "files"):
            database.select(f"DELETE FROM {table} WHERE row IN", gone)
        self._count({number: (items, 0) for number, items in changes.items() if items})
        self.state = replace(
            self.state,
            items=self.state.items + counts[0],
            images=self.state.images + counts[1],
            hidden=self.state.hidden + counts[2],
            edits=self.state.edits + 1,
        )

    def save_taught(self, labels: Mapping[str, Taught | None]) -> None:
        """Store taught labels, and remove those that are None."""
        sql = self.database.sql
        for name, label in labels.items():
            if label is None:
                sql.execute("DELETE FROM taught WHERE name = ?", (name,))
            else:
                self._store("taught", *label.row(name))
        rows = sql.execute("SELECT name, checksum FROM taught ORDER BY name").fetchall()
        self.state = replace(self.state, taught=taught_checksum(rows))

    def note_removed(self, files: Sequence[tuple[str, File]]) -> None:
        """Remember files of removed images by the ids of these; a path that an item has is taken from it."""
        last = {file.path: (id, file) for id, file in files}  # a path has one content
        self._release(list(last))
        self.forget_removed([], list(last))
        for id, file in last.values():
            self._store("removed", id, os.fsencode(file.path), file.size, file.modified)
        self._count_removed()

    def forget_removed(self, ids: Sequence[str], paths: Sequence[str]) -> None:
        """Forget that images, or files at paths, were removed."""
        if self.state.removed:
            self.database.select("DELETE FROM removed WHERE id IN", ids)
            self.database.select("DELETE FROM removed WHERE path IN", [os.fsencode(path) for path in paths])
            self._count_removed()

    def _count_removed(self) -> None:
        [(count,)] = self.database.sql.execute("SELECT count(*) FROM removed").fetchall()
        self.state = replace(self.state, removed=count)

    def take_over(self, other: Writer) -> None:
        """Replace all content by that of another store, which has one more commit."""
        with explained(self.database.path):
            other.database.sql.backup(self.database.sql)
        self._known = -1
        self._note(other.state.commits)

    def close(self) -> None:
        """Let others write."""
        self.database.sql.close()
        self.counter.close()
        self.lock.release()


def _is_shown(flags: int) -> bool:
    """Return whether a row has an image that is not gone."""
    return flags & (PRESENT | HAS_IMAGE) == PRESENT | HAS_IMAGE


def _places(pairs: Any) -> Places:
    """Return rows of a chunk and folders as they are stored: sorted, each pair once."""
    pairs = np.unique(np.array(pairs, np.int64).reshape(-1, 2), axis=0)
    places = np.empty(len(pairs), PLACE)
    places["row"], places["folder"] = pairs[:, 0], pairs[:, 1]
    return places
