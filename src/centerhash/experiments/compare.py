"""`centerhash compare`: methods x bits x seeds on one dataset; tables, times, and a page with plots."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.core.files import make_folder, write_text
from centerhash.encoding.code_files import DATABASE
from centerhash.experiments.figures import Series, line_plot, page
from centerhash.experiments.runner import RESULTS, failure_text, read_rows, rounded, run_tasks, unfinished
from centerhash.experiments.tables import (
    FORMS,
    MAPS,
    Line,
    Score,
    Summary,
    csv_text,
    latex,
    markdown,
    score_parts,
    summarize,
    time_texts,
)
from centerhash.experiments.tasks import EvaluationSetup, Row, Source, Task, trains_network
from centerhash.methods.registry import METHODS, get_method
from centerhash.model.model import HashModel
from centerhash.training.finish import code_rotation, rotation_sample, write_code_files
from centerhash.training.run_folder import drop_checkpoints

RUNS = "runs"  # below the folder of a comparison, if models and codes are kept
PRECISION_AT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def run_folder(out: Path, task: Task) -> Path:
    """The folder of the run of a task; its name ends with a digest of all settings."""
    config = task.resolved
    digest = hashlib.blake2b(task.key.encode(), digest_size=4).hexdigest()
    return out / RUNS / f"{config['method']}-{config['bits']}-seed{config['seed']}-{digest}"


def is_kept(out: Path, task: Task) -> bool:
    """Return whether the model and the codes of a task are there; the database is written last."""
    return (run_folder(out, task) / DATABASE).exists()


def planned_runs(tasks: Sequence[Task], out: Path, keep: bool) -> list[Task]:
    """The tasks that `out` has no rows of, or with `keep` no models and codes."""
    return unfinished(tasks, read_rows(out / RESULTS), partial(is_kept, out) if keep else None)


def compare(
    source: Source, tasks: Sequence[Task], out: str | Path, *, keep: bool = False, **running: Any
) -> tuple[list[Row], list[Row]]:
    """Train and evaluate the tasks that `out` has no rows of; return all its rows, and the failures of this attempt.

    With `keep`, models and codes are stored in `out`/runs, also of tasks that have a row without them. `running` are
    the other arguments of `run_tasks`.
    """
    work = partial(train_and_evaluate, out=Path(out), keep=keep)
    return run_tasks(
        source, tasks, out, work, is_complete=partial(is_kept, Path(out)) if keep else None, **running
    )


def train_and_evaluate(
    setup: EvaluationSetup, task: Task, out: Path | None = None, keep: bool = False
) -> Row:
    """Train and evaluate: the work of every task of a comparison in the folder `out`.

    A deep method is scored with its logits as trained and rotated, since the rotation comes after training; the
    evaluation is of the form that its configuration selects. A run that trains its network works in its folder below
    `out`, where a later attempt resumes it; with `keep`, every run leaves its model and codes there.
    """
    splits = setup.dataset.splits
    started = time.perf_counter()
    if trains_network(task.config) and out is not None:
        model, setup, train_seconds = setup.finetune(task, run_folder(out, task))
    else:
        model = setup.train(task)
        train_seconds = time.perf_counter() - started
    trained = time.perf_counter()
    deep = get_method(model.spec.method).family != "shallow"
    if deep:
        change = other_rotation(setup, model)
        query, other_query = setup.encode_rotated(model, splits.query, change)
        database, other_database = setup.encode_rotated(model, splits.database, change)
    else:
        query, database = setup.encode(model, splits.query), setup.encode(model, splits.database)
    encoded = time.perf_counter()
    places = [place for place in PRECISION_AT if place <= len(database)]
    found = setup.evaluate(model.bits, query, database, precision_at=places)
    row = {
        "config": dict(task.resolved),
        "evaluation": rounded(found.to_dict()),
        "train_seconds": round(train_seconds, 3),
        "encode_seconds": round(encoded - trained, 3),
        "images_per_second": round((len(query) + len(database)) / (encoded - trained), 1),
        "evaluate_seconds": round(time.perf_counter() - encoded, 3),
        "threads": torch.get_num_threads(),
    }
    if deep:
        other = setup.evaluate(model.bits, other_query, other_database)
        both = (other, found) if model.spec.head.rotate else (found, other)
        for form, scores in zip(FORMS, both, strict=True):
            row |= {f"{name}_{form}": rounded(getattr(scores, name)) for name in MAPS}
    if out is not None and keep:
        folder = make_folder(run_folder(out, task))
        model.save(folder)
        write_code_files(folder, model.bits, (query, database), setup.dataset, splits)
        drop_checkpoints(folder)
        row["run"] = folder.relative_to(out).as_posix()
    elif out is not None and not is_kept(out, task):
        shutil.rmtree(run_folder(out, task), ignore_errors=True)
        with suppress(OSError):  # other runs are there, or this one needed no folder
            (out / RUNS).rmdir()
    return row


def other_rotation(setup: EvaluationSetup, model: HashModel) -> NDArray[np.float64]:
    """The rotation (K, K) from a model's logits to the other form: as trained, or rotated."""
    if model.spec.head.rotate:
        [matrix] = [tensor for name, tensor in model.tensors().items() if name.endswith(".matrix")]
        return matrix.double().numpy().T
    rows = setup.dataset.splits.train
    return code_rotation(model.logits(setup.features[rows[rotation_sample(rows)]]))


def read_results(folder: str | Path) -> list[Row]:
    """The rows of the comparison in `folder`."""
    path = Path(folder) / RESULTS
    rows = read_rows(path)
    if not rows:
        raise DataError(f"no results in '{path}': name a folder that `centerhash compare` has written.")
    return rows


def write_comparison(rows: Sequence[Row], folder: str | Path, failures: Sequence[Row] = ()) -> Summary:
    """Write table.md, table.tex, table.csv and report.html into `folder`, from the rows alone."""
    summary, out = summarize(rows), make_folder(folder)
    write_text(out / "table.md", markdown(summary, failures))
    write_text(out / "table.tex", latex(summary))
    write_text(out / "table.csv", csv_text(summary))
    write_text(out / "report.html", comparison_page(summary, failures))
    return summary


# The page


def comparison_page(summary: Summary, failures: Sequence[Row] = ()) -> str:
    """The page as HTML text."""
    shared, first = _shared_training(summary), summary.first
    facts = [f"{name} {version}" for name, version in first.get("versions", {}).items()]
    facts += [f"{first['threads']} thread(s)"] if "threads" in first else []
    recall: dict[str, Any] = {"xlabel": "recall", "across": (0.0, 1.0), "markers": 8}
    places: dict[str, Any] = {"xlabel": "first places", "ticks": (1, 10, 100, 1000, 5000)}
    return page(
        "compare.html",
        title=f"centerhash: comparison on {first['data']}",
        summary=summary,
        maps=MAPS,
        cards=_cards(summary),
        parts=score_parts,
        times=time_texts,
        methods=METHODS,
        scores=[_score_plot(summary, metric, name) for metric, name in MAPS.items()],
        recall=_panels(summary, _recall_points, **recall),
        precision=_panels(summary, _precision_points, **places),
        shared=_named(shared),
        options=[(line.title, _options_text(line, shared)) for line in summary.lines],
        failures=[failure_text(row) for row in failures],
        facts=[*facts, "raw results: results.jsonl"],
    )


def _cards(summary: Summary) -> list[tuple[str, str]]:
    """The first results to show, each with its meaning."""
    longest, facts = summary.bits[-1], []
    for metric, name in MAPS.items():
        scored = [
            (line.scores[longest].mean(metric), line.title)
            for line in summary.lines
            if longest in line.scores
        ]
        best, title = max((mean, title) for mean, title in scored if mean is not None)
        chance = f"a random ranking has {summary.chance(metric):.3f}"
        facts.append((f"{best:.3f}", f"best mAP at {longest} bits, {name}: {title}; {chance}"))
    cells = sum(score.seeds for line in summary.lines for score in line.scores.values())
    methods, bits = len({line.method for line in summary.lines}), ", ".join(map(str, summary.bits))
    trained = f"trainings: {methods} methods, {bits} bits, up to {summary.most_seeds} seeds"
    return [*facts, (str(cells), trained)]


def _training(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in ("method", "bits", "seed", "options")}


def _shared_training(summary: Summary) -> dict[str, Any]:
    """Training settings that all rows have in common."""
    scores = [score for line in summary.lines for score in line.scores.values()]
    found = [_training(row["config"]) for score in scores for row in score.rows]
    return {key: value for key, value in found[0].items() if all(other.get(key) == value for other in found)}


def _options_text(line: Line, shared: dict[str, Any]) -> str:
    """The options of a method, and what else it does not share with all others."""
    config = line.scores[max(line.scores)].rows[0]["config"]
    own = {key: value for key, value in _training(config).items() if key not in shared}
    return _named({**config["options"], **own}) or "none"


def _named(values: dict[str, Any]) -> str:
    parts = (f"{k} ({_named(v)})" if isinstance(v, dict) else f"{k} {v}" for k, v in values.items())
    return ", ".join(parts)


# Plots


def _score_plot(summary: Summary, metric: str, name: str) -> Markup:
    series = []
    for place, line in enumerate(summary.lines):
        points = [
            (bits, mean, score.deviation(metric) or 0.0)
            for bits, score in line.scores.items()
            if (mean := score.mean(metric)) is not None
        ]
        if points:
            x, y, spread = zip(*points, strict=True)
            series.append(Series(f"s{place}", line.method, x, y, spread, line.hollow))
    depth = f"mAP@{summary.depth:,}"
    return line_plot(
        series,
        title=f"{depth}, {name}",
        xlabel="bits",
        ylabel="mean average precision",
        ticks=summary.bits,
        reference=("random ranking", summary.chance(metric)),
    )


def _panels(
    summary: Summary, points: Callable[[Score], tuple[list[float], list[float]]], **settings: Any
) -> list[Markup]:
    """One plot per number of bits with all lines that have such points, all of the same height."""
    panels: dict[int, list[Series]] = {}
    for place, line in enumerate(summary.lines):
        for bits, score in line.scores.items():
            x, y = points(score)
            if x:
                series = Series(f"s{place}", line.method, x, y, hollow=line.hollow)
                panels.setdefault(bits, []).append(series)
    heights = [y for drawn in panels.values() for line in drawn for y in line.y]
    return [
        line_plot(
            panels[bits],
            title=f"{bits} bits",
            ylabel="precision",
            limits=(min(heights), max(heights)),
            width=3.7,
            **settings,
        )
        for bits in sorted(panels)
    ]


def _recall_points(score: Score) -> tuple[list[float], list[float]]:
    """Recall and precision by radius, means over the seeds; radii at which no ball held an item are left out."""
    curves = [row["evaluation"]["curve"] for row in score.rows if "curve" in row["evaluation"]]
    if not curves:
        return [], []
    recall = np.mean([curve["recall"] for curve in curves], axis=0)
    precision = np.array([curve["precision"] for curve in curves], dtype=float)  # None becomes nan
    kept = ~np.isnan(precision).all(axis=0)
    return recall[kept].tolist(), np.nanmean(precision[:, kept], axis=0).tolist()


def _precision_points(score: Score) -> tuple[list[float], list[float]]:
    """Places and precision, means over the seeds."""
    found = [row["evaluation"].get("precision", {}) for row in score.rows]
    places = sorted(set.intersection(*(set(map(int, values)) for values in found)))
    return [float(place) for place in places], [
        float(np.mean([values[str(place)] for values in found])) for place in places
    ]
