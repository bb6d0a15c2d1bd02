"""The right to write in a folder: a lock of the operating system.

    lock = WriterLock.take(folder / "lock", "process {holder} is writing into '{folder}'.")
    lock.release()

The lock ends with its process, also if that is killed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from centerhash.core.errors import InputError
from centerhash.core.files import explain_write_errors, refuse_links


class WriterLock:
    """A file with the number of the process that has locked it."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path

    @classmethod
    def take(cls, path: Path, refusal: str) -> Self:
        """Lock the file `path`, or raise InputError: the `refusal` names the {folder} and the process of its {holder}."""
        with explain_write_errors(path):
            refuse_links(path.parent, (path.name,))
            while True:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                if not try_lock(descriptor):
                    holder = os.read(descriptor, 20).decode()
                    os.close(descriptor)
                    raise InputError(refusal.format(folder=path.parent, holder=holder or "unknown"))
                if _is_in_place(descriptor, path):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, str(os.getpid()).encode())
                    return cls(descriptor, path)
                # Its last holder has just deleted it.
                os.close(descriptor)

    def release(self) -> None:
        """Delete the file and let others write."""
        # A file that stays does no harm.
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process, without waiting; return whether no other process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            # Others may read what is not locked: the number of the process.
            os.lseek(descriptor, 100, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_in_place(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one that others would lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
