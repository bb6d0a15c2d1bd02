"""The last stages of a backbone, trained with the head on maps that the stages below computed once.

An epoch costs what the trained stages cost. An image comes mirrored with probability 0.5, drawn from (seed, epoch,
image) alone, so a run that resumes sees the same maps as an uninterrupted one.
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
from centerhash.networks.maps import Maps, MapTable, compute_maps
from centerhash.networks.stages import SplitBackbone, split_backbone
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.context import RunContext, without_broken
from centerhash.training.loop import Inputs

# maps per pass through the last stages without gradients
_CHUNK = 256
# batches that are read while one is in use
_BATCHES_AHEAD = 3


class LastStageMaps:
    """Images for training the last stages of a backbone: maps of the stages below, which stay as they are."""

    def __init__(self, dataset: Dataset, config: TrainConfig, context: RunContext) -> None:
        if context.cache is None:
            raise ConfigError(
                '`finetune="last"` keeps maps of all images on disk: name a folder as `cache=`.'
            )
        self._split = split_backbone(backbone_of(config), config.stages)
        self._maps = dataset_maps(dataset, self._split, context)
        kept = "The maps of all others are kept. "
        self.splits = without_broken(dataset, self._maps.broken, context, kept)
        self._size, self._seed, self._context = dataset.size, config.seed, context
        self._whole, self._tail = self._split.trainable()

    def trainable(self) -> tuple[nn.Module, nn.Module]:
        """Return the whole network and the part of it that is trained."""
        return self._whole, self._tail

    def augmented(self, rows: NDArray[np.int64]) -> Inputs:
        """Return the input of the training loop for some rows."""
        return map_inputs(self._maps, rows.tolist(), self._split, self._seed)

    def plain(self, rows: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield rows as they will be encoded, in batches."""
        for start in range(0, len(rows), _CHUNK):
            yield _as_maps(self._maps.read(rows[start : start + _CHUNK].tolist()), self._split)

    def untrained_features(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute features (n, D) of rows before training."""
        return self._features(rows)

    def tuned_features(self, tuned: Backbone) -> tuple[NDArray[Any], Splits]:
        """Compute features (N, D) of all images by the trained stages; the splits are those of training."""
        rows = np.unique(np.concatenate([part for _, part in self.splits.items()]))
        features = np.zeros((self._size, tuned.features), np.float32)
        features[rows] = self._features(rows)
        return features, self.splits

    def _features(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute features (n, D) of rows from their maps; the stages are left in eval mode."""
        device, progress = self._context.group.device, self._context.progress
        tail, parts, done = self._tail.eval().to(device), [], 0
        with torch.inference_mode():
            for maps in self.plain(rows):
                parts.append(tail(maps.to(device)).float().cpu().numpy())
                done += len(maps)
                progress("features", done, len(rows))
        return np.concatenate(parts) if parts else np.zeros((0, self._split.whole.features), np.float32)


def dataset_maps(dataset: Dataset, split: SplitBackbone, context: RunContext) -> MapTable:
    """Compute the maps of a dataset's images, mirrored ones for training too.

    With several processes, each computes its share into the cache, then all read from there. Runs with the same context
    share the table.
    """
    assert context.cache is not None
    paths, group, cache = dataset.image_paths or (), context.group, context.cache
    train = context.split_validation(dataset.splits.train)[0].tolist()

    def maps(rows: slice) -> MapTable:
        inside = range(*rows.indices(len(paths)))
        flipped = [row - inside.start for row in train if row in inside]
        encoder = Encoder(split.trunk, device=group.device)
        return compute_maps(paths[rows], flipped, encoder, cache, context.progress)

    key = (split.whole.key, split.trunk.key, paths, tuple(train))
    if key not in context.maps:
        context.maps.clear()  # a table keeps its files open
        if group.size > 1:
            maps(group.share(len(paths)))
            group.barrier()
        context.maps[key] = maps(slice(0, len(paths)))
    return context.maps[key]


def map_inputs(maps: MapTable, rows: Sequence[int], split: SplitBackbone, seed: int) -> Inputs:
    """Make the input of the training loop: maps (B, *shape), each mirrored with probability 0.5, read ahead."""

    def inputs(batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        mirrored = np.random.default_rng((seed, epoch)).integers(2, size=len(rows)).astype(bool)

        def read(position: int) -> Maps:
            return maps.read([rows[position]], bool(mirrored[position]))

        for futures in batches_ahead(read, (batch.tolist() for batch in batches), _BATCHES_AHEAD):
            parts = [future.result() for future in futures]
            empty = np.zeros((0, split.trunk.features), np.float16)
            yield _as_maps(np.concatenate(parts) if parts else empty, split)

    return inputs


def _as_maps(flat: NDArray[Any], split: SplitBackbone) -> Tensor:
    maps = torch.from_numpy(flat).reshape(len(flat), *split.shape)
    order = torch.channels_last if maps.ndim == 4 else torch.preserve_format
    return maps.to(torch.float32, memory_format=order)  # both at once: less than half of the time
