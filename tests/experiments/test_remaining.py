"""The time that is left: hand-computed cases, and the times of a stored comparison."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from centerhash.experiments.bench import make_task
from centerhash.experiments.remaining import Clock, Config, seconds_left, seconds_of, time_text
from centerhash.experiments.rows import read_rows

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "coco117k" / "results.jsonl"


def config(method: str, bits: int = 64, epochs: int = 30) -> Config:
    return {"method": method, "bits": bits, "epochs": epochs}


def test_a_task_takes_as_long_as_others_of_its_method_and_length() -> None:
    taken = [(config("csq", 16), 10.0), (config("csq", 64), 20.0), (config("csq", 64), 30.0)]
    assert seconds_of(config("csq", 64), taken) == 25.0
    assert seconds_of(config("csq", 32), taken) == 20.0
    assert seconds_of(config("csq", 64, epochs=60), taken) == 40.0  # 60 s for three times 30 epochs
    assert seconds_of(config("lsh"), taken) == pytest.approx(2.0)


def test_what_runs_counts_with_its_rest_and_the_longest_is_waited_for() -> None:
    taken = [(config("csq"), 10.0)]
    assert math.isnan(seconds_left([config("csq")], [], [], 1))
    assert seconds_left([config("csq")] * 3, [(config("csq"), 4.0)], taken, 1) == 36.0
    assert seconds_left([config("csq")] * 3, [(config("csq"), 4.0)], taken, 2) == 18.0
    assert seconds_left([], [(config("csq"), 4.0)], taken, 2) == 6.0
    assert seconds_left([], [(config("csq"), 25.0)], taken, 1) == 0.0


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "7 s"), (600.0, "10 min"), (12_000.0, "3 h 20 min")])
def test_times_as_people_say_them(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize("shallow_first", [True, False])
@pytest.mark.slow
def test_after_three_cells_of_a_stored_comparison_the_time_is_right_to_a_factor_of_two(
    shallow_first: bool,
) -> None:
    """The first seed of the methods whose rows have all times, three times over: later seeds ran beside other work."""
    rows = [row for row in read_rows(STORED) if "encode_seconds" in row and row["config"]["seed"] == 0]
    cells = [
        (row["config"], sum(row[f"{part}_seconds"] for part in ("train", "encode", "evaluate")))
        for row in rows
    ]
    shallow = ("lsh", "sh", "itq", "bre", "ksh", "sdh")
    cells.sort(key=lambda cell: (cell[0]["bits"], (cell[0]["method"] in shallow) != shallow_first))
    cells *= 3
    assert len(cells) > 100
    for done in range(3, len(cells) - 3):
        told = seconds_left([config for config, _ in cells[done:]], [], cells[:done], 1)
        true = sum(seconds for _, seconds in cells[done:])
        assert true / 2 <= told <= true * 2, f"after {done} cells"


def test_a_clock_forgets_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    tasks = [make_task({"method": "csq", "bits": 16, "seed": seed}) for seed in range(4)]
    clock = Clock(tasks, jobs=1)
    clock.begun(tasks[0])
    assert clock.note() == "csq 16 bits seed 0"
    now[0] = 1.0
    clock.ended(tasks[0], failed=True)
    assert math.isnan(clock.left())
    clock.begun(tasks[1])
    now[0] = 101.0
    clock.ended(tasks[1], failed=False)
    clock.begun(tasks[2])
    now[0] = 121.0
    assert clock.left() == 180.0
    assert clock.note() == "csq 16 bits seed 2; 3 min left"
