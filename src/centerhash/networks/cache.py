"""The cache: features and maps of image files, computed once, by the images' bytes and the network.

    cache = ArrayCache(folder, width=1280, dtype=np.float32)
    known = cache.available(keys)
    rows = cache.read([key for key in keys if key in known])

A folder per network holds shards of some images: the arrays as an .npy file, which is memory-mapped, and a text file with
their checksum and keys, which is written last. A crash loses at most the shard in progress, and several processes may
fill the same cache.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from centerhash.core.errors import OutputError
from centerhash.core.files import atomic, make_folder, write_text


def default_cache() -> Path:
    """Return the folder of the cache unless one is named: $CENTERHASH_CACHE, or the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CENTERHASH_CACHE") or Path(base) / "centerhash")


class ArrayCache:
    """Arrays (width,) of one type on disk by content key."""

    def __init__(self, folder: Path, width: int, dtype: DTypeLike) -> None:
        self.folder, self.width, self.dtype = folder, width, np.dtype(dtype)
        self._rows: dict[str, tuple[Path, int]] = {}  # the list and the row of each key
        self._arrays: dict[Path, NDArray[Any] | None] = {}  # by their lists; None: damaged
        for listed in sorted(folder.glob("*.txt")):
            self._note(listed, _read_list(listed)[1:])

    def available(self, keys: Iterable[str]) -> set[str]:
        """Return which of these keys are here, in shards that match their checksums."""
        return {key for key in keys if key in self._rows and self._shard(self._rows[key][0]) is not None}

    def read(self, keys: Sequence[str]) -> NDArray[Any]:
        """Return arrays (n, width) of keys that are available."""
        rows = np.empty((len(keys), self.width), self.dtype)
        for position, key in enumerate(keys):
            listed, row = self._rows[key]
            shard = self._shard(listed)
            assert shard is not None
            rows[position] = shard[row]
        return rows

    def write(self, keys: Sequence[str], rows: NDArray[Any]) -> None:
        """Add one shard, named after all its keys: whoever writes a file of that name writes the same."""
        listed = self.folder / f"{hashlib.sha256(''.join(keys).encode()).hexdigest()}.txt"
        stored = np.ascontiguousarray(rows, self.dtype)
        try:
            make_folder(self.folder)
            with atomic(listed.with_suffix(".npy")) as stream:
                np.save(stream, stored)
            write_text(listed, "\n".join((_checksum(stored), *keys)))
        except OutputError as error:
            raise OutputError(
                f"{error} It is the cache of images: `cache=` names another, and so does CENTERHASH_CACHE."
            ) from error
        self._arrays.pop(listed, None)
        self._note(listed, keys)

    def _note(self, listed: Path, keys: Sequence[str]) -> None:
        self._rows.update((key, (listed, row)) for row, key in enumerate(keys))

    def _shard(self, listed: Path) -> NDArray[Any] | None:
        """Map a shard into memory; a damaged one is deleted: it can only cost its images' time again."""
        if listed not in self._arrays:
            rows, expected = None, _read_list(listed)
            with suppress(OSError, ValueError, EOFError):
                rows = np.load(listed.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
            shape = (len(expected) - 1, self.width)
            if rows is None or (rows.shape, rows.dtype, _checksum(rows)) != (shape, self.dtype, expected[0]):
                rows = None
                for file in (listed, listed.with_suffix(".npy")):
                    with suppress(OSError):
                        file.unlink()
            self._arrays[listed] = rows
        return self._arrays[listed]


def _read_list(listed: Path) -> list[str]:
    """Return the checksum and the keys of a shard; an empty checksum for a damaged list."""
    try:
        return listed.read_text(encoding="ascii").split() or [""]
    except (OSError, ValueError):
        return [""]


def _checksum(rows: NDArray[Any]) -> str:
    return f"{zlib.crc32(rows.data):08x}"
