"""One writer at a time: a lock that the system gives back when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

from centerhash.core.errors import InputError
from centerhash.core.files import explained


class WriterLock:
    """The right to write in a folder."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Self:
        """Lock the file `path`, or raise InputError with the process that holds it."""
        with explained(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            except BlockingIOError:
                holder = os.pread(descriptor, 20, 0).decode("ascii", "replace") or "unknown"
                os.close(descriptor)
                raise InputError(
                    f"the index '{path.parent}' is being written by process {holder}: wait until it has closed the "
                    "index, or open it with read_only=True."
                ) from None
            except BaseException:
                os.close(descriptor)
                raise
        return cls(descriptor)

    def release(self) -> None:
        """Let others write."""
        os.close(self._descriptor)
