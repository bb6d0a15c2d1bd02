"""The embedded index: exact, a folder on disk, one writer and many readers.

Codes are mapped, not read, so that opening takes no time and memory holds little but the codes that are scanned. What
`add` and `remove` have done is on the disk when they return: small changes go to a journal, which becomes part of a
segment when it has grown.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_bits
from centerhash.core.errors import InputError
from centerhash.core.files import WriterLock, explain_write_errors, make_folder, refuse_links, sync_folder
from centerhash.search.engines import answers, storage
from centerhash.search.engines.base import Batch, Filter, HammingIndex, Hits, Id, Item, plain_id
from centerhash.search.engines.idcolumns import kind_of
from centerhash.search.engines.journal import Journal, Record, add_record, remove_record
from centerhash.search.engines.ragged import decoded, text_rows
from centerhash.search.engines.rankings import Ranking
from centerhash.search.engines.segments import Segment, build
from centerhash.search.engines.snapshot import Part, Snapshot

TAIL_ROWS = 1 << 12  # items in the journal before they become a segment
JOURNAL_BYTES = 1 << 23  # of adds and removals before they do
AT_ONCE = 1 << 16  # ids that become Python objects at a time


class FlatIndex(HammingIndex):
    """An exact index in a folder. Threads may share it."""

    def __init__(self, folder: Path, journal: Journal, snapshot: Snapshot, lock: WriterLock | None) -> None:
        """Use `create` or `open`."""
        super().__init__(snapshot.bits)
        self.folder = folder
        self._journal = journal
        self._snapshot: Snapshot | None = snapshot
        self._lock = lock  # None for a reader

    @classmethod
    def create(cls, folder: str | Path, bits: int) -> Self:
        """Make an empty index for codes of `bits` bits in a folder, and open it for writing."""
        check_bits(bits)
        folder = make_folder(folder)
        with explain_write_errors(folder):
            sync_folder(folder.parent)  # a new folder, too, must survive a power cut
        with ExitStack() as undo:
            lock = WriterLock.take(folder / storage.LOCK)
            undo.callback(lock.release)
            if (folder / storage.JOURNAL).exists():
                raise InputError(
                    f"there is an index in '{folder}' already: open it, or choose another folder."
                )
            index = cls(folder, *storage.fold(folder, Snapshot(bits)), lock)
            undo.pop_all()
        return index

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False) -> Self:
        """Open an index, to read it as it is now (see `refresh`), or as its only writer.

        A writer repairs what a kill or a power cut has left: half a record at the end, files that nothing names.
        """
        folder = Path(folder)
        if folder.is_dir():
            refuse_links(folder)
        if read_only:
            return cls(folder, *storage.read(folder, writable=False), None)
        Journal.open(folder / storage.JOURNAL, writable=False).close()  # no lock file where no index is
        with ExitStack() as undo:
            lock = WriterLock.take(folder / storage.LOCK)
            undo.callback(lock.release)
            journal, snapshot = storage.read(folder, writable=True)
            undo.callback(journal.close)
            storage.tidy(folder, snapshot)
            undo.pop_all()
        return cls(folder, journal, snapshot, lock)

    def __len__(self) -> int:
        return len(self._now)

    def __contains__(self, id: object) -> bool:
        plain = plain_id(id)
        return plain is not None and bool(self._now.present([plain]))

    def present(self, ids: Sequence[Id]) -> list[Id]:
        """Those of these ids, all of one kind, that are there, in the same order."""
        return self._now.present(ids)

    def ids(self) -> Iterator[Id]:
        """All ids, in ascending order, as they are now."""
        return iter(heapq.merge(*map(_part_ids, self._now.parts)))

    def paths(self) -> Iterator[tuple[Id, str]]:
        """The id and the path of every item that has one, in the order of the ids, as they are now."""
        return iter(heapq.merge(*map(_part_paths, self._now.parts)))

    def labels(self) -> dict[str, int]:
        """Every label that some item carries, with the number of items, in the order of the names."""
        counts: Counter[str] = Counter()
        for part in self._now.parts:
            counts.update(part.segment.label_counts(part.removed()))
        return dict(sorted(counts.items()))

    def refresh(self) -> bool:
        """Let a reader see what the writer has done since; say whether there was something."""
        with self._changing:
            snapshot = self._now
            if self._lock is not None:
                return False
            if self._journal.is_current():
                records = self._journal.read()
                self._snapshot = snapshot.applied(records) if records else snapshot
                return bool(records)
            journal, self._snapshot = storage.read(self.folder, writable=False)
            self._journal.close()
            self._journal = journal
            return True

    def compact(self) -> None:
        """Rewrite everything as one segment, without the items that were removed, and with tables if it is large.

        Readers keep reading meanwhile.
        """
        with self._changing:
            snapshot = self._writable
            if (
                snapshot.tail
                or len(snapshot.sealed) > 1
                or any(part.alive is not None for part in snapshot.sealed)
            ):
                self._fold(snapshot, everything=True)
            else:
                storage.add_tables(snapshot.sealed, self.bits)

    def verify(self) -> list[str]:
        """Check every checksum and name the damaged files; an empty list when the index is sound.

        What is too damaged to be opened can be checked by `storage.problems(folder)`.
        """
        return storage.problems(self.folder)

    def info(self) -> dict[str, Any]:
        """What there is: removed items that still take space, segments, bytes, the kind of ids."""
        snapshot = self._now
        return {
            "removed": sum(len(part.segment) - part.count for part in snapshot.sealed),
            "segments": len(snapshot.sealed),
            "bytes": self._journal.size() + sum(part.bytes for part in snapshot.sealed),
            "ids": snapshot.kind,
        }

    def close(self) -> None:
        """Give back files and the right to write; a second call does nothing."""
        with self._changing:
            if self._snapshot is None:
                return
            self._snapshot = None
            self._journal.close()
            if self._lock is not None:
                self._lock.release()

    @property
    def _now(self) -> Snapshot:
        if self._snapshot is None:
            raise InputError(f"the index '{self.folder}' is closed: open it again.")
        return self._snapshot

    @property
    def _writable(self) -> Snapshot:
        snapshot = self._now
        if self._lock is None:
            raise InputError(
                f"the index '{self.folder}' was opened with read_only=True: open it for writing."
            )
        return snapshot

    def _add(self, batch: Batch) -> None:
        snapshot, ids = self._writable, batch.ids
        if snapshot.kind not in (None, kind_of(ids[0])):
            raise InputError(
                f"this index holds {snapshot.kind} ids, got {ids[0]!r}: an index holds one kind."
            )
        if len(ids) > TAIL_ROWS:
            self._fold(replace(snapshot, kind=kind_of(ids[0])), [build(batch)])
        else:
            self._commit(add_record(batch))

    def _remove(self, ids: Sequence[Id]) -> int:
        present = self._writable.present(ids)
        if present:
            self._commit(remove_record(present))
        return len(present)

    def _get(self, ids: Sequence[Id]) -> list[Item | None]:
        snapshot = self._now
        owners, rows = snapshot.find(ids)
        items: list[Item | None] = [None] * len(ids)
        for number in np.unique(owners[owners >= 0]).tolist():
            places = np.flatnonzero(owners == number)
            found = snapshot.sealed[number].segment.items(rows[places])
            for place, item in zip(places.tolist(), found, strict=True):
                items[place] = item
        for place, id in enumerate(ids):
            if id in snapshot.tail:
                code, labels, path, visual, seen = snapshot.tail[id]
                looks = None if visual is None else _own(visual)
                items[place] = Item(id, _own(code), labels, path, looks, dict(seen))
        return items

    def _search(self, packed: Packed, k: int, only: Filter) -> list[Hits]:
        return answers.nearest(self._now.parts, packed, self.bits, k, only)

    def _within(self, packed: Packed, radius: int, only: Filter) -> list[Hits]:
        return answers.within(self._now.parts, packed, self.bits, radius, only)

    def _rank(self, ranking: Ranking, k: int, only: Filter) -> Hits:
        return answers.ranked(self._now.parts, ranking, self.bits, k, only)

    def _commit(self, record: Record) -> None:
        """Make a change last: in the journal, or, when it has grown too long, in a segment."""
        changed = self._writable.applied([record])
        grown = self._journal.end - self._journal.begun + len(record)
        if len(changed.tail) > TAIL_ROWS or grown > JOURNAL_BYTES:
            self._fold(changed)
        else:
            self._journal.append(record)
            self._snapshot = changed

    def _fold(self, snapshot: Snapshot, more: Sequence[Segment] = (), *, everything: bool = False) -> None:
        """Make a change last by a new segment and a new journal."""
        before = self._writable
        self._journal.check()
        journal, folded = storage.fold(self.folder, snapshot, more, everything=everything)
        self._journal.close()
        self._journal, self._snapshot = journal, folded
        storage.drop_replaced(self.folder, before, folded)


def _own(code: bytes) -> Packed:
    """A code that may be written to."""
    return np.frombuffer(bytearray(code), np.uint8)


def _part_ids(part: Part) -> Iterator[Id]:
    """The ids of a part, a few at a time."""
    for rows in _few(part.rows()):
        yield from part.segment.ids.at(rows)


def _part_paths(part: Part) -> Iterator[tuple[Id, str]]:
    """The ids and paths of a part's items that have a path, a few at a time."""
    for rows in _few(part.segment.with_path(part.rows())):
        paths = map(decoded, text_rows(part.segment.paths, rows))
        yield from zip(part.segment.ids.at(rows), paths, strict=True)


def _few(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[top : top + AT_ONCE] for top in range(0, len(rows), AT_ONCE))
