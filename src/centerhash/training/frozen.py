"""Models on frozen features: the backbone stays as it is, a head or a shallow method learns the codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset
from centerhash.methods.assignment import assign_centers
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.base import Objective
from centerhash.methods.losses.central import center_similarities
from centerhash.methods.registry import get_method
from centerhash.methods.shallow.projections import Itq, ItqOptions
from centerhash.methods.weights import class_sizes
from centerhash.model.model import HashModel, ModelSpec
from centerhash.networks.backbones import Backbone
from centerhash.networks.heads import float_rows
from centerhash.training.config import TrainConfig, backbone_of, resolve
from centerhash.training.distributed import Team
from centerhash.training.loop import OnEpoch, fit_head, no_log
from centerhash.training.rotation import rotate_head, rotation_sample
from centerhash.training.watching import NOTHING, logits_of, parted, validation_map

VISUAL_BITS = 128
_CHUNK = 8192  # rows that a head reads at a time where it is measured
_VISUAL_SAMPLE = 10_000  # images that the visual code is fitted on at most, evenly over the training images


def fit_frozen(
    dataset: Dataset,
    features: NDArray[Any],
    config: TrainConfig,
    *,
    team: Team | None = None,
    held: NDArray[np.int64] = NOTHING,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    progress: Progress = silent,
    on_epoch: OnEpoch = no_log,
) -> HashModel:
    """Train a model on features (N, D) of a data set's images; nothing is written without `checkpoint`.

    Training images among the rows `held` are not trained on: the training is watched by them.
    """
    config, team = resolve(config), team or Team("cpu")
    rows, validation = parted(dataset.splits.train, held)
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
            progress,
        )
        arrays = fitted.arrays().items()
        return HashModel(
            spec, {f"encoder.{name}": torch.from_numpy(np.array(value)) for name, value in arrays}
        )
    objective, centers = objective_of(config, labels)

    def measure(head: nn.Module) -> float:
        asking, searched = (
            logits_of(head, _batches(features, side), team.device) for side in (validation, rows)
        )
        rotate = bool(config.head.rotate)
        return validation_map(asking, searched, dataset.labels[validation], labels, rotate)

    head, _ = fit_head(
        features,
        rows,
        labels,
        objective,
        config,
        team=team,
        measure=measure if len(validation) else None,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
        on_epoch=on_epoch,
    )
    order = rotation_sample(rows)
    areas = known_areas(dataset, config, rows[order])
    return finished_model(spec, head, centers, features[rows[order]], labels[order], areas)


def _batches(features: NDArray[Any], rows: NDArray[np.int64]) -> Iterator[Tensor]:
    for start in range(0, len(rows), _CHUNK):
        yield float_rows(features, rows[start : start + _CHUNK])


def model_spec(dataset: Dataset, config: TrainConfig, features: int, backbone: Backbone | None) -> ModelSpec:
    """Everything about a model to be trained but its numbers."""
    return ModelSpec(
        method=config.method,
        options=config.options,
        bits=config.bits,
        features=features,
        classes=dataset.classes,
        head=config.head,
        backbone=None if backbone is None else backbone.name,
        weights=None if backbone is None or config.weights is None else str(Path(config.weights).resolve()),
        pretrained=config.pretrained,
        crop=None if backbone is None else backbone.crop,
        pool=None if backbone is None else backbone.pool,
        backbone_key=backbone.key if backbone is not None and backbone.is_here else None,
        seed=config.seed,
    )


def objective_of(config: TrainConfig, labels: NDArray[np.bool_]) -> tuple[Objective, Tensor | None]:
    """The loss of a deep method for training labels (n, C), and the centers (C, K) of a central one."""
    method, classes, centers = get_method(config.method), labels.shape[1], None
    if method.family == "central":
        drawn = hash_centers(classes, config.bits, config.seed, config.centers)
        assigned = assign_centers(drawn, labels) if config.assignment == "cooccurrence" else drawn
        centers = torch.from_numpy(assigned)
    options = method.options(config.options, config.bits)
    return method.objective(classes, config.bits, centers, options, config.seed), centers


def finished_model(
    spec: ModelSpec,
    head: nn.Module,
    centers: Tensor | None,
    features: NDArray[Any],
    labels: NDArray[np.bool_],
    areas: NDArray[np.float32] | None = None,
    folder: Path | None = None,
) -> HashModel:
    """The model of a trained head; training features (n, D) say how to rotate its logits and when to predict a label.

    Areas (n, C) of their labels, where they are known, say how large objects of each class are.
    """
    found = {} if centers is None else {"centers": centers}
    if spec.head.rotate:
        rotation = rotate_head(head, _model(spec, head, found).logits(features))
        if centers is not None:
            directions = centers.float() @ rotation
            found = {"centers": torch.where(directions >= 0, 1, -1).to(torch.int8), "directions": directions}
    if found:
        model = _model(spec, head, found)
        threshold = label_threshold(model.logits(features), labels, model.directions)
        spec = spec.model_copy(update={"label_threshold": threshold})
    model = _model(spec, head, found, folder)
    return model if areas is None else with_sizes(model, features, labels, areas)


def known_areas(dataset: Dataset, config: TrainConfig, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Areas (n, C) of the labels of some images, where the data has them and the weights can follow them."""
    able = (
        config.head.evidence and "share_lambda" in config.options
    )  # a method of one's own may weigh otherwise
    return None if dataset.areas is None or not (config.sizes and able) else dataset.areas[rows]


def with_sizes(
    model: HashModel, features: NDArray[Any], labels: NDArray[np.bool_], areas: NDArray[np.float32]
) -> HashModel:
    """The model with the typical size of each class in its evidence, from images (n, D) with labels and areas (n, C)."""
    weights = torch.from_numpy(model.weights(features, labels))
    sizes = class_sizes(weights, torch.from_numpy(labels), torch.from_numpy(areas))
    tensors = model.tensors()
    [bias] = [name for name in tensors if name.endswith(".evidence.bias")]
    entropy = float(model.spec.options["share_lambda"])  # weights are softmax(evidence / entropy)
    sized = tensors[bias] + (entropy * sizes).to(tensors[bias].dtype)
    return HashModel(model.spec, {**tensors, bias: sized}, model.folder)


def with_visual_code(model: HashModel, features: NDArray[Any], rows: NDArray[np.int64]) -> HashModel:
    """The model with a visual code of `VISUAL_BITS` bits: ITQ of the training features `features[rows]`, without labels.

    Unchanged where the features are too narrow, or too few.
    """
    chosen = np.sort(rows)[:: max(1, len(rows) // _VISUAL_SAMPLE)]
    if len(chosen) < 32 or features.shape[1] < VISUAL_BITS:
        return model
    sample = features[chosen].astype(np.float32)
    if not (sample != sample[0]).any():
        return model
    nothing = np.zeros((len(sample), 0), np.bool_)
    look = Itq.fit(sample, nothing, VISUAL_BITS, ItqOptions(), model.spec.seed)
    arrays = {f"visual.{name}": torch.from_numpy(np.array(value)) for name, value in look.arrays().items()}
    return HashModel(model.spec, {**model.tensors(), **arrays}, model.folder)


def _model(
    spec: ModelSpec, head: nn.Module, found: dict[str, Tensor], folder: Path | None = None
) -> HashModel:
    return HashModel(spec, {**{f"encoder.{k}": v for k, v in head.state_dict().items()}, **found}, folder)


def label_threshold(
    logits: NDArray[np.float32], labels: NDArray[np.bool_], centers: Tensor, entries: int = 20_000_000
) -> float:
    """Cosine to a center from which its label is predicted: the cut with the best F1 on these images.

    At most `entries` similarities are looked at, so that many classes do not take much memory.
    """
    rows = min(len(logits), max(1, entries // max(1, labels.shape[1])))
    similarities = center_similarities(torch.from_numpy(logits[:rows]), centers).numpy().ravel()
    order = np.argsort(-similarities, kind="stable")
    hits = np.cumsum(labels[:rows].ravel()[order])
    predicted = np.arange(1, len(order) + 1)
    scores = 2 * hits / (predicted + max(1, int(hits[-1])))
    return float(similarities[order[int(scores.argmax())]])
