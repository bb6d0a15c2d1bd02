"""The feature cache: features of image files, computed once, keyed by the image's bytes and the backbone.

The cache is a folder per backbone with shards of a few hundred images each. A shard is written atomically, so a crash
loses at most the shard in progress, and several processes may fill the same cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, OutputError
from centerhash.core.files import read_npz, write_npz

SHARD = 256  # images per shard: a few seconds of work on a small machine


def default_cache() -> Path:
    """Folder of the cache unless one is named: $CENTERHASH_CACHE, or the user's cache folder."""
    named = os.environ.get("CENTERHASH_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "centerhash"


def network_cache() -> Path:
    """Folder of the converted networks: one for all, whatever cache the features go to."""
    return default_cache() / "networks"


@dataclass
class FeatureCache:
    """Features on disk by content key."""

    folder: Path
    _rows: dict[str, tuple[Path, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for shard in sorted(self.folder.glob("*.npz")):
            try:
                keys = read_npz(shard, "keys")["keys"].tolist()
            except DataError:
                self._drop(shard)
                continue
            self._rows.update((key, (shard, row)) for row, key in enumerate(keys))

    def read(self, keys: Mapping[int, str], out: NDArray[np.float32]) -> list[int]:
        """Copy the features of `keys`, by row, into those rows of `out` (N, D); return the rows that were there."""
        by_shard: dict[Path, list[tuple[int, int]]] = {}
        for row, key in keys.items():
            if key in self._rows:
                shard, stored_row = self._rows[key]
                by_shard.setdefault(shard, []).append((row, stored_row))
        found: list[int] = []
        for shard, pairs in by_shard.items():
            target, source = (list(side) for side in zip(*pairs, strict=True))
            try:
                out[target] = read_npz(shard, "features")["features"][source]
            except (DataError, ValueError, IndexError):  # damaged, or features of another shape
                self._drop(shard)
                continue
            found += target
        return found

    def _drop(self, shard: Path) -> None:
        """Forget a damaged shard: it can only cost its images' time again."""
        with suppress(OSError):
            shard.unlink(missing_ok=True)

    def write(self, keys: Sequence[str], features: NDArray[np.float32]) -> None:
        """Add one shard, named after all its keys: whoever writes a file of that name writes the same."""
        shard = self.folder / f"{hashlib.sha256(''.join(keys).encode()).hexdigest()}.npz"
        try:
            write_npz(shard, {"keys": np.array(keys), "features": features})
        except OutputError as error:
            raise OutputError(
                f"{error} It is the cache of features: `cache=` names another, and so does CENTERHASH_CACHE."
            ) from error
        self._rows.update((key, (shard, row)) for row, key in enumerate(keys))
