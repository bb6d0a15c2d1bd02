"""The one path of a training run: features -> fit -> finish -> codes. `train`, `compare`, `tune` and reproduction use it.

    fit = fit_model(dataset, resolve(config, dataset), context)
    query, database = encode_splits(fit.model, fit.features, dataset.with_splits(fit.splits))

features   of the frozen backbone, or maps of its lower stages, from the cache if they are there (context)
fit        a head or a shallow method, or backbone and head together (finetuning), by the same loop
finish     rotation, label threshold, class sizes, general code (finish)
codes      of the queries and of the database, with their labels
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from centerhash.codes import binarize, pack, packed_width
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset
from centerhash.encoding.code_files import CodeFile
from centerhash.methods.registry import get_method
from centerhash.model.base import Model
from centerhash.model.model import HashModel
from centerhash.networks.heads import float_rows
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.context import RunContext, dataset_features
from centerhash.training.finetuning import fit_finetuned
from centerhash.training.finish import (
    Fit,
    array_tensors,
    finished_model,
    model_spec,
    validation_measure,
    with_general_code,
)
from centerhash.training.loop import fit_head, make_objective

# Rows that pass through the model at a time, which bounds memory.
_CHUNK = 8192


def fit_model(dataset: Dataset, config: TrainConfig, context: RunContext) -> Fit:
    """Train a model with a general code by a resolved configuration."""
    if config.finetune != "off":
        return fit_finetuned(dataset, config, context)
    features, splits = dataset_features(dataset, backbone_of(config), context)
    model = fit_frozen(dataset.with_splits(splits), features, config, context)
    rows, _ = context.split_validation(splits.train)
    return Fit(with_general_code(model, features, rows), features, splits)


def fit_frozen(
    dataset: Dataset, features: NDArray[Any], config: TrainConfig, context: RunContext
) -> HashModel:
    """Train a model without a general code by a resolved configuration on features (N, D) of a dataset."""
    rows, validation = context.split_validation(dataset.splits.train)
    labels, method = dataset.labels[rows], get_method(config.method)
    backbone = backbone_of(config) if dataset.kind == "images" else None
    if method.family == "shallow":
        spec = model_spec(dataset, config, features.shape[1], backbone)
        estimator = method.create(config.options, bits=config.bits, seed=config.seed)
        fitted = estimator.fit(features[rows].astype(np.float32), labels, context.progress)
        return HashModel(spec, array_tensors("encoder", fitted))
    objective = make_objective(config, labels)

    def batches(rows: NDArray[np.int64]) -> Iterator[Tensor]:
        return (float_rows(features, rows[start : start + _CHUNK]) for start in range(0, len(rows), _CHUNK))

    measure = validation_measure(dataset, rows, validation, batches, config, context.group.device)
    head, _ = fit_head(features, rows, labels, objective, config, context, measure)
    return finished_model(dataset, config, head, objective, rows, features, backbone)


def encode_splits(
    model: Model,
    features: NDArray[Any],
    dataset: Dataset,
    progress: Progress = silent,
    rotation: NDArray[Any] | None = None,
) -> tuple[CodeFile, CodeFile]:
    """Encode the queries and the database by features (N, D) of a dataset; return codes with rows, labels and file names.

    A `rotation` (K, K) of the logits is for codes that the model itself does not have.
    """
    splits, sides, done = dataset.splits, list[CodeFile](), 0
    total = len(splits.query) + len(splits.database)
    for rows in (splits.query, splits.database):
        packed = np.empty((len(rows), packed_width(model.bits)), dtype=np.uint8)
        for start in range(0, len(rows), _CHUNK):
            logits = model.logits(features[rows[start : start + _CHUNK]])
            codes = binarize(logits if rotation is None else logits @ rotation)
            packed[start : start + _CHUNK] = pack(codes)
            done += len(codes)
            progress("encoding", done, total)
        names = [dataset.names[row] for row in rows.tolist()] if dataset.kind == "images" else None
        labels, classes = (dataset.labels[rows], dataset.classes) if dataset.has_labels else (None, None)
        sides.append(CodeFile(model.bits, packed, names, labels, classes, ids=rows))
    return sides[0], sides[1]
