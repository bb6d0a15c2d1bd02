"""Images to features for a collection: the network is loaded once, and files are read ahead of it in threads.

Unlike `features.image_features`, which returns all features of a list, this streams: memory holds a few steps of
pictures however many there are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, ImageError
from centerhash.core.prefetch import batches_ahead
from centerhash.data.images import MAX_PIXELS, content_key, load_pixels
from centerhash.model import HashModel
from centerhash.networks.backbones import Backbone, choose_device
from centerhash.networks.cache import network_cache
from centerhash.networks.engines import Engine, choose_engine, open_engine

ID_LETTERS = 16  # of the SHA-256 of a file's bytes: 64 bits, so a million files collide with odds of 1 : 4e7
STEP = 32  # pictures per pass through the network

Progress: TypeAlias = Callable[[int, int], None]
Picture: TypeAlias = tuple[str, NDArray[np.uint8] | None]  # id; pixels (crop, crop, 3), None for a known id


@dataclass(frozen=True)
class Step:
    """What became of a few files: features (n, D) of the new ones, and which were known or broken."""

    seen: int
    ids: list[str]
    paths: list[Path]
    features: NDArray[np.float32]
    known: int
    broken: dict[str, str]


class ImageEncoder:
    """The backbone of a model on one device, run by one engine; safe to use from several threads.

    Pictures of more than `max_pixels` are refused before they are decoded.
    """

    def __init__(
        self, model: HashModel, device: str = "auto", max_pixels: int = MAX_PIXELS, inference: str = "auto"
    ) -> None:
        if model.spec.backbone is None:
            raise ConfigError(
                "the model of this index was trained on features and has no backbone, so it cannot read images: "
                "search by an id or by labels, add codes with `centerhash index import`, or train on images."
            )
        self.backbone: Backbone = model.backbone()
        self.device, self._max_pixels = choose_device(device), max_pixels
        choose_engine(inference, self.device)  # one that cannot be used is said before anything is read
        self._inference = inference
        self._engine: Engine | None = None
        self._loading = threading.Lock()

    def features(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Features (n, D) of pictures (crop, crop, 3) as `pixels_of` makes them."""
        if not pixels:
            return np.zeros((0, self.backbone.features), dtype=np.float32)
        return self.engine.features(np.stack(pixels))

    @property
    def engine(self) -> Engine:
        """What runs the network, loaded when it is first needed."""
        with self._loading:
            if self._engine is None:
                self._engine = open_engine(self.backbone, self._inference, self.device, network_cache())
            return self._engine

    @property
    def used_engine(self) -> Engine | None:
        """The engine, where it has been needed."""
        return self._engine

    def pixels_of(self, source: Path | bytes) -> NDArray[np.uint8]:
        """Decode one file, or its bytes, to the pixels that the network wants; ImageError when it is broken."""
        return load_pixels(
            source,
            self.backbone.resize,
            self.backbone.crop,
            max_pixels=self._max_pixels,
            interpolation=self.backbone.interpolation,
        )

    def stream(self, paths: Sequence[Path], known: Callable[[str], bool]) -> Generator[Step, None, None]:
        """Yield the features of image files step by step; files whose id is `known` are not decoded."""
        steps = [paths[start : start + STEP] for start in range(0, len(paths), STEP)]
        pictures = batches_ahead(lambda file: self._read(file, known), steps)
        for files, futures in zip(steps, pictures, strict=True):
            yield self._finish(files, futures)

    def _read(self, path: Path, known: Callable[[str], bool]) -> Picture:
        id = content_key(path)[:ID_LETTERS]
        return id, None if known(id) else self.pixels_of(path)

    def _finish(self, files: Sequence[Path], pictures: Sequence[Future[Picture]]) -> Step:
        """Wait for one step's pictures and send the new ones through the network."""
        ids: list[str] = []
        paths: list[Path] = []
        pixels: list[NDArray[np.uint8]] = []
        broken: dict[str, str] = {}
        known = 0
        for path, picture in zip(files, pictures, strict=True):
            try:
                id, decoded = picture.result()
            except ImageError as error:
                broken[str(path)] = str(error)
                continue
            if decoded is None or id in ids:
                known += 1
                continue
            ids.append(id)
            paths.append(path)
            pixels.append(decoded)
        return Step(len(files), ids, paths, self.features(pixels), known, broken)
