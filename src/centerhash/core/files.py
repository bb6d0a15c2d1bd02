"""Read and write files: atomic writes, locks, checksums, and limits on what an untrusted file may allocate."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import IO, Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from centerhash.core.errors import DataError, InputError, OutputError

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same command again",
    errno.EFBIG: "the file would be larger than this system or a limit (ulimit -f) allows",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "no permission to write there: choose another folder",
    errno.EPERM: "no permission to write there: choose another folder",
    errno.EEXIST: "a part of the path is a file, not a folder: choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another folder",
    errno.EISDIR: "a folder of that name is in the way: choose another name",
}
ALWAYS, RATIO = 2**30, 100  # bytes of memory that any file may ask for, and how many times its own size
# what numpy and zipfile raise for files that were cut or changed, or are something else
_DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError, TypeError, zlib.error, zipfile.BadZipFile)
_LOOK = 0.05  # seconds between two attempts to lock a file
DEPTH = 100  # of lists and objects inside each other in a json text: what walks through them calls itself
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of writing `path` into an OutputError that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise OutputError(f"cannot write '{path}': {advice}.") from error


def refuse_links(folder: Path, names: Iterable[str] | None = None) -> None:
    """Raise DataError if one of these entries of a folder (all of them unless named) is a link.

    An untrusted folder could else make us read, write or delete what is not in it.
    """
    try:
        entries = sorted(folder.iterdir()) if names is None else [folder / name for name in names]
        links = [entry for entry in entries if entry.is_symlink()]
    except OSError as error:
        raise DataError(f"cannot read '{error.filename or folder}': {error.strerror or error}.") from error
    for entry in links:
        raise DataError(
            f"'{entry}' is a link, which is not followed: put the file or folder itself in its place."
        )


def make_folder(path: str | Path) -> Path:
    """Create the folder `path` (parents too) unless it is there."""
    folder = Path(path)
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def atomic(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` for writing; rename it to `path` only when all went well.

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
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; results are for everyone
            temporary.replace(target)
            sync_folder(target.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Give an empty folder beside `path` to fill; rename it to `path`, new or empty, only when all went well."""
    target = Path(path)
    parent = make_folder(Path(os.path.realpath(target)).parent)
    with explain_write_errors(target):
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=parent))
        try:
            yield draft
            draft.chmod(0o777 & ~_umask())  # mkdtemp makes private folders
            if os.name == "nt" and target.is_dir():
                target.rmdir()  # Windows does not rename onto a folder, even an empty one
            draft.rename(target)
            sync_folder(parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # gone by its new name when all went well


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable; only POSIX lets a folder be opened for that."""
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
    """Write `text` as UTF-8, atomically; of names that are no text, json keeps the bytes as \\udc.."""
    with atomic(path) as stream:
        stream.write(text.encode(errors="backslashreplace"))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented json, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def parse_json(text: str) -> Any:
    """The value of a json text of any origin; ValueError for what is none, and for what nothing could be done with."""
    try:
        value = json.loads(text)
        if text.count("[") + text.count("{") > DEPTH and _is_deep(value):
            raise RecursionError
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("lists or objects lie too deep inside each other") from None
    except UnicodeEncodeError:
        raise ValueError("a text holds half a character (a lone surrogate such as \\ud800)") from None
    return value


def _is_deep(value: Any) -> bool:
    """Return whether lists and objects lie deeper than DEPTH inside each other."""
    level = [value]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, list | dict)
        ]
        if not level:
            return False
    return True


def open_plain(path: Path) -> IO[bytes]:
    """Open a plain file for reading; OSError for anything else, such as a pipe, which would block."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is no plain file")
    return path.open("rb")


def read_plain(path: Path, most: int) -> bytes:
    """Read a plain file of at most `most` bytes; OSError for anything else."""
    with open_plain(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {decimal(size)}, at most {decimal(most)} are read")
        return stream.read(size)


def packaged(package: str, name: str) -> dict[str, Any]:
    """The tables of a TOML file that lies beside the modules of a package."""
    return tomllib.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def append_line(path: str | Path, text: str) -> None:
    """Add one line to the end of `path`, and return when it is on the disk: a crash can tear only the last line."""
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


def check_budget(path: str | Path, needed: int, what: str, advice: str) -> None:
    """Refuse what would take more memory than a file of this size may: the larger of 1 GiB and a hundred times it.

    `what` needs the bytes, `advice` says what to do. Small files that announce much are damaged, or traps.
    """
    allowed = max(ALWAYS, RATIO * Path(path).stat().st_size)
    if needed > allowed:
        raise DataError(
            f"'{path}': {what} would take {decimal(needed)} of memory, but a file of its size may take "
            f"{decimal(allowed)}. {advice}"
        )


def array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type of an array, as its .npy file begins."""
    if np.lib.format.read_magic(stream) == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    # version 3 differs from 2 only in the names of fields, which no array here has
    return np.lib.format.read_array_header_2_0(stream)


def _check_announced(path: str | Path, stream: IO[bytes]) -> None:
    """Compare what the arrays of an .npz file announce with what there is, before memory is taken for them."""
    with zipfile.ZipFile(stream) as stored:
        members = stored.infolist()
        announced = sum(member.file_size for member in members)
        advice = "Make it again, or take it from someone you trust."
        check_budget(path, announced, "its arrays", advice)
        for member in members:
            with stored.open(member) as array:
                shape, _, dtype = array_header(array)
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"'{member.filename}' announces the shape {shape}, but has fewer values")


def read_npz(path: str | Path, *names: str) -> dict[str, NDArray[Any]]:
    """Read the arrays `names` of an .npz file, all of them when none is named. Nothing is ever unpickled."""
    try:
        with Path(path).open("rb") as stream:
            _check_announced(path, stream)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as stored:
                return {name: stored[name] for name in names or stored.files}
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"no such file: '{path}'.") from None
    except _DAMAGED as error:
        raise DataError(f"'{path}' is damaged, or no .npz file of plain arrays: {error}.") from None


CHECKSUM = "checksum"  # of all other fields of a json object
CHECKSUMS = "checksums"  # of tensors by name, in the metadata of their file


def with_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """A json object with a checksum of itself."""
    return {**value, CHECKSUM: _json_checksum(value)}


def verify_checksum(value: Any, what: str) -> dict[str, Any]:
    """The json object without its checksum, or ValueError if that does not match."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no json object")
    rest = {name: part for name, part in value.items() if name != CHECKSUM}
    if value.get(CHECKSUM) != _json_checksum(rest):
        raise ValueError(f"{what} does not match its checksum")
    return rest


def read_with_checksum(path: Path) -> dict[str, Any]:
    """The json object in a file, as `verify_checksum` gives it."""
    return verify_checksum(parse_json(path.read_text(encoding="utf-8")), path.name)


def _json_checksum(value: Mapping[str, Any]) -> int:
    return crc32(json.dumps(value, sort_keys=True).encode())


def tensor_checksum(name: str, dtype: object, shape: Sequence[int], content: Any) -> int:
    """The checksum of a tensor's bytes with its name, type and shape, as torch or numpy call the type."""
    return crc32(content, crc32(f"{name} {str(dtype).removeprefix('torch.')} {list(shape)}".encode()))


def stored_checksums(metadata: Mapping[str, str] | None) -> dict[str, int] | None:
    """The checksums of tensors in the metadata of their file; None without any."""
    text = (metadata or {}).get(CHECKSUMS)
    return None if text is None else dict(parse_json(text))


INDEX = (
    "the index '{folder}' is being written by process {holder}: wait until it has closed the index, or open it with "
    "read_only=True."
)


class WriterLock:
    """The right to write in a folder: a lock of the operating system, which ends with its process."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path

    @classmethod
    def take(cls, path: Path, refusal: str = INDEX, wait: float = 0) -> Self:
        """Lock the file `path`, or raise InputError: the `refusal` names the {folder} and the process of its {holder}.

        If another process has the lock, wait for it so many seconds.
        """
        holder, end = _holder(path), time.monotonic() + wait
        with explain_write_errors(path):
            refuse_links(path.parent, (path.name, holder.name))  # both are written to
            while True:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
                try:
                    locked = try_lock(descriptor)
                    if locked and _is_in_place(descriptor, path):
                        holder.write_text(str(os.getpid()))
                        return cls(descriptor, path)
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)
                if not locked:  # otherwise its last holder has just deleted it
                    if time.monotonic() >= end:
                        raise InputError(refusal.format(folder=path.parent, holder=_named_in(holder)))
                    time.sleep(_LOOK)

    def release(self, *, delete: bool = False) -> None:
        """Let others write; with `delete`, leave no files behind. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if delete:
            with suppress(OSError):  # a file too many
                _holder(self._path).unlink(missing_ok=True)
                self._path.unlink(missing_ok=True)
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process, without waiting; return whether no other process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _holder(path: Path) -> Path:
    """Return the file that names the process; not every system lets others read a file that is locked."""
    return path.with_name(f"{path.name}.pid")


def _is_in_place(descriptor: int, path: Path) -> bool:
    """Whether the file that is locked is still the one that others would lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _named_in(holder: Path) -> str:
    try:
        return holder.read_text() or "unknown"
    except OSError:
        return "unknown"
