"""The folder of a flat index: a journal, the segments that it names, and a lock for the one writer.

The journal alone decides what the index holds, so it changes at one moment: when a record is appended to it, or when
a new journal takes its place. Segments are written before a journal names them and deleted after none does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from centerhash.core.errors import DataError
from centerhash.search.engines import lengths
from centerhash.search.engines.checked import Array
from centerhash.search.engines.journal import END, Journal, Record
from centerhash.search.engines.mapped import ADVICE, Column, damage, write_arrays
from centerhash.search.engines.merging import merge
from centerhash.search.engines.segments import Segment
from centerhash.search.engines.snapshot import (
    FORMAT,
    UNNOTED,
    Head,
    Part,
    Snapshot,
    load,
    map_part,
    read_head,
    state_record,
)
from centerhash.search.engines.tables import GROUPED, SUFFIX

JOURNAL = "journal"
LOCK = "lock"
LARGE = 1 << 19  # rows of a segment from which tables are quicker than the scan, measured
MERGED_ROWS = 1 << 20  # segments are merged as they come, but not to larger ones than this
FORMER = ("segment-*.faiss", "faiss.json")  # structures of faiss, which nothing reads now
LEFT_BEHIND = ("segment-*.seg", f"segment-*{SUFFIX}", ".segment-*.part", ".journal.*.part", *FORMER)
ATTEMPTS = 20  # to open an index whose writer replaces the journal just then


def read(folder: Path, *, writable: bool) -> tuple[Journal, Snapshot]:
    """Open the journal of an index and what it names; only the holder of the lock may ask for a writable one."""
    attempts = ATTEMPTS
    while True:
        journal = Journal.open(folder / JOURNAL, writable=writable)
        try:
            records = journal.read()
            snapshot, begun = load(journal.path, records)
        except BaseException as error:
            attempts -= 1
            again = isinstance(error, DataError) and not journal.is_current() and attempts > 0
            journal.close()
            if not again:
                raise
        else:
            journal.begun = sum(map(len, records[:begun]))
            return (_repaired(journal, records, begun) if writable else journal), snapshot


def _repaired(journal: Journal, records: Sequence[Record], begun: int) -> Journal:
    """The journal without what a kill has left behind its records, its length noted; an early one is renewed."""
    head, noted = read_head(journal.path, records), journal.noted()
    if head.format == UNNOTED:
        kept = [record for record in records[1:] if record.kind != END]
        renewed = Journal.replace(journal.path, [state_record(replace(head, format=FORMAT)), *kept])
        journal.close()
        renewed.begun = renewed.end - sum(map(len, kept[begun - 1 :]))
        return renewed
    if noted is None and journal.size() > journal.end:
        journal.close()
        raise DataError(
            f"'{journal.path}' is damaged: what follows byte {journal.end:,} is no whole record, and its length is not "
            f"known, because '{journal.path.with_name(lengths.NAME)}' is damaged too. Next: {ADVICE}."
        )
    if noted is None or not noted.length == journal.end == journal.size():
        journal.cut()
    return journal


def tidy(folder: Path, snapshot: Snapshot) -> None:
    """Delete what a writer that was killed has left behind."""
    named = {part.file for part in snapshot.sealed}
    for path in chain.from_iterable(map(folder.glob, LEFT_BEHIND)):
        if path.with_suffix(".seg").name not in named:
            _delete(path)


def _delete(path: Path) -> None:
    with suppress(OSError):  # nobody needs the file; the next writer tries again
        path.unlink()


def fold(
    folder: Path, snapshot: Snapshot, more: Sequence[Segment] = (), *, everything: bool = False
) -> tuple[Journal, Snapshot]:
    """Put the tail, the items `more` and small (or all) segments into one new segment, and replace the journal.

    The new journal decides: before it is in place nothing has changed, after it everything.
    """
    fresh = [Part(segment) for segment in more]
    if snapshot.tail:
        fresh.append(Part(snapshot.tail_segment()))
    sealed = [part for part in snapshot.sealed if part.count]
    kept = 0 if everything else _unmerged(sealed, sum(part.count for part in fresh))
    _check(folder, sealed[kept:])
    chosen = [*sealed[kept:], *fresh]
    path = folder / f"segment-{snapshot.next_file:06d}.seg"
    folded = replace(snapshot, sealed=tuple(sealed[:kept]), tail={}, next_file=snapshot.next_file + 1)
    try:
        if chosen:
            checksum = write_arrays(path, _merged(chosen))
            part = map_part(path, checksum, snapshot.bits)
            add_tables([part], snapshot.bits)
            folded = replace(folded, sealed=(*folded.sealed, part))
        journal = Journal.replace(folder / JOURNAL, folded.records())
    except BaseException:
        if not _names(folder, path):
            _delete(path)
            _delete(path.with_suffix(SUFFIX))
        raise
    return journal, folded


def add_tables(parts: Sequence[Part], bits: int) -> None:
    """Write the tables of those of these mapped parts that are large and have no sound ones, where tables pay."""
    for part in parts:
        large = LARGE <= len(part.segment) < GROUPED
        if large and part.beside is not None and part.beside.tables() is None:
            from centerhash.search.engines import multi_index, scan, tabling  # numba takes a while to import

            codes = np.asarray(part.segment.codes)
            tables = tabling.build(codes, bits)
            if multi_index.pays(tables, scan.words(codes, bits), bits):
                part.beside.write(tables)


def _check(folder: Path, parts: Sequence[Part]) -> None:
    """Raise DataError where a segment that is to be merged is damaged: its copy would have checksums that match."""
    for part in parts:
        reason = damage(folder / part.file, part.checksum)
        if reason is not None:
            raise DataError(reason)


def _unmerged(sealed: Sequence[Part], rows: int) -> int:
    """How many of the first segments stay when `rows` new items come: each is then much larger than the next."""
    kept = len(sealed)
    while rows and kept and sealed[kept - 1].count <= min(2 * rows, MERGED_ROWS - rows):
        kept -= 1
        rows += sealed[kept].count
    return kept


def _merged(parts: Sequence[Part]) -> Mapping[str, Array | Column]:
    if len(parts) == 1 and parts[0].alive is None:
        return parts[0].segment.arrays()
    return merge([(part.segment, part.rows()) for part in parts])


def _names(folder: Path, segment: Path) -> bool:
    """Whether the journal in the folder names the segment."""
    with suppress(DataError):
        return any(file == segment.name for file, _ in _head(folder)[0].segments)
    return True  # it cannot be read: better a file too many


def _head(folder: Path) -> tuple[Head, lengths.Noted | None]:
    """What the journal says, all of it read and checked, and what is noted of its length."""
    journal = Journal.open(folder / JOURNAL, writable=False)
    try:
        return read_head(journal.path, journal.read()), journal.noted()
    finally:
        journal.close()


def drop_replaced(folder: Path, before: Snapshot, after: Snapshot) -> None:
    """Delete the segments that only `before` had; who has them mapped still reads them."""
    for file in {part.file for part in before.sealed} - {part.file for part in after.sealed}:
        _delete(folder / file)
        _delete((folder / file).with_suffix(SUFFIX))


def problems(folder: Path) -> list[str]:
    """Read every byte of an index and say which files are damaged, and how; an empty list when it is sound."""
    for _ in range(ATTEMPTS):
        try:
            head, noted = _head(folder)
        except DataError as error:
            return [str(error)]
        found = list(_damages(folder, head, noted))
        if not found or head == _head(folder)[0]:
            break  # else a writer replaced segments meanwhile
    return found


def _damages(folder: Path, head: Head, noted: lengths.Noted | None) -> Iterator[str]:
    if noted is None and head.format != UNNOTED:
        yield (
            f"'{folder / lengths.NAME}' is damaged: it does not say how long the journal is. Next: open the index for "
            "writing, as `centerhash index compact` does, which notes it again."
        )
    for file, checksum in head.segments:
        reason = damage(folder / file, checksum)
        if reason is None:
            segment = map_part(folder / file, checksum, head.bits)
            reason = None if segment.beside is None else segment.beside.problem()
        if reason is not None:
            yield reason
