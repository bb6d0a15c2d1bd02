"""The last stages of a backbone, trained with the head on maps that the stages below computed once.

An epoch costs only the time of the trained stages. An image is mirrored with probability 0.5, drawn from (seed, epoch,
image) alone, so a resumed run reads the same maps as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.core.errors import ConfigError
from centerhash.core.parallel import batches_ahead
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.networks.backbones import Backbone
from centerhash.networks.encoder import Encoder
from centerhash.networks.stages import Maps, MapTable, SplitBackbone, compute_maps, split_backbone
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.context import BATCHES_AHEAD, RunContext, without_broken
from centerhash.training.loop import Inputs

_MAPS_PER_PASS = 256


class LastStageMaps:
    """Images for training the last stages of a backbone: maps of the stages below, which stay as they are."""

    def __init__(self, dataset: Dataset, config: TrainConfig, context: RunContext) -> None:
        self._split = split_backbone(backbone_of(config), config.stages)
        self._maps = dataset_maps(dataset, self._split, context)
        note = "The maps of all others are kept. "
        self.splits = without_broken(dataset, self._maps.broken, context, note)
        self._size, self._seed, self._context = dataset.size, config.seed, context
        self._network, self._tail = self._split.trainable()

    def trainable(self) -> tuple[nn.Module, nn.Module]:
        """Return the whole network and the part of it that is trained."""
        return self._network, self._tail

    def augmented(self, rows: NDArray[np.int64]) -> Inputs:
        """Return the input of the training loop: maps (B, *shape), each mirrored with probability 0.5, read ahead."""

        def inputs(batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
            mirrored = np.random.default_rng((self._seed, epoch)).integers(2, size=len(rows)).astype(bool)

            def read(position: int) -> Maps:
                return self._maps.read([int(rows[position])], bool(mirrored[position]))

            for futures in batches_ahead(read, (batch.tolist() for batch in batches), BATCHES_AHEAD):
                maps = np.array([future.result()[0] for future in futures], np.float16)
                yield _as_maps(maps, self._split)

        return inputs

    def plain(self, rows: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield rows as they will be encoded, in batches."""
        for start in range(0, len(rows), _MAPS_PER_PASS):
            yield _as_maps(self._maps.read(rows[start : start + _MAPS_PER_PASS].tolist()), self._split)

    def untrained_features(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute features (n, D) of rows by the stages as they are now, which are left in eval mode."""
        device, progress = self._context.group.device, self._context.progress
        tail = self._tail.eval().to(device)
        features = np.zeros((len(rows), self._split.whole.features), np.float32)
        done = 0
        with torch.inference_mode():
            for maps in self.plain(rows):
                features[done : done + len(maps)] = tail(maps.to(device)).float().cpu().numpy()
                done += len(maps)
                progress("features", done, len(rows))
        return features

    def tuned_features(self, tuned: Backbone) -> tuple[NDArray[Any], Splits]:
        """Compute features (N, D) of all images by the trained stages; the splits are those of training."""
        rows = np.unique(np.concatenate([split for _, split in self.splits.items()]))
        features = np.zeros((self._size, tuned.features), np.float32)
        features[rows] = self.untrained_features(rows)
        return features, self.splits


def dataset_maps(dataset: Dataset, split: SplitBackbone, context: RunContext) -> MapTable:
    """Compute the maps of a dataset's images, and the mirrored ones of those that are trained on."""
    paths, group, cache = dataset.image_paths or (), context.group, context.cache
    if cache is None:
        raise ConfigError('`finetune="last"` keeps maps of all images on disk: name a folder as `cache=`.')
    train = context.split_validation(dataset.splits.train)[0].tolist()
    encoder = Encoder(split.trunk, device=group.device)

    def maps(rows: slice) -> MapTable:
        selected = range(*rows.indices(len(paths)))
        mirrored = [row - selected.start for row in train if row in selected]
        return compute_maps(paths[rows], mirrored, encoder, cache, context.progress)

    group.fill_cache(len(paths), maps)
    return maps(slice(0, len(paths)))


def _as_maps(flat: NDArray[Any], split: SplitBackbone) -> Tensor:
    maps = torch.from_numpy(flat).reshape(len(flat), *split.shape)
    order = torch.channels_last if maps.ndim == 4 else torch.preserve_format
    # One conversion of type and order needs less than half of the time of two.
    return maps.to(torch.float32, memory_format=order)
