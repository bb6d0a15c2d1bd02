from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import open_dataset
from centerhash.experiments import grid
from centerhash.experiments.grid import (
    Bench,
    Cell,
    Source,
    plan_cells,
    read_bits,
    read_methods,
    read_settings,
    run_grid,
    validation_split,
)
from centerhash.experiments.rows import read_rows
from centerhash.methods.table import METHODS
from centerhash.training.fitting import evaluate_model, fit, resolve
from centerhash.training.loop import TrainConfig
from centerhash.training.run import fingerprint
from tests.toys import feature_dataset, write_feature_folder

QUICK = {"epochs": 1, "head": {"hidden": [16]}}
SETTINGS = {"csq": QUICK, "ics": QUICK}
CELLS = plan_cells(["csq", "ics"], [16, 24], 2, SETTINGS)


# What is asked for


def test_all_methods_or_some() -> None:
    assert read_methods("all") == list(METHODS)
    assert read_methods(" ics, csq,ics ") == ["ics", "csq"]


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown method 'isc'. Did you mean 'ics'\?"):
        read_methods("csq,isc")


def test_bits_are_a_list() -> None:
    assert read_bits("16, 64,16") == [16, 64]


@pytest.mark.parametrize("text", ["16;32", "16,many", "16.5"])
def test_bits_that_are_no_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--bits takes lengths of codes such as 16,32,64, got '{text}'"):
        read_bits(text)


def test_settings_are_options_of_the_method_or_of_training() -> None:
    texts = ["ics:lambda=0.2", "ics : learning_rate = 0.01", "all:schedule=steps", 'csq:head={"hidden": [8]}']
    assert read_settings(texts, ["csq", "ics"]) == {
        "ics": {"options": {"lambda": "0.2"}, "learning_rate": 0.01, "schedule": "steps"},
        "csq": {"schedule": "steps", "head": {"hidden": [8]}},
    }


@pytest.mark.parametrize("text", ["lambda=1", "ics:lambda", "ics:=1", ":lambda=1", "ics"])
def test_settings_of_another_form(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--option takes METHOD:NAME=VALUE, .* got '{text}'"):
        read_settings([text], ["ics"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("isc:lambda=1", "unknown method in --option 'isc'. Did you mean 'ics'?"),
        ("csq:gamma=1", "unknown method in --option 'csq'.* It must be in --methods"),
        ("ics:lamda=1", "unknown option of method 'ics' or of training 'lamda'. Did you mean 'lambda'?"),
        ("ics:bits=16", "unknown option of method 'ics' or of training 'bits'"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_settings([text], ["ics"])


def test_cells_go_seed_by_seed() -> None:
    names = [cell.name for cell in CELLS]
    assert names[:5] == [
        "csq 16 bits seed 0",
        "ics 16 bits seed 0",
        "csq 24 bits seed 0",
        "ics 24 bits seed 0",
        "csq 16 bits seed 1",
    ]
    assert len(names) == 8


def test_cells_know_what_they_resolve_to() -> None:
    (cell,) = plan_cells(["ics"], [16], 1, {"ics": {"options": {"lambda": "0.2"}}}, epochs=7)
    expected = resolve(TrainConfig(method="ics", bits=16, epochs=7, options={"lambda": 0.2}))
    assert cell.resolved == expected.model_dump(mode="json")
    assert cell.resolved["options"]["beta"] is not None


@pytest.mark.parametrize(
    ("methods", "bits", "seeds", "reason"),
    [
        (["ics"], [16], 0, "--seeds must be at least 1, got 0"),
        ([], [16], 1, "nothing to compare: --methods is empty"),
        (["ics"], [], 1, "nothing to compare: --bits is empty"),
        (["ics"], [16, 7], 1, "option 'bits' of training cannot be 7"),
    ],
)
def test_impossible_grids(methods: list[str], bits: list[int], seeds: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan_cells(methods, bits, seeds)


# What it is measured on


def test_validation_keeps_three_quarters_and_never_touches_the_queries() -> None:
    dataset = feature_dataset(160)  # 120 to train on
    splits = validation_split(dataset).splits
    assert (len(splits.train), len(splits.query), splits.made) == (90, 30, "validation")
    assert np.array_equal(splits.query, splits.database)
    assert sorted([*splits.train, *splits.query]) == sorted(dataset.splits.train.tolist())
    again = validation_split(dataset).splits
    assert np.array_equal(again.query, splits.query)
    assert not np.array_equal(validation_split(dataset, seed=1).splits.query, splits.query)


def test_too_few_images_to_hold_some_out() -> None:
    with pytest.raises(DataError, match="6 are too few, 8 are needed"):
        validation_split(feature_dataset(8))


def test_a_source_opens_the_true_split_at_the_full_depth(feature_folder: Path) -> None:
    bench, dataset = Source(feature_folder, k=50).open(), open_dataset(feature_folder)
    facts = bench.facts()
    assert facts["fingerprint"] == fingerprint(dataset)
    assert facts["split"] == dataset.splits.made
    assert facts["images"] == {"train": 144, "query": 16, "database": 144}
    assert facts["evaluation"] == {"k": 50, "exclude_self": False}


def test_validation_scales_the_depth_and_leaves_out_the_query_itself(feature_folder: Path) -> None:
    facts = Source(feature_folder, k=50, validation=True).open().facts()
    assert facts["images"] == {"train": 108, "query": 36, "database": 36}
    assert facts["evaluation"] == {"k": 12, "exclude_self": True}  # 50 * 36 / 144 = 12.5, to even


# Running and storing


@pytest.fixture(scope="module")
def finished(feature_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished grid; not to be changed."""
    out = tmp_path_factory.mktemp("grid") / "out"
    rows, failures = run_grid(Source(feature_folder, k=50), CELLS, out)
    assert (len(rows), failures) == (8, [])
    return out


def test_every_cell_is_stored_with_all_that_decides_it(finished: Path, feature_folder: Path) -> None:
    rows = read_rows(finished / "results.jsonl")
    assert [row["config"] for row in rows] == [dict(cell.resolved) for cell in CELLS]
    facts = Source(feature_folder, k=50).open().facts()
    for row in rows:
        assert {key: row[key] for key in ("data", "fingerprint", "split", "images")} == {
            key: facts[key] for key in ("data", "fingerprint", "split", "images")
        }
        assert row["threads"] == 1
        assert row["versions"]["torch"]
        assert min(row["train_seconds"], row["images_per_second"]) > 0
        assert len(row["evaluation"]["curve"]["recall"]) == row["config"]["bits"] + 1
    assert not (finished / "failures.jsonl").exists()


def test_a_row_holds_what_training_and_evaluating_by_hand_gives(finished: Path, feature_folder: Path) -> None:
    row = read_rows(finished / "results.jsonl")[3]
    dataset = open_dataset(feature_folder)
    model = fit(dataset, CELLS[3].config, device="cpu")
    found = evaluate_model(model, dataset, k=50).to_dict()
    for name in ("map_peers", "map_textbook", "chance_peers", "ndcg"):
        assert row["evaluation"][name] == pytest.approx(found[name], abs=1e-6)
    assert row["evaluation"]["precision"]["100"] == pytest.approx(found["precision"]["100"], abs=1e-6)
    assert "1000" not in row["evaluation"]["precision"]  # more than the database holds
    assert row["evaluation"]["curve"]["recall"] == pytest.approx(found["curve"]["recall"], abs=1e-6)


class Measured:
    """Stands in for the training of cells, and remembers which were asked for."""

    def __init__(self, failing: str = "") -> None:
        self.names: list[str] = []
        self.failing = failing

    def __call__(self, bench: Bench, cell: Cell) -> dict[str, Any]:
        self.names.append(cell.name)
        if cell.name.startswith(self.failing or "-"):
            raise ZeroDivisionError("a bug")
        return {**bench.facts(), "config": dict(cell.resolved)}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    stand_in = Measured()
    monkeypatch.setattr(grid, "measure", stand_in)
    return stand_in


def test_a_finished_grid_is_not_computed_again(
    finished: Path, feature_folder: Path, measured: Measured
) -> None:
    before = (finished / "results.jsonl").read_bytes()
    rows, _ = run_grid(Source(feature_folder, k=50), CELLS, finished)
    assert measured.names == []
    assert len(rows) == 8
    assert (finished / "results.jsonl").read_bytes() == before


def test_only_new_cells_are_computed(feature_folder: Path, measured: Measured, tmp_path: Path) -> None:
    source = Source(feature_folder)
    run_grid(source, CELLS[:3], tmp_path)
    more = plan_cells(["csq", "ics"], [16], 2, {**SETTINGS, "ics": {**QUICK, "options": {"lambda": 0.9}}})
    rows, _ = run_grid(source, more, tmp_path)
    assert measured.names[3:] == ["ics 16 bits seed 0", "csq 16 bits seed 1", "ics 16 bits seed 1"]
    assert len(rows) == 6


@pytest.mark.parametrize("end", [b'{"data": "toy", "fing', b'{"data":"toy"}'])
def test_a_torn_line_is_dropped_and_its_cell_done_again(
    feature_folder: Path, measured: Measured, tmp_path: Path, end: bytes
) -> None:
    source, path = Source(feature_folder), tmp_path / "results.jsonl"
    run_grid(source, CELLS[:3], tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + end)
    rows, _ = run_grid(source, CELLS[:3], tmp_path)
    assert measured.names[3:] == [CELLS[2].name]
    assert path.read_bytes() == b"".join(lines)
    assert read_rows(path) == rows


def test_a_failing_cell_does_not_stop_the_others_and_is_tried_again(
    feature_folder: Path, measured: Measured, tmp_path: Path
) -> None:
    measured.failing = "ics 16"
    told: list[tuple[int, int, str, bool]] = []
    rows, failures = run_grid(
        Source(feature_folder),
        CELLS,
        tmp_path,
        on_cell=lambda done, total, cell, row: told.append((done, total, cell.name, "error" in row)),
    )
    assert len(rows) == len(read_rows(tmp_path / "results.jsonl")) == 6
    stored = read_rows(tmp_path / "failures.jsonl", ("config", "error", "trace"))
    assert stored == failures
    assert [row["config"]["seed"] for row in stored] == [0, 1]
    assert stored[0]["error"] == "ZeroDivisionError: a bug"
    assert "in __call__" in stored[0]["trace"]
    assert told[1] == (2, 8, "ics 16 bits seed 0", True)
    assert told[7] == (8, 8, "ics 24 bits seed 1", False)

    measured.failing, measured.names = "", []
    assert run_grid(Source(feature_folder), CELLS[:4], tmp_path)[1] == []
    assert measured.names == ["ics 16 bits seed 0"]
    left = read_rows(tmp_path / "failures.jsonl", ("config", "error"))
    assert [row["config"]["seed"] for row in left] == [1]  # not part of that attempt
    run_grid(Source(feature_folder), CELLS, tmp_path)
    assert not (tmp_path / "failures.jsonl").exists()


def test_errors_of_ours_need_no_trace() -> None:
    assert grid.failure(CELLS[0], DataError("too few images.")) == {
        "config": dict(CELLS[0].resolved),
        "error": "too few images.",
    }


def test_an_interrupt_keeps_what_is_finished(
    feature_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in = Measured()

    def interrupted(bench: Bench, cell: Cell) -> dict[str, Any]:
        if len(stand_in.names) == 2:
            raise KeyboardInterrupt
        return stand_in(bench, cell)

    monkeypatch.setattr(grid, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_grid(Source(feature_folder), CELLS, tmp_path)
    assert len(read_rows(tmp_path / "results.jsonl")) == 2


def test_progress_names_the_running_cell(feature_folder: Path, measured: Measured, tmp_path: Path) -> None:
    shown: list[tuple[str, int, int, str]] = []
    run_grid(Source(feature_folder), CELLS[:2], tmp_path, report=lambda *state: shown.append(state))
    assert shown == [
        ("cells", 0, 2, ""),
        ("cells", 0, 2, "csq 16 bits seed 0"),
        ("cells", 1, 2, ""),
        ("cells", 1, 2, "ics 16 bits seed 0"),
        ("cells", 2, 2, ""),
    ]


def test_another_comparison_in_the_way_is_named(
    feature_folder: Path, measured: Measured, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_grid(Source(feature_folder, k=50), CELLS[:1], out)
    other = write_feature_folder(tmp_path / "other", count=40)
    with pytest.raises(
        ConfigError, match=r"holds the results of another comparison: data was toy, now other;"
    ):
        run_grid(Source(other, k=50), CELLS[:1], out)
    with pytest.raises(ConfigError, match=r"k was 50, now 60. Choose another --out"):
        run_grid(Source(feature_folder, k=60), CELLS[:1], out)
    with pytest.raises(ConfigError, match="split was drawn with seed 0, now validation"):
        run_grid(Source(feature_folder, k=50, validation=True), CELLS[:1], out)


def test_rows_of_the_first_versions_count_as_finished(
    feature_folder: Path, measured: Measured, tmp_path: Path
) -> None:
    run_grid(Source(feature_folder), CELLS[:2], tmp_path)
    path = tmp_path / "results.jsonl"
    early = [{k: v for k, v in row.items() if k != "fingerprint"} for row in read_rows(path)]
    path.write_text("".join(json.dumps(row) + "\n" for row in early))
    run_grid(Source(feature_folder), CELLS[:3], tmp_path)
    assert measured.names[2:] == [CELLS[2].name]


def test_no_jobs(feature_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--jobs must be at least 1, got 0"):
        run_grid(Source(feature_folder), CELLS, tmp_path, jobs=0)


def test_images_go_through_the_network_once(
    scene_folder: Path, feature_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker opens comes from the cache that the parent filled."""
    source = Source(scene_folder, k=20, cache=feature_cache, device="cpu")
    rows, failures = run_grid(source, plan_cells(["csq"], [16], 1, SETTINGS), tmp_path)
    assert (len(rows), failures) == (1, [])

    def forbidden(*_: Any) -> None:
        raise AssertionError("the network was loaded again")

    monkeypatch.setattr("centerhash.networks.backbones.Backbone.load", forbidden)
    assert source.open().features.shape[0] == 40
