"""One writer at a time: a lock that the system gives back when its process ends, however it ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from centerhash.core.errors import InputError
from centerhash.core.files import explained, refuse_links

INDEX = (
    "the index '{folder}' is being written by process {holder}: wait until it has closed the index, or open it with "
    "read_only=True."
)


class WriterLock:
    """The right to write in a folder."""

    def __init__(self, lock: FileLock, holder: Path) -> None:
        self._lock, self._holder = lock, holder

    @classmethod
    def take(cls, path: Path, refusal: str = INDEX) -> Self:
        """Lock the file `path`, or raise InputError: the `refusal` names the {folder} and the process of its {holder}."""
        lock = FileLock(path, timeout=0, thread_local=False)  # any thread may give it back
        # beside the lock, since not every system lets others read a file that is locked
        holder = path.with_name(f"{path.name}.pid")
        with explained(path):
            path.parent.stat()  # filelock would make a folder that is not there
            refuse_links(path.parent, (path.name, holder.name))  # both are written to
            try:
                lock.acquire()
                if not _is_in_place(lock, path):  # its last holder has just deleted it
                    lock.release()
                    return cls.take(path, refusal)
                holder.write_text(str(os.getpid()))
            except Timeout:
                words = refusal.format(folder=path.parent, holder=_named_in(holder))
                raise InputError(words) from None
            except BaseException:
                lock.release()
                raise
        return cls(lock, holder)

    def release(self, *, delete: bool = False) -> None:
        """Let others write, and leave no files behind where `delete` says so."""
        if delete:
            with suppress(OSError):  # a file too many
                self._holder.unlink(missing_ok=True)
                Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()


def _is_in_place(lock: FileLock, path: Path) -> bool:
    """Whether the file that is locked is still the one that others would lock."""
    descriptor = lock._context.lock_file_fd
    try:
        return descriptor is None or os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _named_in(holder: Path) -> str:
    try:
        return holder.read_text() or "unknown"
    except OSError:
        return "unknown"
