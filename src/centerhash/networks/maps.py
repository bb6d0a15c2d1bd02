"""Maps of image files, computed once by the trunk of a backbone and kept on disk as float16, plain and mirrored."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ImageError, OutputError
from centerhash.core.progress import Progress
from centerhash.networks.cache import ArrayCache
from centerhash.networks.encoder import Encoder, content_keys, fill_cache

_SHARD_BYTES = 32 << 20  # a few seconds of work
_SPARE_BYTES = 1 << 30  # of the disk, which are left alone

Maps: TypeAlias = NDArray[np.float16]  # (n, D), flattened


class MapTable(NamedTuple):
    """Maps of image files by their content keys, plain and mirrored ones; images that cannot be read by their row."""

    keys: list[str]
    plain: ArrayCache
    mirrored: ArrayCache
    broken: dict[int, ImageError]

    def read(self, rows: Sequence[int], mirrored: bool = False) -> Maps:
        """Return maps (n, D) of some images."""
        return (self.mirrored if mirrored else self.plain).read([self.keys[row] for row in rows])


def compute_maps(
    paths: Sequence[Path], flipped: Sequence[int], encoder: Encoder, cache: Path, progress: Progress
) -> MapTable:
    """Return the maps of image files, and of the rows `flipped` the mirrored ones too; those in the cache are read.

    `encoder` is one of the trunk.
    """
    trunk = encoder.backbone
    folder = cache / "maps" / trunk.key
    caches = [ArrayCache(Path(f"{folder}{end}"), trunk.features, np.float16) for end in ("", "-mirrored")]
    keys, broken = content_keys(paths)
    missing = []
    for store, rows in zip(caches, (range(len(paths)), flipped), strict=True):
        known = store.available(keys.values())
        missing.append([row for row in rows if row in keys and keys[row] not in known])
    total, count, size = len(paths) + len(flipped), sum(map(len, missing)), 2 * trunk.features
    _check_disk(cache, size * count)
    note = f"{size * count / 1e9:.1f} GB into {cache / 'maps'}" if count else ""
    done = total - count
    progress("maps", done, total, note)
    shard = max(1, _SHARD_BYTES // size)
    for mirrored, (store, rows) in enumerate(zip(caches, missing, strict=True)):
        readable = [row for row in rows if row not in broken]
        for step in fill_cache(store, paths, keys, readable, encoder, shard, mirrored=bool(mirrored)):
            broken |= step.broken
            done += step.seen
            progress("maps", done, total, note)
    progress("maps", total, total, note)
    return MapTable([keys.get(row, "") for row in range(len(paths))], caches[0], caches[1], broken)


def _check_disk(cache: Path, needed: int) -> None:
    """Reject work whose result the disk cannot hold, before it starts."""
    home = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(home).free
    if needed + _SPARE_BYTES > free:
        raise OutputError(
            f"the maps need {needed / 1e9:.1f} GB in '{cache}', which has {free / 1e9:.1f} GB free: train fewer stages "
            "(`stages=`), use fewer images, or name another folder as `cache=`."
        )
