"""Fitting: a data set and a configuration in, a model out. Nothing here knows the files of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.assignment import assign_centers
from centerhash.backbones import DEFAULT_BACKBONE, choose_device, get_backbone
from centerhash.centers import hash_centers
from centerhash.codes import pack
from centerhash.data import Dataset
from centerhash.data.splits import Splits, check_splits
from centerhash.evaluation import Evaluation, evaluate
from centerhash.features import image_features
from centerhash.methods import get_method
from centerhash.model import HashModel, ModelSpec
from centerhash.train import EpochRow, TrainConfig, fit_head, label_threshold

Reporter: TypeAlias = Callable[[str, int, int, str], None]  # stage, done, total, note


def dataset_features(
    dataset: Dataset,
    backbone: str,
    *,
    cache: Path | None = None,
    device: str = "auto",
    skip_broken: bool = False,
    report: Reporter | None = None,
) -> tuple[NDArray[Any], Splits]:
    """Features (N, D) of a data set, and its splits without broken images (an error unless skipped)."""
    if dataset.features is not None:
        return dataset.features, dataset.splits
    table = image_features(
        dataset.image_paths or (),
        get_backbone(backbone),
        cache,
        choose_device(device),
        progress=None if report is None else lambda done, total: report("features", done, total, ""),
    )
    if not skip_broken:
        table.raise_if_broken(
            "The features of all others are kept. Repair these files, take them out of labels.csv, or "
            "pass --skip-broken to go on without them."
        )
    splits = dataset.splits.without(sorted(table.broken))
    check_splits(splits, dataset.size)
    return table.features, splits


def fit(
    dataset: Dataset,
    config: TrainConfig | None = None,
    *,
    features: NDArray[Any] | None = None,
    cache: Path | None = None,
    device: str = "auto",
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    skip_broken: bool = False,
    report: Reporter | None = None,
    on_epoch: Callable[[list[EpochRow]], None] | None = None,
) -> HashModel:
    """Train one model on a data set's training images and return it; nothing is written without `checkpoint`.

    `features` (N, D) may be passed when they are at hand; otherwise they come from the data set or its images.
    """
    config = resolve(config or TrainConfig())
    splits = dataset.splits
    if features is None:
        features, splits = dataset_features(
            dataset, config.backbone, cache=cache, device=device, skip_broken=skip_broken, report=report
        )
    spec = ModelSpec(
        method=config.method,
        options=config.options,
        bits=config.bits,
        features=features.shape[1],
        classes=dataset.classes,
        head=config.head,
        backbone=config.backbone if dataset.kind == "images" else None,
        seed=config.seed,
    )
    training = _Training(features, splits.train, dataset.labels[splits.train])
    if get_method(config.method).family == "shallow":
        return _fit_shallow(training, config, spec, report)
    return _fit_deep(training, config, spec, device, checkpoint, checkpoint_seconds, report, on_epoch)


class _Training(NamedTuple):
    """The training images: `features[rows]` (n, D) with labels (n, C)."""

    features: NDArray[Any]
    rows: NDArray[np.int64]
    labels: NDArray[np.bool_]


def _fit_shallow(
    training: _Training, config: TrainConfig, spec: ModelSpec, report: Reporter | None
) -> HashModel:
    """Fit a method that needs no back-propagation."""
    method = get_method(config.method)
    fitted = method.shallow_class().fit(
        training.features[training.rows].astype(np.float32),
        training.labels,
        config.bits,
        method.options(config.options, config.bits),
        config.seed,
        None if report is None else lambda done, total: report("training", done, total, ""),
    )
    arrays = {f"encoder.{name}": torch.from_numpy(np.array(value)) for name, value in fitted.arrays().items()}
    return HashModel(spec, arrays)


def _fit_deep(
    training: _Training,
    config: TrainConfig,
    spec: ModelSpec,
    device: str,
    checkpoint: Path | None,
    checkpoint_seconds: float,
    report: Reporter | None,
    on_epoch: Callable[[list[EpochRow]], None] | None,
) -> HashModel:
    """Train a head by the one training loop."""
    method = get_method(config.method)
    central = method.family == "central"
    centers = torch.from_numpy(make_centers(config, training.labels)) if central else None
    objective = method.objective(
        len(spec.classes), config.bits, centers, method.options(config.options, config.bits), config.seed
    )
    reported: list[int] = []

    def epoch_done(log: list[EpochRow]) -> None:
        reported.append(len(log))
        if on_epoch is not None:
            on_epoch(log)
        if report is not None:
            report("training", len(log), config.epochs, f"loss {log[-1]['loss']:.4f}")

    head, log = fit_head(
        training.features,
        training.rows,
        training.labels,
        objective,
        config,
        device=choose_device(device),
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        report=epoch_done,
    )
    if not reported:  # an earlier process ended between its last checkpoint and its last report
        epoch_done(log)
    tensors = {f"encoder.{name}": value for name, value in head.state_dict().items()}
    if centers is None:
        return HashModel(spec, tensors)
    tensors["centers"] = centers
    order = np.argsort(training.rows)[:20_000]  # in the order of the file, which memory-mapped features like
    logits = HashModel(spec, tensors).logits(training.features[training.rows[order]])
    threshold = label_threshold(logits, training.labels[order], centers.float())
    return HashModel(spec.model_copy(update={"label_threshold": threshold}), tensors)


def make_centers(config: TrainConfig, labels: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Centers (C, K) for training labels (n, C), assigned to the classes as the configuration says."""
    centers = hash_centers(labels.shape[1], config.bits, config.seed, config.centers)
    return assign_centers(centers, labels) if config.assignment == "cooccurrence" else centers


def evaluate_model(
    model: HashModel,
    dataset: Dataset,
    *,
    features: NDArray[Any] | None = None,
    cache: Path | None = None,
    device: str = "auto",
    **settings: Any,
) -> Evaluation:
    """Encode a data set's queries and database by `model` and evaluate them; `settings` as for `evaluate`."""
    splits = dataset.splits
    if features is None:
        backbone = model.spec.backbone or DEFAULT_BACKBONE
        features, splits = dataset_features(dataset, backbone, cache=cache, device=device)
    return evaluate(
        pack(model.encode_features(features[splits.query])),
        pack(model.encode_features(features[splits.database])),
        dataset.labels[splits.query],
        dataset.labels[splits.database],
        bits=model.bits,
        query_ids=splits.query,
        database_ids=splits.database,
        **settings,
    )


def resolve(config: TrainConfig) -> TrainConfig:
    """Fill in what depends on the method and the number of bits, and refuse what cannot be."""
    method = get_method(config.method)
    get_backbone(config.backbone)
    divide = method.divide if config.head.divide is None else config.head.divide
    options = method.options(config.options, config.bits).model_dump(by_alias=True)
    unset = {name: value for name, value in method.training.items() if name not in config.model_fields_set}
    head = config.head.model_copy(update={"divide": divide})
    return config.model_copy(update={**unset, "options": options, "head": head})
