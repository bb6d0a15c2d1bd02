"""What an experiment trains and evaluates on: tasks of methods x bits x seeds, and a dataset with its features."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.codes import Packed, binarize, pack
from centerhash.core.errors import ConfigError, DataError, first_reasons
from centerhash.core.files import make_folder
from centerhash.core.options import joined, read_options
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset, Splits, open_dataset
from centerhash.data.splits import check_splits
from centerhash.evaluation import Evaluation, evaluate
from centerhash.methods.registry import Point, get_method, training_options
from centerhash.model.model import HashModel
from centerhash.networks.backbones import DEFAULT_BACKBONE, Backbone, get_backbone
from centerhash.networks.cache import default_cache
from centerhash.training.config import TrainConfig, backbone_of, resolve
from centerhash.training.distributed import ProcessGroup, join_processes
from centerhash.training.finetuning import find_broken, fit_whole
from centerhash.training.finish import logits_in_chunks, packed_codes
from centerhash.training.frozen import fit_frozen
from centerhash.training.last_stages import fit_last
from centerhash.training.run_folder import EpochRow, fingerprint, init_or_check_run
from centerhash.training.session import BROKEN_ADVICE, Session, dataset_features

Row: TypeAlias = dict[str, Any]  # one stored result, ready for json


@dataclass(frozen=True)
class Task:
    """One training run: its configuration as given, and with all defaults filled in."""

    config: TrainConfig
    resolved: Mapping[str, Any] = field(repr=False)
    about: Mapping[str, Any] = field(default_factory=dict)  # what else distinguishes it, ready for json
    note: str = ""  # printed with its name, not part of its identity

    @property
    def identity(self) -> Row:
        """The settings that a stored row of this task repeats."""
        return {**self.about, "config": dict(self.resolved)}

    @property
    def key(self) -> str:
        """The identity as text, for looking up stored rows."""
        return json.dumps(self.identity, sort_keys=True)

    @property
    def name(self) -> str:
        """Method, bits and seed, with further settings in parentheses."""
        return task_name(self.resolved, {**self.about, **({"with": self.note} if self.note else {})})


def task_name(config: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Name a training run by method, bits and seed, with plain values of `about` in parentheses."""
    name = f"{config['method']} {config['bits']} bits seed {config['seed']}"
    shown = ", ".join(f"{key} {value}" for key, value in about.items() if not isinstance(value, dict))
    return f"{name} ({shown})" if shown else name


def make_task(given: Mapping[str, Any], **about: Any) -> Task:
    """Validate training options and make a task of them; areas do not resize the weights unless `sizes` is given."""
    config = read_options(TrainConfig, {"sizes": False, **given}, "training")
    return Task(config, resolve(config).model_dump(mode="json"), about)


def plan_tasks(
    methods: Sequence[str],
    bits: Sequence[int],
    seeds: int,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    training: Mapping[str, Any] | None = None,
    points: Mapping[str, Point] | None = None,
) -> list[Task]:
    """List the tasks of a grid, one seed after the other: an interrupted grid then has a table of fewer seeds.

    `points` are settings chosen by `tune`, some of which depend on the number of bits. Training options of all methods
    override them, and `settings`, which are training options by method, override both.
    """
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}.")
    if not methods or not bits:
        missing = "lengths of codes such as 16, 64" if methods else "methods such as csq, ics"
        raise ConfigError(f"nothing to compare: give {missing}.")

    def given(method: str, length: int) -> dict[str, Any]:
        chosen = training_options(get_method(method), (points or {}).get(method, {}), length)
        return joined(chosen, training or {}, (settings or {}).get(method, {}))

    return [
        make_task({**given(method, length), "method": method, "bits": length, "seed": seed})
        for seed in range(seeds)
        for length in bits
        for method in methods
    ]


def trains_network(config: TrainConfig) -> bool:
    """Whether a training run changes the backbone, so that its features are not those of the others."""
    return config.finetune != "off"


def shared_backbone(training: Mapping[str, Any]) -> Backbone:
    """The backbone of training options that all runs of an experiment share."""
    return backbone_of(read_options(TrainConfig, training, "training"))


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """A dataset ready for training and evaluation: features (N, D), and splits without broken images."""

    dataset: Dataset
    features: NDArray[Any]  # of the frozen backbone; (N, 0) if every run trains it
    k: int
    exclude_self: bool
    session: Session
    backbone: Backbone

    def facts(self) -> Row:
        """The part of a row that describes the data and the evaluation; equal for all rows of a comparison."""
        splits, network = self.dataset.splits, self.backbone
        names = {"name": network.name, "crop": network.crop, "pool": network.pool, "key": network.key}
        return {
            "data": self.dataset.name,
            **({"backbone": names} if self.dataset.kind == "images" else {}),
            "fingerprint": fingerprint(self.dataset),
            "split": splits.made,
            "images": {name: len(getattr(splits, name)) for name in ("train", "query", "database")},
            "evaluation": {"k": self.k, "exclude_self": self.exclude_self},
        }

    def train(self, task: Task) -> HashModel:
        """Train the model of a task on frozen features."""
        if trains_network(task.config):
            raise ConfigError("this experiment compares methods on frozen features: omit `finetune=`.")
        return fit_frozen(self.dataset, self.features, resolve(task.config), self._session(task.config))

    def finetune(self, task: Task, folder: Path) -> tuple[HashModel, EvaluationSetup, float]:
        """Train network and head of a task into the folder of its run, which resumes an interrupted one.

        Return the model, this setup with the features of its network, and the seconds of all epochs.
        """
        config, log = resolve(task.config), list[EpochRow]()

        def on_epoch(rows: list[EpochRow]) -> None:
            log[:] = rows

        init_or_check_run(make_folder(folder), self.dataset, config, overwrite=False)
        session = replace(self._session(config), folder=folder, on_epoch=on_epoch)
        if config.finetune == "last":
            model, features, _ = fit_last(self.dataset, config, session)
        else:
            model = fit_whole(self.dataset, config, session)
            own = folder / "features"  # no other run can use them: they would fill the cache
            features, _ = dataset_features(self.dataset, model.backbone(), replace(session, cache=own))
            shutil.rmtree(own, ignore_errors=True)
        return model, replace(self, features=features), sum(row["seconds"] for row in log)

    def _session(self, config: TrainConfig) -> Session:
        return replace(self.session, group=join_processes(str(self.session.group.device), config.precision))

    def encode(self, model: HashModel, rows: NDArray[np.int64]) -> Packed:
        """Pack the codes of some images, with only a few thousand rows of features in memory at a time."""
        return packed_codes(model, self.features, [rows])[0]

    def encode_rotated(
        self, model: HashModel, rows: NDArray[np.int64], rotation: NDArray[np.float64]
    ) -> tuple[Packed, Packed]:
        """Pack the codes of some images twice: as the model gives them, and from logits rotated by (K, K)."""
        pairs = (
            (pack(binarize(logits)), pack(binarize(logits @ rotation)))
            for _, logits in logits_in_chunks(model, self.features, rows)
        )
        own, rotated = zip(*pairs, strict=True)
        return np.concatenate(own), np.concatenate(rotated)

    def evaluate(self, bits: int, query: Packed, database: Packed, **settings: Any) -> Evaluation:
        """Evaluate the codes of the queries against those of the database."""
        splits, labels = self.dataset.splits, self.dataset.labels
        return evaluate(
            query,
            database,
            labels[splits.query],
            labels[splits.database],
            k=self.k,
            bits=bits,
            query_ids=splits.query,
            database_ids=splits.database,
            exclude_self=self.exclude_self,
            **settings,
        )


@dataclass(frozen=True)
class Source:
    """Where an evaluation setup comes from: everything a worker process needs to open it."""

    path: Path
    k: int = 5000
    validation: bool = False
    cache: Path | None = None
    device: str = "auto"
    skip_broken: bool = False
    root: Path | None = None  # of the published dataset that the path names
    lists: Path | None = None
    backbone: Backbone = field(default_factory=lambda: get_backbone(DEFAULT_BACKBONE))

    def open(self, progress: Progress = silent, *, frozen: bool = True) -> EvaluationSetup:
        """Open the dataset; features of images come from the cache, and are added to it.

        Unless `frozen`, no run needs them, and images are only checked.
        """
        # a process's first optimizer makes torch import its compiler, which must not count as training time
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
        dataset = open_dataset(self.path, root=self.root, lists=self.lists)
        dataset.check_labels("scoring")
        if dataset.kind == "features" and self.backbone != get_backbone(DEFAULT_BACKBONE):
            raise ConfigError(
                f"'{dataset.root}' holds features, which no network is needed for: omit `backbone=`, `weights=`, "
                "`crop=` and `pool=`."
            )
        depth = self.k
        if self.validation:
            held_out = validation_split(dataset)
            share = len(held_out.splits.database) / len(dataset.splits.database)
            depth = max(1, round(self.k * share))
            dataset = used_images(held_out) if dataset.kind == "images" else held_out
        session = self.session(progress)
        if frozen:
            features, splits = dataset_features(dataset, self.backbone, session)
        else:
            features, splits = np.empty((dataset.size, 0), np.float32), readable_splits(dataset, session)
        return EvaluationSetup(
            dataset.with_splits(splits), features, depth, self.validation, session, self.backbone
        )

    def session(self, progress: Progress = silent) -> Session:
        """How images are read and features computed."""
        return Session(
            ProcessGroup(self.device),
            cache=self.cache or default_cache(),
            skip_broken=self.skip_broken,
            progress=progress,
        )

    def features(self, dataset: Dataset, progress: Progress = silent) -> tuple[NDArray[Any], Splits]:
        """Compute features (N, D) of this or another dataset, and its splits without broken images."""
        return dataset_features(dataset, self.backbone, self.session(progress))


def readable_splits(dataset: Dataset, session: Session) -> Splits:
    """The splits of a dataset without images that cannot be decoded, which are an error unless skipped."""
    paths = dataset.image_paths or ()
    broken = find_broken(paths, session.progress)
    if broken and not session.skip_broken:
        shown = first_reasons(broken.values())
        raise DataError(f"{len(broken)} of {len(paths)} images cannot be read:\n{shown}\n{BROKEN_ADVICE}")
    splits = dataset.splits.without(sorted(broken))
    check_splits(splits, dataset.size)
    return splits


def validation_split(dataset: Dataset, seed: int = 0) -> Dataset:
    """Train on three quarters of the training set and use the rest as both queries and database.

    The only split for choosing settings: the true queries stay unseen.
    """
    order = np.random.default_rng(seed).permutation(dataset.splits.train)
    if len(order) < 8:
        raise DataError(
            f"validation holds out a quarter of the training images and needs at least 8, got {len(order)}."
        )
    held_out = np.sort(order[: len(order) // 4])
    return dataset.with_splits(Splits(np.sort(order[len(order) // 4 :]), held_out, held_out, "validation"))


def used_images(dataset: Dataset) -> Dataset:
    """The images of a dataset that are in one of its splits: no others need features."""
    rows = np.unique(np.concatenate([members for _, members in dataset.splits.items()]))
    places = np.empty(dataset.size, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    splits = {name: places[members] for name, members in dataset.splits.items()}
    chosen = rows.tolist()
    return replace(
        dataset,
        labels=dataset.labels[rows],
        splits=Splits(**splits, made=dataset.splits.made),
        image_paths=tuple(dataset.image_paths[row] for row in chosen) if dataset.image_paths else None,
        names=tuple(dataset.names[row] for row in chosen),
        areas=None if dataset.areas is None else dataset.areas[rows],
    )
