"""Models on frozen features: the backbone stays as it is, a head or a shallow method learns the codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.data import Dataset
from centerhash.methods.losses.base import CentralObjective, Objective
from centerhash.methods.losses.nested import NestedObjective, nested_centers
from centerhash.methods.registry import get_method
from centerhash.model.model import HashModel
from centerhash.model.spec import ModelSpec
from centerhash.networks.backbones import Backbone
from centerhash.networks.heads import float_rows
from centerhash.training.config import TrainConfig, backbone_of
from centerhash.training.finish import (
    finished_model,
    known_areas,
    network_logits,
    rotation_sample,
    validation_map,
)
from centerhash.training.loop import fit_head
from centerhash.training.session import Session

_CHUNK = 8192  # rows per pass through the head when it is validated


def fit_frozen(dataset: Dataset, features: NDArray[Any], config: TrainConfig, session: Session) -> HashModel:
    """Train a model by a resolved configuration on features (N, D) of a dataset's images."""
    rows, validation = session.split_off(dataset.splits.train)
    labels, method = dataset.labels[rows], get_method(config.method)
    backbone = backbone_of(config) if dataset.kind == "images" else None
    spec = model_spec(dataset, config, features.shape[1], backbone)
    if method.family == "shallow":
        fitted = method.shallow_class().fit(
            features[rows].astype(np.float32),
            labels,
            config.bits,
            method.options(config.options, config.bits),
            config.seed,
            session.progress,
        )
        arrays = fitted.arrays().items()
        return HashModel(
            spec, {f"encoder.{name}": torch.from_numpy(np.array(value)) for name, value in arrays}
        )
    objective = objective_of(config, labels)

    def measure(head: nn.Module) -> float:
        query, database = (
            network_logits(head, _batches(features, side), session.group.device)
            for side in (validation, rows)
        )
        rotate, shorter = bool(config.head.rotate), config.lengths[:-1]
        return validation_map(query, database, dataset.labels[validation], labels, rotate, shorter)

    head, _ = fit_head(
        features, rows, labels, objective, config, session, measure if len(validation) else None
    )
    order = rotation_sample(rows)
    areas = known_areas(dataset, config, rows[order])
    return finished_model(spec, head, stored_centers(objective), features[rows[order]], labels[order], areas)


def _batches(features: NDArray[Any], rows: NDArray[np.int64]) -> Iterator[Tensor]:
    for start in range(0, len(rows), _CHUNK):
        yield float_rows(features, rows[start : start + _CHUNK])


def model_spec(dataset: Dataset, config: TrainConfig, features: int, backbone: Backbone | None) -> ModelSpec:
    """Describe the model to be trained."""
    spec = ModelSpec(
        method=config.method,
        options=config.options,
        bits=config.bits,
        shorter=config.shorter,
        features=features,
        classes=dataset.classes,
        head=config.head,
        pretrained=config.pretrained,
        seed=config.seed,
    )
    if backbone is None:
        return spec
    return spec.model_copy(
        update={
            "backbone": backbone.name,
            "weights": None if config.weights is None else str(Path(config.weights).resolve()),
            "crop": backbone.crop,
            "pool": backbone.pool,
            "backbone_key": backbone.key if backbone.is_here else None,
        }
    )


def objective_of(config: TrainConfig, labels: NDArray[np.bool_]) -> Objective:
    """Make the loss of a deep method for training labels (n, C), with the centers (C, K) of a central one."""
    method, classes, centers = get_method(config.method), labels.shape[1], None
    if method.family == "central":
        assign = config.assignment == "cooccurrence"
        centers = torch.from_numpy(
            nested_centers(config.lengths, labels, config.seed, config.centers, assign=assign)
        )
    parts = {
        bits: method.objective(
            classes,
            bits,
            None if centers is None else centers[:, :bits],
            method.options(options, bits),
            config.seed,
        )
        for bits, options in zip(
            config.lengths, (*(part.options for part in config.shorter), config.options), strict=True
        )
    }
    return NestedObjective(parts) if config.shorter else parts[config.bits]


def stored_centers(objective: Objective) -> Tensor | None:
    """Return the centers (C, K) that a model stores, as they are after training; None without centers."""
    if isinstance(objective, NestedObjective):
        return stored_centers(objective.longest)
    return objective.trained_centers().cpu() if isinstance(objective, CentralObjective) else None
