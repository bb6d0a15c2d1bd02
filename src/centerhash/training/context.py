"""How a run is carried out, and the features of its images: processes, files, validation images, cache, progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from centerhash.core.errors import DataError, ImageError
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset
from centerhash.data.splits import Splits, check_splits
from centerhash.networks.backbones import Backbone
from centerhash.networks.encoder import Encoder, FeatureTable, raise_if_broken
from centerhash.networks.engines import PortableNetwork
from centerhash.training.distributed import ProcessGroup

# Batches that are decoded or read while the network computes another one.
BATCHES_AHEAD = 3
NO_ROWS = np.empty(0, dtype=np.int64)
# A tenth of the training images is held out, at most 1,000; there must be at least 20.
_VALIDATION_SHARE, _MOST_VALIDATION, _LEAST_TRAINING = 10, 1_000, 20

# One line of the log: epoch, loss, its terms, learning rate, seconds.
EpochRow: TypeAlias = dict[str, float]
# Called with the whole log after every epoch.
OnEpoch: TypeAlias = Callable[[list[EpochRow]], None]
# Returns the mAP of held-out images by the current network.
Measure: TypeAlias = Callable[[nn.Module], float]


def no_log(log: list[EpochRow]) -> None:
    """Ignore the log."""


@dataclass(frozen=True)
class RunContext:
    """Hold how a run is carried out. The model depends on the data, the configuration and `validation` alone.

    `validation` are the rows of training images that are held out. `cache` is the folder of image features, which
    receives those of a fine-tuned backbone only if `cache_tuned`. `folder` has the checkpoints and a fine-tuned
    backbone; `checkpoint_seconds` is the minimum time between two checkpoints.
    """

    group: ProcessGroup = field(default_factory=lambda: ProcessGroup("cpu"))
    validation: NDArray[np.int64] = field(default_factory=lambda: NO_ROWS)
    cache: Path | None = None
    cache_tuned: bool = True
    skip_broken: bool = False
    folder: Path | None = None
    checkpoint_name: str = "checkpoint.safetensors"
    checkpoint_seconds: float = 20.0
    progress: Progress = silent
    on_epoch: OnEpoch = no_log

    @property
    def checkpoint(self) -> Path | None:
        """The file to resume from and to write; None without a folder."""
        return None if self.folder is None else self.folder / self.checkpoint_name

    def split_validation(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Separate rows to train on from rows held out; both keep their order."""
        held_out = np.isin(rows, self.validation)
        return rows[~held_out], rows[held_out]


def hold_out(dataset: Dataset, seed: int) -> NDArray[np.int64]:
    """Draw a tenth of the training rows that have labels and are not queries, sorted."""
    splits = dataset.splits
    rows = np.setdiff1d(splits.train[dataset.labels[splits.train].any(axis=1)], splits.query)
    if len(rows) < _LEAST_TRAINING:
        raise DataError(
            f"`eval_interval=` holds out a tenth of the training images: {len(rows)} with labels are too few, "
            f"{_LEAST_TRAINING} are needed. Leave it out, or train on more images."
        )
    count = min(_MOST_VALIDATION, len(rows) // _VALIDATION_SHARE)
    return np.sort(np.random.default_rng((seed, 1)).choice(rows, size=count, replace=False))


def without_broken(
    dataset: Dataset, broken: Mapping[int, ImageError], context: RunContext, note: str = ""
) -> Splits:
    """Return the splits of a dataset without its broken images by row; unless they are skipped, raise DataError.

    The error begins its advice with `note`.
    """
    if not context.skip_broken:
        advice = "Repair these files, remove them from the dataset, or skip broken images (skip_broken)."
        raise_if_broken(broken, dataset.size, f"{note}{advice}")
    splits = dataset.splits.without(sorted(broken))
    check_splits(splits, dataset.size)
    return splits


def image_features(
    paths: Sequence[Path], backbone: Backbone | PortableNetwork, context: RunContext
) -> FeatureTable:
    """Compute features (N, D) of image files by a frozen backbone."""
    encoder = Encoder(backbone, device=context.group.device)
    return encoder.table(paths, context.cache, progress=context.progress)


def dataset_features(
    dataset: Dataset, backbone: Backbone | PortableNetwork, context: RunContext
) -> tuple[NDArray[Any], Splits]:
    """Return features (N, D) of a dataset, and its splits without broken images."""
    if dataset.features is not None:
        return dataset.features, dataset.splits
    paths = dataset.image_paths or ()
    if context.cache is not None:
        context.group.fill_cache(len(paths), lambda rows: image_features(paths[rows], backbone, context))
    table = image_features(paths, backbone, context)
    note = "The features of all others are kept. "
    return table.features, without_broken(dataset, table.broken, context, note)
