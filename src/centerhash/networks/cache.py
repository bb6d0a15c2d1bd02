"""A cache of features and maps of image files, which are computed once per network and content of a file.

The folder of a network holds shards. A shard is an .npy file of arrays, which is memory-mapped, and a key file (.txt)
with their checksum and keys, which is written last. A crash loses at most the shard in progress, and several processes
may fill the same cache.
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
from centerhash.core.files import atomic, write_text


def default_cache() -> Path:
    """Return the default folder of the cache: $CENTERHASH_CACHE, or a folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CENTERHASH_CACHE") or Path(base) / "centerhash")


class ArrayCache:
    """Arrays (width,) of one type on disk, by content key.

    cache = ArrayCache(folder, width=1280, dtype=np.float32)
    cache.write(keys, arrays)
    arrays = cache.read(keys)       # of keys in cache.available(keys)
    """

    def __init__(self, folder: Path, width: int, dtype: DTypeLike) -> None:
        self.folder, self.width, self.dtype = folder, width, np.dtype(dtype)
        # A key is at this row of the shard with this key file.
        self._rows: dict[str, tuple[Path, int]] = {}
        # Shards are mapped when they are needed; a damaged one is None.
        self._arrays: dict[Path, NDArray[Any] | None] = {}
        for key_file in sorted(folder.glob("*.txt")):
            self._add(key_file, _read_keys(key_file)[1:])

    def available(self, keys: Iterable[str]) -> set[str]:
        """Return which of these keys the cache holds, in shards that match their checksums."""
        return {key for key in keys if key in self._rows and self._shard(self._rows[key][0]) is not None}

    def read(self, keys: Sequence[str]) -> NDArray[Any]:
        """Return the arrays (n, width) of available keys."""
        arrays = np.empty((len(keys), self.width), self.dtype)
        for position, key in enumerate(keys):
            key_file, row = self._rows[key]
            shard = self._shard(key_file)
            assert shard is not None
            arrays[position] = shard[row]
        return arrays

    def write(self, keys: Sequence[str], arrays: NDArray[Any]) -> None:
        """Add one shard, whose name is a digest of its keys, so that files of the same name are equal."""
        key_file = self.folder / f"{hashlib.sha256(''.join(keys).encode()).hexdigest()}.txt"
        stored = np.ascontiguousarray(arrays, self.dtype)
        try:
            with atomic(key_file.with_suffix(".npy")) as stream:
                np.save(stream, stored)
            write_text(key_file, "\n".join((_checksum(stored), *keys)))
        except OutputError as error:
            raise OutputError(
                f"{error} It is the cache of images: `cache=` names another, and so does CENTERHASH_CACHE."
            ) from error
        self._arrays.pop(key_file, None)
        self._add(key_file, keys)

    def _add(self, key_file: Path, keys: Sequence[str]) -> None:
        self._rows.update((key, (key_file, row)) for row, key in enumerate(keys))

    def _shard(self, key_file: Path) -> NDArray[Any] | None:
        """Map a shard into memory; a damaged one is deleted, and its images are computed again."""
        if key_file not in self._arrays:
            array, (checksum, *keys) = None, _read_keys(key_file)
            with suppress(OSError, ValueError, EOFError):
                array = np.load(key_file.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
            expected = ((len(keys), self.width), self.dtype, checksum)
            if array is None or (array.shape, array.dtype, _checksum(array)) != expected:
                array = None
                for file in (key_file, key_file.with_suffix(".npy")):
                    with suppress(OSError):
                        file.unlink()
            self._arrays[key_file] = array
        return self._arrays[key_file]


def _read_keys(key_file: Path) -> list[str]:
    """Return the checksum and the keys of a shard; an empty checksum for a damaged key file."""
    try:
        return key_file.read_text(encoding="ascii").split() or [""]
    except (OSError, ValueError):
        return [""]


def _checksum(array: NDArray[Any]) -> str:
    return f"{zlib.crc32(array.data):08x}"
