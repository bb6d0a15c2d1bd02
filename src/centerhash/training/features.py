"""From a data set, or its path, to features: what training and evaluation read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from centerhash.core.errors import InputError
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset, open_dataset
from centerhash.data.splits import Splits, check_splits
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.cache import default_cache
from centerhash.networks.encoder import Encoder, FeatureTable
from centerhash.training.distributed import Team

BROKEN_ADVICE = "Repair these files, take them out of the data set, or skip broken images (skip_broken)."


def as_dataset(data: Dataset | str | Path, seed: int) -> Dataset:
    """A data set as it is, or the one at a path; splits that it does not name are drawn with `seed`."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str | Path):
        return open_dataset(data, seed)
    raise InputError(
        f"data must be a Dataset or the path of one, got {type(data).__name__}: `open_dataset` opens folders."
    )


def cache_folder(cache: str | Path | None) -> Path | None:
    """Where features are kept: "auto" is the user's cache folder, None keeps none."""
    if cache is None:
        return None
    return default_cache() if cache == "auto" else Path(cache)


def features_of(
    paths: Sequence[Path], backbone: Backbone, cache: Path | None, team: Team, progress: Progress = silent
) -> FeatureTable:
    """Features (N, D) of image files: the one place where training runs a frozen backbone."""
    return Encoder(backbone, device=team.device).table(paths, cache, progress=progress)


def dataset_features(
    dataset: Dataset,
    backbone: str | Backbone,
    *,
    cache: Path | None = None,
    team: Team | None = None,
    skip_broken: bool = False,
    progress: Progress = silent,
) -> tuple[NDArray[Any], Splits]:
    """Features (N, D) of a data set, and its splits without broken images (an error unless skipped).

    Of several processes each computes its share into the cache, from which all then read.
    """
    if dataset.features is not None:
        return dataset.features, dataset.splits
    team, paths = team or Team(), dataset.image_paths or ()
    network = get_backbone(backbone) if isinstance(backbone, str) else backbone
    if team.size > 1 and cache is not None:
        features_of(paths[team.share(len(paths))], network, cache, team, progress)
        team.wait()
    table = features_of(paths, network, cache, team, progress)
    if not skip_broken:
        table.raise_if_broken(f"The features of all others are kept. {BROKEN_ADVICE}")
    splits = dataset.splits.without(sorted(table.broken))
    check_splits(splits, dataset.size)
    return table.features, splits
