"""Fine-tuning a data set's model: a head on frozen features first, then the whole network, into one folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from centerhash.core.errors import ConfigError, DataError, first_reasons
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.model import TUNED, HashModel
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.encoder import image_features
from centerhash.networks.heads import build_head
from centerhash.training.distributed import Team
from centerhash.training.finetuning import WholeNetwork, find_broken, image_inputs, write_backbone
from centerhash.training.fitting import (
    BROKEN_ADVICE,
    EpochsDone,
    OnEpoch,
    Reporter,
    backbone_of,
    finished_model,
    model_spec,
    objective_of,
    resolve,
)
from centerhash.training.loop import TrainConfig, fit_head, fit_network


def fit_whole(
    dataset: Dataset,
    config: TrainConfig,
    folder: Path,
    *,
    team: Team | None = None,
    cache: Path | None = None,
    skip_broken: bool = False,
    checkpoint_seconds: float = 20.0,
    report: Reporter | None = None,
    on_epoch: OnEpoch | None = None,
) -> HashModel:
    """Train backbone and head together; checkpoints and the tuned backbone are stored in `folder`."""
    config, team = resolve(config), team or Team()
    if dataset.image_paths is None:
        raise ConfigError(
            "--finetune needs images: this data set holds features, whose network is not known."
        )
    splits = _readable(dataset, skip_broken, report)
    rows = splits.train[dataset.labels[splits.train].any(axis=1)]
    sources, labels = [dataset.image_paths[row] for row in rows.tolist()], dataset.labels[rows]
    backbone = backbone_of(config)
    start = None
    if config.warm_start:
        start = _warm_head(dataset, config, backbone, rows, folder, team, cache, report)

    def build() -> WholeNetwork:
        head = build_head(backbone.features, config.bits, config.head, labels.shape[1])
        if start is not None:
            head.load_state_dict(start)
        return WholeNetwork(backbone.trainable(), head)

    objective, centers = objective_of(config, labels)
    done = EpochsDone(config.epochs, report, on_epoch)
    network, log = fit_network(
        build,
        image_inputs(sources, backbone, config.seed),
        labels,
        objective,
        config,
        team=team,
        prepare=lambda: objective.prepare(np.zeros((len(rows), 0)), np.arange(len(rows)), labels),
        groups=lambda whole: whole.groups(config.backbone_rate) if isinstance(whole, WholeNetwork) else [],
        checkpoint=folder / "checkpoint.safetensors",
        checkpoint_seconds=checkpoint_seconds,
        report=done,
    )
    done.make_up(log)
    if not isinstance(network, WholeNetwork):
        raise DataError("the training returned another network than it was given.")
    if team.first:
        write_backbone(network, folder / TUNED)
    team.wait()
    tuned = get_backbone(config.backbone, folder / TUNED)
    spec = model_spec(dataset, config, backbone.features, tuned).model_copy(update={"tuned": True})
    few = rows[:2_000]  # enough to learn from which cosine on a label is predicted
    table = image_features(sources[: len(few)], tuned, cache, team.device)
    return finished_model(spec, network.head, centers, table.features, dataset.labels[few], folder)


def _readable(dataset: Dataset, skip_broken: bool, report: Reporter | None) -> Splits:
    """The splits without training images that cannot be decoded; an error unless they may be skipped."""
    train = dataset.splits.train.tolist()
    paths = dataset.image_paths or ()
    broken = find_broken(
        [paths[row] for row in train],
        None if report is None else lambda done, total: report("checking", done, total, ""),
    )
    if broken and not skip_broken:
        shown = first_reasons(broken.values())
        raise DataError(
            f"{len(broken)} of {len(train)} training images cannot be read:\n{shown}\n{BROKEN_ADVICE}"
        )
    return dataset.splits.without([train[place] for place in broken])


def _warm_head(
    dataset: Dataset,
    config: TrainConfig,
    backbone: Backbone,
    rows: NDArray[np.int64],
    folder: Path,
    team: Team,
    cache: Path | None,
    report: Reporter | None,
) -> dict[str, Tensor]:
    """A head trained on the frozen features of the training images, by the defaults of such a training."""
    plain = TrainConfig(
        method=config.method,
        bits=config.bits,
        seed=config.seed,
        head=config.head,
        options=config.options,
        centers=config.centers,
        assignment=config.assignment,
    )
    paths = [(dataset.image_paths or ())[row] for row in rows.tolist()]
    progress = None if report is None else lambda done, total: report("features", done, total, "")
    table = image_features(paths, backbone, cache, team.device, progress=progress)
    objective, _ = objective_of(config, dataset.labels[rows])
    head, _ = fit_head(
        table.features,
        np.arange(len(rows)),
        dataset.labels[rows],
        objective,
        resolve(plain),
        team=team,
        checkpoint=folder / "checkpoint-head.safetensors",
        report=EpochsDone(plain.epochs, _renamed(report), None),
    )
    return head.state_dict()


def _renamed(report: Reporter | None) -> Reporter | None:
    """Progress of the first stage under a name of its own."""
    if report is None:
        return None
    return lambda stage, done, total, note: report("head", done, total, note)
