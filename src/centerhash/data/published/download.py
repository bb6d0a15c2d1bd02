"""Fetching files over HTTP: in pieces from which a later try resumes, and checked before they count as there."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from centerhash.core.errors import ConfigError, DataError, OutputError
from centerhash.core.files import WriterLock, explain_write_errors, make_folder, write_json
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__
from centerhash.data.published.unpack import check_space, in_megabytes, unpack

_BLOCK = 2**20
_TIMEOUT = 60.0  # seconds without a byte
_TRIES = 6  # in a row without a single new byte
_LONGEST_WAIT = 60.0
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # the same request may work later
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_RECEIPTS = ".unpacked"  # folder with one note per finished archive
# two that write one part would spoil it
_REFUSAL = "process {holder} downloads into '{folder}': wait for it."


@dataclass(frozen=True)
class RemoteFile:
    """An archive of a data set: where it is, what is known of it, and the sub-folder it is unpacked into.

    `size` in bytes and `md5` are None where no trustworthy source states them.
    """

    url: str
    size: int | None = None
    md5: str | None = None
    into: str = "."

    @property
    def name(self) -> str:
        """The file name."""
        return PurePosixPath(urlsplit(self.url).path).name


@dataclass(frozen=True)
class _Piece:
    """What the server said about a file of which a part is there; kept beside the part."""

    url: str
    total: int | None
    validator: str | None  # a strong ETag, or the date of the last change


def download(
    files: Sequence[RemoteFile],
    folder: Path,
    *,
    mirror: str | None = None,
    keep_archives: bool = False,
    progress: Progress = silent,
) -> list[str]:
    """Fetch and unpack archives into `folder`, and return the names of those that were not there yet.

    Finished steps are skipped, so the same call resumes where it stopped. Archives are deleted once unpacked,
    unless `keep_archives`.
    """
    lock = WriterLock.take(make_folder(folder) / ".downloading", _REFUSAL)
    try:
        todo = [file for file in files if not is_unpacked(file, folder)]
        check_space(folder, sum(_still_needed(file, folder) for file in todo))
        for file in todo:
            archive = fetch(file, folder / file.name, mirror=mirror, progress=progress)
            unpack(archive, folder / file.into, progress=progress)
            write_json(_receipt(file, folder), asdict(file))
            if not keep_archives:
                archive.unlink()
    finally:
        lock.release(delete=True)
    return [file.name for file in todo]


def is_unpacked(file: RemoteFile, folder: Path) -> bool:
    """Whether an earlier call has finished this file."""
    return _receipt(file, folder).is_file()


def _receipt(file: RemoteFile, folder: Path) -> Path:
    return folder / _RECEIPTS / f"{file.name}.json"


def _still_needed(file: RemoteFile, folder: Path) -> int:
    """Bytes that a file will take: the rest of the archive and what it holds.

    Pictures do not shrink in archives, so the latter is about the archive's size; `unpack` knows it exactly.
    """
    size, archive = file.size or 0, folder / file.name
    return max(0, size - _length(archive) - _length(_part(archive))) + size


def fetch(
    file: RemoteFile,
    target: Path,
    *,
    mirror: str | None = None,
    progress: Progress = silent,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Fetch one file to `target`, which exists only when it is whole and its checksum is right.

    Bytes go to `target.part`; a later call asks for the rest only, and starts again when the file has changed
    on the server. Cut connections are tried again, with growing pauses, as long as there is progress.
    """
    if target.is_file():  # from an earlier call, or put there by hand
        wrong = _difference(file, target)
        if wrong:
            raise DataError(f"'{target}' {wrong}: delete it and run the same command again.")
        return target
    if target.is_dir():
        raise OutputError(f"cannot write '{target}': a folder of that name is in the way. Move it away.")
    make_folder(target.parent)
    addresses = _addresses(file, mirror)
    while True:
        try:
            _fetch_whole(addresses[0], file, target, progress, sleep)
            break
        except _NotThere as error:
            addresses = addresses[1:]
            if not addresses:
                raise DataError(f"{error} Try another mirror, or look at the home page.") from error
    wrong = _difference(file, _part(target))
    if wrong:
        _part(target).unlink()
        raise DataError(f"'{file.name}' {wrong}. It was deleted: fetch it again, or from another mirror.")
    with explain_write_errors(target):
        _part(target).replace(target)
    _note(target).unlink(missing_ok=True)
    return target


class _NotThere(Exception):
    """The server has no such file."""


def _addresses(file: RemoteFile, mirror: str | None) -> list[str]:
    """Where to look: a mirror may keep the source's folders or only the file."""
    source = file.url if mirror is None else mirror
    if urlsplit(source).scheme not in ("http", "https") or not urlsplit(source).netloc:
        what = "the source of a file" if mirror is None else "a mirror"
        raise ConfigError(f"{what} is an address such as https://example.org/data, got '{source}'.")
    if mirror is None:
        return [file.url]
    base = mirror.rstrip("/")
    return [f"{base}{urlsplit(file.url).path}", f"{base}/{file.name}"]


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _note(target: Path) -> Path:
    return target.with_name(f"{target.name}.part.json")


def _fetch_whole(
    url: str, file: RemoteFile, target: Path, progress: Progress, sleep: Callable[[float], None]
) -> None:
    """Ask again until all bytes are there; give up after several tries without a new one."""
    failed = 0
    while True:
        before = _length(_part(target))
        try:
            if _fetch_some(url, file, target, progress):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                raise _NotThere(f"'{url}' is not there (HTTP {error.code}).") from error
            if error.code not in _PASSING:
                raise DataError(f"'{url}' answers HTTP {error.code} ({error.reason}).") from error
            reason = f"HTTP {error.code}"
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = str(getattr(error, "reason", None) or error or type(error).__name__)
        failed = 0 if _length(_part(target)) > before else failed + 1
        if failed >= _TRIES:
            raise DataError(
                f"'{url}' could not be fetched ({reason}) in {_TRIES} tries. {_length(_part(target)):,} bytes are "
                "kept: the same call resumes from there."
            )
        sleep(min(_LONGEST_WAIT, 2.0**failed))


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _fetch_some(url: str, file: RemoteFile, target: Path, progress: Progress) -> bool:
    """Make one request, for the rest where a part is there; return whether all bytes are there now."""
    part = _part(target)
    piece = _read_note(target)
    start = _length(part)
    # the rest can be glued to a part where the server compares its validator, or we the checksum
    if start and (piece is None or piece.url != url or not (piece.validator or file.md5)):
        part.unlink()
        start = 0
    if start and piece is not None and piece.total == start:
        return True
    request = urllib.request.Request(url, headers={"User-Agent": f"centerhash/{__version__}"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        if piece is not None and piece.validator:
            request.add_header("If-Range", piece.validator)
    try:
        # `_addresses` has checked that it is one of the web
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # nosec B310
            total = _announced(answer, start)
            if answer.status == 206 and start and piece is not None and _is_another(answer, piece, total):
                part.unlink()  # a server that does not look at If-Range: ask for all of the new one
                return False
            start = start if answer.status == 206 else 0
            return _take(answer, url, start, total, target, progress)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.unlink(missing_ok=True)  # there is nothing behind what we have: not the file it was
        return False


def _announced(answer: http.client.HTTPResponse, start: int) -> int | None:
    """The bytes of the whole file, as far as an answer says them; a partial one must begin at `start`.

    A partial answer may hold less than was asked for, so its own length says nothing of the whole.
    """
    if answer.status != 206:
        length = answer.headers.get("Content-Length")
        return int(length) if length is not None and length.isdecimal() else None
    stated = answer.headers.get("Content-Range", "")
    found = _CONTENT_RANGE.fullmatch(stated.strip())
    if found is None or int(found[1]) != start:
        raise DataError(
            f"'{answer.url}' answered with '{stated}' when asked for bytes from {start}. Try a mirror."
        )
    return None if found[3] == "*" else int(found[3])


def _is_another(answer: http.client.HTTPResponse, piece: _Piece, total: int | None) -> bool:
    """Whether a partial answer is of another file than the one of which a part is there."""
    validator = _validator(answer)
    return (None not in (validator, piece.validator) and validator != piece.validator) or (
        None not in (total, piece.total) and total != piece.total
    )


def _take(
    answer: http.client.HTTPResponse,
    url: str,
    start: int,
    total: int | None,
    target: Path,
    progress: Progress,
) -> bool:
    """Write an answer behind the first `start` bytes of the part; return whether all `total` are there."""
    if start == 0:
        write_json(_note(target), asdict(_Piece(url, total, _validator(answer))))
    if total is not None:
        check_space(target.parent, total - start)
    done, part = start, _part(target)
    with explain_write_errors(part):
        stream = part.open("ab" if start else "wb")
    with stream:
        while block := answer.read(_BLOCK):
            with explain_write_errors(part):  # a full disk must not look like a cut connection
                stream.write(block)
                stream.flush()
            done += len(block)
            in_megabytes(progress, target.name, total or done)(done)
    return total is None or done >= total


def _validator(answer: http.client.HTTPResponse) -> str | None:
    etag, changed = answer.headers.get("ETag"), answer.headers.get("Last-Modified")
    return etag if etag is not None and not etag.startswith("W/") else changed


def _read_note(target: Path) -> _Piece | None:
    """Read what is known of a part; without a whole note the part is worth nothing."""
    with suppress(OSError, ValueError, TypeError):
        stored: dict[str, Any] = json.loads(_note(target).read_text())
        return _Piece(**stored)
    return None


def _difference(file: RemoteFile, path: Path) -> str:
    """Say how a file differs from the published one; nothing where it is the same as far as is known."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"has {size:,} bytes instead of {file.size:,}"
    if file.md5 is None:
        return ""
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return f"has the MD5 checksum {found} instead of {file.md5}" if found != file.md5 else ""
