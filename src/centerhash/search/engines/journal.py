"""The journal: the one file that says what an index holds, by records that are appended or, all at once, replaced.

It begins with the settings and segments of the index and the removed rows of each; adds and removals follow. A
record has a checksum of its header and one of its content, and is on the disk before the file `lengths.NAME` says that
it is there: so a torn write can only be behind that length, and anything else that does not match is damage.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from sys import intern
from typing import NamedTuple, Self
from zlib import crc32

from centerhash.core.errors import DataError, OutputError
from centerhash.core.files import atomic, explain_write_errors
from centerhash.search.engines import lengths
from centerhash.search.engines.base import Batch, Id, Seen
from centerhash.search.engines.mapped import ADVICE

MARK = b"\xc7CHR"
HEADER = struct.Struct("<4scII")  # mark, kind, length and checksum of the content
CHECKSUM = struct.Struct("<I")  # of the header
OVERHEAD = HEADER.size + CHECKSUM.size

STATE, REMOVED_ROWS, ADD, REMOVE = b"S", b"B", b"A", b"R"
END = b"E"  # a journal of an earlier version was closed; nothing writes it any more


class Entry(NamedTuple):
    """One item of an add, but for its id."""

    code: bytes
    labels: tuple[str, ...]
    path: str | None
    visual: bytes | None
    seen: Seen


@dataclass(frozen=True)
class Record:
    """One entry of the journal."""

    kind: bytes
    content: bytes = b""

    def to_bytes(self) -> bytes:
        """As it is stored."""
        header = HEADER.pack(MARK, self.kind, len(self.content), crc32(self.content))
        return header + CHECKSUM.pack(crc32(header)) + self.content

    def __len__(self) -> int:
        return OVERHEAD + len(self.content)


def add_record(batch: Batch) -> Record:
    """An add: a line of json with ids, labels, paths and what else there is, then the codes."""
    columns: list[object] = [batch.ids, batch.labels, batch.paths]
    if batch.visual is not None or batch.seen is not None:
        looks = None if batch.visual is None else [code and code.hex() for code in batch.visual]
        columns.append({"visual": looks, "seen": batch.seen})
    return Record(ADD, json.dumps(columns).encode() + b"\n" + batch.packed.tobytes())


def remove_record(ids: Sequence[Id]) -> Record:
    """A removal: the ids as json."""
    return Record(REMOVE, json.dumps(ids).encode())


def added(record: Record) -> Iterator[tuple[Id, Entry]]:
    """Every item of an add."""
    line, _, codes = record.content.partition(b"\n")
    ids, labels, paths, *more = json.loads(line)
    parts = more[0] if more else {}
    looks, seen = parts.get("visual") or [None] * len(ids), parts.get("seen") or [{}] * len(ids)
    width = len(codes) // max(1, len(ids))
    rows = zip(ids, labels, paths, looks, seen, strict=True)
    for place, (id, names, path, visual, pairs) in enumerate(rows):
        code = codes[place * width : (place + 1) * width]
        visual = None if visual is None else bytes.fromhex(visual)
        # thousands of items share the names of their labels
        seen = {intern(name): tuple(pair) for name, pair in pairs.items()}
        yield id, Entry(code, tuple(map(intern, names)), path, visual, seen)


def _record_at(content: bytes, place: int) -> Record | None:
    """The record that begins there, if a whole one does."""
    if len(content) < place + OVERHEAD:
        return None
    header = content[place : place + HEADER.size]
    mark, kind, length, checksum = HEADER.unpack(header)
    (own,) = CHECKSUM.unpack_from(content, place + HEADER.size)
    if mark != MARK or own != crc32(header):
        return None
    body = content[place + OVERHEAD : place + OVERHEAD + length]
    return Record(kind, body) if len(body) == length and crc32(body) == checksum else None


def parse(content: bytes, path: Path) -> tuple[list[Record], int]:
    """All whole records and where they end; raise DataError when whole ones follow something else."""
    records: list[Record] = []
    end = 0
    while (record := _record_at(content, end)) is not None:
        records.append(record)
        end += len(record)
    place = content.find(MARK, end + 1)
    while place >= 0:
        if _record_at(content, place) is not None:
            raise DataError(
                f"'{path}' is damaged: the record at byte {end:,} does not match its checksum, while a later one "
                f"does. Next: {ADVICE}."
            )
        place = content.find(MARK, place + 1)
    return records, end


class Journal:
    """An open journal. Only the one writer appends; readers read on from where they were."""

    def __init__(self, path: Path, stream: FileIO) -> None:
        self.path = path
        self.begun = 0  # where the records end that it began with
        self.end = 0  # where the last whole record ends
        self._stream = stream
        self._lengths = path.with_name(lengths.NAME)
        self._key = _key(stream)
        self._withdrawn = 0
        self._sound = True

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Self:
        """Open a journal at its beginning."""
        try:
            return cls(path, FileIO(path, "r+" if writable else "r"))
        except FileNotFoundError:
            raise DataError(
                f"no index in '{path.parent}': create one first, or check the path of the folder."
            ) from None
        except OSError as error:
            raise DataError(f"'{path}' cannot be opened: {error.strerror or error}.") from None

    @classmethod
    def replace(cls, path: Path, records: Iterable[Record]) -> Self:
        """Put a new journal in the place of any old one, at once and durably."""
        records, noting = list(records), path.with_name(lengths.NAME)
        content = b"".join(record.to_bytes() for record in records)
        with atomic(path) as stream:
            stream.write(content)
            # before it is in place: it is never without
            lengths.note(noting, crc32(records[0].content), lengths.Noted(len(content)), _key_at(path))
        journal = cls.open(path, writable=True)  # the holder of the lock alone replaces it
        journal.begun = journal.end = len(content)
        return journal

    def noted(self) -> lengths.Noted | None:
        """What is known of its length elsewhere; None where that is damaged, or the journal of an earlier version."""
        return None if self._key is None else lengths.noted(self._lengths, self._key)

    def read(self) -> list[Record]:
        """All acknowledged records from where reading ended the last time, or DataError when some are gone.

        A writer also reads those behind, which were whole before a kill but not acknowledged.
        """
        noted = self.noted()  # first: the file may grow while it is read
        self._stream.seek(self.end)
        content = self._stream.read()
        if noted is not None:
            self._withdrawn = noted.withdrawn
            content = content if self._stream.writable() else content[: max(0, noted.length - self.end)]
        records, length = parse(content, self.path)
        self.end += length
        if noted is not None and self.end < noted.length:
            raise DataError(
                f"'{self.path}' is damaged: its whole records end at byte {self.end:,}, but {noted.length:,} bytes were "
                f"stored. Next: {ADVICE}."
            )
        return records

    def is_current(self) -> bool:
        """Whether this is still the journal of the index, and nothing that was read of it has been withdrawn."""
        try:
            there, here = self.path.stat(), os.fstat(self._stream.fileno())
        except FileNotFoundError:
            return False
        noted = self.noted()
        same = noted is None or (noted.withdrawn == self._withdrawn and noted.length >= self.end)
        return same and os.path.samestat(there, here) and here.st_size >= self.end

    def append(self, record: Record) -> None:
        """Append a record and return when it is on the disk; on failure nothing of it stays."""
        self.check()
        content = record.to_bytes()
        with explain_write_errors(self.path):
            try:
                self._stream.seek(self.end)
                _write(self._stream, content)
                os.fsync(self._stream.fileno())
                self._note(self.end + len(content))
            except BaseException:  # also Ctrl-C: half a record must not stay
                self._sound = False
                self._withdrawn += 1
                self.cut()
                self._sound = True
                raise
        self.end += len(content)

    def _note(self, length: int) -> None:
        assert self._key is not None  # the first record was read
        lengths.note(self._lengths, self._key, lengths.Noted(length, self._withdrawn))

    def cut(self) -> None:
        """Cut off what follows the last whole record, and note that it ends there."""
        try:
            self._note(self.end)
        finally:
            noted = self.noted()
            if noted is None or noted.length <= self.end:  # a journal must not be shorter than is noted
                with explain_write_errors(self.path):
                    self._stream.truncate(self.end)
                    os.fsync(self._stream.fileno())

    def check(self) -> None:
        """Raise OutputError if a failed write may have left something, or another journal is in place."""
        if not self._sound:
            raise OutputError(
                f"'{self.path}' could not be repaired after a failed write: open the index again."
            )
        if not self.is_current():
            raise OutputError(f"'{self.path}' is not the file it was: open the index again.")

    def size(self) -> int:
        """The bytes of the file, with what may follow the last whole record."""
        return os.fstat(self._stream.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _key(stream: FileIO) -> int | None:
    """What a journal is known by: the checksum of its first record's content; None where there is no whole header."""
    stream.seek(0)
    header = stream.read(HEADER.size)
    return HEADER.unpack(header)[3] if len(header) == HEADER.size else None


def _key_at(path: Path) -> int | None:
    """The key of the journal at this path, if there is one."""
    try:
        with FileIO(path) as stream:
            return _key(stream)
    except FileNotFoundError:
        return None


def _write(stream: FileIO, content: bytes) -> None:
    """Write all bytes, however few the system takes at a time."""
    view = memoryview(content)
    while view:
        view = view[stream.write(view) :]
