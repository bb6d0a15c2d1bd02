"""Trainings with something measured on each model: stored line by line, none ever repeated.

DIR/<what>/results.jsonl   one line per finished task: data, what was asked, what was found
DIR/models/<digest>/       trained models that several experiments look at
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from centerhash.core.errors import CenterhashError, ConfigError
from centerhash.core.files import append_line, write_text
from centerhash.experiments.grid import Bench, Cell
from centerhash.experiments.paper.settings import Settings
from centerhash.experiments.rows import Row, completed, other_setting, read_rows, rounded
from centerhash.experiments.workers import Job, run_in_processes
from centerhash.model import HashModel
from centerhash.training.fitting import fit
from centerhash.training.run import versions

RESULTS = "results.jsonl"


@dataclass(frozen=True)
class Task:
    """One training and what is to be measured: `about` and the configuration tell it from all others."""

    cell: Cell
    about: Mapping[str, Any]
    models: Path  # where trained models are kept

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a stored row the answer to this task."""
        return {**self.about, "config": dict(self.cell.resolved)}

    @property
    def name(self) -> str:
        """What people call it."""
        shown = ", ".join(
            f"{key} {value}" for key, value in self.about.items() if not isinstance(value, dict)
        )
        return f"{self.cell.name} ({shown})" if shown else self.cell.name


Work: TypeAlias = Callable[[Bench, Task], Row]  # a function of a module, since processes are sent it by name


def make_task(settings: Settings, cell: Cell, **about: Any) -> Task:
    """A task whose model is kept with all others of the report."""
    return Task(cell, about, settings.out / "models")


def trained(bench: Bench, task: Task) -> HashModel:
    """The model of a task: read where an experiment of this report trained it before, trained and kept otherwise."""
    identity = json.dumps([bench.facts(), task.cell.resolved], sort_keys=True)
    folder = task.models / hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
    if (folder / "model.json").exists():  # written last
        return HashModel.load(folder)
    model = fit(bench.dataset, task.cell.config, features=bench.features, device=bench.device)
    model.save(folder)
    return model


def run_tasks(
    settings: Settings, what: str, tasks: Sequence[Task], work: Work
) -> tuple[list[Row], list[str]]:
    """Do the tasks that DIR/<what> does not hold yet; return the rows of all, in order, and what failed."""
    path = settings.folder(what) / RESULTS
    bench = settings.source.open(settings.report)
    rows = _stored(path, bench.facts())
    settings.warn(bench.dataset.warnings)
    known = [row["task"] for row in rows]
    left = [task for task in tasks if _plain(task.identity) not in known]
    failures: list[str] = []
    done = len(tasks) - len(left)

    def show(note: str) -> None:
        if settings.report is not None:
            settings.report(what, done, len(tasks), note)

    show("")
    for task, row in _results(settings, bench, left, work, lambda task: show(task.name)):
        done += 1
        if "error" in row:
            failures.append(f"{task.name}: {row['error']}")
        else:
            rows.append(row)
            append_line(path, json.dumps(row, separators=(",", ":")))
        show("")
    by_task = {json.dumps(row["task"], sort_keys=True): row for row in rows}
    asked = (json.dumps(_plain(task.identity), sort_keys=True) for task in tasks)
    return [by_task[key] for key in asked if key in by_task], failures


def _results(
    settings: Settings, bench: Bench, tasks: Sequence[Task], work: Work, on_start: Callable[[Task], None]
) -> Iterator[tuple[Task, Row]]:
    """Rows and failures as they come, from this process or from several."""
    jobs = min(settings.jobs, len(tasks))
    if jobs > 1:
        threads = max(1, torch.get_num_threads() // jobs)
        job = Job(settings.source.open, Measured(work), failed, threads)
        yield from run_in_processes(job, tasks, jobs, on_start)
        return
    for task in tasks:
        on_start(task)
        try:
            row = Measured(work)(bench, task)
        except Exception as error:  # whatever it is, the other tasks go on
            row = failed(task, error)
        yield task, row


@dataclass(frozen=True)
class Measured:
    """A work whose findings are put into a whole row."""

    work: Work

    def __call__(self, bench: Bench, task: Task) -> Row:
        """Do it."""
        found = rounded(self.work(bench, task), 9)
        return {**bench.facts(), "task": _plain(task.identity), "found": found, "versions": versions()}


def failed(task: Task, error: Exception) -> Row:
    """What is told of a task that failed: our own errors explain themselves."""
    name = "" if isinstance(error, CenterhashError) else f"{type(error).__name__}: "
    return {"error": f"{name}{error}"}


def _stored(path: Path, facts: Row) -> list[Row]:
    """The finished rows, which must be about the same data; a line torn by a kill is taken out."""
    rows = read_rows(path, ("task", "found", "data", "split", "images", "evaluation"))
    for row in rows:
        differences = other_setting(row, facts)
        if differences:
            raise ConfigError(
                f"'{path.parent}' holds results of something else: {'; '.join(differences)}. Choose another --out."
            )
    mend(path, rows)
    return [{**row, "task": completed(row["task"])} for row in rows]


def mend(path: Path, rows: Sequence[Row]) -> None:
    """Write the whole `rows` of a file again where a kill has torn its last line: nothing may be added to that."""
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        write_text(path, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value as json gives it back: tuples are lists."""
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return plain
