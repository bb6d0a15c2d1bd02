"""Augmented images, from which a whole backbone learns: a random crop, flipped or not (Sec. 4.3).

An image is squashed to the backbone's frame, cropped at a random position and flipped with probability 0.5. For a
backbone that reads the whole frame, crops of at least LEAST_SIDE of its side are enlarged. All is drawn from (seed,
epoch, image) alone, so a resumed run reads the same images as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from centerhash.core.parallel import batches_ahead, read_all
from centerhash.data import Dataset
from centerhash.data.images import ImageSource, load_image
from centerhash.data.splits import Splits
from centerhash.networks.backbones import Backbone
from centerhash.networks.encoder import pixels_of
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.context import (
    BATCHES_AHEAD,
    RunContext,
    dataset_features,
    image_features,
    without_broken,
)
from centerhash.training.loop import Inputs

# A share of the frame's side, as in the paper's crops of 224 out of 256.
LEAST_SIDE = 7 / 8


class WholeImages:
    """Images for training a whole backbone: pixels go through all of it."""

    def __init__(self, dataset: Dataset, config: TrainConfig, context: RunContext) -> None:
        self.splits = readable_splits(dataset, context)
        self._dataset, self._config, self._context = dataset.with_splits(self.splits), config, context
        self._backbone = backbone_of(config)

    def trainable(self) -> tuple[nn.Module, nn.Module]:
        """Return the whole network and the part of it that is trained, which is all of it."""
        network = self._backbone.trainable()
        return network, network

    def augmented(self, rows: NDArray[np.int64]) -> Inputs:
        """Return the input of the training loop for rows: augmented images."""
        return image_inputs(self._files(rows), self._backbone, self._config.seed)

    def plain(self, rows: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield rows as they will be encoded, in batches."""
        return plain_inputs(self._files(rows), self._backbone, self._config.batch_size)

    def untrained_features(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute features (n, D) of rows by the backbone before training."""
        return image_features(self._files(rows), self._backbone, self._context).features

    def tuned_features(self, tuned: Backbone) -> tuple[NDArray[Any], Splits]:
        """Compute features (N, D) of all images by the trained backbone, and the splits without broken images."""
        context = self._context if self._context.cache_tuned else replace(self._context, cache=None)
        return dataset_features(self._dataset, tuned, context)

    def _files(self, rows: NDArray[np.int64]) -> list[Path]:
        return [(self._dataset.image_paths or ())[row] for row in rows.tolist()]


def augmented(source: ImageSource, backbone: Backbone, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Crop one image at a random position of its frame and flip it with probability 0.5: pixels (crop, crop, 3)."""
    image = load_image(source, at_least=2 * backbone.resize)
    frame, side = backbone.resize, backbone.crop
    if side == frame:
        side = int(generator.integers(round(LEAST_SIDE * frame), frame + 1))
    left, top = generator.integers(0, frame - side + 1, size=2).tolist()
    flipped = bool(generator.integers(2))
    # One resampling straight to the crop gives the pixels of squashing the whole frame first, except at its border.
    step_x, step_y = image.width / frame, image.height / frame
    box = (left * step_x, top * step_y, (left + side) * step_x, (top + side) * step_y)
    filter_kind = Image.Resampling[backbone.interpolation.upper()]
    pixels = np.asarray(image.resize((backbone.crop, backbone.crop), filter_kind, box=box))
    return np.ascontiguousarray(pixels[:, ::-1] if flipped else pixels)


def image_inputs(sources: Sequence[ImageSource], backbone: Backbone, seed: int) -> Inputs:
    """Return the input of the training loop: augmented images (B, crop, crop, 3) uint8, decoded ahead in threads."""

    def inputs(batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        def decode(position: int) -> NDArray[np.uint8]:
            return augmented(sources[position], backbone, np.random.default_rng((seed, epoch, position)))

        return _decoded(decode, (batch.tolist() for batch in batches), backbone)

    return inputs


def plain_inputs(sources: Sequence[ImageSource], backbone: Backbone, size: int) -> Iterator[Tensor]:
    """Yield images (B, crop, crop, 3) uint8 as they will be encoded, in batches of a size."""
    batches = (range(start, min(start + size, len(sources))) for start in range(0, len(sources), size))
    return _decoded(lambda position: pixels_of(sources[position], backbone), batches, backbone)


def _decoded(
    decode: Callable[[int], NDArray[np.uint8]], batches: Iterable[Sequence[int]], backbone: Backbone
) -> Iterator[Tensor]:
    for futures in batches_ahead(decode, batches, BATCHES_AHEAD, most_threads=16):
        pixels = np.array([future.result() for future in futures], np.uint8)
        yield torch.from_numpy(pixels.reshape(len(pixels), backbone.crop, backbone.crop, 3))


def readable_splits(dataset: Dataset, context: RunContext) -> Splits:
    """Return the splits of a dataset without broken images; the check comes before training, which may take hours."""
    paths = dataset.image_paths
    if paths is None:
        return dataset.splits
    rows = np.unique(np.concatenate([split for _, split in dataset.splits.items()])).tolist()
    check = partial(load_image, at_least=64)
    _, broken = read_all(check, {row: paths[row] for row in rows}, "checking", context.progress)
    return without_broken(dataset, broken, context)
