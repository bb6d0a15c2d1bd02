"""What every part of the paper is given and gives back, what it prints, and figures as files beside the page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from centerhash.core.errors import ConfigError
from centerhash.core.files import atomic, make_folder, packaged, write_text
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import png_bytes, svg_text
from centerhash.experiments.bench import Bench, Source, Task, make_task, plan_tasks
from centerhash.experiments.figures import named_series
from centerhash.experiments.rows import Row, rounded
from centerhash.experiments.runner import TaskDone, Work, answers, run_tasks
from centerhash.experiments.tables import failure_text
from centerhash.model.model import HashModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """One part of the report: a title, its pieces of HTML, and what failed on the way."""

    what: str
    title: str
    pieces: tuple[Markup, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What is trained on, where results go, and how much is asked for."""

    source: Source
    out: Path
    bits: tuple[int, ...] = (16, 32, 64)
    seeds: int = 3
    methods: tuple[str, ...] | None = None  # None: as each experiment wants
    epochs: int | None = None
    jobs: int = 1
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # training options by method
    results: Path | None = None  # folder of `centerhash compare` whose finished rows are taken over
    test_images: Path | None = None
    exclude: Path | None = None
    progress: Progress = silent
    on_done: TaskDone | None = None
    warn: Callable[[Sequence[str]], None] = lambda messages: None

    def __post_init__(self) -> None:
        for name in ("seeds", "jobs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.bits:
            raise ConfigError("no number of bits: give lengths of codes such as 16, 32, 64.")
        object.__setattr__(self, "bits", tuple(sorted(self.bits)))  # figures and tables rely on the order

    @property
    def models(self) -> Path:
        """Where trained models are kept that several parts look at."""
        return self.out / "models"

    def folder(self, what: str) -> Path:
        """Where one part keeps its raw results and figures."""
        return make_folder(self.out / what)

    def chosen(self, what: str, methods: Sequence[str]) -> list[str]:
        """Those of a part's methods that were asked for; refused where none is."""
        kept = [name for name in methods if self.methods is None or name in self.methods]
        if not kept:
            raise ConfigError(f"{what} compares {', '.join(methods)}: name at least one of these methods.")
        return kept

    def tasks(self, methods: Sequence[str]) -> list[Task]:
        """The trainings of methods x bits x seeds."""
        return plan_tasks(methods, self.bits, self.seeds, self.options, self.epochs)

    def task(
        self, method: str, bits: int, seed: int = 0, options: Mapping[str, Any] | None = None, **about: Any
    ) -> Task:
        """One training; `options` are the part's own, before those that were asked for."""
        common = {} if self.epochs is None else {"epochs": self.epochs}
        given = {**common, **self.options.get(method, {}), "method": method, "bits": bits, "seed": seed}
        return make_task({**given, "options": {**given.get("options", {}), **(options or {})}}, **about)

    def run(self, what: str, tasks: Sequence[Task], work: Work, **more: Any) -> tuple[list[Row], list[Row]]:
        """Do the tasks that DIR/<what> does not hold yet, as `run_tasks` does; `more` is for it."""
        common: dict[str, Any] = {"jobs": self.jobs, "progress": self.progress, "warn": self.warn}
        return run_tasks(self.source, tasks, self.folder(what), work, **common, **more)


# Running


def run_part(
    settings: Settings, what: str, tasks: Sequence[Task], work: Work
) -> tuple[list[Row], tuple[str, ...]]:
    """Do the tasks that DIR/<what> does not hold yet; return the rows of all, in order, and what failed."""
    rows, failures = settings.run(what, tasks, partial(_found, work), stage=what)
    return answers(rows, tasks), tuple(map(failure_text, failures))


def _found(work: Work, bench: Bench, task: Task) -> Row:
    return {"task": task.identity, "found": rounded(work(bench, task), 9)}


def trained(models: Path, bench: Bench, task: Task) -> HashModel:
    """The model of a task: read where a part of this report trained it before, trained and kept otherwise."""
    identity = json.dumps([bench.facts(), task.resolved], sort_keys=True)
    folder = models / hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
    if (folder / "model.json").exists():  # written last
        return HashModel.load(folder)
    model = bench.train(task)
    model.save(folder)
    return model


# What the paper prints, for the eye to compare: other backbones, other data, other schedules than ours

PRINTED_BITS = (16, 32, 64)
DATA = {"nus-wide": "NUS-WIDE", "coco": "MS COCO"}
_SAME = {"ics-printed": "ics"}  # both stand for the paper's own method


@cache
def printed() -> Mapping[str, Any]:
    """Everything in printed.toml."""
    return packaged("centerhash.experiments.paper", "printed.toml")


@cache
def _words() -> Mapping[str, str]:
    return packaged("centerhash.experiments.paper", "words.toml")


def words(name: str, **values: Any) -> str:
    """A text of words.toml with values put in."""
    return _words()[name].format(**values)


def printed_map(table: str, data: str, method: str, bits: int) -> float | None:
    """The mAP that a table (alexnet, resnet50, ablation) prints for a method on nus-wide or coco, if it does."""
    values = printed()[table][data].get(_SAME.get(method, method))
    return None if values is None or bits not in PRINTED_BITS else float(values[PRINTED_BITS.index(bits)])


# Figures


def write_figure(path: Path, figure: Figure) -> Markup:
    """Write PATH.svg for people and PATH.png for where vector graphics cannot go; return the figure as HTML."""
    svg = named_series(svg_text(figure))
    write_text(path.with_suffix(".svg"), svg)
    figure.set_layout_engine("none")  # all has found its place: to look for it again takes as long as to draw
    with atomic(path.with_suffix(".png")) as stream:
        stream.write(png_bytes(figure))
    return Markup("<div class='plot'>{}</div>").format(svg)


def legend_below(figure: Figure, axis: Axes, widest: float = 2.3) -> None:
    """The legend of one axis under the whole figure, in as many columns of `widest` inches as fit beside each other."""
    handles, names = axis.get_legend_handles_labels()
    columns = max(1, min(len(names), int(figure.get_figwidth() // widest)))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
