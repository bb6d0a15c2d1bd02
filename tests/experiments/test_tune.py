"""Tuning: equal trials for all, nothing of the queries, and the same end after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.experiments.runner import read_rows
from centerhash.experiments.search_spaces import authors
from centerhash.experiments.tasks import Source, plan_tasks
from centerhash.experiments.tune import Budget, Trial, candidates, mean_scores, plan_trials, read_best, tune
from centerhash.methods.registry import METHODS
from tests.toys import separable, write_feature_folder

BUDGET = Budget(trials=3, full=2, epochs=2, epochs_part=2)
METHODS_TRIED = ("lsh", "csq", "dch")


def source(folder: Path) -> Source:
    return Source(folder, k=50, device="cpu")


def evaluations(out: Path) -> dict[str, Any]:
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
def test_trials_of_every_method(name: str) -> None:
    points = candidates(name, 32)
    trials = plan_trials(name, points, 32, {"epochs": 10}, 12)
    assert len({task.key for _, task in trials}) == 12
    assert points[0] == {}
    default, by_authors = plan_trials(name, [{}, authors(name)], 32, {"epochs": 10}, 2)
    assert any(point == authors(name) for point, _ in trials) or default[1].key == by_authors[1].key


def scored(trial: Trial, score: float) -> dict[str, Any]:
    return {"config": dict(trial[1].resolved), "evaluation": {"map_retrieved": score}}


def test_mean_scores() -> None:
    trials = plan_trials("lsh", [{}, {"normalize": True}], 16, {"epochs": 5}, 4)
    rows = [scored(trial, score) for trial, score in zip(trials, (0.9, 0.6, 0.1, 0.6), strict=True)]
    assert mean_scores(trials, rows) == [({"normalize": True}, 0.6, 2), ({}, 0.5, 2)]
    equal = [scored(trial, 0.5) for trial in trials[:2]]
    assert mean_scores(trials, equal)[0][0] == {}
    assert mean_scores(trials, []) == []


@pytest.mark.slow
def test_short_trials_and_best_setting(tuned: Path) -> None:
    rows = [row for row in read_rows(tuned / "results.jsonl") if row["config"]["method"] == "dch"]
    assert {row["split"] for row in rows} == {"validation"}
    assert sorted(row["config"]["epochs"] for row in rows) == [1, 1, 1, 2, 2]
    best = max(row["evaluation"]["map_retrieved"] for row in rows if row["config"]["epochs"] == 2)
    assert json.loads((tuned / "best.json").read_text())["methods"]["dch"]["score"] == best


def split_folder(folder: Path, poisoned: bool) -> Path:
    """A dataset whose first 40 rows are queries; poisoned ones have other features and labels."""
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
def test_queries_are_unused(tmp_path: Path) -> None:
    ends = []
    for name in ("clean", "poisoned"):
        data, out = split_folder(tmp_path / name / "data", name == "poisoned"), tmp_path / name / "out"
        tune(source(data), METHODS_TRIED, 16, out, BUDGET)
        ends.append(((out / "best.json").read_bytes(), evaluations(out)))
    assert ends[0] == ends[1]


def test_best_settings_by_bits(tmp_path: Path) -> None:
    setting = {"learning_rate": 0.002, "slope": 0.25, "lambda": 3.2}  # 8 / K and 0.1 K
    path = tmp_path / "best.json"
    path.write_text(json.dumps({"bits": 32, "methods": {"dhn": {"setting": setting}}}))
    points = read_best(path, ["dhn"])
    short, long = plan_tasks(["dhn"], [16, 64], 1, points=points)
    assert short.resolved["options"] == {"slope": 0.5, "lambda": 1.6}
    assert long.resolved["options"] == {"slope": 0.125, "lambda": 6.4}
    assert long.resolved["learning_rate"] == 0.002
    (override,) = plan_tasks(["dhn"], [16], 1, {"dhn": {"options": {"lambda": 3}}}, points=points)
    assert override.resolved["options"] == {"slope": 0.5, "lambda": 3.0}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", DataError),
        ('{"methods": 3}', DataError),
        ('{"methods": {"csq": {}}}', DataError),
        ('{"bits": 32, "methods": {"csq": {"setting": {}}}}', ConfigError),
    ],
)
def test_unusable_best(tmp_path: Path, text: str, error: type[Exception]) -> None:
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(error):
        read_best(tmp_path / "best.json", ["csq", "dhn"])


def test_impossible_budget() -> None:
    with pytest.raises(ConfigError, match="3 of 2"):
        Budget(trials=2, full=3)
