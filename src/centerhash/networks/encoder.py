"""Images to features, for training, search and bulk encoding.

Threads decode the next batches while the network computes one, and memory holds only a few batches of images.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, ImageError, first_reasons
from centerhash.core.parallel import batches_ahead
from centerhash.core.progress import Progress, silent
from centerhash.data.images import MAX_PIXELS, ImageSource, content_key, load_pixels, load_views
from centerhash.networks.backbones import Backbone, choose_device
from centerhash.networks.cache import ArrayCache, default_cache
from centerhash.networks.engines import Engine, PortableNetwork, choose_engine_of, open_engine

if TYPE_CHECKING:
    import torch

BATCH_SIZE = 32
# A shard of cached features is a few seconds of work on a small machine.
CACHE_SHARD_SIZE = 256


@dataclass(frozen=True)
class FeatureBatch:
    """Features (n, D) of the readable images of a batch of `size`, and errors of others, by position in the stream."""

    size: int
    positions: list[int]
    features: NDArray[np.float32]
    broken: dict[int, ImageError]


@dataclass(frozen=True)
class FeatureTable:
    """Features (N, D) of N images, errors of broken images by row, and the number of images that were not cached."""

    features: NDArray[np.float32]
    broken: dict[int, ImageError]
    computed: int

    @property
    def readable(self) -> NDArray[np.int64]:
        """Rows of the images that could be read."""
        return np.array([row for row in range(len(self.features)) if row not in self.broken], dtype=np.int64)


def raise_if_broken(broken: Mapping[int, ImageError], total: int, advice: str) -> None:
    """Raise DataError with the first errors of `total` images, if there are any, and `advice` on what to do."""
    if broken:
        reasons = first_reasons(broken.values())
        raise DataError(f"{len(broken)} of {total} images cannot be read:\n{reasons}\n{advice}")


def pixels_of(
    image: ImageSource, backbone: Backbone | PortableNetwork, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Return the pixels (crop, crop, 3) of an image as a backbone reads them."""
    return load_pixels(
        image, backbone.resize, backbone.crop, max_pixels=max_pixels, interpolation=backbone.interpolation
    )


class Encoder:
    """A backbone, or a whole model in one file, on one device, run by one engine; several threads may share it.

        encoder = Encoder(get_backbone("efficientnet-lite0"))
        features = encoder.features(["dog.jpg", "cat.jpg"])         # (2, D)
        table = encoder.table(paths, cache=default_cache())

    The network is loaded when the first image needs it. Images of more than `max_pixels` are rejected before they are
    decoded. `engine` is the name of an engine, or an open engine of this backbone.
    """

    def __init__(
        self,
        backbone: Backbone | PortableNetwork,
        *,
        device: str | torch.device = "auto",
        engine: str | Engine = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.backbone, self._max_pixels = backbone, max_pixels
        self._device: str | torch.device
        if isinstance(backbone, PortableNetwork):
            # Only a device that a user names is an error: the file runs on the CPU next to any other device.
            self._device = device if isinstance(device, str) else "auto"
        else:
            self._device = choose_device(str(device))
        self._engine_name, self._engine = engine, None if isinstance(engine, str) else engine
        if isinstance(engine, str):
            # An engine that cannot be used is an error before anything is read.
            choose_engine_of(backbone, engine, self._device)
        self._loading = threading.Lock()

    @property
    def engine(self) -> Engine:
        """The engine of the network, which is loaded when it is first needed."""
        with self._loading:
            if self._engine is None:
                name = str(self._engine_name)
                self._engine = open_engine(self.backbone, name, self._device, default_cache() / "networks")
            return self._engine

    @property
    def used_engine(self) -> Engine | None:
        """The engine if it is loaded, else None."""
        return self._engine

    def pixels(self, image: ImageSource) -> NDArray[np.uint8]:
        """Decode an image to the pixels (crop, crop, 3) that the network reads; ImageError if it is broken."""
        return pixels_of(image, self.backbone, self._max_pixels)

    def views(self, image: ImageSource) -> NDArray[np.uint8]:
        """Decode an image, and the part between its borders if it has some, to pixels (n, crop, crop, 3)."""
        network, max_pixels = self.backbone, self._max_pixels
        return load_views(
            image, network.resize, network.crop, interpolation=network.interpolation, max_pixels=max_pixels
        )

    def features(self, images: Sequence[ImageSource]) -> NDArray[np.float32]:
        """Compute features (n, D) of images: files, bytes, PIL images or uint8 arrays; broken ones raise DataError."""
        # A server encodes each upload alone, without threads that would read ahead.
        if len(images) == 1:
            return self.engine.features(self.pixels(images[0])[None])
        parts = [np.zeros((0, self.backbone.features), dtype=np.float32)]
        broken: dict[int, ImageError] = {}
        for batch in self.stream(images):
            parts.append(batch.features)
            broken |= batch.broken
        raise_if_broken(broken, len(images), "Repair or leave out these files.")
        return np.concatenate(parts)

    def stream(
        self, images: Sequence[ImageSource], *, mirrored: bool = False
    ) -> Generator[FeatureBatch, None, None]:
        """Yield the features of images, or of their mirror images, batch by batch."""

        def read(position: int) -> NDArray[np.uint8]:
            pixels = self.pixels(images[position])
            return pixels[:, ::-1] if mirrored else pixels

        batches = [
            range(start, min(start + BATCH_SIZE, len(images))) for start in range(0, len(images), BATCH_SIZE)
        ]
        for positions, futures in zip(batches, batches_ahead(read, batches), strict=True):
            pixels: dict[int, NDArray[np.uint8]] = {}
            broken: dict[int, ImageError] = {}
            for position, future in zip(positions, futures, strict=True):
                try:
                    pixels[position] = future.result()
                except ImageError as error:
                    broken[position] = error
            features = np.zeros((0, self.backbone.features), dtype=np.float32)
            if pixels:
                features = self.engine.features(np.stack(list(pixels.values())))
            yield FeatureBatch(len(positions), list(pixels), features, broken)

    def table(
        self, paths: Sequence[Path], cache: Path | None = None, *, progress: Progress = silent
    ) -> FeatureTable:
        """Compute features (N, D) of image files, or read them from the folder `cache`; rows of broken images are 0.

        All engines share the cache. Their features differ by float32 rounding (1e-6 of the largest), as PyTorch's own
        do by device and by folding.
        """
        width = self.backbone.features
        features = np.zeros((len(paths), width), dtype=np.float32)
        store = None if cache is None else ArrayCache(cache / self.backbone.key, width, np.float32)
        keys, broken = content_keys(paths)
        available = set() if store is None else store.available(keys.values())
        cached = [row for row, key in keys.items() if key in available]
        if store is not None and cached:
            features[cached] = store.read([keys[row] for row in cached])
        missing = [row for row, key in keys.items() if key not in available]
        done = len(paths) - len(missing)
        progress("features", done, len(paths))
        for batch in fill_cache(store, paths, keys, missing, self, CACHE_SHARD_SIZE):
            features[batch.positions] = batch.features
            broken |= batch.broken
            done += batch.size
            progress("features", done, len(paths))
        return FeatureTable(features, broken, len(missing))


def content_keys(paths: Sequence[Path]) -> tuple[dict[int, str], dict[int, ImageError]]:
    """Return the content keys of image files by row, and the errors of those that cannot be read."""
    keys: dict[int, str] = {}
    broken: dict[int, ImageError] = {}
    for row, path in enumerate(paths):
        try:
            keys[row] = content_key(path)
        except ImageError as error:
            broken[row] = error
    return keys, broken


def fill_cache(
    cache: ArrayCache | None,
    paths: Sequence[Path],
    keys: Mapping[int, str],
    rows: Sequence[int],
    encoder: Encoder,
    shard: int,
    *,
    mirrored: bool = False,
) -> Iterator[FeatureBatch]:
    """Yield the features of some rows of image files, with rows as positions, and write them to a cache in shards."""
    pending: dict[str, NDArray[np.float32]] = {}

    def write() -> None:
        if cache is not None and pending:
            cache.write(list(pending), np.stack(list(pending.values())))
        pending.clear()

    for batch in encoder.stream([paths[row] for row in rows], mirrored=mirrored):
        readable = [rows[position] for position in batch.positions]
        pending.update((keys[row], features) for row, features in zip(readable, batch.features, strict=True))
        if len(pending) >= shard:
            write()
        broken = {rows[position]: error for position, error in batch.broken.items()}
        yield replace(batch, positions=readable, broken=broken)
    write()
