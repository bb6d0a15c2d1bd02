"""Unpacking archives of strangers: no member may leave the folder, and a kill leaves nothing half."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Self, cast

from centerhash.core.errors import DataError, OutputError
from centerhash.core.files import make_folder
from centerhash.core.progress import Progress, silent
from centerhash.data.textfiles import leads_out

_BLOCK = 2**20
_MEGABYTE = 10**6
# No data set shrinks a hundredfold; small archives of text may.
_LARGEST_RATIO, _ALWAYS_ALLOWED = 100, 2**30
_MOST_MEMBERS = 2_000_000  # each takes a kilobyte of memory
# members that say something about the next one: pax headers, long names and links
_FACTS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_LONGEST_FACTS = 2**20


@dataclass(frozen=True)
class Member:
    """One file or folder of an archive: its path, its declared size, and how to open it (None for a folder)."""

    name: str
    size: int
    open: Callable[[], IO[bytes]] | None


def unpack(archive: Path, folder: Path, *, most_bytes: int | None = None, progress: Progress = silent) -> int:
    """Unpack a .zip, .tar or .tar.gz into `folder` and return the number of files.

    Everything is written into a temporary folder beside and moved when it is whole. Refused are members that lead
    out of the folder, links, devices, and archives that announce more than `most_bytes` (by default a hundred times
    their own size, and 1 GiB in any case).
    """
    usual = max(_ALWAYS_ALLOWED, _LARGEST_RATIO * archive.stat().st_size)
    limit = usual if most_bytes is None else most_bytes
    temporary = make_folder(folder) / f".unpacking-{archive.name}"
    with explained(archive, folder), open_archive(archive, limit) as members:
        total = sum(member.size for member in members)
        check_space(folder, total)
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # what a kill has left behind
            temporary.mkdir()
            count = write_all(members, temporary, in_megabytes(progress, f"unpack {archive.name}", total))
            _move(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return count


def check_space(folder: Path, needed: int) -> None:
    """Refuse to start what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"'{folder}' needs {needed / 1e9:.2f} GB, but its disk has {free / 1e9:.2f} GB left: free some space or "
            "choose another folder. What was downloaded is kept."
        )


@contextmanager
def explained(archive: Path, folder: Path) -> Iterator[None]:
    """Say what is wrong with the archive or the disk."""
    try:
        yield
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError) as error:
        raise DataError(f"'{archive}' is damaged ({error}): delete it and download it again.") from error
    except OSError as error:
        raise OutputError(f"cannot unpack '{archive}' into '{folder}': {error.strerror or error}.") from error


@contextmanager
def open_archive(archive: Path, limit: int) -> Iterator[list[Member]]:
    """Open an archive and yield its members, all of them safe to write and together of `limit` bytes at most."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield _limited((_zip_member(zipped, entry) for entry in zipped.infolist()), limit, archive)
    else:
        try:
            tarred = tarfile.open(archive, tarinfo=_TarInfo)  # noqa: SIM115
        except tarfile.TarError:
            raise DataError(
                f"'{archive}' is neither a .zip nor a .tar: delete it and download it again."
            ) from None
        with tarred:
            yield _limited((_tar_member(tarred, entry) for entry in tarred), limit, archive)


class _TarInfo(tarfile.TarInfo):
    """A member of a tar, whose long name or other facts of any length tarfile would read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _FACTS and member.size > _LONGEST_FACTS:
            raise DataError(
                f"the archive holds a header of {member.size:,} bytes, more than the limit of {_LONGEST_FACTS:,}: it is "
                "damaged or a trap, and was not unpacked. Download it again."
            )
        return member


def _limited(members: Iterable[Member], limit: int, archive: Path) -> list[Member]:
    """Collect the members, and stop at the first that takes too much: before anything of it is decompressed."""
    collected: list[Member] = []
    total = 0
    for member in members:
        total += member.size
        if len(collected) == _MOST_MEMBERS:
            raise DataError(
                f"'{archive}' holds more than {_MOST_MEMBERS:,} files: it is damaged or a trap, and was not unpacked."
            )
        if total > limit:
            raise DataError(
                f"'{archive}' announces {total:,} bytes and more, but an archive of its size may hold {limit:,}: "
                "it is damaged or a trap, and was not unpacked."
            )
        collected.append(member)
    return collected


def _zip_member(zipped: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    _check(entry.filename, "" if kind in (0, stat.S_IFREG, stat.S_IFDIR) else "a link or a device")
    if entry.flag_bits & 0x1:
        raise DataError(f"'{entry.filename}' in the archive is encrypted: not a published data set.")
    return Member(entry.filename, entry.file_size, None if entry.is_dir() else lambda: zipped.open(entry))


def _tar_member(tarred: tarfile.TarFile, entry: tarfile.TarInfo) -> Member:
    _check(entry.name, "" if entry.isreg() or entry.isdir() else "a link or a device")
    opened = partial(tarred.extractfile, entry)  # gives a stream, since it is a regular file
    return Member(entry.name, entry.size, None if entry.isdir() else cast(Callable[[], IO[bytes]], opened))


def _check(name: str, odd: str) -> None:
    if leads_out(name):
        raise DataError(f"the archive holds '{name}', which leads out of the folder: it was not unpacked.")
    if odd:
        raise DataError(f"the archive holds '{name}', which is {odd}, not a file: it was not unpacked.")


def in_megabytes(progress: Progress, stage: str, total: int) -> Callable[[int], None]:
    """A callback for the bytes done of `total`, that tells whole megabytes of `stage`."""
    return lambda done: progress(stage, done // _MEGABYTE, max(total // _MEGABYTE, 1), "MB")


def write_all(members: list[Member], folder: Path, tell: Callable[[int], None]) -> int:
    """Write the members below an empty folder that only this process knows."""
    written, count = 0, 0
    for member in members:
        target = folder / PurePosixPath(member.name)
        if member.open is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as source, target.open("wb") as stream:
            size = _copy(source, stream, member)
        written, count = written + size, count + 1
        tell(written)
    return count


def _copy(source: IO[bytes], stream: IO[bytes], member: Member) -> int:
    """Copy a member, and stop as soon as it is longer than it said."""
    size = 0
    while block := source.read(_BLOCK):
        size += len(block)
        if size > member.size:
            break
        stream.write(block)
    if size != member.size:
        raise DataError(f"'{member.name}' in the archive is not of the {member.size:,} bytes it announces.")
    return size


def _move(source: Path, target: Path) -> None:
    """Move everything in `source` into `target`, joining folders and replacing files that are there."""
    for entry in source.iterdir():
        place = target / entry.name
        if entry.is_dir() and place.is_dir():
            _move(entry, place)
        else:
            entry.replace(place)
