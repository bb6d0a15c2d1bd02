"""Download files over HTTP so that a later call resumes, and unpack archives safely."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import time
import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from centerhash.core.errors import DataError, OutputError, first_line
from centerhash.core.files import explain_write_errors, make_folder
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__

PAUSE_SECONDS = (0, 1, 2, 4, 8, 16)
_BLOCK, _MB = 2**20, 10**6


def download(
    url: str, target: Path, *, size: int | None = None, md5: str | None = None, progress: Progress = silent
) -> Path:
    """Download `url` to `target`, which exists only once it is complete and verified, and return it.

    Bytes go to `target.part`. If `md5` is known, which detects a file that changed on the server, a retry or a later call
    requests only the rest; otherwise it starts again. A `target` that exists is verified by `size` and `md5` and kept.
    `progress` receives the file name, and megabytes done and in all.
    """
    if target.is_file():
        _verify(target, size, md5)
        return target
    part = make_folder(target.parent) / f"{target.name}.part"
    for pause in PAUSE_SECONDS:
        time.sleep(pause)
        start = part.stat().st_size if md5 and part.is_file() else 0
        try:
            if not size or start < size:
                _request(url, part, start, progress)
            break
        except (HTTPException, OSError) as error:
            if pause == PAUSE_SECONDS[-1] or (isinstance(error, HTTPError) and error.code < 500):
                raise DataError(
                    f"'{url}' could not be downloaded ({first_line(error)}): check the address and the internet "
                    "connection, then run the same command again. Downloaded bytes are kept."
                ) from error
    _verify(part, size, md5, delete=True)
    with explain_write_errors(target):
        part.replace(target)
    return target


def _request(url: str, part: Path, start: int, progress: Progress) -> None:
    """Request the bytes from `start` and append them to the part; ConnectionError if not all arrive."""
    headers = {"User-Agent": f"centerhash/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    # The addresses are those of the catalogue, or of a mirror that begins with http.
    with urlopen(Request(url, headers=headers), timeout=30) as response:  # nosec B310
        done = start if response.status == 206 else 0
        total = None if response.length is None else done + response.length
        while block := response.read(_BLOCK):
            # A full disk is an OutputError, unlike a cut connection.
            with explain_write_errors(part), part.open("ab" if done else "wb") as stream:
                stream.write(block)
            done += len(block)
            progress(part.stem, done // _MB, max((total or done) // _MB, 1), "MB")
    if done < (total or 1):
        raise ConnectionError("the connection was cut")


def _verify(path: Path, size: int | None, md5: str | None, *, delete: bool = False) -> None:
    """Raise DataError if a file has another size or checksum than expected; with `delete`, delete it first."""
    with path.open("rb") as stream:
        actual = (path.stat().st_size, hashlib.file_digest(stream, "md5").hexdigest())
    expected = (size or actual[0], md5 or actual[1])
    if actual != expected:
        if delete:
            path.unlink()
        raise DataError(
            f"'{path}' has (bytes, MD5) {actual}, not {expected}: delete it if it exists, and run the same command again."
        )


def check_space(folder: Path, needed: int) -> None:
    """Raise OutputError if the disk has less space than the bytes to write."""
    if needed > (available := shutil.disk_usage(folder).free):
        raise OutputError(
            f"'{folder}' needs {needed / 1e9:.2f} GB, but its disk has {available / 1e9:.2f} GB left: free some space or "
            "choose another folder. Downloaded files are kept."
        )


def unpack(archive: Path, folder: Path, *, progress: Progress = silent) -> None:
    """Unpack a .zip, .tar or .tar.gz into `folder` and nowhere else; everything appears once all of it is unpacked.

    Python's data filter rejects members and links of a tar that lead out, and devices. Names in a zip lose such parts.
    """
    temporary = make_folder(folder) / f".unpacking-{archive.name}"
    shutil.rmtree(temporary, ignore_errors=True)  # left by a crash
    try:
        with zipfile.ZipFile(archive) if zipfile.is_zipfile(archive) else tarfile.open(archive) as stream:
            members: list[tuple[Any, int]]
            if isinstance(stream, zipfile.ZipFile):
                members = [(member, member.file_size) for member in stream.infolist()]
            else:
                stream.extraction_filter = tarfile.data_filter
                members = [(member, member.size) for member in stream]
            done, total = 0, sum(size for _, size in members)
            check_space(folder, total)
            for member, size in members:
                stream.extract(member, temporary)
                done += size
                progress(f"unpack {archive.name}", done // _MB, max(total // _MB, 1), "MB")
        shutil.copytree(temporary, folder, copy_function=os.replace, dirs_exist_ok=True)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"'{archive}' cannot be unpacked ({error}): download it again.") from error
    except OSError as error:
        raise OutputError(f"cannot unpack '{archive}' into '{folder}': {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
