"""What every step of a training run shares: processes, files, held-out images, features, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, InputError
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset, open_dataset
from centerhash.data.splits import Splits, check_splits
from centerhash.networks.backbones import Backbone
from centerhash.networks.cache import default_cache
from centerhash.networks.encoder import Encoder, FeatureTable
from centerhash.networks.engines import PortableNetwork
from centerhash.networks.maps import MapTable
from centerhash.training.distributed import ProcessGroup
from centerhash.training.run_folder import CHECKPOINT, EpochRow

BROKEN_ADVICE = "Repair these files, remove them from the dataset, or skip broken images (skip_broken)."
NO_ROWS = np.empty(0, dtype=np.int64)
_SHARE, _MOST, _LEAST = 10, 1_000, 20  # a tenth is held out, at most 1,000 images, out of at least 20

OnEpoch: TypeAlias = Callable[[list[EpochRow]], None]  # called with the whole log after every epoch


def no_log(log: list[EpochRow]) -> None:
    """Ignore the log."""


@dataclass(frozen=True)
class Session:
    """How a run is carried out. The model depends on the data, the configuration and `held_out` alone."""

    group: ProcessGroup = field(default_factory=lambda: ProcessGroup("cpu"))
    held_out: NDArray[np.int64] = field(default_factory=lambda: NO_ROWS)  # training rows for validation only
    cache: Path | None = None  # folder of image features
    skip_broken: bool = False
    folder: Path | None = None  # of checkpoints and a fine-tuned backbone
    checkpoint_name: str = CHECKPOINT
    checkpoint_seconds: float = 20.0  # least time between two checkpoints
    progress: Progress = silent
    on_epoch: OnEpoch = no_log
    maps: dict[object, MapTable] = field(
        default_factory=dict, repr=False
    )  # shared by runs on the same images

    @property
    def checkpoint(self) -> Path | None:
        """The file to resume from and to write; None without a folder."""
        return None if self.folder is None else self.folder / self.checkpoint_name

    def split_off(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Separate rows to train on from rows held out, each in the given order."""
        held_out = np.isin(rows, self.held_out)
        return rows[~held_out], rows[held_out]


def hold_out(dataset: Dataset, seed: int) -> NDArray[np.int64]:
    """Draw a tenth of the training rows that have labels and are not queries, sorted."""
    splits = dataset.splits
    rows = np.setdiff1d(splits.train[dataset.labels[splits.train].any(axis=1)], splits.query)
    if len(rows) < _LEAST:
        raise DataError(
            f"`watch=` holds out a tenth of the training images: {len(rows)} with labels are too few, "
            f"{_LEAST} are needed. Leave it out, or train on more images."
        )
    count = min(_MOST, len(rows) // _SHARE)
    return np.sort(np.random.default_rng((seed, 1)).choice(rows, size=count, replace=False))


def as_dataset(data: Dataset | str | Path, seed: int) -> Dataset:
    """Return a dataset, or open the one at a path; splits that it does not name are drawn with `seed`."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str | Path):
        return open_dataset(data, seed)
    raise InputError(
        f"data must be a Dataset or the path of one, got {type(data).__name__}: `open_dataset` opens folders."
    )


def cache_folder(cache: str | Path | None) -> Path | None:
    """Return the folder of cached features: "auto" is the user's cache folder, None disables caching."""
    if cache is None:
        return None
    return default_cache() if cache == "auto" else Path(cache)


def image_features(
    paths: Sequence[Path], backbone: Backbone | PortableNetwork, session: Session
) -> FeatureTable:
    """Compute features (N, D) of image files by a frozen backbone."""
    return Encoder(backbone, device=session.group.device).table(
        paths, session.cache, progress=session.progress
    )


def dataset_features(
    dataset: Dataset, backbone: Backbone | PortableNetwork, session: Session
) -> tuple[NDArray[Any], Splits]:
    """Return features (N, D) of a dataset, and its splits without broken images (an error unless skipped).

    With several processes, each computes its share into the cache, then all read from there.
    """
    if dataset.features is not None:
        return dataset.features, dataset.splits
    group, paths = session.group, dataset.image_paths or ()
    if group.size > 1 and session.cache is not None:
        image_features(paths[group.share(len(paths))], backbone, session)
        group.barrier()
    table = image_features(paths, backbone, session)
    if not session.skip_broken:
        table.raise_if_broken(f"The features of all others are kept. {BROKEN_ADVICE}")
    splits = dataset.splits.without(sorted(table.broken))
    check_splits(splits, dataset.size)
    return table.features, splits
