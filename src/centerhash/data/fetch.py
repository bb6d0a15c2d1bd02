"""Download files over HTTP so that a later call resumes, and unpack archives from untrusted sources."""

from __future__ import annotations

import hashlib
import http.client
import re
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from centerhash.core.errors import ConfigError, DataError, OutputError
from centerhash.core.files import explain_write_errors, make_folder, parse_json, write_json
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__
from centerhash.data.layouts.contents import leads_out

TRIES = 6  # in a row without a single new byte
# seconds, of the tries until the server has answered once: there may be no internet
FIRST_TIMEOUTS = (5.0, 10.0)
_BLOCK = 2**20
_TIMEOUT = 60.0  # seconds without a byte
_LONGEST_WAIT = 60.0
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # the same request may work later
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")

# No dataset shrinks a hundredfold; small archives of text may.
_LARGEST_RATIO, _ALWAYS_ALLOWED = 100, 2**30
_MOST_MEMBERS = 2_000_000  # each takes a kilobyte of memory
# tar members that describe the next one: pax headers, long names and links
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_LONGEST_EXTENDED = 2**20


class NotFoundError(DataError):
    """The server has no such file."""


class _NoAnswerError(Exception):
    """The server could not be reached, or did not answer."""


@dataclass(frozen=True)
class _Note:
    """What the server reported about a file of which a part is there; kept next to the part."""

    url: str
    total: int | None
    validator: str | None  # a strong ETag, or the date of the last change


def download(
    url: str,
    target: Path,
    *,
    size: int | None = None,
    md5: str | None = None,
    progress: Progress = silent,
) -> Path:
    """Download `url` to `target`, which exists only once it is complete and verified, and return it.

    Bytes go to `target.part`; a later call requests only the rest, and starts again if the file has changed on the
    server. Cut connections are retried, with growing pauses, until TRIES in a row have brought no new byte. A server that
    has not answered at all is tried only as often as there are FIRST_TIMEOUTS.

    A file is verified by its `size` in bytes and its `md5`, as far as they are given; one that is there already is
    verified and kept. `progress` receives the file name, and megabytes done and in all.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ConfigError(f"cannot download '{url}': give an address such as https://example.org/a.zip.")
    if target.is_file():  # from an earlier call, or put there by hand
        wrong = _difference(target, size, md5)
        if wrong:
            raise DataError(f"'{target}' {wrong}: delete it and run the same command again.")
        return target
    if target.is_dir():
        raise OutputError(f"cannot write '{target}': a folder of that name is in the way. Move it away.")
    make_folder(target.parent)
    part = _part(target)
    failed, answered = 0, False
    while True:
        before = _length(part)
        timeout = _TIMEOUT if answered else FIRST_TIMEOUTS[failed]
        try:
            # the rest can be glued to a part only if the server compares its validator, or we a checksum
            if _download_rest(url, target, md5 is not None, timeout, progress):
                break
            answered, reason = True, "the connection was cut"
        except _NoAnswerError as error:
            reason = str(error)
            if not answered and failed + 1 == len(FIRST_TIMEOUTS):
                raise DataError(
                    f"'{urlsplit(url).netloc}' cannot be reached ({reason}): check the internet connection, or "
                    "give another address by `mirror=`."
                ) from error
        except urllib.error.HTTPError as error:
            answered = True
            error.close()  # it is the open response itself
            if error.code in (404, 410):
                raise NotFoundError(f"'{url}' is not there (HTTP {error.code}).") from error
            if error.code not in _PASSING:
                raise DataError(f"'{url}' answers HTTP {error.code} ({error.reason}).") from error
            reason = f"HTTP {error.code}"
        except (http.client.HTTPException, OSError) as error:
            answered, reason = True, _reason(error)
        failed = 0 if _length(part) > before else failed + 1
        if failed >= TRIES:
            raise DataError(
                f"'{url}' could not be downloaded ({reason}) in {TRIES} tries. {_length(part):,} bytes are kept: the "
                "same call resumes from there."
            )
        time.sleep(min(_LONGEST_WAIT, 2.0**failed))
    wrong = _difference(part, size, md5)
    if wrong:
        part.unlink()
        raise DataError(f"'{url}' {wrong}. It was deleted: download it again, or from another address.")
    with explain_write_errors(target):
        part.replace(target)
    _note(target).unlink(missing_ok=True)
    return target


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error or type(error).__name__)


def _difference(path: Path, size: int | None, md5: str | None) -> str:
    """Describe how a file differs from what is expected; empty if it does not."""
    found = path.stat().st_size
    if size is not None and found != size:
        return f"has {found:,} bytes instead of {size:,}"
    if md5 is None:
        return ""
    with path.open("rb") as stream:
        computed = hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    return "" if computed == md5 else f"has the md5 checksum {computed} instead of {md5}"


def downloaded(target: Path, size: int) -> int:
    """Return how many of the `size` bytes of a file are there, complete or in part."""
    return min(size, _length(target) + _length(_part(target)))


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _note(target: Path) -> Path:
    return target.with_name(f"{target.name}.part.json")


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _download_rest(url: str, target: Path, has_checksum: bool, timeout: float, progress: Progress) -> bool:
    """Make one request, for the rest if a part is there; return whether all bytes are there now."""
    part, note = _part(target), None
    with suppress(OSError, ValueError, TypeError):  # without a whole note the part is worth nothing
        note = _Note(**parse_json(_note(target).read_text(encoding="utf-8")))
    start = _length(part)
    if start and (note is None or note.url != url or not (note.validator or has_checksum)):
        part.unlink()
        start = 0
    if start and note is not None and note.total == start:
        return True
    request = urllib.request.Request(url, headers={"User-Agent": f"centerhash/{__version__}"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        if note is not None and note.validator:
            request.add_header("If-Range", note.validator)
    try:
        # `download` has checked that it is an address of the web
        response = urllib.request.urlopen(request, timeout=timeout)  # nosec B310
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        part.unlink(missing_ok=True)  # the server has nothing after our bytes: not the file it was
        return False
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise _NoAnswerError(_reason(error)) from error
    with response:
        etag, changed = response.headers.get("ETag"), response.headers.get("Last-Modified")
        strong = etag is not None and not etag.startswith("W/")
        found = _Note(url, _announced(response, start), etag if strong else changed)
        if response.status != 206:
            start = 0
        elif start and note is not None:
            pairs = ((note.validator, found.validator), (note.total, found.total))
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                part.unlink()  # a server that ignores If-Range: request all of the new file
                return False
        return _save(response, found, start, target, progress)


def _announced(response: http.client.HTTPResponse, start: int) -> int | None:
    """Return the bytes of the whole file, if a response states them; a partial one must begin at `start`.

    A partial response may hold less than was requested, so its own length says nothing of the whole.
    """
    if response.status != 206:
        length = response.headers.get("Content-Length")
        return int(length) if length is not None and length.isdecimal() else None
    stated = response.headers.get("Content-Range", "")
    found = _CONTENT_RANGE.fullmatch(stated.strip())
    if found is None or int(found[1]) != start:
        raise DataError(
            f"'{response.url}' answers '{stated}' to a request for bytes from {start}. Try a mirror."
        )
    return None if found[3] == "*" else int(found[3])


def _save(
    response: http.client.HTTPResponse, found: _Note, start: int, target: Path, progress: Progress
) -> bool:
    """Write a response after the first `start` bytes of the part; return whether all bytes are there."""
    if start == 0:
        write_json(_note(target), asdict(found))
    check_space(target.parent, (found.total or start) - start)
    done, part = start, _part(target)
    with explain_write_errors(part):
        stream = part.open("ab" if start else "wb")
    with stream:
        while block := response.read(_BLOCK):
            done += len(block)
            with explain_write_errors(part):  # a full disk must not look like a cut connection
                stream.write(block)
                stream.flush()
            _report(progress, target.name, done, found.total or done)
    return found.total is None or done >= found.total


def check_space(folder: Path, needed: int) -> None:
    """Raise OutputError if the disk cannot hold what is about to be written."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"'{folder}' needs {needed / 1e9:.2f} GB, but its disk has {free / 1e9:.2f} GB left: free some space or "
            "choose another folder. Downloaded files are kept."
        )


def _report(progress: Progress, stage: str, done: int, total: int) -> None:
    progress(stage, done // 10**6, max(total // 10**6, 1), "MB")


# ---------------------------------------------------------------- archives


@dataclass(frozen=True)
class Member:
    """One file or folder of an archive: its path, its size, and a function that extracts it below a folder."""

    name: str
    size: int
    is_folder: bool
    extract: Callable[[Path], object]


def unpack(archive: Path, folder: Path, *, progress: Progress = silent) -> int:
    """Unpack a .zip, .tar or .tar.gz into `folder` and return the number of files.

    Everything is written into a temporary folder next to the target and moved once it is complete. Rejected are
    members that lead out of the folder, links, devices, and archives that announce more than a hundred times their own
    size and 1 GiB.
    """
    limit = max(_ALWAYS_ALLOWED, _LARGEST_RATIO * archive.stat().st_size)
    temporary = make_folder(folder) / f".unpacking-{archive.name}"
    with open_archive(archive, folder, limit) as members:
        total, written = sum(member.size for member in members), 0
        check_space(folder, total)
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # what a crash has left behind
            temporary.mkdir()
            for member in members:
                member.extract(temporary)
                written += member.size
                _report(progress, f"unpack {archive.name}", written, total)
            _move(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return sum(not member.is_folder for member in members)


@contextmanager
def open_archive(archive: Path, folder: Path, limit: int) -> Iterator[list[Member]]:
    """Open an archive and yield its members, all of them safe to extract and together of `limit` bytes at most.

    What goes wrong with the archive in the block becomes a DataError, what goes wrong in `folder` an OutputError.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                yield _limited((_zip_member(zipped, entry) for entry in zipped.infolist()), limit, archive)
            return
        try:
            tarred = tarfile.open(archive, tarinfo=_TarInfo)  # noqa: SIM115
        except tarfile.TarError:
            raise DataError(
                f"'{archive}' is neither .zip nor .tar: delete it and download it again."
            ) from None
        with tarred:
            # filter="data" of Python 3.11.4: no owners, special modes or paths out of the folder
            tarred.extraction_filter = getattr(tarfile, "data_filter", None)
            yield _limited((_tar_member(tarred, entry) for entry in tarred), limit, archive)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError) as error:
        raise DataError(f"'{archive}' is damaged ({error}): delete it and download it again.") from error
    except OSError as error:
        raise OutputError(f"cannot unpack '{archive}' into '{folder}': {error.strerror or error}.") from error


class _TarInfo(tarfile.TarInfo):
    """A member of a tar, whose long name or other facts of any length tarfile would read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED and member.size > _LONGEST_EXTENDED:
            raise DataError(
                f"the archive holds a header of {member.size:,} bytes, more than the limit of {_LONGEST_EXTENDED:,}: it "
                "is damaged or a trap, and was not unpacked. Download it again."
            )
        return member


def _limited(members: Iterable[Member], limit: int, archive: Path) -> list[Member]:
    """Collect the members, and stop at the first that exceeds a limit, before anything of it is decompressed."""
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
    _check_member(entry.filename, plain=kind in (0, stat.S_IFREG, stat.S_IFDIR))
    if entry.flag_bits & 0x1:
        raise DataError(f"'{entry.filename}' in the archive is encrypted: not a published dataset.")
    return Member(entry.filename, entry.file_size, entry.is_dir(), partial(zipped.extract, entry))


def _tar_member(tarred: tarfile.TarFile, entry: tarfile.TarInfo) -> Member:
    _check_member(entry.name, plain=entry.isreg() or entry.isdir())
    return Member(entry.name, entry.size, entry.isdir(), partial(tarred.extract, entry))


def _check_member(name: str, plain: bool) -> None:
    """Reject what the libraries would silently rename or extract: paths out of the folder, and links within it."""
    problem = (
        "leads out of the folder" if leads_out(name) else "" if plain else "is a link or a device, not a file"
    )
    if problem:
        raise DataError(f"the archive holds '{name}', which {problem}: it was not unpacked.")


def _move(source: Path, target: Path) -> None:
    """Move everything in `source` into `target`, joining folders and replacing files that are there."""
    for entry in source.iterdir():
        place = target / entry.name
        if entry.is_dir() and place.is_dir():
            _move(entry, place)
        else:
            entry.replace(place)
