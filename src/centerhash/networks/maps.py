"""Maps of image files, computed once by the trunk of a backbone and kept on disk as float16.

A folder per trunk holds shards of a few images, which are memory-mapped: training reads single maps at random. A
shard's keys are written after its maps, so a crash loses at most the shard in progress.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ImageError, OutputError
from centerhash.core.files import atomic, make_folder, write_text
from centerhash.core.parallel import batches_ahead
from centerhash.core.progress import Progress
from centerhash.data.images import content_key
from centerhash.networks.backbones import Backbone
from centerhash.networks.encoder import BATCH, Encoder

_SHARD = 32 << 20  # bytes of maps: a few seconds of work
_SPARE = 1 << 30  # bytes of the disk that are left alone

Maps: TypeAlias = NDArray[np.float16]  # (n, D), flattened


class MapCache:
    """Maps on disk by content key."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self._rows: dict[str, tuple[Maps, int]] = {}
        for listed in sorted(folder.glob("*.txt")):
            shard = listed.with_suffix(".npy")
            try:
                keys = listed.read_text().split()
                maps = np.load(shard, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError):  # cut or gone: it can only cost its images' time again
                self._drop(listed, shard)
                continue
            if maps.shape != (len(keys), width) or maps.dtype != np.float16:
                self._drop(listed, shard)
                continue
            self._rows.update((key, (maps, row)) for row, key in enumerate(keys))

    def _drop(self, *files: Path) -> None:
        for file in files:
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def read(self, keys: Sequence[str]) -> Maps:
        """Return maps (n, D) of images that are here."""
        found = np.empty((len(keys), self.width), dtype=np.float16)
        for row, key in enumerate(keys):
            maps, place = self._rows[key]
            found[row] = maps[place]
        return found

    def write(self, keys: Sequence[str], maps: Maps) -> None:
        """Add one shard, named after all its keys: whoever writes a file of that name writes the same."""
        make_folder(self.folder)
        shard = self.folder / f"{hashlib.sha256(''.join(keys).encode()).hexdigest()}.npy"
        with atomic(shard) as stream:
            np.save(stream, maps)
        write_text(shard.with_suffix(".txt"), "\n".join(keys))
        kept = np.load(shard, mmap_mode="r", allow_pickle=False)
        self._rows.update((key, (kept, row)) for row, key in enumerate(keys))


class MapTable:
    """Maps of a list of image files, plain or mirrored; images that could not be read by their row."""

    def __init__(
        self, keys: Sequence[str], caches: dict[bool, MapCache], broken: dict[int, ImageError]
    ) -> None:
        self._keys, self._caches, self.broken = keys, caches, broken
        self.frozen: NDArray[np.float32] | None = None  # features of the training images before any training

    def read(self, rows: Sequence[int], mirrored: Sequence[bool] | None = None) -> Maps:
        """Return maps (n, D) of some images, each mirrored or not."""
        if mirrored is None:
            return self._caches[False].read([self._keys[row] for row in rows])
        pairs = zip(rows, mirrored, strict=True)
        return np.concatenate([self._caches[bool(flip)].read([self._keys[row]]) for row, flip in pairs])


def compute_maps(
    paths: Sequence[Path],
    flipped: Sequence[int],
    trunk: Backbone,
    cache: Path,
    encoder: Encoder,
    progress: Progress,
) -> MapTable:
    """Return the maps of image files, and of the rows `flipped` the mirrored ones too; those in the cache are read."""
    folders = {flip: cache / "maps" / f"{trunk.key}{'-mirrored' if flip else ''}" for flip in (False, True)}
    caches = {flip: MapCache(folder, trunk.features) for flip, folder in folders.items()}
    keys, broken = _content_keys(paths)
    wanted = {
        flip: [row for row in rows if row not in broken and keys[row] not in caches[flip]]
        for flip, rows in ((False, range(len(paths))), (True, flipped))
    }
    rows = sorted({*wanted[False], *wanted[True]})
    sides = {flip: set(wanted[flip]) for flip in wanted}
    needed = 2 * trunk.features * sum(map(len, wanted.values()))
    _check_disk(cache, needed)
    note = f"{needed / 1e9:.1f} GB into {cache / 'maps'}" if needed else ""
    done = len(paths) - len(rows)
    progress("maps", done, len(paths), note)
    pending: dict[bool, list[tuple[str, Maps]]] = {False: [], True: []}

    def keep(least: int) -> None:
        for flip, found in pending.items():
            if len(found) >= least:
                caches[flip].write([key for key, _ in found], np.stack([maps for _, maps in found]))
                found.clear()

    for batch, pixels in _decoded(paths, rows, encoder, broken):
        for flip in (False, True):
            chosen = [place for place, row in enumerate(batch) if row in sides[flip]]
            if chosen:
                images = np.stack([pixels[place][:, ::-1] if flip else pixels[place] for place in chosen])
                maps = encoder.engine.features(np.ascontiguousarray(images)).astype(np.float16)
                pending[flip] += [(keys[batch[place]], maps[at]) for at, place in enumerate(chosen)]
        keep(max(BATCH, _SHARD // (2 * trunk.features)))
        done += BATCH
        progress("maps", min(done, len(paths)), len(paths), note)
    keep(1)
    return MapTable(keys, caches, broken)


def _content_keys(paths: Sequence[Path]) -> tuple[list[str], dict[int, ImageError]]:
    keys, broken = [], {}
    for row, path in enumerate(paths):
        try:
            keys.append(content_key(path))
        except ImageError as error:
            keys.append("")
            broken[row] = error
    return keys, broken


def _decoded(
    paths: Sequence[Path], rows: Sequence[int], encoder: Encoder, broken: dict[int, ImageError]
) -> Iterator[tuple[list[int], list[NDArray[np.uint8]]]]:
    """Yield rows and their pixels batch by batch, decoded ahead; broken images are noted and left out."""

    def read(row: int) -> NDArray[np.uint8]:
        return encoder.pixels(paths[row])

    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    for batch, futures in zip(batches, batches_ahead(read, batches), strict=True):
        good, pixels = [], []
        for row, future in zip(batch, futures, strict=True):
            try:
                pixels.append(future.result())
                good.append(row)
            except ImageError as error:
                broken[row] = error
        yield good, pixels


def _check_disk(cache: Path, needed: int) -> None:
    """Reject work whose result the disk cannot hold, before it starts."""
    home = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(home).free
    if needed + _SPARE > free:
        raise OutputError(
            f"the maps need {needed / 1e9:.1f} GB in '{cache}', which has {free / 1e9:.1f} GB free: train fewer stages "
            "(`stages=`), use fewer images, or name another folder as `cache=`."
        )
