"""Features of image files, computed once: a cache keyed by the image's bytes and the backbone.

The cache is a folder per backbone with parts of a few hundred images each. A part is written whole or not at
all, so a kill loses at most the part in work, and several processes may fill the same cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, ImageError, first_reasons
from centerhash.core.files import read_npz, write_npz
from centerhash.core.prefetch import batches_ahead
from centerhash.data.images import MAX_PIXELS, ImageSource, content_key, load_pixels
from centerhash.networks.backbones import Backbone
from centerhash.networks.engines import Engine, choose_engine, open_engine

if TYPE_CHECKING:
    import torch

Progress: TypeAlias = Callable[[int, int], None]  # done, total

_PART = 256  # images per cache part: a few seconds of work on a small machine


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
        for part in sorted(self.folder.glob("*.npz")):
            try:
                keys = read_npz(part, "keys")["keys"].tolist()
            except DataError:
                self._drop(part)
                continue
            self._rows.update((key, (part, row)) for row, key in enumerate(keys))

    def read(self, keys: Mapping[int, str], out: NDArray[np.float32]) -> list[int]:
        """Copy the features of `keys`, by row, into those rows of `out` (N, D); return the rows that were there."""
        by_part: dict[Path, list[tuple[int, int]]] = {}
        for row, key in keys.items():
            if key in self._rows:
                part, stored_row = self._rows[key]
                by_part.setdefault(part, []).append((row, stored_row))
        found: list[int] = []
        for part, pairs in by_part.items():
            target, source = (list(side) for side in zip(*pairs, strict=True))
            try:
                out[target] = read_npz(part, "features")["features"][source]
            except (DataError, ValueError, IndexError):  # damaged, or features of another shape
                self._drop(part)
                continue
            found += target
        return found

    def _drop(self, part: Path) -> None:
        """Forget a damaged part: it can only cost its images' time again."""
        with suppress(OSError):
            part.unlink(missing_ok=True)

    def write(self, keys: Sequence[str], features: NDArray[np.float32]) -> None:
        """Add one part, named after all its keys: whoever writes a file of that name writes the same."""
        part = self.folder / f"{hashlib.sha256(''.join(keys).encode()).hexdigest()}.npz"
        write_npz(part, {"keys": np.array(keys), "features": features})
        self._rows.update((key, (part, row)) for row, key in enumerate(keys))


@dataclass(frozen=True)
class FeatureTable:
    """Features (N, D) of N images, and the images that could not be read by their row."""

    features: NDArray[np.float32]
    broken: dict[int, ImageError]
    computed: int  # how many were not in the cache
    engine: str | None = None  # that computed them; None where all were in the cache
    warnings: tuple[str, ...] = ()  # of the engine

    def raise_if_broken(self, advice: str) -> None:
        """Raise DataError that names the first broken images, with `advice` on what to do."""
        if self.broken:
            shown, total = first_reasons(self.broken.values()), len(self.features)
            raise DataError(f"{len(self.broken)} of {total} images cannot be read:\n{shown}\n{advice}")


def decode(source: ImageSource, backbone: Backbone, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Pixels (crop, crop, 3) of one image file, or of its bytes, as the backbone wants them."""
    return load_pixels(
        source, backbone.resize, backbone.crop, max_pixels=max_pixels, interpolation=backbone.interpolation
    )


def image_features(
    paths: Sequence[Path],
    backbone: Backbone,
    cache: Path | None = None,
    device: str | torch.device = "cpu",
    batch_size: int = 32,
    progress: Progress | None = None,
    engine: str | Engine = "auto",
) -> FeatureTable:
    """Features (N, D) of image files, from the cache where they are there; rows of broken images are 0.

    `cache` is the cache's folder, None for no cache. Decoding runs in threads ahead of the network. `engine` is a
    name, or one of this backbone that is open. The cache does not tell engines apart: their features differ by
    float32 rounding (1e-6 of the largest), as PyTorch's own do by device and by folding.
    """
    if isinstance(engine, str):
        choose_engine(engine, device)  # one that cannot be used is said before anything is read
    features = np.zeros((len(paths), backbone.features), dtype=np.float32)
    store = FeatureCache(cache / backbone.key) if cache is not None else None
    broken: dict[int, ImageError] = {}
    keys: dict[int, str] = {}
    for row, path in enumerate(paths):
        try:
            keys[row] = content_key(path)
        except ImageError as error:
            broken[row] = error
    found = set() if store is None else set(store.read(keys, features))
    missing = [row for row in keys if row not in found]
    done = len(paths) - len(missing)
    if progress is not None:
        progress(done, len(paths))
    if not missing:
        return FeatureTable(features, broken, 0)

    network = open_engine(backbone, engine, device, network_cache()) if isinstance(engine, str) else engine
    pending: list[int] = []
    for rows, pixels in _decoded_batches(paths, missing, backbone, batch_size, broken):
        if rows:
            features[rows] = network.features(np.stack(pixels))
            pending += rows
        if store is not None and len(pending) >= _PART:
            store.write([keys[row] for row in pending], features[pending])
            pending = []
        done += batch_size
        if progress is not None:
            progress(min(done, len(paths)), len(paths))
    if store is not None and pending:
        store.write([keys[row] for row in pending], features[pending])
    return FeatureTable(features, broken, len(missing), network.name, network.warnings)


def _decoded_batches(
    paths: Sequence[Path],
    rows: Sequence[int],
    backbone: Backbone,
    batch_size: int,
    broken: dict[int, ImageError],
) -> Iterator[tuple[list[int], list[NDArray[np.uint8]]]]:
    """Yield (rows, pixels) batch by batch; two batches are being decoded while one is in use."""
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    decoded = batches_ahead(lambda row: decode(paths[row], backbone), batches)
    for batch, futures in zip(batches, decoded, strict=True):
        good: list[int] = []
        pixels: list[NDArray[np.uint8]] = []
        for row, future in zip(batch, futures, strict=True):
            try:
                pixels.append(future.result())
                good.append(row)
            except ImageError as error:
                broken[row] = error
        yield good, pixels
