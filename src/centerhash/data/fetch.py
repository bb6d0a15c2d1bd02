"""Download files over HTTP so that a later call resumes, and unpack archives safely."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import Any

from centerhash.core.errors import DataError, OutputError
from centerhash.core.files import explain_write_errors, make_folder
from centerhash.core.progress import Progress, silent
from centerhash.core.version import __version__

# Seconds before each request of one call.
PAUSES = (0, 1, 2, 4, 8, 16)
_BLOCK, _MB = 2**20, 10**6
_TIMEOUT_SECONDS = 30.0


def download(
    url: str, target: Path, *, size: int | None = None, md5: str | None = None, progress: Progress = silent
) -> Path:
    """Download `url` to `target`, which exists only once it is complete and verified, and return it.

    Bytes go to `target.part`. After a cut connection, or in a later call, only the rest is requested if `md5` is known,
    which detects a file that has changed on the server; otherwise the download starts again. A `target` that exists is
    verified by `size` and `md5` and kept. `progress` receives the file name, and megabytes done and in all.
    """
    if target.is_file():
        _verify(target, size, md5)
        return target
    part = make_folder(target.parent) / f"{target.name}.part"
    reason = ""
    for pause in PAUSES:
        time.sleep(pause)
        start = part.stat().st_size if md5 and part.is_file() else 0
        try:
            if (size and start >= size) or _request(url, part, start, progress):
                break
            reason = "the connection was cut"
        except (http.client.HTTPException, OSError) as error:
            reason = str(error) or type(error).__name__
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise DataError(f"'{url}' answers {reason}.") from error
    else:
        raise DataError(
            f"'{url}' could not be downloaded ({reason}). What has arrived is kept: check the internet connection and "
            "run the same command again, or use another address."
        )
    try:
        _verify(part, size, md5)
    except DataError:
        part.unlink()
        raise
    with explain_write_errors(target):
        part.replace(target)
    return target


def _request(url: str, part: Path, start: int, progress: Progress) -> bool:
    """Request the bytes from `start`, append them to the part, and return whether all have arrived."""
    headers = {"User-Agent": f"centerhash/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)
    # The addresses are those of the catalogue, or of a mirror that begins with http.
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # nosec B310
        done = start if response.status == 206 else 0
        total = None if response.length is None else done + response.length
        with explain_write_errors(part):
            stream = part.open("ab" if done else "wb")
        with stream:
            while block := response.read(_BLOCK):
                with explain_write_errors(part):  # a full disk must not look like a cut connection
                    stream.write(block)
                    stream.flush()
                done += len(block)
                progress(part.stem, done // _MB, max((total or done) // _MB, 1), "MB")
    return total is None or done >= total


def _verify(path: Path, size: int | None, md5: str | None) -> None:
    """Raise DataError if a file has another size or checksum than expected."""
    with path.open("rb") as stream:
        seen = (path.stat().st_size, hashlib.file_digest(stream, "md5").hexdigest())
    expected = (size or seen[0], md5 or seen[1])
    if seen != expected:
        raise DataError(
            f"'{path}' has (bytes, MD5 checksum) {seen} instead of {expected}: delete it if it still exists, and run "
            "the same command again."
        )


def check_space(folder: Path, needed: int) -> None:
    """Raise OutputError if the disk cannot hold what is about to be written."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"'{folder}' needs {needed / 1e9:.2f} GB, but its disk has {free / 1e9:.2f} GB left: free some space or "
            "choose another folder. Downloaded files are kept."
        )


def unpack(archive: Path, folder: Path, *, progress: Progress = silent) -> None:
    """Unpack a .zip, .tar or .tar.gz into `folder`, where everything appears once all of it is unpacked.

    Nothing is written outside the folder: Python's filter for data refuses such members of a tar, links out of it and
    devices; in a zip, it drops the parts of a name that lead out.
    """
    temporary = make_folder(folder) / f".unpacking-{archive.name}"
    shutil.rmtree(temporary, ignore_errors=True)  # a crash may have left it behind
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
