"""Move files to a folder with a journal, and move them back: no file is overwritten or lost, whenever a process ends.

The journal, `moved.jsonl` in that folder, gets a line with every file of a photo before any of them moves, and a line
after the last. A move that a crash interrupted is finished by the next call, because `transfer` may be repeated at any
point. Paths in the folder are stored relative to it, so that it may be renamed or mounted elsewhere.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from centerhash.core.errors import ConfigError, DataError, OutputError
from centerhash.core.files import WriterLock, explain_write_errors, make_folder, sync_folder
from centerhash.core.progress import Progress, silent
from centerhash.data.images import is_picture_name
from centerhash.data.listing import kind_of

if TYPE_CHECKING:
    from centerhash.search.index import Index

JOURNAL = "moved.jsonl"
SIDECARS = (".xmp", ".aae")  # edits that other programs store next to a photo
_LOCK = "moved.lock"
_BUSY = "files are being moved to or from '{folder}' by process {holder}: wait until it has ended."
_PART = ".centerhash-part"  # end of the name of a copy that is not complete
_PIECE = 1 << 20
# a file system without hard links, or another one than that of the source
_NO_LINK = {
    errno.EXDEV,
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
}


@dataclass(frozen=True)
class Wanted:
    """A file to move: the bytes and modification time it had when it was compared, and the file that is kept instead."""

    path: Path
    bytes: int
    modified: int  # nanoseconds since 1970
    keep: Path
    id: str | None = None  # in an index


@dataclass(frozen=True)
class Planned:
    """A photo and its sidecar files, each with its new path."""

    wanted: Wanted
    files: tuple[tuple[Path, Path], ...]


@dataclass(frozen=True)
class Entry:
    """One photo of the journal: its files, old path and new path, and how far the move has come."""

    number: int
    batch: str
    files: tuple[tuple[Path, Path], ...]
    index: str | None = None
    id: str | None = None
    done: bool = False
    undone: bool = False


@dataclass
class Moved:
    """What became of a list of moves: how many photos and other files were moved, and why others were not."""

    photos: int = 0
    sidecars: int = 0
    batch: str = ""
    skipped: dict[str, str] = field(default_factory=dict)

    def count(self, files: Sequence[object]) -> None:
        """Add a photo and its sidecar files."""
        self.photos += 1
        self.sidecars += len(files) - 1


# --- one file


def transfer(source: Path, target: Path) -> None:
    """Move a file durably, without replacing any; after a crash the same call finishes the move.

    The source is removed only when the target is complete on the disk.
    """
    with explain_write_errors(target):
        if not os.path.lexists(source) and os.path.lexists(target):
            return  # moved before the crash
        if source.is_symlink() or not source.is_file():
            raise OutputError(f"cannot move '{source}': it is gone, or no regular file.")
        if os.path.lexists(target):
            if target.is_symlink() or not _equal(source, target):
                raise OutputError(
                    f"cannot move '{source}': '{target}' is another file, and is not replaced. Move that one away first."
                )
        else:
            make_folder(target.parent)
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                _copy(source, target)
            sync_folder(target.parent)
        source.unlink()
        sync_folder(source.parent)


def _equal(first: Path, second: Path) -> bool:
    """Whether two files are one, or have equal bytes."""
    if first.samefile(second):
        return True
    return first.stat().st_size == second.stat().st_size and _digest(first) == _digest(second)


def _digest(path: Path) -> bytes:
    with path.open("rb") as stream:
        if hasattr(os, "posix_fadvise"):  # what was just written is read from the disk, not from memory
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.file_digest(stream, "sha256").digest()


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its times to a new name, and compare the copy, before it gets its name."""
    part = target.with_name(f".{target.name}{_PART}")
    part.unlink(missing_ok=True)  # of a copy that a crash interrupted
    before, hashed = source.stat(), hashlib.sha256()
    with source.open("rb") as reading, part.open("xb") as writing:
        while piece := reading.read(_PIECE):
            hashed.update(piece)
            writing.write(piece)
        writing.flush()
        shutil.copystat(source, part)
        os.fsync(writing.fileno())
    after = source.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        part.unlink()
        raise OutputError(f"cannot move '{source}': it changed while it was copied. Run the command again.")
    if _digest(part) != hashed.digest():
        part.unlink()
        raise OutputError(f"cannot move '{source}': its copy in '{target.parent}' differs. Check that disk.")
    try:
        os.link(part, target)
        part.unlink()
    except OSError as error:
        if error.errno not in _NO_LINK or os.path.lexists(target):
            raise
        part.rename(target)


# --- the plan


def plan_moves(wanted: Sequence[Wanted], folder: Path, root: Path) -> tuple[list[Planned], dict[str, str]]:
    """Return where photos would go, with their paths relative to `root` kept, and why others stay where they are."""
    check_folder(folder, root)
    taken: set[str] = set()
    planned: list[Planned] = []
    skipped: dict[str, str] = {}
    leaving = {one.path.parent.resolve() / one.path.name for one in wanted}
    for one in wanted:
        reason = _refusal(one, root)
        if reason is not None:
            skipped[str(one.path)] = f"not moved: '{one.path}' {reason}"
            continue
        home = folder / os.path.relpath(one.path.parent.resolve(), root.resolve())
        if not home.resolve().is_relative_to(folder.resolve()):
            skipped[str(one.path)] = f"not moved: '{home}' leads out of '{folder}' by a link."
            continue
        photo = one.path.parent.resolve() / one.path.name
        files = _free_names([photo, *sidecars_of(photo, leaving)], home, taken)
        planned.append(Planned(one, files))
    return planned, skipped


def check_folder(folder: Path, root: Path) -> None:
    """Raise ConfigError if files must not be moved to a folder."""
    place = folder.resolve()
    if root.resolve().is_relative_to(place):
        raise ConfigError(
            f"'{folder}' holds the photos themselves: name another folder to move duplicates to."
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"'{folder}' is a file: name a folder to move duplicates to.")
    own = {_LOCK, f"{_LOCK}.pid"}  # of a process that was killed before its first move
    if folder.is_dir() and not (folder / JOURNAL).exists() and {one.name for one in folder.iterdir()} - own:
        raise ConfigError(
            f"'{folder}' is not empty and has no journal ({JOURNAL}): name a new or empty folder. Images in a "
            "folder of moved files are no longer compared."
        )


def _refusal(one: Wanted, root: Path) -> str | None:
    """Why a file must not be moved, as the end of a sentence; None if it may."""
    try:
        if one.path.is_symlink():
            return "is a link."
        if not one.path.parent.resolve().is_relative_to(root.resolve()):
            return f"is outside of '{root}'."
        found = one.path.stat()
        if (found.st_size, found.st_mtime_ns) != (one.bytes, one.modified):
            return "has changed since it was compared."
        if one.keep.samefile(one.path):
            return f"is the same file as '{one.keep}'."
    except OSError:
        return f"or the photo to keep, '{one.keep}', is gone."
    return None


def sidecars_of(photo: Path, leaving: set[Path]) -> list[Path]:
    """Return the sidecar files of a photo: photo.jpg.xmp; and photo.xmp unless another photo of that stem stays."""
    own, shared, stays = [], [], False
    for entry in sorted(photo.parent.iterdir()):
        if entry.suffix.lower() in SIDECARS and entry.is_file() and not entry.is_symlink():
            if entry.stem == photo.name:
                own.append(entry)
            elif entry.stem == photo.stem:
                shared.append(entry)
        elif entry.stem == photo.stem and entry not in leaving:
            stays |= is_picture_name(entry.name) or kind_of(entry.name) == "raw images"
    return own if stays else own + shared


def _free_names(files: Sequence[Path], home: Path, taken: set[str]) -> tuple[tuple[Path, Path], ...]:
    """Return the files with new paths in `home` that no file has, all numbered alike if one is taken."""
    photo = files[0]
    number = 0
    while True:
        mark = f"-{number}" if number else ""
        stem = f"{photo.stem}{mark}"
        # "photo.jpg.xmp" belongs to "photo.jpg", "photo.xmp" to its stem
        targets = [home / f"{stem}{file.name.removeprefix(photo.stem)}" for file in files]
        names = {os.path.normcase(target) for target in targets}
        if not names & taken and not any(map(os.path.lexists, targets)):
            taken |= names
            return tuple(zip(files, targets, strict=True))
        number += 1


# --- the journal


class Journal:
    """The journal of a folder of moved files, held by one process."""

    def __init__(self, folder: Path, lock: WriterLock, stream: IO[bytes], entries: list[Entry]) -> None:
        self.folder, self.entries = folder, entries
        self._lock, self._stream = lock, stream

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the journal of a folder, which is created if it is missing."""
        make_folder(folder)
        lock = WriterLock.take(folder / _LOCK, _BUSY)
        try:
            path = folder / JOURNAL
            if path.is_symlink():
                raise DataError(
                    f"'{path}' is a link, which is not followed: put the file itself in its place."
                )
            with explain_write_errors(path):
                stream = path.open("a+b")
                sync_folder(folder)
            try:
                entries = _read(folder, stream)
            except BaseException:
                stream.close()
                raise
        except BaseException:
            lock.release(delete=True)
            raise
        return cls(folder, lock, stream, entries)

    def close(self) -> None:
        """Let other processes move files."""
        self._stream.close()
        self._lock.release(delete=True)

    def append(self, line: dict[str, Any]) -> None:
        """Write a line, and return when it is on the disk."""
        with explain_write_errors(self.folder / JOURNAL):
            self._stream.write(json.dumps(line).encode() + b"\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def begin(self, planned: Planned, batch: str, index: str | None) -> Entry:
        """Write down a photo that is about to be moved."""
        entry = Entry(len(self.entries), batch, planned.files, index, planned.wanted.id)
        files = [[str(old), os.path.relpath(new, self.folder)] for old, new in planned.files]
        line: dict[str, Any] = {"move": entry.number, "batch": batch, "files": files}
        line["keep"] = str(planned.wanted.keep.absolute())
        self.append(line | ({} if index is None else {"index": index, "id": entry.id}))
        self.entries.append(entry)
        return entry


@contextmanager
def opened(folder: Path) -> Iterator[Journal]:
    """Open a journal while the block runs."""
    with closing(Journal.open(folder)) as journal:
        yield journal


def find_journal(path: Path) -> Path:
    """Return the folder of a journal, which is named itself or by its folder; ConfigError if there is none."""
    folder = path.parent if path.name == JOURNAL else path
    if not (folder / JOURNAL).is_file():
        raise ConfigError(f"'{path}' has no journal ({JOURNAL}): name the folder that files were moved to.")
    return folder


def _read(folder: Path, stream: IO[bytes]) -> list[Entry]:
    """Return the entries of a journal; a last line that a crash cut off is removed, since nothing followed it."""
    stream.seek(0)
    text = stream.read()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        stream.truncate(whole)
        os.fsync(stream.fileno())
    return _parsed(folder, text[:whole])


def _parsed(folder: Path, text: bytes) -> list[Entry]:
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            _apply(entries, json.loads(line), folder)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise DataError(f"'{folder / JOURNAL}' is damaged in line {number}: {error!r}.") from None
    return entries


def _apply(entries: list[Entry], line: dict[str, Any], folder: Path) -> None:
    """Take one line of the journal into account."""
    if "move" in line:
        if line["move"] != len(entries):
            raise ValueError("a line is missing")
        files = tuple((Path(old), folder / new) for old, new in line["files"])
        if not files or any(
            not old.is_absolute() or not Path(os.path.normpath(new)).is_relative_to(os.path.normpath(folder))
            for old, new in files
        ):
            raise ValueError("a path leads out of the folder")
        entries.append(Entry(line["move"], line["batch"], files, line.get("index"), line.get("id")))
        return
    ((word, number),) = line.items()
    before = entries[number]
    entries[number] = Entry(
        before.number,
        before.batch,
        before.files,
        before.index,
        before.id,
        done=before.done or word == "done",
        undone=before.undone or word == "undone",
    )


# --- moving and moving back


class _Indexes:
    """The indexes that learn of the new paths of their images: the one that is open already, others when needed."""

    def __init__(self, known: Index | None) -> None:
        self._known = {} if known is None else {index_name(known): known}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def relocate(self, entry: Entry, *, back: bool) -> None:
        """Store the new path of a photo that was moved, or moved back."""
        from centerhash.search.index import Index, is_index

        if entry.index is None or entry.id is None:
            return
        if entry.index not in self._known:
            if not is_index(Path(entry.index)):
                return  # it was deleted
            self._known[entry.index] = self._open.enter_context(Index.open(entry.index))
        old, new = entry.files[0]
        source, target = (new, old) if back else (old, new)
        self._known[entry.index].relocate(entry.id, source, target)


def index_name(index: Index) -> str:
    """Return the name of an index in a journal."""
    return str(index.folder.resolve())


def move(
    planned: Sequence[Planned], folder: Path, *, index: Index | None = None, progress: Progress = silent
) -> Moved:
    """Move photos with their sidecar files; moves that a crash interrupted are finished first.

    The `index` whose images they are, open for writing, gets their new paths.
    """
    result = Moved(batch=datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f"))
    name = None if index is None else index_name(index)
    if not planned and not (folder / JOURNAL).exists():
        return result
    with opened(folder) as journal, _Indexes(index) as indexes:
        for entry in [one for one in journal.entries if not one.done and not one.undone]:
            _carry_out(journal, entry, indexes)
        for done, one in enumerate(planned, 1):
            reason = _refusal(one.wanted, one.wanted.path.parent)  # something may have changed meanwhile
            if reason is not None:
                result.skipped[str(one.wanted.path)] = f"not moved: '{one.wanted.path}' {reason}"
            else:
                _carry_out(journal, journal.begin(one, result.batch, name), indexes)
                result.count(one.files)
            progress("moved", done, len(planned))
    return result


def _carry_out(journal: Journal, entry: Entry, indexes: _Indexes) -> None:
    for old, new in entry.files:
        if os.path.lexists(old) or os.path.lexists(new):  # else somebody else has moved it
            transfer(old, new)
    indexes.relocate(entry, back=False)
    journal.append({"done": entry.number})


def undo(
    folder: Path, *, batch: str | None = None, index: Index | None = None, progress: Progress = silent
) -> Moved:
    """Move photos back to their old paths, the last one first; of one batch only if it is named.

    A photo whose old path is taken, or that is no longer in the folder, stays and is reported.
    """
    result = Moved(batch=batch or "")
    with opened(folder) as journal, _Indexes(index) as indexes:
        left = [one for one in journal.entries if not one.undone and batch in (None, one.batch)]
        for done, entry in enumerate(reversed(left), 1):
            reasons = [reason for old, new in entry.files if (reason := _back(old, new, folder)) is not None]
            if reasons:
                result.skipped[str(entry.files[0][0])] = " ".join(reasons)
            else:
                indexes.relocate(entry, back=True)
                journal.append({"undone": entry.number})
                result.count(entry.files)
            progress("moved", done, len(left))
    return result


def _back(old: Path, new: Path, folder: Path) -> str | None:
    """Move one file back; return why it cannot be."""
    if not os.path.lexists(new) and not os.path.lexists(old):
        return f"'{new}' is gone."
    if not new.parent.resolve().is_relative_to(folder.resolve()):
        return f"'{new}' leads out of '{folder}' by a link."
    try:
        transfer(new, old)
    except OutputError as error:
        return str(error)
    return None


def last_batch(folder: Path) -> str | None:
    """Return the last batch of a folder that was not moved back; None if there is none."""
    return next((entry.batch for entry in reversed(_entries(folder)) if not entry.undone), None)


def last_moved(folder: Path) -> int:
    """Return how many photos of the last batch can be moved back."""
    entries, batch = _entries(folder), last_batch(folder)
    return sum(entry.batch == batch and not entry.undone for entry in entries)


def _entries(folder: Path) -> list[Entry]:
    """Read a journal without changing it; a last line that is being written does not count."""
    try:
        text = (folder / JOURNAL).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    return _parsed(folder, text[: text.rfind(b"\n") + 1])
