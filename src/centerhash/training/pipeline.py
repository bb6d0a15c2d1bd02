"""The one path of a training: features -> fit -> finish. `train`, `compare`, `tune` and reproduction use it.

    fit = fit_model(dataset, resolve(config, dataset), context)
    write_results(folder, fit.model, fit.features, dataset, fit.splits, context)

features   of the frozen backbone, or maps of its lower stages, from the cache where they are there (context)
fit        a head or a shallow method, or backbone and head together (finetuning), by the same loop
finish     rotation, label threshold, class sizes, general code (finish)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.methods.registry import get_method
from centerhash.model.model import HashModel
from centerhash.networks.heads import float_rows
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.context import EpochRow, RunContext, dataset_features
from centerhash.training.finetuning import fit_finetuned
from centerhash.training.finish import (
    array_tensors,
    finished_model,
    model_spec,
    network_logits,
    rotation_sample,
    validation_map,
    with_general_code,
)
from centerhash.training.loop import fit_head, make_objective
from centerhash.training.run_folder import write_log

# rows per pass through the head when it is validated
_CHUNK = 8192


class Fit(NamedTuple):
    """A trained model, features (N, D) of the dataset by its backbone, and the splits without broken images."""

    model: HashModel
    features: NDArray[Any]
    splits: Splits


def fit_model(
    dataset: Dataset,
    config: TrainConfig,
    context: RunContext,
    features: NDArray[Any] | None = None,
    *,
    general_code: bool = True,
) -> Fit:
    """Train a model by a resolved configuration.

    `features` (N, D) are those of the frozen backbone, if they are known. Without `general_code`, a model on frozen
    features has none.
    """
    if config.finetune != "off":
        return Fit(*fit_finetuned(dataset, config, context))
    splits = dataset.splits
    if features is None:
        features, splits = dataset_features(dataset, backbone_of(config), context)
    model = fit_frozen(dataset.with_splits(splits), features, config, context)
    if general_code:
        model = with_general_code(model, features, context.split_validation(splits.train)[0])
    return Fit(model, features, splits)


def fit_in_folder(folder: Path, dataset: Dataset, config: TrainConfig, context: RunContext) -> Fit:
    """Train as `fit_model` with log and checkpoints in an open run's folder, resuming from its checkpoint."""

    def on_epoch(log: list[EpochRow]) -> None:
        write_log(folder, log)
        context.on_epoch(log)

    return fit_model(dataset, config, replace(context, folder=folder, on_epoch=on_epoch))


def fit_frozen(
    dataset: Dataset, features: NDArray[Any], config: TrainConfig, context: RunContext
) -> HashModel:
    """Train a model by a resolved configuration on features (N, D) of a dataset's images."""
    rows, validation = context.split_validation(dataset.splits.train)
    labels, method = dataset.labels[rows], get_method(config.method)
    backbone = backbone_of(config) if dataset.kind == "images" else None
    if method.family == "shallow":
        spec = model_spec(dataset, config, features.shape[1], backbone)
        estimator = method.create(config.options, bits=config.bits, seed=config.seed)
        fitted = estimator.fit(features[rows].astype(np.float32), labels, context.progress)
        return HashModel(spec, array_tensors("encoder", fitted))
    objective = make_objective(config, labels)

    def batches(side: NDArray[np.int64]) -> Iterator[Tensor]:
        return (float_rows(features, side[start : start + _CHUNK]) for start in range(0, len(side), _CHUNK))

    def measure(head: nn.Module) -> float:
        device = context.group.device
        query, database = (network_logits(head, batches(side), device) for side in (validation, rows))
        return validation_map(query, database, dataset.labels[validation], labels, config)

    head, _ = fit_head(
        features, rows, labels, objective, config, context, measure if len(validation) else None
    )
    some = rows[rotation_sample(rows)]
    return finished_model(dataset, config, head, objective, some, features[some], backbone)
