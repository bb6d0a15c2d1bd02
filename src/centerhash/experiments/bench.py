"""What is trained, and what it is measured on: tasks of methods x bits x seeds, and a data set with its features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.codes import Packed, binarize, pack
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.options import read_options
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset, Splits, open_dataset
from centerhash.evaluation import Evaluation, evaluate
from centerhash.experiments.rows import Row, identity_text, task_name
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

# What is trained


@dataclass(frozen=True)
class Task:
    """One training: the configuration as asked for, and with everything filled in."""

    config: TrainConfig
    resolved: Mapping[str, Any] = field(repr=False)
    about: Mapping[str, Any] = field(default_factory=dict)  # what else tells it from others, ready for json
    note: str = ""  # shown with its name, and no part of what it is

    @property
    def identity(self) -> Row:
        """What makes a stored row the answer to this task."""
        return {**self.about, "config": dict(self.resolved)}

    @property
    def key(self) -> str:
        """The identity as text, to look rows up by."""
        return identity_text(self.identity)

    @property
    def name(self) -> str:
        """What people call it."""
        shown = {"with": self.note} if self.note else {}
        return task_name(self.resolved, {**self.about, **shown})


def make_task(given: Mapping[str, Any], **about: Any) -> Task:
    """A task of training options, checked; weights know what labels alone say unless `sizes` are asked for."""
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
    """All tasks of a grid, one seed after the other: a grid cut short then has a table of fewer seeds.

    `settings` are training options by method, `epochs` those of every method; `points` are settings that `tune` has
    chosen, which follow the number of bits.
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


# What it is measured on


@dataclass(frozen=True, eq=False)
class Bench:
    """A data set ready to be measured on: features (N, D) at hand, splits without broken images."""

    dataset: Dataset
    features: NDArray[Any]
    k: int
    exclude_self: bool
    device: str

    def facts(self) -> Row:
        """The part of a row that says what was measured on; equal for all rows of a comparison."""
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
        """The model of a task."""
        return fit_frozen(
            self.dataset, self.features, resolve(task.config), Session(ProcessGroup(self.device))
        )

    def encode(self, model: HashModel, rows: NDArray[np.int64]) -> Packed:
        """Packed codes of some images, never more than a few thousand rows of features in memory."""
        return packed_codes(model, self.features, [rows])[0]

    def encode_rotated(
        self, model: HashModel, rows: NDArray[np.int64], rotation: NDArray[np.float64]
    ) -> tuple[Packed, Packed]:
        """Packed codes of some images as the model gives them, and with its logits rotated by (K, K) as well."""
        pairs = (
            (pack(binarize(logits)), pack(binarize(logits @ rotation)))
            for _, logits in logits_in_chunks(model, self.features, rows)
        )
        own, rotated = zip(*pairs, strict=True)
        return np.concatenate(own), np.concatenate(rotated)

    def evaluate(self, bits: int, query: Packed, database: Packed, **settings: Any) -> Evaluation:
        """Scores of the queries' and the database's codes."""
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

    def train_weights(self, model: HashModel) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Weights and labels (n, C) of the training images, in the order of the file, as memory-mapped features like."""
        rows = np.sort(self.dataset.splits.train)
        labels = self.dataset.labels[rows]
        return model.weights(self.features[rows], labels), labels


@dataclass(frozen=True)
class Source:
    """Where a bench comes from: everything a process needs to open it by itself."""

    path: Path
    k: int = 5000
    validation: bool = False
    cache: Path | None = None
    device: str = "auto"
    skip_broken: bool = False

    def open(self, progress: Progress = silent) -> Bench:
        """Open the data set; features of images come from the cache, and are added to it."""
        # the first optimizer of a process makes torch import its compiler: no part of a method's training time
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
        dataset = open_dataset(self.path)
        dataset.check_labels("scoring")
        features, splits = self.features(dataset, progress)
        dataset = dataset.with_splits(splits)
        if not self.validation:
            return Bench(dataset, features, self.k, False, self.device)
        held_out = validation_split(dataset)
        share = len(held_out.splits.database) / len(splits.database)
        return Bench(held_out, features, max(1, round(self.k * share)), True, self.device)

    def features(self, dataset: Dataset, progress: Progress = silent) -> tuple[NDArray[Any], Splits]:
        """Features (N, D) of this or another data set, and its splits without broken images."""
        session = Session(
            ProcessGroup(self.device),
            cache=self.cache or default_cache(),
            skip_broken=self.skip_broken,
            progress=progress,
        )
        return dataset_features(dataset, get_backbone(DEFAULT_BACKBONE), session)


def validation_split(dataset: Dataset, seed: int = 0) -> Dataset:
    """Keep three quarters of the training list to train on; the rest is both query and database.

    The only split on which settings may be chosen: the true queries stay unseen.
    """
    order = np.random.default_rng(seed).permutation(dataset.splits.train)
    if len(order) < 8:
        raise DataError(
            f"validation holds out a quarter of the training images: {len(order)} are too few, 8 are needed."
        )
    held_out = np.sort(order[: len(order) // 4])
    return dataset.with_splits(Splits(np.sort(order[len(order) // 4 :]), held_out, held_out, "validation"))
