"""`centerhash tune`: the same number of trials for every method on a validation split, and the best setting of each.

results.jsonl, failures.jsonl      rows of all trials, as `centerhash compare` stores them
best.json                          the best setting of each method, for `centerhash compare --settings`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import parse_json, write_json
from centerhash.core.options import merge_options
from centerhash.experiments.compare import compare
from centerhash.experiments.search_spaces import (
    Point,
    PointByBits,
    at_bits,
    authors,
    points,
    training_options,
)
from centerhash.experiments.tasks import Row, Source, Task, make_task, row_key
from centerhash.methods.registry import get_method

BEST, METRIC = "best.json", "map_retrieved"
# One training run of a point of a method's space.
Trial: TypeAlias = tuple[Point, Task]


@dataclass(frozen=True)
class Budget:
    """The training runs of every method: `trials` short ones, then `full` ones of the best settings.

    A full run has `epochs` (None: those of train), a trial one part in `epochs_part` of them.
    """

    trials: int = 12
    full: int = 3
    epochs: int | None = None
    epochs_part: int = 3

    def __post_init__(self) -> None:
        if self.full > self.trials:
            raise ConfigError(f"full must be at most trials: {self.full} of {self.trials} cannot be trained.")


class MeanScore(NamedTuple):
    """The mean score of a point over its finished `trials`."""

    point: Point
    score: float
    trials: int


class BestSetting(NamedTuple):
    """The best setting of one method; scores are means over the seeds of a setting.

    `score` is with all epochs, `trial_score` in trials, `default_score` that of the default in trials, None if these
    failed; `trials` is the number of finished ones.
    """

    point: Point
    score: float
    trial_score: float
    default_score: float | None
    trials: int


def point_text(point: Point) -> str:
    """Write a point as text for people."""
    return ", ".join(f"{name}={value}" for name, value in point.items()) or "default"


def candidates(method: str, bits: int, training: Mapping[str, Any] | None = None) -> list[Point]:
    """Return points of a method that differ in training: the default, the authors', then all others in a fixed order.

    Settings in `training` are fixed, so that no point has them.
    """
    space, fixed = points(method, bits), training or {}
    order = np.random.default_rng(0).permutation(len(space))
    by_task: dict[str, Point] = {}
    for full_point in [{}, authors(method), *(space[number] for number in order)]:
        point = {name: value for name, value in full_point.items() if name not in fixed}
        by_task.setdefault(_trial(method, point, bits, 0, {**fixed, "epochs": 1})[1].key, point)
    return list(by_task.values())


def _trial(method: str, point: Point, bits: int, seed: int, training: Mapping[str, Any]) -> Trial:
    options = merge_options(training_options(get_method(method), point), training)
    task = make_task({**options, "method": method, "bits": bits, "seed": seed})
    return point, replace(task, note=point_text(point))


def plan_trials(
    method: str, settings: Sequence[Point], bits: int, training: Mapping[str, Any], count: int
) -> list[Trial]:
    """Plan `count` trials of the settings in their order; fewer settings are repeated with the next seeds.

    A method with few settings then has as many training runs as any other, and its scores are means over them.
    `training` are the options that all of them share, such as epochs.
    """
    return [
        _trial(method, settings[number % len(settings)], bits, number // len(settings), training)
        for number in range(count)
    ]


def mean_scores(trials: Iterable[Trial], rows: Sequence[Row]) -> list[MeanScore]:
    """Compute the mean scores of the points with finished trials, the best first; of equal ones the earlier."""
    scores_of_tasks = {row_key(row): float(row["evaluation"][METRIC]) for row in rows}
    by_point: dict[str, tuple[Point, list[float]]] = {}
    for point, task in trials:
        if task.key in scores_of_tasks:
            _, scores = by_point.setdefault(json.dumps(point), (point, []))
            scores.append(scores_of_tasks[task.key])
    means = [MeanScore(point, float(np.mean(scores)), len(scores)) for point, scores in by_point.values()]
    return sorted(means, key=lambda mean: -mean.score)


def tune(
    source: Source,
    methods: Sequence[str],
    bits: int,
    out: str | Path,
    budget: Budget,
    *,
    training: Mapping[str, Any] | None = None,
    warn: Callable[[Sequence[str]], None] | None = None,
    **running: Any,
) -> tuple[dict[str, BestSetting], list[Row]]:
    """Try settings, train the best with all epochs, write best.json; return them and the failures of this attempt.

    All runs train on three quarters of the training set and are scored on the rest, so the queries stay unused.
    `training` are options that all methods share and that are not tuned, `running` other arguments of `run_tasks`.
    """
    held_out, fixed = replace(source, validation=True), dict(training or {})
    rows: list[Row] = []
    failed: dict[str, Row] = {}

    def run(stage: str, settings: Mapping[str, Sequence[Point]], count: int) -> dict[str, list[MeanScore]]:
        """Train `count` trials of each method's settings, and rank them."""
        trials = {}
        for method, tried in settings.items():
            options = {**fixed, "epochs": _epochs(method, budget, stage, fixed)}
            trials[method] = plan_trials(method, tried, bits, options, count)
        tasks = [task for planned in trials.values() for _, task in planned]
        warn_once = warn if stage == "trials" else None
        rows[:], failures = compare(held_out, tasks, out, stage=stage, warn=warn_once, **running)
        # A shallow trial and its full run are one task, which may fail in both stages.
        failed.update({json.dumps(row["config"]): row for row in failures})
        return {method: mean_scores(planned, rows) for method, planned in trials.items()}

    ranked = run("trials", {name: candidates(name, bits, fixed) for name in methods}, budget.trials)
    best = {name: [mean.point for mean in means[: budget.full]] for name, means in ranked.items() if means}
    settings: dict[str, BestSetting] = {}
    for method, means in run("full", best, budget.full).items():
        for point, score, _ in means[:1]:
            scores = {json.dumps(mean.point): mean.score for mean in ranked[method]}
            count = sum(mean.trials for mean in ranked[method])
            settings[method] = BestSetting(point, score, scores[json.dumps(point)], scores.get("{}"), count)
    if settings:
        facts: Row = {
            name: rows[0][name] for name in ("data", "backbone", "split", "images") if name in rows[0]
        }
        measure = f"{METRIC} at {rows[0]['evaluation']['k']}"
        facts |= {"bits": bits, "measure": measure, "budget": vars(budget), "training": fixed}
        facts["methods"] = {
            method: {"setting": dict(setting.point), "score": round(setting.score, 6)}
            for method, setting in settings.items()
        }
        write_json(Path(out) / BEST, facts)
    return settings, list(failed.values())


def _epochs(method: str, budget: Budget, stage: str, training: Mapping[str, Any]) -> int:
    """Return the epochs of a full training run, or of a trial; a shallow method has none to save."""
    default = make_task({**training, "method": method}).config.epochs
    epochs = int(default if budget.epochs is None else budget.epochs)
    is_short = stage == "trials" and get_method(method).family != "shallow"
    return max(1, epochs // budget.epochs_part) if is_short else epochs


def read_best(path: str | Path, methods: Sequence[str]) -> dict[str, PointByBits]:
    """Read the best settings of these methods from best.json; a method that was not tuned is rejected."""
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
