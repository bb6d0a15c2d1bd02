"""What the paper's experiments share: settings, models, printed results, texts, pieces of pages, and figures."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment
from markupsafe import Markup
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError
from centerhash.core.files import make_folder
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import templates_of
from centerhash.experiments.plots import save, svg_text
from centerhash.experiments.runner import Work, failure_text, rounded, run_tasks, select_rows
from centerhash.experiments.tasks import EvaluationSetup, Row, Source, Task, make_task
from centerhash.model.model import HashModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PRINTED_BITS = (16, 32, 64)
DATA = {"nus-wide": "NUS-WIDE", "coco": "MS COCO"}


@dataclass(frozen=True)
class Section:
    """One part of the report: a title, its pieces of HTML, and the tasks that failed."""

    what: str
    title: str
    pieces: tuple[Markup, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The data, the folder of the results, and the size of the experiments."""

    source: Source
    out: Path
    bits: tuple[int, ...] = (16, 32, 64)  # ascending
    seeds: int = 3
    methods: tuple[str, ...] | None = None  # None: those of each experiment
    training: Mapping[str, Any] = field(default_factory=dict)  # options of all training runs
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # training options by method
    jobs: int = 1
    progress: Progress = silent
    warn: Callable[[Sequence[str]], None] = lambda messages: None

    @property
    def models(self) -> Path:
        """The folder of trained models, which several parts use."""
        return self.out / "models"

    def running(self, stage: str) -> dict[str, Any]:
        """Return how tasks run, as arguments of `run_tasks`."""
        return {"stage": stage, "jobs": self.jobs, "progress": self.progress}

    def folder(self, what: str) -> Path:
        """Return the folder of the raw results and figures of one part."""
        return make_folder(self.out / what)

    def chosen(self, what: str, methods: Sequence[str]) -> list[str]:
        """Return the methods of a part that were selected, at least one."""
        kept = [name for name in methods if self.methods is None or name in self.methods]
        if not kept:
            raise ConfigError(f"{what} compares {', '.join(methods)}: name at least one of these methods.")
        return kept

    def task(
        self, method: str, bits: int, seed: int = 0, options: Mapping[str, Any] | None = None, **about: Any
    ) -> Task:
        """Return one training run; `options` are those of the part."""
        given = {**self.training, **self.options.get(method, {})}
        options = {**given.get("options", {}), **(options or {})}
        return make_task({**given, "method": method, "bits": bits, "seed": seed, "options": options}, **about)


def run_part(
    settings: Settings, what: str, tasks: Sequence[Task], work: Work
) -> tuple[list[Row], tuple[str, ...]]:
    """Run the tasks that DIR/<what> has no rows of; return the rows of all, in order, and what failed."""
    folder, running = settings.folder(what), settings.running(what)
    rows, failures = run_tasks(settings.source, tasks, folder, partial(_row, work), **running)
    return select_rows(rows, tasks), tuple(map(failure_text, failures))


def _row(work: Work, setup: EvaluationSetup, task: Task) -> Row:
    return {**task.identity, "found": rounded(work(setup, task), 9)}


def trained(models: Path, setup: EvaluationSetup, task: Task) -> HashModel:
    """Return the model of a task: loaded if another part has trained it, else trained and stored."""
    identity = json.dumps([setup.facts(), task.resolved], sort_keys=True)
    folder = models / hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
    if (folder / "model.json").exists():  # written last
        return HashModel.load(folder)
    model = setup.train(task)
    model.save(folder)
    return model


def train_weights(setup: EvaluationSetup, model: HashModel) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return weights and labels (n, C) of the training images."""
    rows = np.sort(setup.dataset.splits.train)  # in file order: features may be memory-mapped
    labels = setup.dataset.labels[rows]
    return model.weights(setup.features[rows], labels), labels


@cache
def printed() -> Mapping[str, Any]:
    """Read printed.toml: results of the paper, of other backbones, data and schedules than ours."""
    return _tables("printed.toml")


def words(name: str, **values: Any) -> str:
    """Return a text of words.toml with values filled in."""
    text: str = _tables("words.toml")[name]
    return text.format(**values)


def _tables(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def printed_map(table: str, data: str, method: str, bits: int) -> float | None:
    """Return the mAP that a table (alexnet, resnet50, ablation) prints for a method on nus-wide or coco, if any."""
    values = printed()[table][data].get("ics" if method == "ics-printed" else method)  # both are the paper's
    return None if values is None or bits not in PRINTED_BITS else float(values[PRINTED_BITS.index(bits)])


@cache
def templates() -> Environment:
    """Return the templates of the demo and of the report."""
    return templates_of("reproduction", "centerhash.experiments")


# Pieces of a section from plain text: one or two sentences, a remark below a table or figure, and a title.
paragraph = Markup("<p>{}</p>").format
note = Markup("<p class='note'>{}</p>").format
heading = Markup("<h3>{}</h3>").format


def table(
    heads: Sequence[str], lines: Sequence[Sequence[str]], groups: Sequence[tuple[str, int]] = ()
) -> Markup:
    """Return a table with `heads` over the columns; `groups` are titles over several columns, as (title, columns)."""
    macros: Any = templates().get_template("parts.html").module
    return Markup(macros.table(heads, lines, groups))


def area_scatter(axis: Axes, shares: Any, weights: Any, color: str) -> None:
    """Draw one point per label: its share of the labeled area, and its weight."""
    axis.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=1)
    axis.scatter(shares, weights, s=7, alpha=0.35, linewidths=0, color=color, zorder=2, rasterized=True)
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def weight_histogram(axis: Axes, counts: Any, color: str) -> None:
    """Draw the shares of weights by size."""
    axis.stairs(counts / max(1, counts.sum()), np.linspace(0, 1, len(counts) + 1), fill=True, color=color)
    axis.set_xlim(0, 1)


def figure_html(figure: Figure) -> Markup:
    """Return a figure as a piece of a page."""
    return Markup("<div class='plot'>{}</div>").format(svg_text(figure))


def write_figure(path: Path, figure: Figure) -> Markup:
    """Write PATH.svg and PATH.png; return the figure as HTML."""
    for ending in (".svg", ".png"):
        save(figure, path.with_suffix(ending))
    return figure_html(figure)
