"""Search spaces: one table per method, points that every method accepts, values that follow the number of bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from centerhash.experiments.runner import read_rows
from centerhash.experiments.tasks import make_task
from centerhash.methods.spaces import search_space, training_options, value_at
from centerhash.methods.table import METHODS, Method, get_method
from centerhash.training.config import TrainConfig

ROWS = list(METHODS.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_point_is_a_training_that_can_be(row: Method) -> None:
    space = search_space(row)
    for bits in (16, 64):
        for point in [*space.points(), space.authors]:
            given = training_options(row, point, bits)
            make_task({**given, "method": row.name, "bits": bits})
    assert space.values, "no table of its own"
    assert ("learning_rate" in space.values) == (row.family != "shallow")
    assert set(space.authors) & set(space.values) or not space.authors
    for name, value in space.authors.items():
        assert value in space.values.get(name, [value]), name
    means = grid_means(row.name)
    best = json.loads(max(means, key=lambda setting: means[setting]))
    own = make_task({"method": row.name, "bits": 32, "seed": 0}).resolved
    assert best == that_decides_codes(own), "the default is what the stored grid preferred"


def test_ours_has_no_larger_space_than_the_largest_baseline() -> None:
    sizes = {row.name: len(search_space(row).points()) for row in ROWS}
    assert sizes["ics-softmax"] <= max(size for name, size in sizes.items() if name != "ics-softmax")


def that_decides_codes(config: Mapping[str, Any]) -> dict[str, Any]:
    """A setting without its seed, and without the units of presence, which learns beside the codes."""
    head = {name: value for name, value in config["head"].items() if name != "presence_hidden"}
    return {**{name: value for name, value in config.items() if name != "seed"}, "head": head}


@cache
def grid_rows() -> list[dict[str, Any]]:
    return read_rows(Path(__file__).parents[2] / "benchmarks" / "results" / "coco117k-tune" / "results.jsonl")


def grid_means(method: str) -> dict[str, float]:
    """Mean scores of a method's full trainings by setting, of the grid on COCO's features."""
    scores: dict[str, list[float]] = {}
    for row in grid_rows():
        config = row["config"]
        if config["method"] == method and config["epochs"] == TrainConfig().epochs:
            setting = json.dumps(that_decides_codes(config), sort_keys=True)
            scores.setdefault(setting, []).append(row["evaluation"]["map_peers"])
    return {setting: sum(found) / len(found) for setting, found in scores.items()}


def test_values_by_hand() -> None:
    for value, found in (
        ("K", 32.0),
        ("K*0.5", 16.0),
        ("8/K", 0.25),
        ("default*4", 12.0),
        ("default", 3.0),
        ("random", "random"),
    ):
        assert value_at(value, 32, 3.0) == found


def test_numbers_stand_for_themselves() -> None:
    assert value_at(0.5, 32, 3.0) == 0.5
    assert value_at(True, 32, 3.0) is True


def test_options_and_training_are_told_apart_and_a_default_follows_the_other_options() -> None:
    point = {"learning_rate": 0.01, "scale": 10.0, "lambda": "default*2", "assignment": "random"}
    assert training_options(get_method("ics-softmax"), point, 16) == {
        "learning_rate": 0.01,
        "assignment": "random",
        "options": {"scale": 10.0, "lambda": 10.0},  # half of the scale, twice
    }
