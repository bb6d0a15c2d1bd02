"""Maps of image files, computed once by the trunk of a backbone and kept on disk as float16, plain and mirrored."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ImageError, OutputError
from centerhash.core.progress import Progress
from centerhash.networks.cache import ArrayCache
from centerhash.networks.encoder import Encoder, content_keys, fill_cache

_SHARD_BYTES = 32 << 20  # a few seconds of work
_SPARE_BYTES = 1 << 30  # of the disk, which are left alone

Maps: TypeAlias = NDArray[np.float16]  # (n, D), flattened


class MapTable:
    """Maps of a list of image files, plain or mirrored; images that could not be read by their row."""

    def __init__(
        self, keys: Sequence[str], caches: dict[bool, ArrayCache], broken: dict[int, ImageError]
    ) -> None:
        self._keys, self._caches, self.broken = keys, caches, broken
        # rows and their features before any training, which several runs may share
        self.untrained: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None

    def read(self, rows: Sequence[int], mirrored: Sequence[bool] | None = None) -> Maps:
        """Return maps (n, D) of some images, each mirrored or not."""
        if mirrored is None:
            return self._caches[False].read([self._keys[row] for row in rows])
        pairs = zip(rows, mirrored, strict=True)
        return np.concatenate([self._caches[bool(flip)].read([self._keys[row]]) for row, flip in pairs])


def compute_maps(
    paths: Sequence[Path], flipped: Sequence[int], encoder: Encoder, cache: Path, progress: Progress
) -> MapTable:
    """Return the maps of image files, and of the rows `flipped` the mirrored ones too; those in the cache are read.

    `encoder` is one of the trunk.
    """
    trunk = encoder.backbone
    folders = {flip: cache / "maps" / f"{trunk.key}{'-mirrored' if flip else ''}" for flip in (False, True)}
    caches = {flip: ArrayCache(folder, trunk.features, np.float16) for flip, folder in folders.items()}
    keys, broken = content_keys(paths)
    missing: dict[bool, list[int]] = {}
    for flip, rows in ((False, range(len(paths))), (True, flipped)):
        known = caches[flip].available(keys.values())
        missing[flip] = [row for row in rows if row in keys and keys[row] not in known]
    total = len(paths) + len(flipped)
    done, needed = (
        total - sum(map(len, missing.values())),
        2 * trunk.features * sum(map(len, missing.values())),
    )
    _check_disk(cache, needed)
    note = f"{needed / 1e9:.1f} GB into {cache / 'maps'}" if needed else ""
    progress("maps", done, total, note)
    for flip, rows in missing.items():
        images = [row for row in rows if row not in broken]
        shard = max(1, _SHARD_BYTES // (2 * trunk.features))
        for step in fill_cache(caches[flip], paths, keys, images, encoder, shard, mirrored=flip):
            broken |= step.broken
            done += step.seen
            progress("maps", done, total, note)
    progress("maps", total, total, note)
    return MapTable([keys.get(row, "") for row in range(len(paths))], caches, broken)


def _check_disk(cache: Path, needed: int) -> None:
    """Reject work whose result the disk cannot hold, before it starts."""
    home = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(home).free
    if needed + _SPARE_BYTES > free:
        raise OutputError(
            f"the maps need {needed / 1e9:.1f} GB in '{cache}', which has {free / 1e9:.1f} GB free: train fewer stages "
            "(`stages=`), use fewer images, or name another folder as `cache=`."
        )
