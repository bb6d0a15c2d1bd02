"""A lock of the operating system that gives one process the right to write in a folder.

    with writer_lock(folder / "lock", "process {holder} is writing into '{folder}'."):
        ...

The lock ends with its process, even if that is killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from centerhash.core.errors import InputError
from centerhash.core.files import explain_write_errors, refuse_links


@contextmanager
def writer_lock(path: Path, refusal: str) -> Iterator[None]:
    """Lock the file `path` for the block, or raise InputError; the file holds the number of the process.

    The `refusal` names the {folder} and the process of its {holder}.
    """
    with explain_write_errors(path):
        descriptor = _locked_file(path, refusal)
    try:
        yield
    finally:
        # A lock file that cannot be deleted does no harm, since the lock ends with its descriptor.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked_file(path: Path, refusal: str) -> int:
    refuse_links(path.parent, (path.name,))
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not try_lock(descriptor):
            holder = os.read(descriptor, 20).decode()
            os.close(descriptor)
            raise InputError(refusal.format(folder=path.parent, holder=holder or "unknown"))
        if _is_current(descriptor, path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
            return descriptor
        # The last holder has just deleted this file.
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process, without waiting; return whether no other process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            # The first bytes stay unlocked, so that other processes can read the number of the holder.
            os.lseek(descriptor, 100, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_current(descriptor: int, path: Path) -> bool:
    """Return whether the locked file is still the one at its path, which other processes would lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
