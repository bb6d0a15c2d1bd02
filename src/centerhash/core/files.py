"""Read and write files: atomic writes, checksums, and limits on what an untrusted file may allocate.

A reader sees the old file or the whole new one. Nothing is unpickled.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from centerhash.core.errors import DataError, OutputError

_FULL = "free some space, then run the same command again"
_ADVICE = {
    errno.ENOSPC: f"the disk is full: {_FULL}",
    errno.EDQUOT: f"the disk quota is used up: {_FULL}",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another folder",
}
# numpy and zipfile raise these for files that were cut or changed, or are something else.
_DAMAGED = (
    *(OSError, ValueError, KeyError, EOFError, RuntimeError, TypeError, MemoryError, OverflowError),
    *(zlib.error, zipfile.BadZipFile),
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Raise an OSError of writing `path` again as OutputError with advice."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, f"{error.strerror or error}: choose another place")
        raise OutputError(f"cannot write '{path}': {advice}.") from error


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise DataError if one of these entries of a folder is a link.

    A link in an untrusted folder could make us read, write or delete files outside it.
    """
    for entry in (folder / name for name in names):
        if entry.is_symlink():
            raise DataError(f"'{entry}' is a link, which is not followed: put the file itself in its place.")


def make_folder(path: str | Path) -> Path:
    """Create the folder `path` and its parents unless it exists, and return it."""
    folder = Path(path)
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def atomic(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a temporary file next to `path` for writing; rename it to `path` if the block ends without an error.

    A reader sees the old file or the whole new one, never a part, also after a power cut.
    """
    target = Path(path)
    make_folder(target.parent)
    with explain_write_errors(target):
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            # mkstemp creates private files, but results are for everyone.
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(target)
            sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder next to `path`; rename it to `path`, new or empty, if the block ends without an error."""
    target = Path(path)
    parent = make_folder(target.resolve().parent)
    with explain_write_errors(target):
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=parent))
        try:
            yield draft
            draft.chmod(0o777 & ~_umask())
            draft.rename(target)
            sync_folder(parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk, such as a rename; only POSIX can open a folder for that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically; bytes of file names that are not UTF-8 become \\udc.. escapes."""
    with atomic(path) as stream:
        stream.write(text.encode(errors="backslashreplace"))


def utf8_text(text: str) -> str:
    """Replace bytes of a file name that are not UTF-8 by question marks."""
    return text.encode(errors="replace").decode()


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented json, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def parse_json(text: str) -> Any:
    """Parse untrusted json text; ValueError if it is malformed, nested too deeply, or cannot be encoded again."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects lie too deep inside each other") from None
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_plain(path: Path, most: int) -> bytes:
    """Read a plain file of at most `most` bytes; OSError for anything else, such as a pipe, which would block."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file")
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {decimal(status.st_size)}, at most {decimal(most)} are read")
    return path.read_bytes()


def append_line(path: str | Path, text: str) -> None:
    """Append one line to a file, and return once it is on the disk: a crash can truncate only the last line."""
    target = Path(path)
    make_folder(target.parent)
    with explain_write_errors(target), target.open("ab") as stream:
        stream.write(f"{text}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())


def write_npz(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays as .npz, atomically."""
    with atomic(path) as stream:
        np.savez(stream, allow_pickle=False, **dict(arrays))


def read_npz(path: str | Path, *names: str) -> dict[str, NDArray[Any]]:
    """Read the arrays `names` of an .npz file, or all of them if no name is passed. Nothing is ever unpickled."""
    try:
        with zipfile.ZipFile(path) as stored:
            arrays = {}
            for name in names or [member.removesuffix(".npy") for member in stored.namelist()]:
                with stored.open(f"{name}.npy") as stream:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
            return arrays
    except FileNotFoundError:
        raise DataError(f"no such file: '{path}'.") from None
    except _DAMAGED as error:
        raise DataError(f"'{path}' is damaged, or no .npz file of plain arrays: {error}.") from None


# The field of a json object with the checksum of all other fields.
CHECKSUM = "checksum"


def with_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a json object with a checksum of its other fields."""
    rest = {field: part for field, part in value.items() if field != CHECKSUM}
    return {**rest, CHECKSUM: zlib.crc32(json.dumps(rest, sort_keys=True).encode())}


def verify_checksum(value: Any, name: str) -> dict[str, Any]:
    """Return a json object without its checksum; ValueError cites `name` if that does not match."""
    if not isinstance(value, dict) or value.get(CHECKSUM) != with_checksum(value)[CHECKSUM]:
        raise ValueError(f"{name} does not match its checksum")
    return {field: part for field, part in value.items() if field != CHECKSUM}
