"""Images to features: the one stream, used by training, search and bulk encoding.

Threads decode the next batches while the network is busy with one; memory holds a few batches of images however many
there are. The network is loaded once, when the first image needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, ImageError, first_reasons
from centerhash.core.parallel import batches_ahead
from centerhash.core.progress import Progress, silent
from centerhash.data.images import MAX_PIXELS, ImageSource, content_key, load_pixels, load_views
from centerhash.data.sandboxed_decoder import Preprocessing, SandboxedDecoder
from centerhash.networks.backbones import Backbone, choose_device
from centerhash.networks.cache import SHARD, FeatureCache, network_cache
from centerhash.networks.engines import (
    Engine,
    PortableNetwork,
    choose_engine,
    choose_portable_engine,
    open_engine,
)

if TYPE_CHECKING:
    import torch

_REPAIR = "Repair or leave out these files."
BATCH = 32  # images per pass through the network

Key: TypeAlias = Callable[[ImageSource], str | None]  # of an image; None: leave it out, it is known
_Read: TypeAlias = tuple[
    str | None, NDArray[np.uint8] | None
]  # key; pixels (crop, crop, 3), None where left out


@dataclass(frozen=True)
class Step:
    """What became of a batch of images: features (n, D) of those that were read, and the others."""

    seen: int  # images of this batch
    places: list[int]  # of those read, among all images of the stream
    keys: list[str]  # of the same
    features: NDArray[np.float32]
    known: int  # left out since their key was None
    broken: dict[int, ImageError]  # by place


@dataclass(frozen=True)
class FeatureTable:
    """Features (N, D) of N images, and the images that could not be read by their row."""

    features: NDArray[np.float32]
    broken: dict[int, ImageError]
    computed: int  # how many were not in the cache

    @property
    def readable(self) -> NDArray[np.int64]:
        """Rows of the images that could be read."""
        return np.array([row for row in range(len(self.features)) if row not in self.broken], dtype=np.int64)

    def raise_if_broken(self, advice: str) -> None:
        """Raise DataError that names the first broken images, with `advice` on what to do."""
        if self.broken:
            shown, total = first_reasons(self.broken.values()), len(self.features)
            raise DataError(f"{len(self.broken)} of {total} images cannot be read:\n{shown}\n{advice}")


def pixels_of(
    image: ImageSource, backbone: Backbone | PortableNetwork, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Pixels (crop, crop, 3) of one image as a backbone reads them."""
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
        # an engine that cannot be used is an error before anything is read
        self.device: str | torch.device
        if isinstance(backbone, PortableNetwork):
            self.device = "cpu"
            if isinstance(engine, str):
                choose_portable_engine(engine, device if isinstance(device, str) else "auto")
        else:
            self.device = choose_device(device) if isinstance(device, str) else device
            if isinstance(engine, str):
                choose_engine(engine, self.device)
        self._wanted, self._engine = engine, None if isinstance(engine, str) else engine
        self._loading = threading.Lock()
        self._sandbox: SandboxedDecoder | None = None

    @contextmanager
    def sandboxed(self, seconds: float) -> Iterator[None]:
        """Within this block, images that come as bytes are decoded in processes of limited time and memory."""
        backbone = self.backbone
        preprocessing = Preprocessing(
            backbone.resize, backbone.crop, backbone.interpolation, self._max_pixels
        )
        with closing(SandboxedDecoder(preprocessing, seconds)) as self._sandbox:
            try:
                yield
            finally:
                self._sandbox = None

    @property
    def engine(self) -> Engine:
        """What runs the network, loaded when it is first needed."""
        with self._loading:
            if self._engine is None:
                self._engine = open_engine(self.backbone, str(self._wanted), self.device, network_cache())
            return self._engine

    @property
    def used_engine(self) -> Engine | None:
        """The engine, where it has been needed."""
        return self._engine

    def pixels(self, image: ImageSource) -> NDArray[np.uint8]:
        """Decode one image to the pixels (crop, crop, 3) that the network reads; ImageError when it is broken."""
        if self._sandbox is not None and isinstance(image, bytes):
            first: NDArray[np.uint8] = self._sandbox.decode(image)[0]
            return first
        return pixels_of(image, self.backbone, self._max_pixels)

    def views(self, image: ImageSource) -> NDArray[np.uint8]:
        """As `pixels`, (n, crop, crop, 3): the image, and the part between its borders if it has some."""
        if self._sandbox is not None and isinstance(image, bytes):
            return self._sandbox.decode(image)
        how = self.backbone
        return load_views(
            image, how.resize, how.crop, interpolation=how.interpolation, max_pixels=self._max_pixels
        )

    def features(self, images: Sequence[ImageSource]) -> NDArray[np.float32]:
        """Features (n, D) of images: files, bytes, PIL images or uint8 arrays; broken ones raise DataError."""
        if len(images) == 1:  # no threads to read ahead: a server does this for every upload
            return self.engine.features(self.pixels(images[0])[None])
        found = [np.zeros((0, self.backbone.features), dtype=np.float32)]
        broken: dict[int, ImageError] = {}
        for step in self.stream(images):
            found.append(step.features)
            broken |= step.broken
        FeatureTable(np.zeros((len(images), 0), np.float32), broken, 0).raise_if_broken(_REPAIR)
        return np.concatenate(found)

    def stream(
        self, images: Sequence[ImageSource], key: Key | None = None, batch: int = BATCH
    ) -> Generator[Step, None, None]:
        """Yield the features of images batch by batch; those whose `key` is None are not decoded.

        The key is computed in the threads that decode, so hashing a file is prefetched as well.
        """

        def read(place: int) -> _Read:
            name = "" if key is None else key(images[place])
            return name, None if name is None else self.pixels(images[place])

        def batches() -> Iterator[range]:
            return (range(start, min(start + batch, len(images))) for start in range(0, len(images), batch))

        for places, futures in zip(batches(), batches_ahead(read, batches()), strict=True):
            yield self._step(places, futures)

    def _step(self, batch: Sequence[int], futures: Sequence[Future[_Read]]) -> Step:
        """Wait for a batch's pixels and send them through the network."""
        read: dict[int, tuple[str, NDArray[np.uint8]]] = {}
        broken: dict[int, ImageError] = {}
        for place, future in zip(batch, futures, strict=True):
            try:
                name, pixels = future.result()
            except ImageError as error:
                broken[place] = error
                continue
            if name is not None and pixels is not None:
                read[place] = name, pixels
        stacked = [pixels for _, pixels in read.values()]
        features = (
            self.engine.features(np.stack(stacked))
            if stacked
            else np.zeros((0, self.backbone.features), dtype=np.float32)
        )
        known = len(batch) - len(read) - len(broken)
        return Step(len(batch), list(read), [name for name, _ in read.values()], features, known, broken)

    def table(
        self,
        paths: Sequence[Path],
        cache: Path | None = None,
        *,
        batch: int = BATCH,
        progress: Progress = silent,
    ) -> FeatureTable:
        """Features (N, D) of image files, from the cache where they are there; rows of broken images are 0.

        `cache` is the cache's folder, None for no cache. It does not tell engines apart: their features differ by
        float32 rounding (1e-6 of the largest), as PyTorch's own do by device and by folding.
        """
        features = np.zeros((len(paths), self.backbone.features), dtype=np.float32)
        store = FeatureCache(cache / self.backbone.key) if cache is not None else None
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
        progress("features", done, len(paths))
        pending: list[int] = []

        def keep() -> None:
            if store is not None and pending:
                store.write([keys[row] for row in pending], features[pending])
                pending.clear()

        for step in self.stream([paths[row] for row in missing], batch=batch):
            rows = [missing[place] for place in step.places]
            features[rows] = step.features
            pending += rows
            broken |= {missing[place]: error for place, error in step.broken.items()}
            if len(pending) >= SHARD:
                keep()
            done += step.seen
            progress("features", done, len(paths))
        keep()
        return FeatureTable(features, broken, len(missing))
