"""`centerhash compare` as a command: in this process, and as real processes that are interrupted and killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from centerhash.cli.arguments import read_bits, read_methods, read_settings
from centerhash.codes import binarize, unpack
from centerhash.data import open_dataset
from centerhash.encoding.code_files import read_run_codes
from centerhash.experiments.runner import read_rows
from centerhash.methods.registry import METHODS
from centerhash.model.model import HashModel
from tests.toys import (
    Started,
    children_of,
    cli,
    evaluate_files,
    refused,
    started,
    wait_for_process,
    wait_until,
)

SMALL = ("-o", 'all:head={"hidden": [16]}', "--device", "cpu")
GRID = ("--methods", "csq,ics", "--bits", "16,24", "--seeds", "2", "--epochs", "2", "-k", "50", *SMALL)
FAILING = ("-o", "csq:gamma=1e39")  # its loss is infinite


def evaluations(out: Path) -> dict[str, Any]:
    return {json.dumps(row["config"]): row["evaluation"] for row in read_rows(out / "results.jsonl")}


@pytest.fixture(scope="module")
def compared(feature_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison; not to be changed."""
    out = tmp_path_factory.mktemp("compare") / "out"
    done = cli("compare", feature_folder, "--out", out, *GRID)
    assert done.code == 0, done.err
    assert "mAP@50 over retrieved relevant items" in done.out
    assert f"page: {out / 'report.html'}" in done.text
    assert "8/8  ics 24 bits seed 1: mAP 0." in done.err
    assert done.err.startswith("8 of 8 training runs to do\n")
    written = {path.name for path in out.iterdir()}
    assert written == {"results.jsonl", "table.md", "table.tex", "table.csv", "report.html"}
    return out


def test_both_forms(feature_folder: Path, tmp_path: Path) -> None:
    grid = ("--methods", "lsh,csq", "--bits", "16", "--seeds", "1", "--epochs", "1", "-k", "50", *SMALL)
    assert cli("compare", feature_folder, "--out", tmp_path, "--both-forms", *grid).code == 0
    shallow, deep = read_rows(tmp_path / "results.jsonl")
    assert not any(name.endswith(("_rotated", "_as_trained")) for name in shallow)
    assert {name for name in deep if name.startswith("map_")} == {
        f"{metric}_{form}" for metric in ("map_retrieved", "map_all") for form in ("rotated", "as_trained")
    }


@pytest.mark.slow
def test_repeated_comparison(compared: Path, feature_folder: Path) -> None:
    names = ("table.md", "table.tex", "table.csv", "report.html", "results.jsonl")
    before = [(compared / name).read_bytes() for name in names]
    again, stored = (
        cli("compare", feature_folder, "--out", compared, *GRID),
        cli("compare", "--from", compared),
    )
    assert again.code == stored.code == 0
    assert again.out == stored.out
    assert "seed" not in again.err
    assert "0 of 8 training runs to do" in again.err
    assert [(compared / name).read_bytes() for name in names] == before


@pytest.mark.slow
def test_keep_models_and_codes(feature_folder: Path, tmp_path: Path) -> None:
    """Also of rows that were computed before without them; a kept row is not computed again."""
    words = ("compare", feature_folder, "--out", tmp_path, *GRID[:4], "--seeds", "1", *GRID[6:])
    assert cli(*words).code == 0
    before = evaluations(tmp_path)
    done = cli(*words, "--keep")
    assert done.code == 0
    assert "4 of 4 training runs to do" in done.err
    assert evaluations(tmp_path) == before
    kept = [row for row in read_rows(tmp_path / "results.jsonl") if "run" in row]
    assert len({row["run"] for row in kept}) == len(kept) == 4
    dataset = open_dataset(feature_folder)
    for row in kept:
        result = evaluate_files([tmp_path / row["run"]], k=50)
        assert result.map_retrieved == pytest.approx(row["evaluation"]["map_retrieved"], abs=1e-6)
        model = HashModel.load(tmp_path / row["run"])
        assert (model.spec.method, model.bits) == (row["config"]["method"], row["config"]["bits"])
        query, _ = read_run_codes(tmp_path / row["run"])
        assert dataset.features is not None
        codes = binarize(model.logits(dataset.features[dataset.splits.query]))
        assert (unpack(query.packed, query.bits) == codes).all()
    assert "0 of 4 training runs to do" in cli(*words, "--keep").err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--methods", "icss"], "unknown method 'icss'. Did you mean 'ics'?"),
        (["--methods", ","], "unknown method ''"),
        (["--bits", "16;32"], "got '16;32'"),
        (["--bits", ","], "--bits"),
        (["--seeds", "0"], "--seeds"),
        (["--jobs", "0"], "--jobs"),
        (["--methods", "ics", "-o", "ics:lamda=1"], "Did you mean 'lambda'?"),
        (["--methods", "ics", "-o", "icss:lambda=1"], "Did you mean 'ics'?"),
        (["--methods", "ics", "-o", "csq:gamma=1"], "It must be in --methods"),
        (["--methods", "ics", "-o", "ics:bits=16"], "unknown option of method 'ics'"),
        (["-o", "lambda=1"], "METHOD:NAME=VALUE"),
        (["-o", "ics:lambda"], "METHOD:NAME=VALUE"),
        (["-o", "ics:=1"], "METHOD:NAME=VALUE"),
    ],
)
def test_rejected_comparisons(feature_folder: Path, tmp_path: Path, words: list[str], reason: str) -> None:
    assert reason in refused(cli("compare", feature_folder, "--out", tmp_path / "out", *words))
    assert not (tmp_path / "out").exists()


def test_read_grid_options() -> None:
    assert read_methods("all") == list(METHODS)
    assert read_methods(" ics, csq,ics ") == ["ics", "csq"]
    assert read_bits("16, 64,16") == [16, 64]
    texts = ["ics:lambda=0.2", "ics : learning_rate = 0.01", "all:schedule=steps", 'csq:head={"hidden": [8]}']
    assert read_settings(texts, ["csq", "ics"]) == {
        "ics": {"options": {"lambda": "0.2"}, "learning_rate": 0.01, "schedule": "steps"},
        "csq": {"schedule": "steps", "head": {"hidden": [8]}},
    }


def test_data_and_out_are_required(feature_folder: Path, tmp_path: Path) -> None:
    for words in ([], [feature_folder], ["--out", tmp_path]):
        assert "compare takes DATA and --out DIR, or --from DIR" in refused(cli("compare", *words))


@pytest.mark.slow
def test_from_without_other_options(compared: Path, feature_folder: Path, tmp_path: Path) -> None:
    assert "omit DATA" in refused(cli("compare", feature_folder, "--from", compared))
    assert "no results in" in refused(cli("compare", "--from", tmp_path))


@pytest.mark.slow
def test_validation_split(feature_folder: Path, tmp_path: Path) -> None:
    words = ("--methods", "csq", "--bits", "16", "--seeds", "1", "--epochs", "1", "--validation", *SMALL)
    assert cli("compare", feature_folder, "--out", tmp_path, *words).code == 0
    (row,) = read_rows(tmp_path / "results.jsonl")
    assert row["split"] == "validation"
    assert row["images"] == {"train": 108, "query": 36, "database": 36}
    assert row["evaluation"]["exclude_self"]
    assert "each without its own item" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_failing_method(feature_folder: Path, tmp_path: Path) -> None:
    words = ("compare", feature_folder, "--out", tmp_path, *GRID, "--seeds", "1")
    done = cli(*words, *FAILING)
    assert done.code == 1
    assert "2 training runs failed, all others are kept:" in done.err
    assert "csq 24 bits seed 0: the loss became inf" in done.err
    assert "Traceback" not in done.err
    assert len(evaluations(tmp_path)) == 2
    assert "ICS" in done.out
    assert "CSQ" not in done.out
    assert "the loss became inf" in (tmp_path / "report.html").read_text()
    assert cli("compare", "--from", tmp_path).code == 0


@pytest.mark.slow
def test_only_failures(feature_folder: Path, tmp_path: Path) -> None:
    words = ("--methods", "csq", "--bits", "16", "--seeds", "1", "--epochs", "1", *SMALL, *FAILING)
    done = cli("compare", feature_folder, "--out", tmp_path, *words)
    assert done.code == 1
    assert {path.name for path in tmp_path.iterdir()} == {"failures.jsonl"}


def wait_for_rows(out: Path, count: int, process: Started) -> None:
    rows = out / "results.jsonl"
    wait_for_process(
        process, lambda: rows.exists() and len(read_rows(rows)) >= count, f"{count} rows are there"
    )


@pytest.mark.slow
def test_interrupted_and_killed_grid(feature_folder: Path, tmp_path: Path) -> None:
    """Only the rest is computed, and rows are the same whoever computed them."""
    out, own = tmp_path / "out", Path(__file__).parents[2] / "examples" / "hinge.py"
    # workers find a custom class by its file
    words = ["compare", feature_folder, *GRID, "--methods", f"csq,{own}:Hinge", "--epochs", "40"]
    err = interrupted([*words, "--out", out], out)
    assert "interrupted: the same command resumes where it stopped" in err
    assert "Traceback" not in err
    first = len(read_rows(out / "results.jsonl"))
    assert 1 <= first < 8

    with started(*words, "--out", out, "--jobs", "2") as process:
        wait_for_rows(out, first + 1, process)
        children = children_of(process.pid)
        assert len(children) >= 2
        process.signal(signal.SIGKILL)
    kept = (out / "results.jsonl").read_bytes()
    before = len(read_rows(out / "results.jsonl"))
    assert first < before < 8
    wait_until_gone(children)
    (out / "results.jsonl").write_bytes(kept + b'{"data": "to')  # and torn in the middle of a line

    done = cli(*words, "--out", out)
    assert done.code == 0, done.err
    assert (out / "results.jsonl").read_bytes().startswith(kept)
    assert len(evaluations(out)) == len(read_rows(out / "results.jsonl")) == 8
    assert done.err.count(" bits seed ") == 8 - before

    assert cli(*words, "--out", tmp_path / "straight").code == 0
    assert evaluations(out) == evaluations(tmp_path / "straight")


def wait_until_gone(pids: list[int]) -> None:
    """Processes of a killed parent end by themselves."""
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"{pids} are gone")


def interrupted(words: list[Any], out: Path) -> str:
    """Interrupt a comparison of two jobs after the first row, and return its stderr."""
    with started(*words, "--jobs", "2", session=True) as process:
        wait_for_rows(out, 1, process)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends the interrupt to the whole group
        assert process.wait() == 130
        return process.err
