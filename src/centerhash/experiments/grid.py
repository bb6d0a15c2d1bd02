"""The grid: methods x bits x seeds on one data set, one stored row per cell, nothing ever computed twice.

results.jsonl      one line per finished cell: data, split, configuration, evaluation with curves, times, versions
failures.jsonl     one line per cell that failed in its last attempt; a rerun tries it again
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.codes import Packed, pack
from centerhash.core.errors import CenterhashError, ConfigError, DataError, unknown_name
from centerhash.core.files import append_line, make_folder, write_text
from centerhash.core.options import option_names, read_options
from centerhash.data import Dataset, Splits, open_dataset
from centerhash.evaluation import evaluate
from centerhash.experiments.rows import Row, completed, other_setting, read_rows, rounded
from centerhash.experiments.workers import Job, run_in_processes
from centerhash.methods.table import METHODS, get_method
from centerhash.model import HashModel
from centerhash.networks.backbones import DEFAULT_BACKBONE
from centerhash.networks.cache import default_cache
from centerhash.training.fitting import Reporter, dataset_features, fit, resolve
from centerhash.training.loop import TrainConfig
from centerhash.training.run import fingerprint, versions

RESULTS, FAILURES = "results.jsonl", "failures.jsonl"
PRECISION_AT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_CHUNK = 8192  # rows encoded at a time
# decided by the grid itself, or, for the backbone, the same for all cells
_NOT_TO_SET = ("method", "bits", "seed", "backbone", "options")


@dataclass(frozen=True)
class Cell:
    """One training of the grid: the configuration as asked for, and with everything filled in."""

    config: TrainConfig
    resolved: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.config.method} {self.config.bits} bits seed {self.config.seed}"


class CellDone(Protocol):
    """Told of every cell that ends: how many have, of how many, which one, and its row or failure."""

    def __call__(self, done: int, total: int, cell: Cell, row: Row) -> None:
        """Take note."""


# What is asked for


def read_methods(text: str) -> list[str]:
    """Names of methods from `all` or `csq,ics`."""
    names = list(METHODS) if text.strip() == "all" else _listed(text)
    for name in names:
        get_method(name)
    return names


def read_bits(text: str) -> list[int]:
    """Lengths of codes from `16,32,64`."""
    try:
        return [int(part) for part in _listed(text)]
    except ValueError:
        raise ConfigError(f"--bits takes lengths of codes such as 16,32,64, got '{text}'.") from None


def _listed(text: str) -> list[str]:
    """The parts of a list with commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def read_settings(texts: Iterable[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings per method from METHOD:NAME=VALUE texts: options of the method, or of training.

    `all` stands for every method of the grid; training settings such as learning_rate or head take json.
    """
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        method, colon, rest = text.partition(":")
        name, equals, value = (part.strip() for part in rest.partition("="))
        if not (colon and equals and method.strip() and name):
            raise ConfigError(f"--option takes METHOD:NAME=VALUE, such as ics:lambda=0.2, got '{text}'.")
        for target in methods if method.strip() == "all" else [method.strip()]:
            if target not in methods:
                raise unknown_name(
                    "method in --option", target, [*methods, "all"], "It must be in --methods."
                )
            _set(settings.setdefault(target, {}), target, name, value)
    return settings


def _set(chosen: dict[str, Any], method: str, name: str, value: str) -> None:
    training = [known for known in TrainConfig.model_fields if known not in _NOT_TO_SET]
    options = option_names(get_method(method).options_class())
    if name in options:
        chosen.setdefault("options", {})[name] = value
    elif name in training:
        chosen[name] = _json_or_text(value)
    else:
        raise unknown_name(f"option of method '{method}' or of training", name, [*options, *training])


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def plan_cells(
    methods: Sequence[str],
    bits: Sequence[int],
    seeds: int,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    epochs: int | None = None,
) -> list[Cell]:
    """All cells, checked, one seed after the other: a grid cut short then has a table of fewer seeds."""
    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}.")
    if not methods or not bits:
        missing = "--bits" if methods else "--methods"
        raise ConfigError(
            f"nothing to compare: {missing} is empty. Give for example --methods csq,ics --bits 16,64."
        )
    common = {} if epochs is None else {"epochs": epochs}
    cells = []
    for seed in range(seeds):
        for length in bits:
            for method in methods:
                own = (settings or {}).get(method, {})
                given = {**common, **own, "method": method, "bits": length, "seed": seed}
                config = read_options(TrainConfig, given, "training")
                cells.append(Cell(config, resolve(config).model_dump(mode="json")))
    return cells


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
        return {
            "data": self.dataset.name,
            "fingerprint": fingerprint(self.dataset),
            "split": splits.made,
            "images": {name: len(getattr(splits, name)) for name in ("train", "query", "database")},
            "evaluation": {"k": self.k, "exclude_self": self.exclude_self},
        }


@dataclass(frozen=True)
class Source:
    """Where a bench comes from: everything a process needs to open it by itself."""

    path: Path
    k: int = 5000
    validation: bool = False
    cache: Path | None = None
    device: str = "auto"
    skip_broken: bool = False

    def open(self, report: Reporter | None = None) -> Bench:
        """Open the data set; features of images come from the cache, and are added to it."""
        # the first optimizer of a process makes torch import its compiler: no part of a method's training time
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
        dataset = open_dataset(self.path)
        features, splits = dataset_features(
            dataset,
            DEFAULT_BACKBONE,
            cache=self.cache or default_cache(),
            device=self.device,
            skip_broken=self.skip_broken,
            report=report,
        )
        dataset = dataset.with_splits(splits)
        if not self.validation:
            return Bench(dataset, features, self.k, False, self.device)
        held_out = validation_split(dataset)
        share = len(held_out.splits.database) / len(splits.database)
        return Bench(held_out, features, max(1, round(self.k * share)), True, self.device)


def validation_split(dataset: Dataset, seed: int = 0) -> Dataset:
    """Keep three quarters of the training list to train on; the rest is both query and database.

    The only split on which settings may be chosen: the true queries stay unseen.
    """
    order = np.random.default_rng(seed).permutation(dataset.splits.train)
    if len(order) < 8:
        raise DataError(
            f"--validation holds out a quarter of the training images: {len(order)} are too few, 8 are needed."
        )
    held_out = np.sort(order[: len(order) // 4])
    return dataset.with_splits(Splits(np.sort(order[len(order) // 4 :]), held_out, held_out, "validation"))


# Running


def measure(bench: Bench, cell: Cell) -> Row:
    """Train and evaluate one cell."""
    dataset, splits = bench.dataset, bench.dataset.splits
    started = time.perf_counter()
    model = fit(dataset, cell.config, features=bench.features, device=bench.device)
    trained = time.perf_counter()
    query, database = (_encoded(model, bench.features, rows) for rows in (splits.query, splits.database))
    encoded = time.perf_counter()
    found = evaluate(
        query,
        database,
        dataset.labels[splits.query],
        dataset.labels[splits.database],
        k=bench.k,
        precision_at=[place for place in PRECISION_AT if place <= len(splits.database)],
        bits=model.bits,
        query_ids=splits.query,
        database_ids=splits.database,
        exclude_self=bench.exclude_self,
    )
    evaluated = time.perf_counter()
    images = len(query) + len(database)
    return {
        **bench.facts(),
        "config": dict(cell.resolved),
        "evaluation": rounded(found.to_dict()),
        "train_seconds": round(trained - started, 3),
        "encode_seconds": round(encoded - trained, 3),
        "images_per_second": round(images / (encoded - trained), 1),
        "evaluate_seconds": round(evaluated - encoded, 3),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def _encoded(model: HashModel, features: NDArray[Any], rows: NDArray[np.int64]) -> Packed:
    """Packed codes of `features[rows]`, never more than a few thousand rows in memory."""
    parts = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    return np.concatenate([pack(model.encode_features(features[part])) for part in parts])


def failure(cell: Cell, error: Exception) -> Row:
    """What is kept of a cell that failed: our own errors explain themselves, others come with a trace."""
    if isinstance(error, CenterhashError):
        return {"config": dict(cell.resolved), "error": str(error)}
    text = f"{type(error).__name__}: {error}"
    return {"config": dict(cell.resolved), "error": text, "trace": "".join(traceback.format_exception(error))}


def run_grid(
    source: Source,
    cells: Sequence[Cell],
    out: str | Path,
    *,
    jobs: int = 1,
    report: Reporter | None = None,
    on_cell: CellDone | None = None,
    warn: Callable[[Sequence[str]], None] | None = None,
) -> tuple[list[Row], list[Row]]:
    """Measure the cells that `out` does not hold yet; return all its rows, and the failures of this attempt.

    With several jobs, each cell runs in a process with its share of the threads. `warn` hears of oddities of the
    data, `on_cell` of every cell that ends.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}.")
    bench, folder = source.open(report), make_folder(out)
    rows = _claim(folder, bench.facts())
    if warn is not None:
        warn(bench.dataset.warnings)
    done = [row["config"] for row in rows]
    left = [cell for cell in cells if cell.resolved not in done]
    _forget_failures(folder / FAILURES, cells)
    failures: list[Row] = []
    ended, running = len(cells) - len(left), list[str]()

    def show() -> None:
        if report is not None:
            report("cells", ended, len(cells), ", ".join(running))

    def on_start(cell: Cell) -> None:
        running.append(cell.name)
        show()

    show()
    for cell, row in _results(bench, source, left, min(jobs, len(left)), on_start):
        running.remove(cell.name)
        ended += 1
        failed = "error" in row
        (failures if failed else rows).append(row)
        append_line(folder / (FAILURES if failed else RESULTS), json.dumps(row, separators=(",", ":")))
        show()
        if on_cell is not None:
            on_cell(ended, len(cells), cell, row)
    return rows, failures


def _results(
    bench: Bench, source: Source, cells: Sequence[Cell], jobs: int, on_start: Callable[[Cell], None]
) -> Iterator[tuple[Cell, Row]]:
    """Rows and failures as they come, from this process or from several."""
    if jobs > 1:
        threads = max(1, torch.get_num_threads() // jobs)
        yield from run_in_processes(Job(source.open, measure, failure, threads), cells, jobs, on_start)
        return
    for cell in cells:
        on_start(cell)
        try:
            row = measure(bench, cell)
        except Exception as error:  # whatever it is, the other cells go on
            row = failure(cell, error)
        yield cell, row


# Storing


def _claim(folder: Path, facts: Row) -> list[Row]:
    """The rows in `folder`, which must be about the same data; a line torn by a kill is taken out."""
    path = folder / RESULTS
    rows = read_rows(path)
    for row in rows:
        differences = other_setting(row, facts)
        if differences:
            raise ConfigError(
                f"'{folder}' holds the results of another comparison: {'; '.join(differences)}. Choose another --out."
            )
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        write_text(path, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return [completed(row) for row in rows]


def _forget_failures(path: Path, cells: Sequence[Cell]) -> None:
    """Take out what is about to be tried again."""
    if not path.exists():
        return
    tried = [cell.resolved for cell in cells]
    kept = [row for row in read_rows(path, ("config", "error")) if row["config"] not in tried]
    write_text(path, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept))
    if not kept:
        path.unlink()
