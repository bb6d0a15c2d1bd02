"""Tasks of an experiment, methods x bits x seeds, and the dataset with features that they are trained and evaluated on.

setup = Source(Path("photos")).open()
model = setup.train(make_task({"method": "ics", "bits": 64}))
print(setup.evaluate(setup.encode(model)))
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.options import merge_options, read_options
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset, Splits, open_dataset
from centerhash.encoding.code_files import CodeFile, evaluate_codes_of
from centerhash.evaluation import Evaluation
from centerhash.experiments.search_spaces import PointByBits, training_options
from centerhash.methods.registry import get_method
from centerhash.model.model import HashModel
from centerhash.networks.backbones import DEFAULT_BACKBONE, Backbone, get_backbone
from centerhash.networks.cache import default_cache
from centerhash.training.augmentation import readable_splits
from centerhash.training.config import TrainConfig, backbone_of, resolve
from centerhash.training.context import EpochRow, RunContext, dataset_features
from centerhash.training.distributed import ProcessGroup, join_processes
from centerhash.training.pipeline import encode_splits, fit_frozen, fit_model
from centerhash.training.run_folder import fingerprint, open_run

# One stored result, ready for json.
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One training run: its configuration with all defaults filled in.

    `about` holds further values that identify it, ready for json; `note` is only printed with its name.
    """

    config: TrainConfig
    about: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @cached_property
    def resolved(self) -> Row:
        """The configuration, ready for json."""
        return self.config.model_dump(mode="json")

    @property
    def identity(self) -> Row:
        """The settings that a stored row of this task repeats."""
        return {"config": self.resolved, **({"about": dict(self.about)} if self.about else {})}

    @property
    def key(self) -> str:
        """The identity as text, for looking up stored rows."""
        return row_key(self.identity)

    @property
    def trains_backbone(self) -> bool:
        """Whether the run changes the backbone, so that it cannot use the shared features."""
        return self.config.finetune != "off"

    @property
    def name(self) -> str:
        """Method, bits and seed, with further settings in parentheses."""
        return task_name(self.identity, self.note)


def row_key(row: Row) -> str:
    """Return the key of the task of a row or a failure, as `Task.key`."""
    return json.dumps([row["config"], row.get("about", {})], sort_keys=True)


def task_name(row: Row, note: str = "") -> str:
    """Name the task of a row by method, bits and seed, with plain values of `about` and a note in parentheses."""
    about = {key: value for key, value in row.get("about", {}).items() if not isinstance(value, dict)}
    details = ", ".join(f"{key} {value}" for key, value in (about | ({"with": note} if note else {})).items())
    name = "{method} {bits} bits seed {seed}".format(**row["config"])
    return f"{name} ({details})" if details else name


def make_task(options: Mapping[str, Any], **about: Any) -> Task:
    """Create a task from training options; areas resize the weights only if `sizes` is passed."""
    return Task(resolve(read_options(TrainConfig, {"sizes": False, **options}, "training")), about)


def plan_tasks(
    methods: Sequence[str],
    bits: Sequence[int],
    seeds: int,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    training: Mapping[str, Any] | None = None,
    points: Mapping[str, PointByBits] | None = None,
) -> list[Task]:
    """List the tasks of a grid, one seed after the other: an interrupted grid then has a table of fewer seeds.

    `points` are the best settings of `tune`, as functions of the number of bits. Training options of all methods
    override them, and `settings`, which are training options by method, override both.
    """
    tasks = []
    for seed, length, method in itertools.product(range(seeds), bits, methods):
        point = points[method](length) if points and method in points else {}
        tuned = training_options(get_method(method), point)
        options = merge_options(tuned, training or {}, (settings or {}).get(method, {}))
        tasks.append(make_task({**options, "method": method, "bits": length, "seed": seed}))
    return tasks


def shared_backbone(training: Mapping[str, Any]) -> Backbone:
    """Return the backbone of training options that all runs of an experiment share."""
    return backbone_of(read_options(TrainConfig, training, "training"))


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """A dataset ready for training and evaluation: features (N, D), and splits without broken images.

    The features are those of the frozen backbone, (N, 0) if every run trains it.
    """

    dataset: Dataset
    features: NDArray[Any]
    k: int
    exclude_self: bool
    context: RunContext
    backbone: Backbone

    def facts(self) -> Row:
        """Return the part of a row that describes the data and the evaluation; equal for all rows of a comparison."""
        splits, network = self.dataset.splits, self.backbone
        names = {"name": network.name, "crop": network.crop, "pool": network.pool, "key": network.key}
        return {
            "data": self.dataset.name,
            **({"backbone": names} if self.dataset.kind == "images" else {}),
            "fingerprint": fingerprint(self.dataset),
            "split": splits.source,
            "images": {name: len(rows) for name, rows in splits.items()},
            "evaluation": {"k": self.k, "exclude_self": self.exclude_self},
        }

    def train(self, task: Task) -> HashModel:
        """Train the model of a task on frozen features."""
        if task.trains_backbone:
            raise ConfigError("this experiment compares methods on frozen features: omit `finetune=`.")
        return fit_frozen(self.dataset, self.features, task.config, self._context(task.config))

    def finetune(self, task: Task, folder: Path) -> tuple[HashModel, EvaluationSetup, float]:
        """Train network and head of a task into the folder of its run, which resumes an interrupted one.

        Return the model, this setup with the features of its network, and the seconds of all epochs.
        """
        logs = list[list[EpochRow]]()
        # No other run can use the features of this network: they would fill the cache.
        context = replace(self._context(task.config), on_epoch=logs.append, cache_tuned=False)
        with open_run(folder, self.dataset, task.config, context) as context:
            fit = fit_model(self.dataset, task.config, context)
        seconds = sum(row["seconds"] for row in logs[-1]) if logs else 0.0
        return fit.model, replace(self, features=fit.features), seconds

    def _context(self, config: TrainConfig) -> RunContext:
        group = join_processes(str(self.context.group.device), config.precision)
        return replace(self.context, group=group)

    def encode(self, model: HashModel, rotation: NDArray[Any] | None = None) -> tuple[CodeFile, CodeFile]:
        """Encode the queries and the database, after a `rotation` (K, K) of the logits if there is one."""
        return encode_splits(model, self.features, self.dataset, rotation=rotation)

    def evaluate(self, codes: tuple[CodeFile, CodeFile], **settings: Any) -> Evaluation:
        """Evaluate the codes of the queries against those of the database."""
        return evaluate_codes_of(*codes, k=self.k, exclude_self=self.exclude_self, **settings)


@dataclass(frozen=True)
class Source:
    """The source of an evaluation setup: everything that a worker process needs to open it.

    `root` and `lists` belong to the published dataset that the path names.
    """

    path: Path
    k: int = 5000
    validation: bool = False
    cache: Path | None = None
    device: str = "auto"
    skip_broken: bool = False
    root: Path | None = None
    lists: Path | None = None
    backbone: Backbone = field(default_factory=lambda: get_backbone(DEFAULT_BACKBONE))

    def open(self, progress: Progress = silent, *, frozen: bool = True) -> EvaluationSetup:
        """Open the dataset with its features by the frozen backbone, which are cached.

        If no run is on `frozen` features, images are only checked.
        """
        # A process's first optimizer makes torch import its compiler, which must not count as training time.
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
            depth = max(1, round(self.k * len(held_out.splits.database) / len(dataset.splits.database)))
            dataset = used_images(held_out) if dataset.kind == "images" else held_out
        group, cache = ProcessGroup(self.device), self.cache or default_cache()
        context = RunContext(group, cache=cache, skip_broken=self.skip_broken, progress=progress)
        if frozen:
            features, splits = dataset_features(dataset, self.backbone, context)
        else:
            features, splits = np.empty((dataset.size, 0), np.float32), readable_splits(dataset, context)
        dataset = dataset.with_splits(splits)
        return EvaluationSetup(dataset, features, depth, self.validation, context, self.backbone)


def validation_split(dataset: Dataset) -> Dataset:
    """Train on three quarters of the training set and use the rest as both queries and database.

    The only split for choosing settings: the true queries stay unseen.
    """
    order = np.random.default_rng(0).permutation(dataset.splits.train)
    if len(order) < 8:
        raise DataError(
            f"validation holds out a quarter of the training images and needs at least 8, got {len(order)}."
        )
    held_out = np.sort(order[: len(order) // 4])
    return dataset.with_splits(Splits(np.sort(order[len(order) // 4 :]), held_out, held_out, "validation"))


def used_images(dataset: Dataset) -> Dataset:
    """Return the images of a dataset that are in one of its splits: no others need features."""
    splits = dict(dataset.splits.items())
    rows = np.unique(np.concatenate([*splits.values()]))
    positions = {name: np.searchsorted(rows, split) for name, split in splits.items()}
    return replace(
        dataset,
        labels=dataset.labels[rows],
        splits=Splits(**positions, source=dataset.splits.source),
        image_paths=tuple((dataset.image_paths or ())[row] for row in rows),
        names=tuple(dataset.names[row] for row in rows),
        areas=None if dataset.areas is None else dataset.areas[rows],
    )
