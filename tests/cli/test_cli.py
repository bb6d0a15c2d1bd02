from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash import __version__
from centerhash.cli import app, console
from centerhash.evaluation import evaluate
from centerhash.methods.registry import METHODS
from centerhash.training.run_folder import read_config
from tests.toys import QUICK, cli, evaluate_files, refused, write_feature_folder

COMMANDS = [item.name or getattr(item.callback, "__name__", "") for item in app.registered_commands]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_feature_folder(tmp_path_factory.mktemp("cli") / "data", count=60)


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_with_example(name: str) -> None:
    done = cli(name, "--help")
    assert done.code == 0
    assert re.match(rf"Usage: .*centerhash {name} \[OPTIONS\]", done.text)
    assert re.search(rf"Examples?: .*centerhash {name} \S", done.text)


def test_help_lists_commands() -> None:
    for done in (cli("--help"), cli()):
        assert all(name in done.text for name in COMMANDS)


def test_the_version() -> None:
    assert cli("--version").out == f"centerhash {__version__}\n"


def test_misspelled_option() -> None:
    assert "--bits" in refused(cli("train", "x", "--out", "y", "--bitz", "3"))


# Train


def test_settings_reach_the_run(folder: Path, tmp_path: Path) -> None:
    words = ["--method", "ics", "--bits", "24", "--seed", "3", "--epochs", "1", "--batch-size", "20"]
    words += ["--learning-rate", "0.01", "--weight-decay", "0.5", "--schedule", "steps", "--hidden", "16,8"]
    words += ["--no-rotate", "--no-evidence"]
    words += ["--centers", "random", "-o", "lambda=0.25", "--option", "solver=pgd", "--device", "cpu"]
    done = cli("train", folder, "--out", tmp_path / "run", *words)
    assert done.code == 0, done.err
    assert f"centerhash evaluate {tmp_path / 'run'}" in done.out
    config = read_config(tmp_path / "run")["config"]
    assert (config["bits"], config["seed"], config["epochs"], config["batch_size"]) == (24, 3, 1, 20)
    assert (config["learning_rate"], config["weight_decay"], config["schedule"]) == (0.01, 0.5, "steps")
    assert (config["head"]["hidden"], config["centers"]) == ([16, 8], "random")
    assert (config["head"]["rotate"], config["head"]["evidence"]) == (False, False)
    assert (config["options"]["lambda"], config["options"]["solver"]) == (0.25, "pgd")


def test_preset_and_options(folder: Path, tmp_path: Path) -> None:
    text = 'method = "ics"\nbits = 24\n[options]\nlambda = 0.3\n[head]\ndropout = 0.25\n'
    (tmp_path / "own.toml").write_text(text)
    words = ["--preset", tmp_path / "own.toml", "--epochs", "1", "--hidden", "16", "-o", "gamma=0.5"]
    assert cli("train", folder, "--out", tmp_path / "run", *words, "--device", "cpu").code == 0
    config = read_config(tmp_path / "run")["config"]
    assert (config["method"], config["bits"]) == ("ics", 24)
    assert (config["options"]["lambda"], config["options"]["gamma"]) == (0.3, 0.5)
    assert (config["head"]["dropout"], config["head"]["hidden"]) == (0.25, [16])


def test_no_hidden_layer(folder: Path, tmp_path: Path) -> None:
    words = [*QUICK[:-4], "--hidden", "0", "--device", "cpu"]
    assert cli("train", folder, "--out", tmp_path / "run", *words).code == 0
    assert read_config(tmp_path / "run")["config"]["head"]["hidden"] == []


def test_warnings_on_stderr(tmp_path: Path) -> None:
    folder = write_feature_folder(tmp_path / "data", count=60)
    np.save(folder / "query.npy", np.arange(10))
    np.save(folder / "train.npy", np.arange(5, 50))
    done = cli("train", folder, "--out", tmp_path / "run", *QUICK)
    assert done.code == 0
    assert "warning: leak: 5 queries are also in the training split" in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (["--method", "icz"], ["unknown method 'icz'. Did you mean 'ics'?"]),
        (["-o", "lambda"], ["NAME=VALUE, got 'lambda'"]),
        (["-o", "=3"], ["NAME=VALUE, got '=3'"]),
        (["--hidden", "wide"], ["--hidden", "got 'wide'"]),
        (["--hidden", "16,0"], ["'head.hidden.1'", "cannot be 0"]),
        (["--device", "gpu"], ["device 'gpu' cannot be used", "Try --device cpu or auto"]),
    ],
)
def test_rejected_training(folder: Path, tmp_path: Path, words: list[str], reasons: list[str]) -> None:
    text = refused(cli("train", folder, "--out", tmp_path / "run", *words))
    assert text.startswith("error: ")
    assert all(reason in text for reason in reasons)


def test_overwrite(folder: Path, tmp_path: Path) -> None:
    words = ("train", folder, "--out", tmp_path / "run", *QUICK)
    assert cli(*words).code == 0
    assert "seed was 0, now 1" in refused(cli(*words, "--seed", "1"))
    assert cli(*words, "--seed", "1", "--overwrite").code == 0
    assert read_config(tmp_path / "run")["config"]["seed"] == 1


# Evaluate


def test_evaluate_json(feature_run: Path) -> None:
    done = cli("evaluate", feature_run, "--top", "30", "--seed", "4", "--json")
    assert done.code == 0
    expected = evaluate_files([feature_run], k=30, seed=4).to_dict()
    assert done.json == json.loads(json.dumps(expected))
    assert done.json["k"] == 30


def test_evaluate_code_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(8)
    codes = np.where(generator.random((30, 12)) < 0.5, -1, 1)
    labels = generator.random((30, 4)) < 0.4
    np.savez(tmp_path / "query.npz", codes=codes[:6], labels=labels[:6], ids=np.arange(6))
    np.savez(tmp_path / "database.npz", codes=codes, labels=labels, ids=np.arange(30))
    words = ("evaluate", tmp_path / "query.npz", tmp_path / "database.npz")
    done = cli(*words)
    assert done.code == 0
    assert "6 queries are in the database; a query's own item is kept: pass --exclude-self" in done.text
    sides = (codes[:6], codes, labels[:6], labels)
    ids: dict[str, Any] = {"query_ids": np.arange(6), "database_ids": np.arange(30)}
    for flags, exclude in (((), False), (("--exclude-self",), True)):
        expected = evaluate(*sides, **ids, exclude_self=exclude).to_dict()
        assert cli(*words, "--json", *flags).json == json.loads(json.dumps(expected))
    assert "own item is left out" in cli(*words, "--exclude-self").text


def test_evaluate_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(8)
    codes, labels = generator.random((30, 12)) < 0.5, generator.random((30, 4)) < 0.4
    np.save("query.npy", codes[:6].astype(np.uint8))
    np.save("database.npy", np.packbits(codes, axis=1))
    np.save("ql.npy", labels[:6])
    np.save("dl.npy", labels)
    words = ("evaluate", "query.npy", "database.npy", "--query-labels", "ql.npy", "--json")
    expected = evaluate(codes[:6], codes, labels[:6], labels).to_dict()
    done = cli(*words, "--database-labels", "dl.npy", "--bits", "12")
    assert done.json == json.loads(json.dumps(expected))
    assert "--bits" in refused(cli(*words, "--database-labels", "dl.npy"))
    assert "--query-labels and --database-labels" in refused(cli(*words, "--bits", "12"))


def test_notes_of_evaluate(tmp_path: Path) -> None:
    labels = np.eye(3, dtype=bool)
    np.savez(tmp_path / "query.npz", codes=np.ones((2, 8)), labels=np.array([[1, 0, 0], [0, 0, 0]]))
    np.savez(tmp_path / "database.npz", codes=np.ones((2, 8)), labels=labels[1:])
    done = cli("evaluate", tmp_path / "query.npz", tmp_path / "database.npz")
    assert "2 queries without hits" in done.text
    assert "(2 have nothing relevant in the database, 1 have no label)" in done.text


# Methods


def test_list_methods_and_options() -> None:
    assert [row["name"] for row in cli("methods", "--json").json] == list(METHODS)
    options = {row["name"]: row for row in cli("methods", "ics", "--bits", "16", "--json").json}
    assert options["lambda"]["default"] == METHODS["ics"].options({}, 16)["lambda"]
    assert all(row["description"] for row in options.values())
    assert "gamma" in cli("methods", "csq").text
    assert "Did you mean 'ics'?" in refused(cli("methods", "icss"))


def test_long_lines_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/photos/" + "long " * 60 + "name.jpg"
    console.warn([f"cannot read '{path}'"])
    assert capsys.readouterr().err == f"warning: cannot read '{path}'\n"
