"""Settings, models, printed results, texts and pieces of pages of the paper's experiments."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError
from centerhash.core.files import make_folder
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import templates_of
from centerhash.experiments.plots import save, svg_text
from centerhash.experiments.runner import Work, failure_text, rounded, run_tasks, select_rows
from centerhash.experiments.tasks import EvaluationSetup, Row, Source, Task, make_task
from centerhash.methods.registry import METHODS
from centerhash.model.model import HashModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Results of the paper (its backbones, data and schedules differ from ours), and texts around figures and tables.
PRINTED, WORDS = (
    tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("printed.toml", "words.toml")
)
PRINTED_BITS = (16, 32, 64)
DATA = {"nus-wide": "NUS-WIDE", "coco": "MS COCO"}
TEMPLATES = templates_of("reproduction", "centerhash.experiments")


@dataclass(frozen=True)
class Section:
    """One part of the report: a title, its pieces of HTML, and the tasks that failed."""

    part: str
    title: str
    pieces: tuple[Markup, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The data, the folder of the results, and the size of the experiments.

    Each part compares those of its methods that are among `methods`. `training` are options of all training runs,
    `options` those of single methods.
    """

    source: Source
    out: Path
    bits: tuple[int, ...] = (16, 32, 64)
    seeds: int = 3
    methods: tuple[str, ...] = tuple(METHODS)
    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    jobs: int = 1
    progress: Progress = silent
    warn: Callable[[Sequence[str]], None] = lambda messages: None

    def running(self, stage: str) -> dict[str, Any]:
        """Return how tasks run, as arguments of `run_tasks`."""
        return {"stage": stage, "jobs": self.jobs, "progress": self.progress}

    def folder(self, part: str) -> Path:
        """Return the folder of the raw results and figures of a part."""
        return make_folder(self.out / part)

    def select(self, part: str, methods: Sequence[str]) -> list[str]:
        """Return the selected ones of the methods of a part, at least one."""
        selected = [name for name in methods if name in self.methods]
        if not selected:
            raise ConfigError(f"{part} compares {', '.join(methods)}: name at least one of these methods.")
        return selected

    def task(
        self, method: str, bits: int, seed: int = 0, options: Mapping[str, Any] | None = None, **about: Any
    ) -> Task:
        """Return one training run; `options` are those of the part."""
        run = {**self.training, **self.options.get(method, {}), "method": method, "bits": bits, "seed": seed}
        return make_task({**run, "options": {**run.get("options", {}), **(options or {})}}, **about)


def run_part(
    settings: Settings, part: str, tasks: Sequence[Task], work: Work
) -> tuple[list[Row], tuple[str, ...]]:
    """Run the tasks that the folder of the part has no rows of; return all rows, in order, and failures."""
    folder, running = settings.folder(part), settings.running(part)
    rows, failures = run_tasks(settings.source, tasks, folder, partial(_row, work), **running)
    return select_rows(rows, tasks), tuple(map(failure_text, failures))


def _row(work: Work, setup: EvaluationSetup, task: Task) -> Row:
    return {**task.identity, "found": rounded(work(setup, task), 9)}


def train_or_load(out: Path, setup: EvaluationSetup, task: Task) -> HashModel:
    """Load the model of a task if another part has stored it below `out`, otherwise train and store it."""
    identity = json.dumps([setup.facts(), task.resolved], sort_keys=True)
    folder = out / "models" / hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
    # model.json is the file that is written last.
    if (folder / "model.json").exists():
        return HashModel.load(folder)
    model = setup.train(task)
    model.save(folder)
    return model


def train_weights(setup: EvaluationSetup, model: HashModel) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return weights and labels (n, C) of the training images, in file order, since features may be memory-mapped."""
    rows = np.sort(setup.dataset.splits.train)
    labels = setup.dataset.labels[rows]
    return model.weights(setup.features[rows], labels), labels


def words(name: str, **values: Any) -> str:
    """Return a text of words.toml with values filled in."""
    return str(WORDS[name]).format(**values)


def printed_map(table: str, data: str, method: str, bits: int) -> float | None:
    """Return the mAP that a table (alexnet, resnet50, ablation) prints for a method on nus-wide or coco, if any."""
    # The printed ICS stands next to both of our forms.
    values = PRINTED[table][data].get("ics" if method == "ics-printed" else method)
    return None if values is None or bits not in PRINTED_BITS else float(values[PRINTED_BITS.index(bits)])


# Plain text as HTML: one or two sentences, a remark below a table or figure, and a title.
paragraph = Markup("<p>{}</p>").format
note = Markup("<p class='note'>{}</p>").format
heading = Markup("<h3>{}</h3>").format


def table(heads: Sequence[str], lines: Sequence[list[str]], groups: Sequence[tuple[str, int]] = ()) -> Markup:
    """Return a table with `heads` over the columns; `groups` are titles over several columns, as (title, columns)."""
    macros: Any = TEMPLATES.get_template("parts.html").module
    return Markup(macros.table(heads, lines, groups))


def weight_histogram(axis: Axes, counts: Any, color: str) -> None:
    """Draw the shares of weights by size."""
    axis.stairs(counts / max(1, counts.sum()), np.linspace(0, 1, len(counts) + 1), fill=True, color=color)
    axis.set_xlim(0, 1)


def figure_html(figure: Figure) -> Markup:
    """Return a figure as a piece of a page."""
    return Markup("<div class='plot'>{}</div>").format(svg_text(figure))


def write_figure(path: Path, figure: Figure) -> Markup:
    """Write PATH.svg and PATH.png; return the figure as HTML."""
    for suffix in (".svg", ".png"):
        save(figure, path.with_suffix(suffix))
    return figure_html(figure)
