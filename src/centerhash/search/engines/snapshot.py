"""What an index holds at one moment: sealed segments with their removed rows, and a short tail of newer items.

A snapshot never changes; adds and removals make a new one. So a search sees all of an add or nothing, and needs no
lock. The tail is a dict, and becomes a segment in memory when it is first searched.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.search.engines.base import Batch, Id
from centerhash.search.engines.idcolumns import kind_of
from centerhash.search.engines.journal import ADD, END, REMOVE, REMOVED_ROWS, STATE, Entry, Record, added
from centerhash.search.engines.mapped import ADVICE, map_arrays
from centerhash.search.engines.segments import Segment, build, stored_segment
from centerhash.search.engines.tables import Tables, TablesFile

FORMAT = 2
UNNOTED = 1  # the format of journals whose length is not noted; a writer brings them up to date
SEGMENT = re.compile(r"segment-\d{6,}\.seg")  # a journal from elsewhere names no other files


@dataclass(frozen=True)
class Head:
    """What a journal begins with: the settings of the index, and files of segments with their checksums."""

    format: int
    bits: int
    ids: str | None
    next_file: int
    segments: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Part:
    """A segment, which of its n items are there still (None: all), and the file that it is mapped from, if any."""

    segment: Segment
    alive: NDArray[np.uint8] | None = None  # (n,)
    file: str = ""
    checksum: int = 0
    bytes: int = 0
    beside: TablesFile | None = None  # the file of its tables, if it is mapped

    @cached_property
    def count(self) -> int:
        """The number of items that are there."""
        return len(self.segment) if self.alive is None else int(np.count_nonzero(self.alive))

    @property
    def tables(self) -> Tables | None:
        """The tables that lie beside the segment, if there are sound ones."""
        return None if self.beside is None else self.beside.tables()

    def rows(self) -> NDArray[np.int64]:
        """The rows of the items that are there."""
        return np.arange(len(self.segment)) if self.alive is None else np.flatnonzero(self.alive)

    def removed(self) -> NDArray[np.int64]:
        """The rows of the items that are not."""
        return np.empty(0, np.int64) if self.alive is None else np.flatnonzero(self.alive == 0)

    def find(self, ids: Sequence[Id]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not there."""
        rows = self.segment.ids.find(ids)
        if self.alive is not None:
            rows[(rows >= 0) & (self.alive[rows] == 0)] = -1
        return rows

    def without(self, rows: NDArray[np.int64]) -> Part:
        """The same part without these rows."""
        if not len(rows):
            return self
        alive = np.ones(len(self.segment), np.uint8) if self.alive is None else self.alive.copy()
        alive[rows] = 0
        return replace(self, alive=alive)


@dataclass(frozen=True)
class Snapshot:
    """All that an index of K bits holds."""

    bits: int
    kind: str | None = None  # of the ids; None until the first add
    next_file: int = 1
    sealed: tuple[Part, ...] = ()
    tail: Mapping[Id, Entry] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(part.count for part in self.sealed) + len(self.tail)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Everything that can be searched, the tail last."""
        tail = (Part(self.tail_segment()),) if self.tail else ()
        return (*(part for part in self.sealed if part.count), *tail)

    def tail_segment(self) -> Segment:
        """The tail as a segment."""
        codes, labels, paths, visual, seen = zip(*self.tail.values(), strict=True)
        packed = np.frombuffer(b"".join(codes), np.uint8).reshape(len(codes), -1)
        return build(Batch(packed, list(self.tail), labels, paths, visual, seen))

    def find(self, ids: Sequence[Id]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of the sealed part (n,) and the row (n,) of each id; -1 where no sealed part has it."""
        owners, rows = np.full((2, len(ids)), -1, np.int64)
        if ids and kind_of(ids[0]) == self.kind:
            for number, part in enumerate(self.sealed):
                found = part.find(ids)
                owners[found >= 0], rows[found >= 0] = number, found[found >= 0]
        return owners, rows

    def present(self, ids: Sequence[Id]) -> list[Id]:
        """Those of these ids that are there."""
        owners, _ = self.find(ids)
        return [id for id, owner in zip(ids, owners.tolist(), strict=True) if owner >= 0 or id in self.tail]

    def applied(self, records: Iterable[Record]) -> Snapshot:
        """What the index holds after these adds and removals."""
        tail, kind, removed = dict(self.tail), self.kind, list[Id]()
        for record in records:
            if record.kind == ADD:
                for id, entry in added(record):
                    tail[id], kind = entry, kind_of(id)
            elif record.kind == REMOVE:
                removed += [id for id in json.loads(record.content) if tail.pop(id, None) is None]
            elif record.kind != END:
                raise DataError(f"the journal has a record of the unknown kind {record.kind!r}: {ADVICE}.")
        owners, rows = self.find(removed)
        sealed = tuple(part.without(rows[owners == number]) for number, part in enumerate(self.sealed))
        return replace(self, kind=kind, sealed=sealed, tail=tail)

    def records(self) -> list[Record]:
        """The records that a journal of the sealed parts begins with."""
        files = [(part.file, part.checksum) for part in self.sealed]
        head = Head(FORMAT, self.bits, self.kind, self.next_file, files)
        state = state_record(head)
        if all(part.alive is None for part in self.sealed):
            return [state]
        masks = [
            np.ones(len(part.segment), np.uint8) if part.alive is None else part.alive for part in self.sealed
        ]
        return [
            state,
            Record(REMOVED_ROWS, zlib.compress(np.packbits(np.concatenate(masks) == 0).tobytes(), 1)),
        ]


def state_record(head: Head) -> Record:
    """The first record of a journal."""
    return Record(STATE, json.dumps(asdict(head)).encode())


def read_head(path: Path, records: Sequence[Record]) -> Head:
    """What the first record of a journal says, or DataError."""
    if not records or records[0].kind != STATE:
        raise DataError(f"'{path}' is damaged: its first record does not match its checksum. Next: {ADVICE}.")
    try:
        stored = json.loads(records[0].content)
        if stored["format"] not in (UNNOTED, FORMAT):
            raise DataError(
                f"'{path}' has the format {stored['format']}, this version reads {UNNOTED} and {FORMAT}: install a "
                "newer centerhash."
            )
        head = Head(**stored)
        named = all(SEGMENT.fullmatch(file) and type(checksum) is int for file, checksum in head.segments)
        if not named or type(head.bits) is not int or type(head.next_file) is not int or head.next_file < 1:
            raise ValueError("it names files that are no segments, or no numbers")
    except DataError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"'{path}' is damaged: its first record makes no sense ({error}). Next: {ADVICE}."
        ) from None
    return head


def load(path: Path, records: Sequence[Record]) -> tuple[Snapshot, int]:
    """Map the segments that a journal names and apply its records; also how many of these it began with."""
    head = read_head(path, records)
    parts = tuple(map_part(path.parent / file, checksum, head.bits) for file, checksum in head.segments)
    begun = 1
    if len(records) > 1 and records[1].kind == REMOVED_ROWS:
        parts, begun = _masked(parts, records[1]), 2
    snapshot = Snapshot(head.bits, head.ids, head.next_file, parts)
    return snapshot.applied(records[begun:]), begun


def map_part(path: Path, checksum: int, bits: int) -> Part:
    """Map a segment of codes of K bits, which must be the very file that was written."""
    mapped = map_arrays(path)
    if mapped.checksum != checksum:
        raise DataError(f"'{path}' is damaged: it is not the file that the index wrote. Next: {ADVICE}.")
    try:
        segment = stored_segment(mapped.arrays)
    except KeyError as error:
        raise DataError(f"'{path}' is damaged: it has no {error}. Next: {ADVICE}.") from None
    beside = TablesFile(path, checksum, len(segment), bits)
    return Part(segment, None, path.name, checksum, mapped.bytes, beside)


def _masked(parts: Sequence[Part], record: Record) -> tuple[Part, ...]:
    """The parts without the rows that a record says were removed."""
    total = sum(len(part.segment) for part in parts)
    gone = np.unpackbits(np.frombuffer(zlib.decompress(record.content), np.uint8), count=total)
    edges = np.cumsum([len(part.segment) for part in parts])[:-1]
    return tuple(
        part.without(np.flatnonzero(mask)) for part, mask in zip(parts, np.split(gone, edges), strict=True)
    )
