"""The last stages of a backbone, trained with the head on maps that the stages below computed once.

An epoch costs what the trained stages cost. An image comes mirrored with probability 0.5, drawn from (seed, epoch,
image) alone, so a run that resumes sees the same maps as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.core.errors import ConfigError
from centerhash.core.parallel import batches_ahead
from centerhash.core.progress import Progress
from centerhash.data import Dataset
from centerhash.data.splits import Splits, check_splits
from centerhash.model.model import HashModel
from centerhash.networks.encoder import Encoder, FeatureTable
from centerhash.networks.engines import open_layers, streams
from centerhash.networks.maps import Maps, MapTable, compute_maps
from centerhash.networks.stages import SplitBackbone, split_backbone
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.finetuning import (
    ImageInputs,
    check_finetuning,
    fit_backbone,
    stored_backbone,
    tuned_model,
)
from centerhash.training.finish import rotation_sample, visual_sample, with_visual_code
from centerhash.training.loop import Inputs
from centerhash.training.session import BROKEN_ADVICE, Session

_CHUNK = 256  # maps per pass through the tail without gradients
_WORTH_COMPILING = 1_000  # images, which PyTorch computes in the seconds that compiling takes


def fit_last(
    dataset: Dataset, config: TrainConfig, session: Session
) -> tuple[HashModel, NDArray[np.float32], Splits]:
    """Train tail and head by a resolved configuration; return the model, and features (N, D) and splits of the data.

    Features and splits are as `dataset_features` of the tuned backbone gives them, computed from the maps.
    """
    check_finetuning(dataset, config, session)
    if session.cache is None:
        raise ConfigError('`finetune="last"` keeps maps of all images on disk: name a folder as `cache=`.')
    split = split_backbone(backbone_of(config), config.stages)
    maps, splits = _dataset_maps(dataset, split, session)
    dataset = dataset.with_splits(splits)
    rows, validation = session.split_off(splits.train[dataset.labels[splits.train].any(axis=1)])
    whole, tail = split.trainable()

    def features_of(chosen: NDArray[np.int64]) -> NDArray[np.float32]:
        return tail_features(tail, maps, chosen.tolist(), split, session.group.device, session.progress)

    def frozen(chosen: NDArray[np.int64]) -> NDArray[np.float32]:
        if maps.frozen is None:
            maps.frozen = features_of(chosen)
        return maps.frozen

    images = ImageInputs(
        map_inputs(maps, rows.tolist(), split, config.seed),
        lambda chosen: _plain(maps, chosen.tolist(), split),
        frozen,
    )
    seen = visual_sample(rows)
    untrained = frozen(rows)[seen] if config.warm_start else features_of(rows[seen])
    network, objective = fit_backbone(tail.train, images, dataset, rows, validation, config, session)
    tuned = stored_backbone(whole, config, session)
    used = np.union1d(np.union1d(splits.train, splits.query), splits.database)
    features = np.zeros((dataset.size, tuned.features), np.float32)
    features[used] = features_of(used)
    some = rows[rotation_sample(rows)]
    model = tuned_model(dataset, config, session, tuned, network.head, objective, some, features[some])
    return with_visual_code(model, features, rows, untrained), features, splits


def _dataset_maps(dataset: Dataset, split: SplitBackbone, session: Session) -> tuple[MapTable, Splits]:
    """Compute the maps of a dataset's images, mirrored ones for training too; broken images leave the splits.

    With several processes, each computes its share into the cache, then all read from there. The runs of a session
    share the table.
    """
    assert session.cache is not None
    paths, group, cache = dataset.image_paths or (), session.group, session.cache
    train = session.split_off(dataset.splits.train)[0].tolist()

    def maps(rows: slice) -> MapTable:
        inside = range(*rows.indices(len(paths)))
        flipped = [row - inside.start for row in train if row in inside]
        encoder = Encoder(split.trunk, device=group.device)
        return compute_maps(paths[rows], flipped, split.trunk, cache, encoder, session.progress)

    key = (split.whole.key, split.trunk.key, paths, tuple(train))
    if key not in session.maps:
        session.maps.clear()  # a table keeps its files open
        if group.size > 1:
            maps(group.share(len(paths)))
            group.barrier()
        session.maps[key] = maps(slice(0, len(paths)))
    table = session.maps[key]
    if not session.skip_broken:
        broken = FeatureTable(np.zeros((len(paths), 0), np.float32), table.broken, 0)
        broken.raise_if_broken(f"The maps of all others are kept. {BROKEN_ADVICE}")
    splits = dataset.splits.without(sorted(table.broken))
    check_splits(splits, dataset.size)
    return table, splits


def map_inputs(maps: MapTable, rows: Sequence[int], split: SplitBackbone, seed: int) -> Inputs:
    """Make the input of the training loop: maps (B, *shape), each mirrored with probability 0.5, read ahead."""

    def inputs(batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        mirrored = np.random.default_rng((seed, epoch)).integers(2, size=len(rows)).astype(bool)

        def read(position: int) -> Maps:
            return maps.read([rows[position]], [bool(mirrored[position])])

        for futures in batches_ahead(read, (batch.tolist() for batch in batches), 3):
            found = [future.result() for future in futures]
            yield _as_maps(
                np.concatenate(found) if found else np.zeros((0, split.trunk.features), np.float16), split
            )

    return inputs


def _plain(maps: MapTable, rows: Sequence[int], split: SplitBackbone) -> Iterator[Tensor]:
    for start in range(0, len(rows), _CHUNK):
        yield _as_maps(maps.read(rows[start : start + _CHUNK]), split)


def _as_maps(flat: NDArray[Any], split: SplitBackbone) -> Tensor:
    maps = torch.from_numpy(flat).reshape(len(flat), *split.shape)
    order = torch.channels_last if maps.ndim == 4 else torch.preserve_format
    return maps.to(torch.float32, memory_format=order)  # both at once: less than half of the time


def tail_features(
    tail: nn.Module,
    maps: MapTable,
    rows: Sequence[int],
    split: SplitBackbone,
    device: torch.device,
    progress: Progress,
) -> NDArray[np.float32]:
    """Compute features (n, D) of images from their maps; the tail is left in eval mode."""
    tail = tail.eval().to(device)
    found = np.zeros((len(rows), split.whole.features), np.float32)

    def one_map(row: int) -> NDArray[np.float32]:
        return maps.read([row]).astype(np.float32).reshape(1, *split.shape)

    compiled = None
    if device.type == "cpu" and len(rows) >= _WORTH_COMPILING:
        compiled = open_layers(tail, torch.from_numpy(one_map(rows[0])))
    with torch.inference_mode(), ThreadPoolExecutor(max_workers=streams()) as pool:
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            if compiled is None:
                part = tail(_as_maps(maps.read(some), split).to(device)).float().cpu().numpy()
            else:  # one image per thread, as in `CompiledEngine`
                part = np.concatenate(list(pool.map(compiled, pool.map(one_map, some))))
            found[start : start + len(some)] = part
            progress("features", start + len(some), len(rows))
    return found
