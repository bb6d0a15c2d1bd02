"""`centerhash compare`: methods x bits x seeds on one dataset; tables, times, and a page with plots.

    rows, failures = compare(Source(Path("photos")), plan_tasks(["csq", "ics"], [64], seeds=1), "table")
    write_comparison(rows, "table", failures)

Tables and page are written from the stored rows alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from markupsafe import Markup

from centerhash.core.errors import DataError
from centerhash.core.files import make_folder, write_text
from centerhash.core.rendering import templates_of
from centerhash.evaluation import Evaluation
from centerhash.experiments import plots, tables
from centerhash.experiments.runner import RESULTS, failure_text, read_rows, rounded, run_tasks, unfinished
from centerhash.experiments.tables import LINE, MAPS, Summary
from centerhash.experiments.tasks import EvaluationSetup, Row, Source, Task
from centerhash.methods.registry import get_method
from centerhash.model.model import HashModel
from centerhash.networks.heads import Head
from centerhash.training.finish import code_rotation, rotation_rows
from centerhash.training.run_folder import drop_checkpoints, write_code_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_folder(out: Path, task: Task) -> Path:
    """Return the folder of the run of a task; its name ends with a digest of all settings."""
    config = task.resolved
    digest = hashlib.blake2b(task.key.encode(), digest_size=4).hexdigest()
    return out / "runs" / f"{config['method']}-{config['bits']}-seed{config['seed']}-{digest}"


def planned_runs(tasks: Sequence[Task], out: Path, keep: bool) -> list[Task]:
    """Return the tasks that `out` has no rows of, or with `keep` no rows that name their models and codes."""
    return unfinished(tasks, read_rows(out / RESULTS), "run" if keep else "config")


def compare(
    source: Source,
    tasks: Sequence[Task],
    out: str | Path,
    *,
    keep: bool = False,
    both_forms: bool = False,
    **running: Any,
) -> tuple[list[Row], list[Row]]:
    """Train and evaluate the tasks that `out` has no rows of; return all its rows, and the failures of this attempt.

    With `keep`, models and codes are stored in `out`/runs, also of tasks that have a row without them. With
    `both_forms`, new rows of deep methods have the scores of both forms of the logits. `running` are the other
    arguments of `run_tasks`.
    """
    work = partial(train_and_evaluate, out=Path(out), keep=keep, both_forms=both_forms)
    return run_tasks(source, tasks, out, work, needs="run" if keep else "config", **running)


def train_and_evaluate(
    setup: EvaluationSetup,
    task: Task,
    out: Path | None = None,
    keep: bool = False,
    both_forms: bool = False,
) -> Row:
    """Train and evaluate: the work of every task of a comparison in the folder `out`.

    A run that trains its network works in its folder below `out`, where a later attempt resumes it; with `keep`,
    every run leaves its model and codes there. With `both_forms`, a deep method is scored with its logits as trained
    and rotated, since the rotation comes after training.
    """
    started = time.perf_counter()
    if task.trains_backbone and out is not None:
        model, setup, train_seconds = setup.finetune(task, run_folder(out, task))
    else:
        model = setup.train(task)
        train_seconds = time.perf_counter() - started
    trained = time.perf_counter()
    codes = setup.encode(model)
    encoded = time.perf_counter()
    query_count, database_count = (len(side.packed) for side in codes)
    depths = [depth for depth in plots.DEPTHS if depth <= database_count]
    result = setup.evaluate(codes, precision_at=depths)
    row = {
        "config": dict(task.resolved),
        "evaluation": rounded(result.to_dict()),
        "train_seconds": round(train_seconds, 3),
        "encode_seconds": round(encoded - trained, 3),
        "images_per_second": round((query_count + database_count) / (encoded - trained), 1),
        "evaluate_seconds": round(time.perf_counter() - encoded, 3),
        "threads": torch.get_num_threads(),
    }
    if both_forms and get_method(model.spec.method).family != "shallow":
        other_result = rotated_result(setup, model)
        results = (other_result, result) if model.spec.head.rotate else (result, other_result)
        for form, scores in zip(tables.FORMS, results, strict=True):
            row |= {f"{name}_{form}": rounded(getattr(scores, name)) for name in MAPS}
    if out is None:
        return row
    folder = run_folder(out, task)
    if keep:
        model.save(make_folder(folder))
        write_code_files(folder, codes)
        drop_checkpoints(folder)
        row["run"] = folder.relative_to(out).as_posix()
    else:
        shutil.rmtree(folder, ignore_errors=True)
        # A folder with other runs stays.
        with suppress(OSError):
            folder.parent.rmdir()
    return row


def rotated_result(setup: EvaluationSetup, model: HashModel) -> Evaluation:
    """Evaluate the other form of a deep model's logits: as trained if it rotates them, else rotated."""
    if isinstance(model.network, Head) and model.network.rotation is not None:
        rotation = model.network.rotation.matrix.double().numpy().T
    else:
        rotation = code_rotation(model.logits(setup.features[rotation_rows(setup.dataset.splits.train)]))
    return setup.evaluate(setup.encode(model, rotation))


def read_results(folder: str | Path) -> list[Row]:
    """Read the rows of the comparison in `folder`."""
    path = Path(folder) / RESULTS
    rows = read_rows(path)
    if not rows:
        raise DataError(f"no results in '{path}': name a folder that `centerhash compare` has written.")
    return rows


def write_comparison(rows: Sequence[Row], folder: str | Path, failures: Sequence[Row] = ()) -> Summary:
    """Write table.md, table.tex, table.csv and report.html into `folder`, from the rows alone."""
    summary, out = tables.summarize(rows), make_folder(folder)
    write_text(out / "table.md", tables.markdown(summary, failures))
    write_text(out / "table.tex", tables.latex(summary))
    write_text(out / "table.csv", tables.csv_text(summary))
    write_text(out / "report.html", comparison_page(summary, failures))
    return summary


def comparison_page(summary: Summary, failures: Sequence[Row] = ()) -> str:
    """Return the page as HTML text."""
    facts = [f"{name} {version}" for name, version in summary.first.get("versions", {}).items()]
    # The last run of a line has the most bits.
    last = summary.runs.groupby(LINE)["row"].last()
    page = templates_of("centerhash.experiments").get_template("compare.html")
    return page.render(
        title=f"centerhash: comparison on {summary.first['data']}",
        summary=summary,
        tables=[
            (title, ["", *heads], rows)
            for title, (_, *heads), rows in tables.tables(summary, Markup("<b>{}</b>"))
        ],
        plots=[(title, plots.svg_text(figure)) for title, figure in _plots(summary).items()],
        options=[(title, _settings(last[line])) for line, title in summary.lines.items()],
        failures=[failure_text(row) for row in failures],
        facts=[*facts, "raw results: results.jsonl"],
    )


def _settings(row: Row) -> str:
    return json.dumps({key: value for key, value in row["config"].items() if key not in ("method", "seed")})


def _plots(summary: Summary) -> dict[str, Figure]:
    """Return the figures by title: mAP, one point per Hamming radius, and precision by rank."""
    lines = summary.lines
    means, recall, precision = (defaultdict[str, list[plots.Series]](list) for _ in range(3))
    for bits, runs in summary.runs.groupby("bits"):
        for line, rows in runs.groupby(LINE, sort=False)["row"]:
            method, evaluations = (lines[line], line[0]), [row["evaluation"] for row in rows]
            recall[f"{bits} bits"].append(plots.Series(*method, *plots.recall_points(evaluations)))
            precision[f"{bits} bits"].append(plots.Series(*method, *plots.precision_points(evaluations)))
    for metric, name in MAPS.items():
        scores = summary.runs.groupby([*LINE, "bits"])[metric].agg(["mean", "std"]).fillna(0.0)
        for line, title in lines.items():
            points = scores.loc[line].reset_index().to_numpy().T.tolist()
            means[f"mAP@{summary.depth:,}, {name}"].append(plots.Series(title, line[0], *points))
    random = [summary.random(metric) for metric in MAPS]
    return {
        "mAP against bits": plots.line_plot(means, "bits", "mean average precision", summary.bits, random),
        "Precision and recall by Hamming radius": plots.line_plot(recall, "recall", "precision"),
        "Precision at the first ranks": plots.line_plot(precision, "n", "precision@n", plots.RANKS),
    }
