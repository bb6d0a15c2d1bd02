"""Images to features: the one stream, used by training, search and bulk encoding.

    encoder = Encoder(get_backbone("efficientnet-lite0"))
    features = encoder.features(["dog.jpg", "cat.jpg"])
    table = encoder.table(paths, cache=default_cache())

Threads decode the next batches while the network is busy with one; memory holds a few batches of images however many
there are. The network is loaded once, when the first image needs it.
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
from centerhash.networks.engines import (
    Engine,
    PortableNetwork,
    choose_engine_of,
    open_engine,
)

if TYPE_CHECKING:
    import torch

# images per pass through the network
BATCH = 32
# images per shard of cached features: a few seconds of work on a small machine
SHARD = 256


@dataclass(frozen=True)
class Step:
    """What became of a batch of `seen` images.

    Those at `places` of the whole stream were read and have features (n, D), the `broken` ones are listed by their place.
    """

    seen: int
    places: list[int]
    features: NDArray[np.float32]
    broken: dict[int, ImageError]


@dataclass(frozen=True)
class FeatureTable:
    """Features (N, D) of N images, the images that could not be read by their row, and how many were not cached."""

    features: NDArray[np.float32]
    broken: dict[int, ImageError]
    computed: int

    @property
    def readable(self) -> NDArray[np.int64]:
        """Rows of the images that could be read."""
        return np.array([row for row in range(len(self.features)) if row not in self.broken], dtype=np.int64)

    def raise_if_broken(self, advice: str) -> None:
        """Raise DataError that names the first broken images, with `advice` on what to do."""
        raise_if_broken(self.broken, len(self.features), advice)


def raise_if_broken(broken: Mapping[int, ImageError], total: int, advice: str) -> None:
    """Raise DataError that names the first broken ones of `total` images, with `advice` on what to do."""
    if broken:
        shown = first_reasons(broken.values())
        raise DataError(f"{len(broken)} of {total} images cannot be read:\n{shown}\n{advice}")


def pixels_of(
    image: ImageSource, backbone: Backbone | PortableNetwork, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Return the pixels (crop, crop, 3) of one image as a backbone reads them."""
    return load_pixels(
        image, backbone.resize, backbone.crop, max_pixels=max_pixels, interpolation=backbone.interpolation
    )


class Encoder:
    """A backbone, or a whole model in one file, on one device, run by one engine; safe to use from several threads.

    Images of more than `max_pixels` are refused before they are decoded. `engine` is the name of one, or one of this
    backbone that is open already.
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
        if isinstance(backbone, PortableNetwork):  # it runs on the CPU, unless the user named another device
            self._device = device if isinstance(device, str) else "auto"
        else:
            self._device = choose_device(str(device))
        self._engine_name, self._engine = engine, None if isinstance(engine, str) else engine
        if isinstance(engine, str):  # one that cannot be used is an error before anything is read
            choose_engine_of(backbone, engine, self._device)
        self._loading = threading.Lock()

    @property
    def engine(self) -> Engine:
        """What runs the network, loaded when it is first needed."""
        with self._loading:
            if self._engine is None:
                name = str(self._engine_name)
                self._engine = open_engine(self.backbone, name, self._device, default_cache() / "networks")
            return self._engine

    @property
    def used_engine(self) -> Engine | None:
        """The engine, where it has been needed."""
        return self._engine

    def pixels(self, image: ImageSource) -> NDArray[np.uint8]:
        """Decode one image to the pixels (crop, crop, 3) that the network reads; ImageError when it is broken."""
        return pixels_of(image, self.backbone, self._max_pixels)

    def views(self, image: ImageSource) -> NDArray[np.uint8]:
        """As `pixels`, (n, crop, crop, 3): the image, and the part between its borders if it has some."""
        return load_views(
            image,
            self.backbone.resize,
            self.backbone.crop,
            interpolation=self.backbone.interpolation,
            max_pixels=self._max_pixels,
        )

    def features(self, images: Sequence[ImageSource]) -> NDArray[np.float32]:
        """Compute features (n, D) of images: files, bytes, PIL images or uint8 arrays; broken ones raise DataError."""
        if len(images) == 1:  # no threads to read ahead: a server does this for every upload
            return self.engine.features(self.pixels(images[0])[None])
        parts = [np.zeros((0, self.backbone.features), dtype=np.float32)]
        broken: dict[int, ImageError] = {}
        for step in self.stream(images):
            parts.append(step.features)
            broken |= step.broken
        raise_if_broken(broken, len(images), "Repair or leave out these files.")
        return np.concatenate(parts)

    def stream(self, images: Sequence[ImageSource], *, mirrored: bool = False) -> Generator[Step, None, None]:
        """Yield the features of images, or of their mirror images, batch by batch."""

        def read(place: int) -> NDArray[np.uint8]:
            pixels = self.pixels(images[place])
            return pixels[:, ::-1] if mirrored else pixels

        batches = [range(start, min(start + BATCH, len(images))) for start in range(0, len(images), BATCH)]
        for places, futures in zip(batches, batches_ahead(read, batches), strict=True):
            pixels: dict[int, NDArray[np.uint8]] = {}
            broken: dict[int, ImageError] = {}
            for place, future in zip(places, futures, strict=True):
                try:
                    pixels[place] = future.result()
                except ImageError as error:
                    broken[place] = error
            features = np.zeros((0, self.backbone.features), dtype=np.float32)
            if pixels:
                features = self.engine.features(np.stack(list(pixels.values())))
            yield Step(len(places), list(pixels), features, broken)

    def table(
        self,
        paths: Sequence[Path],
        cache: Path | None = None,
        *,
        progress: Progress = silent,
    ) -> FeatureTable:
        """Compute features (N, D) of image files, or read them from the cache; rows of broken images are 0.

        `cache` is the cache's folder, None for no cache. It does not tell engines apart: their features differ by
        float32 rounding (1e-6 of the largest), as PyTorch's own do by device and by folding.
        """
        width = self.backbone.features
        features = np.zeros((len(paths), width), dtype=np.float32)
        store = None if cache is None else ArrayCache(cache / self.backbone.key, width, np.float32)
        keys, broken = content_keys(paths)
        known = set() if store is None else store.available(keys.values())
        cached = [row for row, key in keys.items() if key in known]
        if store is not None and cached:
            features[cached] = store.read([keys[row] for row in cached])
        missing = [row for row, key in keys.items() if key not in known]
        done = len(paths) - len(missing)
        progress("features", done, len(paths))
        for step in fill_cache(store, paths, keys, missing, self, SHARD):
            features[step.places] = step.features
            broken |= step.broken
            done += step.seen
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
) -> Iterator[Step]:
    """Compute the features of some rows of image files, in shards into a cache; the places of the steps are rows."""
    pending: dict[str, NDArray[np.float32]] = {}

    def write() -> None:
        if cache is not None and pending:
            cache.write(list(pending), np.stack(list(pending.values())))
        pending.clear()

    for step in encoder.stream([paths[row] for row in rows], mirrored=mirrored):
        places = [rows[place] for place in step.places]
        pending.update((keys[row], features) for row, features in zip(places, step.features, strict=True))
        if len(pending) >= shard:
            write()
        broken = {rows[place]: error for place, error in step.broken.items()}
        yield replace(step, places=places, broken=broken)
    write()
