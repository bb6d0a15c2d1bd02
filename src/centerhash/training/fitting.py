"""Fitting: a data set and a configuration in, a model out. Nothing here knows the files of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.codes import pack
from centerhash.core.errors import ConfigError
from centerhash.data import Dataset
from centerhash.data.splits import Splits, check_splits
from centerhash.evaluation import Evaluation, evaluate
from centerhash.methods.assignment import assign_centers
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.base import Objective
from centerhash.methods.table import METHODS, get_method
from centerhash.model import HashModel, ModelSpec
from centerhash.networks.backbones import DEFAULT_BACKBONE, Backbone, get_backbone
from centerhash.networks.encoder import image_features
from centerhash.training.checkpoints import EpochRow
from centerhash.training.distributed import Team
from centerhash.training.loop import TrainConfig, fit_head, label_threshold
from centerhash.training.rotation import rotate_head

BROKEN_ADVICE = (
    "Repair these files, take them out of labels.csv, or pass --skip-broken to go on without them."
)
_FINETUNE = {"epochs": 6, "batch_size": 64, "learning_rate": 1e-3}  # of short fine-tuning from a trained head
Reporter: TypeAlias = Callable[[str, int, int, str], None]  # stage, done, total, note
OnEpoch: TypeAlias = Callable[[list[EpochRow]], None]


def dataset_features(
    dataset: Dataset,
    backbone: str | Backbone,
    *,
    cache: Path | None = None,
    device: str = "auto",
    team: Team | None = None,
    skip_broken: bool = False,
    report: Reporter | None = None,
) -> tuple[NDArray[Any], Splits]:
    """Features (N, D) of a data set, and its splits without broken images (an error unless skipped).

    Of several processes each computes its share into the cache, from which all then read.
    """
    if dataset.features is not None:
        return dataset.features, dataset.splits
    team, paths = team or Team(device), dataset.image_paths or ()
    row = get_backbone(backbone) if isinstance(backbone, str) else backbone
    progress = None if report is None else lambda done, total: report("features", done, total, "")
    if team.size > 1 and cache is not None:
        image_features(paths[team.share(len(paths))], row, cache, team.device, progress=progress)
        team.wait()
    table = image_features(paths, row, cache, team.device, progress=progress)
    if not skip_broken:
        table.raise_if_broken(f"The features of all others are kept. {BROKEN_ADVICE}")
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
    team: Team | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    skip_broken: bool = False,
    report: Reporter | None = None,
    on_epoch: OnEpoch | None = None,
) -> HashModel:
    """Train one model on a data set's training images and return it; nothing is written without `checkpoint`.

    `features` (N, D) may be passed when they are at hand; otherwise they come from the data set or its images.
    The backbone stays as it is: `runs.train` fine-tunes it, since the result needs a folder.
    """
    config, team = resolve(config or TrainConfig()), team or Team(device)
    splits = dataset.splits
    if features is None:
        features, splits = dataset_features(
            dataset, backbone_of(config), cache=cache, team=team, skip_broken=skip_broken, report=report
        )
    backbone = backbone_of(config) if dataset.kind == "images" else None
    spec = model_spec(dataset, config, features.shape[1], backbone)
    training = _Training(features, splits.train, dataset.labels[splits.train])
    if get_method(config.method).family == "shallow":
        return _fit_shallow(training, config, spec, report)
    objective, centers = objective_of(config, training.labels)
    done = EpochsDone(config.epochs, report, on_epoch)
    head, log = fit_head(
        training.features,
        training.rows,
        training.labels,
        objective,
        config,
        team=team,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        report=done,
    )
    done.make_up(log)
    order = np.argsort(training.rows)[:20_000]  # in the order of the file, which memory-mapped features like
    return finished_model(
        spec, head, centers, training.features[training.rows[order]], training.labels[order]
    )


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
        backbone_key=backbone.key if backbone is not None and backbone.is_here else None,
        seed=config.seed,
    )


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


def objective_of(config: TrainConfig, labels: NDArray[np.bool_]) -> tuple[Objective, Tensor | None]:
    """The loss of a deep method for training labels (n, C), and the centers (C, K) of a central one."""
    method = get_method(config.method)
    centers = torch.from_numpy(make_centers(config, labels)) if method.family == "central" else None
    options = method.options(config.options, config.bits)
    return method.objective(labels.shape[1], config.bits, centers, options, config.seed), centers


class EpochsDone:
    """Passes the log on after every epoch."""

    def __init__(self, epochs: int, report: Reporter | None, on_epoch: OnEpoch | None) -> None:
        self._epochs, self._report, self._on_epoch, self._called = epochs, report, on_epoch, False

    def __call__(self, log: list[EpochRow]) -> None:
        """Show progress, and hand the log to whoever stores it."""
        self._called = True
        if self._on_epoch is not None:
            self._on_epoch(log)
        if self._report is not None:
            self._report("training", len(log), self._epochs, f"loss {log[-1]['loss']:.4f}")

    def make_up(self, log: list[EpochRow]) -> None:
        """Pass the log on where an earlier process ended between its last checkpoint and its last report."""
        if not self._called:
            self(log)


def finished_model(
    spec: ModelSpec,
    head: nn.Module,
    centers: Tensor | None,
    features: NDArray[Any],
    labels: NDArray[np.bool_],
    folder: Path | None = None,
) -> HashModel:
    """The model of a trained head; training features (n, D) say how to turn its logits and when to predict a label."""
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
    return _model(spec, head, found, folder)


def _model(
    spec: ModelSpec, head: nn.Module, found: dict[str, Tensor], folder: Path | None = None
) -> HashModel:
    return HashModel(spec, {**{f"encoder.{k}": v for k, v in head.state_dict().items()}, **found}, folder)


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
        backbone = get_backbone(DEFAULT_BACKBONE) if model.spec.backbone is None else model.backbone()
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


def backbone_of(config: TrainConfig) -> Backbone:
    """The backbone that a configuration names."""
    return get_backbone(config.backbone, config.weights, config.pretrained, config.seed)


def resolve(config: TrainConfig) -> TrainConfig:
    """Fill in what depends on the method and the number of bits, and refuse what cannot be."""
    method = get_method(config.method)
    backbone_of(config)
    options = method.options(config.options, config.bits).model_dump(by_alias=True)
    unset = {name: value for name, value in method.training.items() if name not in config.model_fields_set}
    head = config.head.filled(dict(method.head))
    if head.evidence and not method.head.get("evidence"):
        able = ", ".join(name for name, row in METHODS.items() if row.head.get("evidence"))
        raise ConfigError(f"method '{method.name}' cannot use class evidence: leave it out, or train {able}.")
    if config.finetune:
        if method.family == "shallow":
            raise ConfigError(f"method '{method.name}' has no network to fine-tune: leave --finetune out.")
        unset |= {name: value for name, value in _FINETUNE.items() if name not in config.model_fields_set}
    return config.model_copy(update={**unset, "options": options, "head": head})
