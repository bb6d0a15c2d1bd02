"""Tuning: equal trials for all, nothing of the queries, and the same end after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.experiments.runner import read_rows
from centerhash.experiments.tasks import Source, Task, plan_tasks
from centerhash.experiments.tune import (
    Budget,
    Trial,
    candidates,
    mean_scores,
    plan_trials,
    read_best,
    tune,
)
from centerhash.methods.registry import METHODS, get_method, search_space
from tests.toys import Killed, separable, write_feature_folder

BUDGET = Budget(trials=3, full=2, epochs=2, epochs_part=2)
METHODS_TRIED = ("lsh", "csq", "dch")


def source(folder: Path) -> Source:
    return Source(folder, k=50, device="cpu")


def found(out: Path) -> dict[str, Any]:
    return {json.dumps(row["config"]): row["evaluation"] for row in read_rows(out / "results.jsonl")}


@pytest.fixture(scope="module")
def tuned(feature_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tuning; not to be changed."""
    out = tmp_path_factory.mktemp("tune")
    choices, failures = tune(source(feature_folder), METHODS_TRIED, 16, out, BUDGET)
    assert not failures
    assert {choice.trials for choice in choices.values()} == {3}
    return out


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_the_same_number_of_different_trials(name: str) -> None:
    points = candidates(name, 32)
    trials = plan_trials(name, points, 32, {"epochs": 10}, 12)
    assert len({trial.task.key for trial in trials}) == 12
    assert points[0] == {}
    authors = search_space(get_method(name)).authors
    assert any(trial.point == authors for trial in trials) or "authors" in _same_as_default(name)


def _same_as_default(name: str) -> str:
    """Authors' settings that are the default are tried as the default."""
    authors = search_space(get_method(name)).authors
    keys = {trial.task.key for trial in plan_trials(name, [{}], 32, {"epochs": 10}, 1)}
    keys ^= {trial.task.key for trial in plan_trials(name, [authors], 32, {"epochs": 10}, 1)}
    return "" if keys else "authors"


def test_what_is_given_is_not_tuned() -> None:
    points = candidates("csq", 16, {"learning_rate": 0.01})
    assert all("learning_rate" not in point for point in points)
    assert len(points) > 1
    trials = plan_trials("csq", points, 16, {"learning_rate": 0.01, "epochs": 3}, len(points))
    assert {trial.task.config.learning_rate for trial in trials} == {0.01}
    assert len({trial.task.key for trial in trials}) == len(points)


def test_few_settings_come_again_with_other_seeds() -> None:
    trials = plan_trials("lsh", [{}, {"unit": False}], 16, {"epochs": 5}, 5)
    assert [(trial.point.get("unit", True), trial.task.config.seed) for trial in trials] == [
        (True, 0),
        (False, 0),
        (True, 1),
        (False, 1),
        (True, 2),
    ]


def scored(trial: Trial, score: float) -> dict[str, Any]:
    return {"config": dict(trial.task.resolved), "evaluation": {"map_peers": score}}


def test_means_decide_and_the_earlier_of_equal_ones_wins() -> None:
    trials = plan_trials("lsh", [{}, {"unit": True}], 16, {"epochs": 5}, 4)
    rows = [scored(trial, score) for trial, score in zip(trials, (0.9, 0.6, 0.1, 0.6), strict=True)]
    assert mean_scores(trials, rows) == [({"unit": True}, 0.6), ({}, 0.5)]
    equal = [scored(trial, 0.5) for trial in trials[:2]]
    assert mean_scores(trials, equal)[0][0] == {}
    assert mean_scores(trials, []) == []


@pytest.mark.slow
def test_trials_are_short_and_the_best_are_trained_in_full(tuned: Path) -> None:
    rows = read_rows(tuned / "results.jsonl")
    assert {row["split"] for row in rows} == {"validation"}
    epochs = {
        name: sorted(row["config"]["epochs"] for row in rows if row["config"]["method"] == name)
        for name in METHODS_TRIED
    }
    assert epochs == {"lsh": [2, 2, 2], "csq": [1, 1, 1, 2, 2], "dch": [1, 1, 1, 2, 2]}


def test_the_best_full_training_is_chosen(tuned: Path) -> None:
    rows = [row for row in read_rows(tuned / "results.jsonl") if row["config"]["method"] == "dch"]
    stored = json.loads((tuned / "best.json").read_text())["methods"]["dch"]
    top = max(row["evaluation"]["map_peers"] for row in rows if row["config"]["epochs"] == 2)
    assert stored["score"] == top


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_rows(tuned: Path, feature_folder: Path, tmp_path: Path) -> None:
    def kill(done: int, total: int, task: Task, row: dict[str, Any]) -> None:
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        tune(source(feature_folder), METHODS_TRIED, 16, tmp_path, BUDGET, on_done=kill)
    kept = (tmp_path / "results.jsonl").read_bytes()
    assert not (tmp_path / "best.json").exists()
    told: list[str] = []
    tune(
        source(feature_folder),
        METHODS_TRIED,
        16,
        tmp_path,
        BUDGET,
        on_done=lambda done, total, task, row: told.append(task.key),
    )
    assert (tmp_path / "results.jsonl").read_bytes().startswith(kept)
    assert found(tmp_path) == found(tuned)
    assert len(told) == len(found(tuned)) - 4
    assert (tmp_path / "best.json").read_bytes() == (tuned / "best.json").read_bytes()


def split_folder(folder: Path, poisoned: bool) -> Path:
    """A data set whose first 40 rows ask; poisoned ones have other features and other labels."""
    write_feature_folder(folder, count=160)
    features, labels = separable(160)
    if poisoned:
        generator = np.random.default_rng(7)
        features[:40] = generator.normal(scale=1e4, size=features[:40].shape)
        labels[:40] = generator.random(labels[:40].shape) < 0.5
    for name, rows in (
        ("query", np.arange(40)),
        ("train", np.arange(40, 160)),
        ("database", np.arange(40, 160)),
    ):
        np.save(folder / f"{name}.npy", rows)
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", labels)
    return folder


@pytest.mark.slow
def test_queries_are_never_touched(tmp_path: Path) -> None:
    ends = []
    for name in ("clean", "poisoned"):
        data, out = split_folder(tmp_path / name / "data", name == "poisoned"), tmp_path / name / "out"
        tune(source(data), METHODS_TRIED, 16, out, BUDGET)
        ends.append(((out / "best.json").read_bytes(), found(out)))
    assert ends[0] == ends[1]


def test_settings_go_into_a_comparison_at_any_number_of_bits(tmp_path: Path) -> None:
    setting = {"learning_rate": 0.002, "slope": "8/K", "lambda": "K*0.25"}
    path = tmp_path / "best.json"
    path.write_text(json.dumps({"methods": {"dhn": {"setting": setting}}}))
    points = read_best(path, ["dhn"])
    short, long = plan_tasks(["dhn"], [16, 64], 1, points=points)
    assert short.resolved["options"] == {"slope": 0.5, "lambda": 4.0}
    assert long.resolved["options"] == {"slope": 0.125, "lambda": 16.0}
    assert long.resolved["learning_rate"] == 0.002
    (own,) = plan_tasks(["dhn"], [16], 1, {"dhn": {"options": {"lambda": 3}}}, points=points)
    assert own.resolved["options"] == {"slope": 0.5, "lambda": 3.0}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"methods": 3}', '{"methods": {"csq": {}}}'])
def test_what_is_no_best_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(DataError, match=r"is no best\.json of `centerhash tune`"):
        read_best(tmp_path / "best.json", ["csq"])


def test_a_method_without_a_setting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "best.json").write_text('{"methods": {"csq": {"setting": {}}}}')
    with pytest.raises(ConfigError, match="no setting of dhn: tune all methods"):
        read_best(tmp_path / "best.json", ["csq", "dhn"])
    with pytest.raises(DataError):
        read_best(tmp_path / "gone.json", ["csq"])


def test_budgets_that_cannot_be() -> None:
    for wrong in ({"trials": 0}, {"full": 0}, {"epochs_part": 0}, {"trials": 2, "full": 3}):
        with pytest.raises(ConfigError):
            Budget(**wrong)
