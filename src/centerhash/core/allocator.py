"""Freed memory that stays with the process while a network trains: each step asks for the same sizes again."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_OWN_LIMIT = 32 << 20  # the largest block that glibc itself may take from the heap; it trims from twice that
_KEPT = 256 << 20
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Meanwhile, up to 256 MB of freed memory are used again instead of going back to the system.

    By default glibc gives a gradient of some megabytes back after every step, and the next step waits until the system
    has cleared as many pages. Other allocators, and settings that the user has made, are left alone.
    """
    library = None if any(name in os.environ for name in CHOSEN) else _glibc()
    if library is None:
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, _OWN_LIMIT)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, 2 * _OWN_LIMIT)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc."""
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
