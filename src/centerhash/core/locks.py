"""One writer at a time: a lock that the system gives back when its process ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from centerhash.core.errors import InputError
from centerhash.core.files import explained, refuse_links


class WriterLock:
    """The right to write in a folder."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock

    @classmethod
    def take(cls, path: Path) -> Self:
        """Lock the file `path`, or raise InputError with the process that holds it."""
        lock = FileLock(path, timeout=0, thread_local=False)  # any thread may give it back
        # beside the lock, since not every system lets others read a file that is locked
        holder = path.with_name(f"{path.name}.pid")
        with explained(path):
            path.parent.stat()  # filelock would make a folder that is not there
            refuse_links(path.parent, (path.name, holder.name))  # both are written to
            try:
                lock.acquire()
                holder.write_text(str(os.getpid()))
            except Timeout:
                raise InputError(
                    f"the index '{path.parent}' is being written by process {_named_in(holder)}: wait until it has "
                    "closed the index, or open it with read_only=True."
                ) from None
            except BaseException:
                lock.release()
                raise
        return cls(lock)

    def release(self) -> None:
        """Let others write."""
        self._lock.release()


def _named_in(holder: Path) -> str:
    try:
        return holder.read_text() or "unknown"
    except OSError:
        return "unknown"
