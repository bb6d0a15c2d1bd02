"""Stored results of the benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path

from centerhash.experiments.runner import read_rows, unfinished
from centerhash.experiments.tasks import plan_tasks
from centerhash.methods.registry import METHODS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def test_results_have_their_commit() -> None:
    parts = re.findall(r"for part in (.*?);", (ROOT / "Makefile").read_text())[0].split()
    for part in parts:
        commit = json.loads((RESULTS / f"{part}.json").read_text())["commit"]
        assert re.fullmatch("[0-9a-f]{10}", commit), part  # and without changes


def test_stored_table_is_complete() -> None:
    # `centerhash compare` with this folder trains nothing again
    rows = read_rows(RESULTS / "coco117k" / "results.jsonl")
    named = [name for name, row in METHODS.items() if row.built_in]
    wanted = plan_tasks(named, [16, 32, 64], 3)
    assert not unfinished(wanted, rows)


def test_rebuilt_dataset_gives_the_stored_table() -> None:
    rows = {row["config"]["method"]: row for row in read_rows(RESULTS / "coco117k-rebuilt" / "results.jsonl")}
    stored = [
        row
        for row in read_rows(RESULTS / "coco117k" / "results.jsonl")
        if row["config"]["method"] in rows and (row["config"]["bits"], row["config"]["seed"]) == (64, 0)
    ]
    assert len(stored) == len(rows) == 3
    for row in stored:
        again = rows[row["config"]["method"]]
        for score in ("map_retrieved", "map_all"):
            assert abs(row["evaluation"][score] - again["evaluation"][score]) < 0.001
