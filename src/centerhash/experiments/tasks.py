"""What an experiment trains and evaluates on: tasks of methods x bits x seeds, and a dataset with its features."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.codes import Packed, binarize, pack
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.options import read_options
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset, Splits, open_dataset
from centerhash.evaluation import Evaluation, evaluate
from centerhash.methods.registry import Point, get_method, training_options
from centerhash.model.model import HashModel
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.networks.cache import default_cache
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.distributed import ProcessGroup
from centerhash.training.finish import logits_in_chunks, packed_codes
from centerhash.training.frozen import fit_frozen
from centerhash.training.run_folder import fingerprint
from centerhash.training.session import Session, dataset_features

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
        return identity_text(self.identity)

    @property
    def name(self) -> str:
        """Method, bits and seed, with further settings in parentheses."""
        return task_name(self.resolved, {**self.about, **({"with": self.note} if self.note else {})})


def identity_text(identity: Mapping[str, Any]) -> str:
    """Serialize an identity; the size of the layer that reads presence is left out, since no code depends on it."""
    config = identity["config"]
    head = {name: value for name, value in config.get("head", {}).items() if name != "presence_hidden"}
    return json.dumps({**identity, "config": {**config, "head": head}}, sort_keys=True)


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
    epochs: int | None = None,
    points: Mapping[str, Point] | None = None,
) -> list[Task]:
    """List the tasks of a grid, one seed after the other: an interrupted grid then has a table of fewer seeds.

    `settings` are training options by method, `epochs` applies to every method; `points` are settings chosen by
    `tune`, some of which depend on the number of bits.
    """
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}.")
    if not methods or not bits:
        missing = "lengths of codes such as 16, 64" if methods else "methods such as csq, ics"
        raise ConfigError(f"nothing to compare: give {missing}.")
    common = {} if epochs is None else {"epochs": epochs}

    def given(method: str, length: int) -> dict[str, Any]:
        chosen = training_options(get_method(method), (points or {}).get(method, {}), length)
        own = (settings or {}).get(method, {})
        options = {**chosen.get("options", {}), **own.get("options", {})}
        return {**common, **chosen, **own, **({"options": options} if options else {})}

    return [
        make_task({**given(method, length), "method": method, "bits": length, "seed": seed})
        for seed in range(seeds)
        for length in bits
        for method in methods
    ]


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """A dataset ready for training and evaluation: features (N, D), and splits without broken images."""

    dataset: Dataset
    features: NDArray[Any]
    k: int
    exclude_self: bool
    device: str

    def facts(self) -> Row:
        """The part of a row that describes the data and the evaluation; equal for all rows of a comparison."""
        splits = self.dataset.splits
        images = self.dataset.kind == "images"
        return {
            "data": self.dataset.name,
            **({"backbone": get_backbone(DEFAULT_BACKBONE).key} if images else {}),
            "fingerprint": fingerprint(self.dataset),
            "split": splits.made,
            "images": {name: len(getattr(splits, name)) for name in ("train", "query", "database")},
            "evaluation": {"k": self.k, "exclude_self": self.exclude_self},
        }

    def train(self, task: Task) -> HashModel:
        """Train the model of a task on frozen features."""
        return fit_frozen(
            self.dataset, self.features, resolve(task.config), Session(ProcessGroup(self.device))
        )

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

    def open(self, progress: Progress = silent) -> EvaluationSetup:
        """Open the dataset; features of images come from the cache, and are added to it."""
        # a process's first optimizer makes torch import its compiler, which must not count as training time
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
        dataset = open_dataset(self.path)
        dataset.check_labels("scoring")
        features, splits = self.features(dataset, progress)
        dataset = dataset.with_splits(splits)
        if not self.validation:
            return EvaluationSetup(dataset, features, self.k, False, self.device)
        held_out = validation_split(dataset)
        share = len(held_out.splits.database) / len(splits.database)
        return EvaluationSetup(held_out, features, max(1, round(self.k * share)), True, self.device)

    def features(self, dataset: Dataset, progress: Progress = silent) -> tuple[NDArray[Any], Splits]:
        """Compute features (N, D) of this or another dataset, and its splits without broken images."""
        session = Session(
            ProcessGroup(self.device),
            cache=self.cache or default_cache(),
            skip_broken=self.skip_broken,
            progress=progress,
        )
        return dataset_features(dataset, get_backbone(DEFAULT_BACKBONE), session)


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
