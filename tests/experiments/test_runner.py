"""The runner: nothing is computed twice, nothing finished is lost, in this process and in several."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.experiments.runner import (
    differences,
    failure,
    read_failures,
    read_rows,
    rounded,
    row_key,
    run_tasks,
    select_rows,
)
from centerhash.experiments.tasks import EvaluationSetup, Source, Task, make_task, plan_tasks
from tests.stored import stored_row

TASKS = plan_tasks(["csq", "ics"], [16, 24], 2)
NAMES = [task.name for task in TASKS]


class Measured:
    """Replaces the training of tasks, and records their names."""

    def __init__(self, failing: str = "-", interrupted_after: int = 99) -> None:
        self.names: list[str] = []
        self.failing, self.left = failing, interrupted_after

    def __call__(self, setup: EvaluationSetup, task: Task) -> dict[str, Any]:
        if len(self.names) == self.left:
            raise KeyboardInterrupt
        self.names.append(task.name)
        if task.name.startswith(self.failing):
            raise ZeroDivisionError("a bug")
        return {"config": task.resolved}


def test_row_of_a_task(feature_folder: Path, tmp_path: Path) -> None:
    source = Source(feature_folder, k=50)
    rows, failures = run_tasks(source, TASKS[:1], tmp_path, Measured())
    assert failures == []
    (row,) = rows
    assert row == {
        **source.open().facts(),
        "config": TASKS[0].resolved,
        "versions": row["versions"],
    }
    assert row["versions"]["torch"]
    assert {path.name for path in tmp_path.iterdir()} == {"results.jsonl"}


def test_only_new_tasks_run(feature_folder: Path, tmp_path: Path) -> None:
    source, measured = Source(feature_folder), Measured()
    run_tasks(source, TASKS[:3], tmp_path, measured)
    before = (tmp_path / "results.jsonl").read_bytes()
    rows, _ = run_tasks(source, TASKS[:3], tmp_path, measured)
    assert (measured.names, len(rows)) == (NAMES[:3], 3)
    assert (tmp_path / "results.jsonl").read_bytes() == before
    new_tasks = plan_tasks(["csq", "ics"], [16], 2, {"ics": {"options": {"lambda": 0.9}}})
    rows, _ = run_tasks(source, new_tasks, tmp_path, measured)
    assert measured.names[3:] == ["ics 16 bits seed 0", "csq 16 bits seed 1", "ics 16 bits seed 1"]
    assert len(rows) == 6
    assert [row["config"] for row in select_rows(rows, new_tasks)] == [task.resolved for task in new_tasks]


@pytest.mark.parametrize("end", [b'{"data": "toy", "fing', b'{"data":"toy"}'])
def test_torn_line_runs_again(feature_folder: Path, tmp_path: Path, end: bytes) -> None:
    source, path, measured = Source(feature_folder), tmp_path / "results.jsonl", Measured()
    run_tasks(source, TASKS[:3], tmp_path, measured)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + end)
    rows, _ = run_tasks(source, TASKS[:3], tmp_path, measured)
    assert measured.names[3:] == [NAMES[2]]
    assert path.read_bytes() == b"".join(lines)
    assert read_rows(path) == rows


def test_failing_task_is_tried_again(feature_folder: Path, tmp_path: Path) -> None:
    source, measured = Source(feature_folder), Measured(failing="ics 16")
    done_rows: list[tuple[int, int, str, bool]] = []
    rows, failures = run_tasks(
        source,
        TASKS,
        tmp_path,
        measured,
        on_done=lambda done, total, task, row: done_rows.append((done, total, task.name, "error" in row)),
    )
    assert len(rows) == len(read_rows(tmp_path / "results.jsonl")) == 6
    stored = read_failures(tmp_path)
    assert stored == failures
    assert [row["config"]["seed"] for row in stored] == [0, 1]
    assert stored[0]["error"] == "ZeroDivisionError: a bug"
    assert "in __call__" in stored[0]["trace"]
    assert done_rows[1] == (2, 8, "ics 16 bits seed 0", True)
    assert done_rows[7] == (8, 8, "ics 24 bits seed 1", False)

    measured = Measured()
    assert run_tasks(source, TASKS[:4], tmp_path, measured)[1] == []
    assert measured.names == ["ics 16 bits seed 0"]
    assert [row["config"]["seed"] for row in read_failures(tmp_path)] == [1]  # not part of that attempt
    run_tasks(source, TASKS, tmp_path, measured)
    assert not (tmp_path / "failures.jsonl").exists()


def test_failure_without_trace() -> None:
    task = make_task({"method": "ics", "bits": 16}, value=3)
    assert failure(task, DataError("too few images.")) == {
        "config": task.resolved,
        "about": {"value": 3},
        "error": "too few images.",
    }


def test_interrupt_keeps_rows(feature_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_tasks(Source(feature_folder), TASKS, tmp_path, Measured(interrupted_after=2))
    assert len(read_rows(tmp_path / "results.jsonl")) == 2


def test_progress_names_tasks(feature_folder: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int, str]] = []
    run_tasks(
        Source(feature_folder),
        TASKS[:2],
        tmp_path,
        Measured(),
        stage="part",
        progress=lambda stage, done, total, note="": calls.append((stage, done, total, note)),
    )
    assert calls == [
        ("part", 0, 2, ""),
        ("part", 0, 2, "csq 16 bits seed 0"),
        ("part", 1, 2, ""),
        ("part", 1, 2, "ics 16 bits seed 0"),
        ("part", 2, 2, ""),
    ]


def test_results_of_another_comparison(feature_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_tasks(Source(feature_folder, k=50), TASKS[:1], out, Measured())
    with pytest.raises(ConfigError, match="k was 50, now 60"):
        run_tasks(Source(feature_folder, k=60), TASKS[:1], out, Measured())


# Stored rows


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("torn", ['{"data": "to', "{}", '"text', "\udc80"])
def test_torn_last_line(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(json.dumps(stored_row()).encode() + b"\n" + torn.encode(errors="surrogateescape"))
    assert read_rows(path) == [stored_row()]


@pytest.mark.parametrize(
    ("damaged", "reason"), [("{", "line 2 is damaged"), ('{"config": {}}', "it needs config, data")]
)
def test_damaged_line(tmp_path: Path, damaged: str, reason: str) -> None:
    path = write(tmp_path / "results.jsonl", json.dumps(stored_row()), damaged, json.dumps(stored_row()))
    with pytest.raises(DataError, match=reason):
        read_rows(path)


def test_folder_instead_of_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_rows(tmp_path)


def test_rounded() -> None:
    value = {"a": 1 / 3, "b": [2 / 3, None, 7, {"c": True}], "d": "0.123456789"}
    assert rounded(value) == {"a": 0.333333, "b": [0.666667, None, 7, {"c": True}], "d": "0.123456789"}
    assert rounded(value, 2)["a"] == 0.33


def test_differences() -> None:
    assert differences(stored_row(method="csq", seed=3), stored_row()) == []
    assert differences({**stored_row(), "fingerprint": "beef"}, stored_row()) == [
        "data was toy, now toy with other labels or splits"
    ]
    row = {**stored_row(), "split": "validation", "images": {"train": 1}}
    row["evaluation"] = {**row["evaluation"], "k": 5, "exclude_self": True}
    assert differences(row, stored_row()) == [
        "split was validation, now files",
        "images was {'train': 1}, now {'train': 20, 'query': 8, 'database': 40}",
        "k was 5, now 30",
        "exclude_self was True, now False",
    ]


def test_row_key_of_failure() -> None:
    config = {"method": "ics", "bits": 16, "seed": 0}
    row = {"config": config, "about": {"value": 0.1}, "found": {}}
    assert row_key(row) == row_key({"config": config, "about": {"value": 0.1}, "error": "x"})
    assert row_key(row) != row_key({"config": config})


# Real processes: their results, their threads, and a process that dies


def work(folder: Path, setup: EvaluationSetup, task: Task) -> dict[str, Any]:
    """Tasks that return, raise, die, or wait to be ended."""
    import torch
    from threadpoolctl import threadpool_info

    (folder / str(os.getpid())).touch()
    what = task.about["what"]
    if what == "raise":
        raise ValueError("thirteen")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "wait":
        time.sleep(600)
    blas = {pool["num_threads"] for pool in threadpool_info()}
    return {**task.identity, "found": {"threads": torch.get_num_threads(), "blas": max(blas)}}


def tasks_that(*whats: str) -> list[Task]:
    return [
        make_task({"method": "csq", "bits": 16, "seed": seed}, what=what) for seed, what in enumerate(whats)
    ]


@pytest.mark.slow
def test_two_processes(feature_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    handler = signal.getsignal(signal.SIGINT)
    done_rows: dict[str, dict[str, Any]] = {}

    def stop_at_last(done: int, total: int, task: Task, row: dict[str, Any]) -> None:
        done_rows[f"{task.about['what']} {task.resolved['seed']}"] = row
        if done == total - 1:  # of the last one no end is in sight
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(
            Source(feature_folder),
            tasks_that("return", "raise", "die", "return", "return", "wait"),
            tmp_path / "out",
            partial(work, tmp_path / "pids"),
            jobs=2,
            on_done=stop_at_last,
        )
    returned = [row["found"] for row in done_rows.values() if "found" in row]
    assert returned == [{"threads": 1, "blas": 1}] * 3
    assert done_rows["raise 1"]["error"] == "ValueError: thirteen"
    assert "killed" in done_rows["die 2"]["error"]
    assert len(read_rows(tmp_path / "out" / "results.jsonl", ("found",))) == 3
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    # two, and one in place of the dead unless the other was quick enough to take its tasks
    assert len(pids) in (2, 3)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert signal.getsignal(signal.SIGINT) is handler
