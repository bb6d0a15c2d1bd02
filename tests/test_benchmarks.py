"""Benchmarks and tools: they start, stored data survives the torture, and stored results are complete."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import torture
from centerhash.core.progress import silent
from centerhash.experiments.runner import read_rows, unfinished
from centerhash.experiments.tasks import plan_tasks
from centerhash.index import Index
from centerhash.methods.registry import METHODS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def test_results_have_their_commit() -> None:
    parts = re.findall(r"for part in (.*?);", (ROOT / "Makefile").read_text())[0].split()
    for part in parts:
        commit = json.loads((RESULTS / f"{part}.json").read_text())["commit"]
        assert re.fullmatch("[0-9a-f]{10}", commit), part  # without changes


def modules_with_options() -> list[str]:
    files = [file for folder in ("benchmarks", "tools") for file in sorted((ROOT / folder).glob("*.py"))]
    return [f"{file.parent.name}.{file.stem}" for file in files if ".parse_args()" in file.read_text()]


@pytest.mark.parametrize("name", modules_with_options())
def test_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 0
    assert f"python -m {name}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "rounds"), [(torture.kills, 3), (torture.damages, 5), (torture.cuts, 3), (torture.disks, 1)]
)
def test_run_part(part: object, rounds: int) -> None:
    counts = torture.run_part(part, rounds, 7, silent)
    outcomes = {name: count for name, count in counts.items() if name not in ("rounds", "seconds")}
    assert sum(outcomes.values()) == rounds
    assert not [name for name in outcomes if "broken" in name]


def test_step_of(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", **torture.KIND) as index:
        torture.change(index, 0)
        added = torture.items_of(0)
        assert torture.step_of(tmp_path / "index", (-1, 0)) == 0
        index.remove(added["ids"][3])
        assert "of none of the steps" in str(torture.step_of(tmp_path / "index", (-1, 0)))
        index.add(codes=added["codes"][:1], ids=added["ids"][3:4])
        assert "1 wrong items" in str(torture.step_of(tmp_path / "index", (-1, 0)))


def test_stored_table_is_complete() -> None:
    # `centerhash compare` with this folder does not train again.
    rows = read_rows(RESULTS / "coco117k" / "results.jsonl")
    methods = [name for name, method in METHODS.items() if method.built_in]
    assert not unfinished(plan_tasks(methods, [16, 32, 64], 3), rows)


def test_rebuilt_dataset() -> None:
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
