"""`centerhash tune`: the same number of trials for every method on a validation split, and the best setting of each.

results.jsonl, failures.jsonl      rows of all trials, as `centerhash compare` stores them
best.json                          the chosen setting of each method, for `centerhash compare --settings`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import parse_json, write_json
from centerhash.core.options import joined
from centerhash.core.progress import Progress, silent
from centerhash.experiments.compare import compare
from centerhash.experiments.runner import TaskDone, select_rows
from centerhash.experiments.search_spaces import (
    Point,
    Setting,
    at_bits,
    authors,
    points,
    training_options,
)
from centerhash.experiments.tasks import Row, Source, Task, make_task
from centerhash.methods.registry import get_method

BEST, METRIC = "best.json", "map_retrieved"


@dataclass(frozen=True)
class Budget:
    """What every method gets, ours as well as a baseline."""

    # short training runs
    trials: int = 12
    # of the best settings, with all epochs
    full: int = 3
    # of a full training; None: train's
    epochs: int | None = None
    # a trial has this part of them: 3 is a third
    epochs_part: int = 3

    def __post_init__(self) -> None:
        for name in ("trials", "full", "epochs_part"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.full > self.trials:
            raise ConfigError(f"full must be at most trials: {self.full} of {self.trials} cannot be trained.")


@dataclass(frozen=True)
class Trial:
    """One training of a point of a method's space."""

    point: Point
    task: Task


@dataclass(frozen=True)
class Choice:
    """The best setting of one method; scores are means over the seeds of a setting.

    `score` is with all epochs, `part` in its trials, `default` that of the default in its trials, None where they
    failed; `trials` is how many were finished.
    """

    point: Point
    score: float
    part: float
    default: float | None
    trials: int


def point_text(point: Point) -> str:
    """A point as people read it."""
    return ", ".join(f"{name}={value}" for name, value in point.items()) or "default"


def candidates(method: str, bits: int, training: Mapping[str, Any] | None = None) -> list[Point]:
    """Points of a method, no two of the same training: the default, the authors', then all others in a fixed order.

    Settings in `training` are fixed, so that no point has them.
    """
    space, fixed = points(method, bits), training or {}
    order = np.random.default_rng(0).permutation(len(space))
    by_task: dict[str, Point] = {}
    for whole in [{}, authors(method), *(space[number] for number in order)]:
        point = {name: value for name, value in whole.items() if name not in fixed}
        by_task.setdefault(_trial(method, point, bits, 0, {**fixed, "epochs": 1}).task.key, point)
    return list(by_task.values())


def _trial(method: str, point: Point, bits: int, seed: int, training: Mapping[str, Any]) -> Trial:
    options = joined(training_options(get_method(method), point), training)
    task = make_task({**options, "method": method, "bits": bits, "seed": seed})
    return Trial(point, replace(task, note=point_text(point)))


def plan_trials(
    method: str, settings: Sequence[Point], bits: int, training: Mapping[str, Any], count: int
) -> list[Trial]:
    """`count` trials of the settings in their order; where there are fewer, they come again with the next seeds.

    So a method with few settings has as many trainings as any other, and its scores are means over them. `training` are
    the options that all of them share, such as epochs.
    """
    return [
        _trial(method, settings[number % len(settings)], bits, number // len(settings), training)
        for number in range(count)
    ]


def mean_scores(trials: Iterable[Trial], rows: Sequence[Row]) -> list[tuple[Point, float]]:
    """Points with the mean score over their finished trials, the best first; of equal ones the earlier."""
    by_point: dict[str, tuple[Point, list[float]]] = {}
    for trial in trials:
        for row in select_rows(rows, [trial.task]):
            _, scores = by_point.setdefault(json.dumps(trial.point), (trial.point, []))
            scores.append(float(row["evaluation"][METRIC]))
    means = [(point, float(np.mean(scores))) for point, scores in by_point.values()]
    return sorted(means, key=lambda item: -item[1])


def tune(
    source: Source,
    methods: Sequence[str],
    bits: int,
    out: str | Path,
    budget: Budget,
    *,
    training: Mapping[str, Any] | None = None,
    jobs: int = 1,
    progress: Progress = silent,
    on_done: TaskDone | None = None,
    warn: Callable[[Sequence[str]], None] | None = None,
) -> tuple[dict[str, Choice], list[Row]]:
    """Try, train the best again in full, write best.json; return the choices and the failures of this attempt.

    All on three quarters of the training list, scored on the rest: the queries are never read. `training` are options
    of training that all methods share and that are not tuned.
    """
    held_out, fixed = replace(source, validation=True), dict(training or {})

    def rows_of(trials: Mapping[str, Sequence[Trial]], stage: str) -> tuple[list[Row], list[Row]]:
        tasks = [trial.task for row in trials.values() for trial in row]
        running: dict[str, Any] = {"stage": stage, "jobs": jobs, "progress": progress, "on_done": on_done}
        return compare(held_out, tasks, out, warn=warn if stage == "trials" else None, **running)

    def planned(method: str, settings: Sequence[Point], count: int, short: bool) -> list[Trial]:
        epochs = _epochs(method, budget, short, fixed)
        return plan_trials(method, settings, bits, {**fixed, "epochs": epochs}, count)

    trials = {
        method: planned(method, candidates(method, bits, fixed), budget.trials, True) for method in methods
    }
    rows, failed = rows_of(trials, "trials")
    ranked = {method: mean_scores(tried, rows) for method, tried in trials.items()}
    best = {method: [point for point, _ in means[: budget.full]] for method, means in ranked.items() if means}
    finals = {method: planned(method, points, budget.full, False) for method, points in best.items()}
    rows, again = rows_of(finals, "full")
    choices = {}
    for method, tried in finals.items():
        if means := mean_scores(tried, rows):
            point, score = means[0]
            parts = {json.dumps(other): value for other, value in ranked[method]}
            finished = len(select_rows(rows, [trial.task for trial in trials[method]]))
            choices[method] = Choice(point, score, parts[json.dumps(point)], parts.get("{}"), finished)
    _write_best(Path(out) / BEST, choices, rows, bits, budget, fixed)
    # a shallow trial and its full training are one task, which may have failed in both rounds
    return choices, list({json.dumps(row["config"]): row for row in [*failed, *again]}.values())


def _epochs(method: str, budget: Budget, short: bool, training: Mapping[str, Any]) -> int:
    """Epochs of a full training, or of a `short` trial; a shallow method has none to save."""
    usual = make_task({**training, "method": method}).config.epochs
    whole = int(usual if budget.epochs is None else budget.epochs)
    return max(1, whole // budget.epochs_part) if short and get_method(method).family != "shallow" else whole


def _write_best(
    path: Path,
    choices: Mapping[str, Choice],
    rows: Sequence[Row],
    bits: int,
    budget: Budget,
    training: Mapping[str, Any],
) -> None:
    """Write best.json, with what it was chosen on; choices of other methods stay if all else is equal."""
    if not choices:
        return
    facts: dict[str, Any] = {
        **{name: rows[0][name] for name in ("data", "backbone", "split", "images") if name in rows[0]},
        "bits": bits,
        "measure": f"{METRIC} at {rows[0]['evaluation']['k']}",
        "budget": vars(budget),
        "training": dict(training),
    }
    settings = {
        method: {"setting": dict(choice.point), "score": round(choice.score, 6)}
        for method, choice in choices.items()
    }
    write_json(path, {**facts, "methods": {**_stored_choices(path, facts), **settings}})


def _stored_choices(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The methods of a best.json with the same facts; none if there is no such file, or it is another's."""
    try:
        stored: Any = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    same = isinstance(stored, dict) and all(stored.get(name, {}) == value for name, value in facts.items())
    return dict(stored["methods"]) if same and isinstance(stored.get("methods"), dict) else {}


def read_best(path: str | Path, methods: Sequence[str]) -> dict[str, Setting]:
    """Read the chosen settings of these methods from best.json; a method that was not tuned is refused."""
    try:
        stored: Any = parse_json(Path(path).read_text(encoding="utf-8"))
        bits = int(stored["bits"])
        points = {name: dict(row["setting"]) for name, row in stored["methods"].items()}
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"'{path}' is no {BEST} of `centerhash tune` ({type(error).__name__}: {error}): name that file."
        ) from None
    missing = [name for name in methods if name not in points]
    if missing:
        raise ConfigError(
            f"'{path}' has no setting of {', '.join(missing)}: tune all methods that are compared, or compare "
            f"`methods={','.join(points)}`."
        )
    return {name: partial(at_bits, name, points[name], bits) for name in methods}
