from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash import __version__
from centerhash.cli import app, console
from centerhash.encoding.code_files import evaluate_files
from centerhash.evaluation import evaluate
from centerhash.training.run_folder import read_config
from tests.toys import (
    QUICK,
    cli,
    refused,
    write_feature_folder,
)

COMMANDS = [item.name or getattr(item.callback, "__name__", "") for item in app.registered_commands]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_feature_folder(tmp_path_factory.mktemp("cli") / "data", count=60)


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = cli(name, "--help")
    assert done.code == 0
    assert re.match(rf"Usage: .*centerhash {name} \[OPTIONS\]", done.text)
    assert re.search(rf"Examples?: .*centerhash {name} \S", done.text)


def test_the_help_names_every_command() -> None:
    for done in (cli("--help"), cli()):
        assert all(name in done.text for name in COMMANDS)


def test_the_version() -> None:
    assert cli("--version").out == f"centerhash {__version__}\n"


def test_a_misspelt_option_names_the_nearest() -> None:
    assert "--bits" in refused(cli("train", "x", "--out", "y", "--bitz", "3"))


def test_the_help_of_train_shows_first_what_most_people_need() -> None:
    text = cli("train", "--help").out
    groups = ["Options", "Training", "Head", "Backbone", "Data", "Running"]
    places = [text.index(f"─ {group} ─") for group in groups]
    assert places == sorted(places)
    needed = ("out", "method", "bits", "epochs", "seed", "finetune", "backbone", "preset", "option", "device")
    first = text[places[0] : places[1]]
    assert all(re.search(rf"--{name} ", first) for name in needed)
    assert not re.search(r"--(batch-size|hidden|weights|root|overwrite) ", first)


# Train


def test_train_says_what_to_do_next(folder: Path, tmp_path: Path) -> None:
    done = cli("train", folder, "--out", tmp_path / "run", "--method", "ics", *QUICK)
    assert done.code == 0
    assert f"centerhash evaluate {tmp_path / 'run'}" in done.out
    assert read_config(tmp_path / "run")["config"]["method"] == "ics"


def test_every_setting_reaches_the_run(folder: Path, tmp_path: Path) -> None:
    words = ["--method", "ics", "--bits", "24", "--seed", "3", "--epochs", "1", "--batch-size", "20"]
    words += ["--learning-rate", "0.01", "--weight-decay", "0.5", "--schedule", "steps", "--hidden", "16,8"]
    words += ["--no-rotate", "--no-evidence"]
    words += ["--centers", "random", "-o", "lambda=0.25", "--option", "form=per_center", "--device", "cpu"]
    done = cli("train", folder, "--out", tmp_path / "run", *words)
    assert done.code == 0, done.err
    found = read_config(tmp_path / "run")["config"]
    assert (found["bits"], found["seed"], found["epochs"], found["batch_size"]) == (24, 3, 1, 20)
    assert (found["learning_rate"], found["weight_decay"], found["schedule"]) == (0.01, 0.5, "steps")
    assert (found["head"]["hidden"], found["centers"]) == ([16, 8], "random")
    assert (found["head"]["rotate"], found["head"]["evidence"]) == (False, False)
    assert (found["options"]["lambda"], found["options"]["form"]) == (0.25, "per_center")


def test_a_preset_sets_options_of_the_method_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('method = "ics"\nbits = 24\n[options]\nlambda = 0.3\n')
    words = ["--preset", tmp_path / "own.toml", "--epochs", "1", "--hidden", "16", "--device", "cpu"]
    assert cli("train", folder, "--out", tmp_path / "run", *words).code == 0
    found = read_config(tmp_path / "run")["config"]
    assert (found["method"], found["bits"], found["options"]["lambda"]) == ("ics", 24, 0.3)


def test_options_override_those_of_a_preset_and_leave_its_others(folder: Path, tmp_path: Path) -> None:
    text = 'method = "ics"\nbits = 24\n[options]\nlambda = 0.3\n[head]\ndropout = 0.25\n'
    (tmp_path / "own.toml").write_text(text)
    words = ["--preset", tmp_path / "own.toml", "--epochs", "1", "--hidden", "16", "-o", "gamma=0.5"]
    assert cli("train", folder, "--out", tmp_path / "run", *words, "--device", "cpu").code == 0
    found = read_config(tmp_path / "run")["config"]
    assert (found["options"]["lambda"], found["options"]["gamma"]) == (0.3, 0.5)
    assert (found["head"]["dropout"], found["head"]["hidden"]) == (0.25, [16])


def test_no_hidden_layer_is_written_as_zero(folder: Path, tmp_path: Path) -> None:
    words = [*QUICK[:-4], "--hidden", "0", "--device", "cpu"]
    assert cli("train", folder, "--out", tmp_path / "run", *words).code == 0
    assert read_config(tmp_path / "run")["config"]["head"]["hidden"] == []


def test_warnings_are_shown(tmp_path: Path) -> None:
    folder = write_feature_folder(tmp_path / "data", count=60)
    np.save(folder / "query.npy", np.arange(10))
    np.save(folder / "train.npy", np.arange(5, 50))
    done = cli("train", folder, "--out", tmp_path / "run", *QUICK)
    assert done.code == 0
    assert "warning: leak: 5 of 10 queries are also in the training split" in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (["--method", "icz"], ["unknown method 'icz'. Did you mean 'ics'?"]),
        (["-o", "lambda"], ["NAME=VALUE, got 'lambda'"]),
        (["-o", "=3"], ["NAME=VALUE, got '=3'"]),
        (["--hidden", "wide"], ["--hidden", "got 'wide'"]),
        (["--hidden", "16,0"], ["--hidden", "got '16,0'"]),
        (["--device", "gpu"], ["device 'gpu' cannot be used", "Try --device cpu or auto"]),
    ],
)
def test_what_train_refuses(folder: Path, tmp_path: Path, words: list[str], reasons: list[str]) -> None:
    text = refused(cli("train", folder, "--out", tmp_path / "run", *words))
    assert text.startswith("error: ")
    assert all(reason in text for reason in reasons)


def test_another_run_in_the_way_is_named_and_overwritten_on_demand(folder: Path, tmp_path: Path) -> None:
    words = ("train", folder, "--out", tmp_path / "run", *QUICK)
    assert cli(*words).code == 0
    assert "seed was 0, now 1" in refused(cli(*words, "--seed", "1"))
    assert cli(*words, "--seed", "1", "--overwrite").code == 0
    assert read_config(tmp_path / "run")["config"]["seed"] == 1


# Evaluate


def test_evaluate_as_json_equals_python(feature_run: Path) -> None:
    done = cli("evaluate", feature_run, "--top", "30", "--seed", "4", "--json")
    assert done.code == 0
    expected = evaluate_files([feature_run], k=30, seed=4).to_dict()
    assert done.json == json.loads(json.dumps(expected))
    assert done.json["k"] == 30


def test_evaluate_shows_the_curve_by_radius(feature_run: Path) -> None:
    done = cli("evaluate", feature_run, "--curve")
    assert "by Hamming radius" in done.out
    assert "mAP@144, retrieved relevant" in done.out
    assert "The database is smaller than k = 5,000: the depth is 144, all of it." in done.text
    assert re.search(r"│ +16 │ +0\.\d{4} │ +1\.0000 │ +16 │", done.out)


def test_evaluate_bare_code_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(8)
    codes = np.where(generator.random((30, 12)) < 0.5, -1, 1)
    labels = generator.random((30, 4)) < 0.4
    np.savez(tmp_path / "query.npz", codes=codes[:6], labels=labels[:6], ids=np.arange(6))
    np.savez(tmp_path / "database.npz", codes=codes, labels=labels, ids=np.arange(30))
    words = ("evaluate", tmp_path / "query.npz", tmp_path / "database.npz")
    shown = cli(*words)
    assert shown.code == 0
    assert "6 queries are in the database; a query's own item is kept: pass --exclude-self" in shown.text
    sides = (codes[:6], codes, labels[:6], labels)
    ids: dict[str, Any] = {"query_ids": np.arange(6), "database_ids": np.arange(30)}
    for flags, exclude in (((), False), (("--exclude-self",), True)):
        expected = evaluate(*sides, **ids, exclude_self=exclude).to_dict()
        assert cli(*words, "--json", *flags).json == json.loads(json.dumps(expected))
    assert "own item is left out" in cli(*words, "--exclude-self").text


def test_evaluate_arrays_made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(8)
    codes, labels = generator.random((30, 12)) < 0.5, generator.random((30, 4)) < 0.4
    np.save("query.npy", codes[:6].astype(np.uint8))
    np.save("database.npy", np.packbits(codes, axis=1))
    np.save("ql.npy", labels[:6])
    np.save("dl.npy", labels)
    words = ("evaluate", "query.npy", "database.npy", "--query-labels", "ql.npy", "--json")
    expected = evaluate(codes[:6], codes, labels[:6], labels).to_dict()
    found = cli(*words, "--database-labels", "dl.npy", "--bits", "12")
    assert found.json == json.loads(json.dumps(expected))
    assert "--bits" in refused(cli(*words, "--database-labels", "dl.npy"))
    assert "--query-labels and --database-labels" in refused(cli(*words, "--bits", "12"))


def test_queries_without_hits_are_counted(tmp_path: Path) -> None:
    labels = np.eye(3, dtype=bool)
    np.savez(tmp_path / "query.npz", codes=np.ones((2, 8)), labels=np.array([[1, 0, 0], [0, 0, 0]]))
    np.savez(tmp_path / "database.npz", codes=np.ones((2, 8)), labels=labels[1:])
    done = cli("evaluate", tmp_path / "query.npz", tmp_path / "database.npz")
    assert "2 queries without hits" in done.text
    assert "(2 have nothing relevant in the database, 1 have no label)" in done.text


def test_a_flag_that_stands_alone_refuses_others() -> None:
    done = cli("methods", "--json", "--markdown")
    assert (done.code, done.out) == (2, "")
    assert "--markdown stands alone: omit --json." in done.err


def test_warnings_are_not_cut_in_the_middle_of_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/photos/" + "long " * 60 + "name.jpg"
    console.warn([f"cannot read '{path}'"])
    assert capsys.readouterr().err == f"warning: cannot read '{path}'\n"
