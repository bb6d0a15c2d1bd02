from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from centerhash import __version__
from centerhash.cli import app
from centerhash.codefiles import evaluate_codes, read_evaluation_codes
from centerhash.codes import hamming, unpack
from centerhash.data import open_dataset
from centerhash.evaluation import evaluate
from centerhash.model import HashModel
from centerhash.runs import read_codes, read_config
from tests.toys import (
    CLASSES,
    Finished,
    cli,
    cli_process,
    command,
    noise_image,
    separable,
    started,
    write_feature_folder,
)

COMMANDS = [item.name or getattr(item.callback, "__name__", "") for item in app.registered_commands]
QUICK = ("--bits", "16", "--epochs", "2", "--batch-size", "32", "--hidden", "16", "--device", "cpu")


def refused(done: Finished) -> str:
    """The words of a command that was refused as it should be."""
    assert done.code == 2, done
    assert "Traceback" not in done.out + done.err
    assert not done.out.strip()
    return done.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_feature_folder(tmp_path_factory.mktemp("cli") / "data", count=60)


# Help


def test_all_commands_are_there() -> None:
    wanted = {"demo", "scenes", "train", "evaluate", "encode", "explain", "methods", "options"}
    assert wanted <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help(name: str, flag: str) -> None:
    done = cli(name, flag)
    assert done.code == 0
    assert f"Usage: centerhash {name}" in done.text


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"methods"}))
def test_the_help_of_every_command_that_takes_something_shows_an_example(name: str) -> None:
    assert re.search(rf"Examples?: .*centerhash {name} \w", cli(name, "--help").text)


def test_the_help_names_every_command() -> None:
    for done in (cli("--help"), cli()):
        assert all(name in done.text for name in COMMANDS)


def test_the_version() -> None:
    assert cli("--version").out == f"centerhash {__version__}\n"


def test_help_says_where_the_cache_is() -> None:
    assert "$CENTERHASH_CACHE" in cli("train", "--help").text


@pytest.mark.parametrize("words", [("trian",), ("train",), ("train", "x", "--out", "y", "--bitz", "3")])
def test_a_misspelt_command_line_is_refused(words: tuple[str, ...]) -> None:
    refused(cli(*words))


def test_a_misspelt_option_names_the_nearest() -> None:
    assert "--bits" in refused(cli("train", "x", "--out", "y", "--bitz", "3"))


# Train


def test_train_says_what_to_do_next(folder: Path, tmp_path: Path) -> None:
    done = cli("train", folder, "--out", tmp_path / "run", "--method", "ics", *QUICK)
    assert done.code == 0
    assert f"centerhash evaluate {tmp_path / 'run'}" in done.out
    assert read_config(tmp_path / "run")["config"]["method"] == "ics"


def test_every_setting_reaches_the_run(folder: Path, tmp_path: Path) -> None:
    words = ["--method", "ics", "--bits", "24", "--seed", "3", "--epochs", "1", "--batch-size", "20"]
    words += ["--learning-rate", "0.01", "--weight-decay", "0.5", "--schedule", "steps", "--hidden", "16,8"]
    words += ["--centers", "random", "-o", "lambda=0.25", "--option", "form=per_center", "--device", "cpu"]
    done = cli("train", folder, "--out", tmp_path / "run", *words)
    assert done.code == 0, done.err
    found = read_config(tmp_path / "run")["config"]
    assert (found["bits"], found["seed"], found["epochs"], found["batch_size"]) == (24, 3, 1, 20)
    assert (found["learning_rate"], found["weight_decay"], found["schedule"]) == (0.01, 0.5, "steps")
    assert (found["head"]["hidden"], found["centers"]) == ([16, 8], "random")
    assert (found["options"]["lambda"], found["options"]["form"]) == (0.25, "per_center")


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
        (["--method", "isc"], ["unknown method 'isc'. Did you mean 'ics'?", "centerhash methods"]),
        (["--method", "ics", "-o", "lamda=1"], ["unknown option 'lamda'", "Did you mean 'lambda'?"]),
        (["--method", "ics", "-o", "lambda=much"], ["option 'lambda' of method 'ics' cannot be 'much'"]),
        (["--method", "ics", "-o", "form=jont"], ["'joint' or 'per_center'"]),
        (["-o", "lambda"], ["--option takes NAME=VALUE, got 'lambda'"]),
        (["-o", "=3"], ["--option takes NAME=VALUE, got '=3'"]),
        (["--bits", "7"], ["option 'bits' of training cannot be 7", "greater than or equal to 8"]),
        (["--bits", "4000"], ["option 'bits' of training cannot be 4000", "less than or equal to 1024"]),
        (["--hidden", "wide"], ["--hidden takes widths such as 1024", "got 'wide'"]),
        (["--hidden", "16,0"], ["widths of at least 1", "got '16,0'"]),
        (["--schedule", "cosinus"], ["option 'schedule' of training cannot be 'cosinus'"]),
        (["--centers", "hadamart"], ["option 'centers' of training cannot be 'hadamart'"]),
        (["--epochs", "0"], ["option 'epochs' of training cannot be 0"]),
        (["--batch-size", "1"], ["option 'batch_size' of training cannot be 1"]),
        (["--learning-rate", "-1"], ["option 'learning_rate' of training cannot be -1"]),
        (["--learning-rate", "inf"], ["option 'learning_rate' of training cannot be inf"]),
        (["--seed", "-1"], ["option 'seed' of training cannot be -1"]),
        (["--device", "gpu"], ["device 'gpu' cannot be used", "Try --device cpu or auto"]),
    ],
)
def test_what_train_refuses(folder: Path, tmp_path: Path, words: list[str], reasons: list[str]) -> None:
    text = refused(cli("train", folder, "--out", tmp_path / "run", *words))
    assert text.startswith("error: ")
    assert all(reason in text for reason in reasons)


def test_a_missing_data_folder_is_named(tmp_path: Path) -> None:
    text = refused(cli("train", tmp_path / "gone", "--out", tmp_path / "run"))
    assert "no such folder" in text
    assert "labels.csv" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_named(tmp_path: Path, value: float) -> None:
    folder = write_feature_folder(tmp_path / "data", count=30)
    features = np.load(folder / "features.npy")
    features[11, 4] = value
    np.save(folder / "features.npy", features)
    text = refused(cli("train", folder, "--out", tmp_path / "run"))
    assert f"holds {value} in row 11, column 4" in text


def test_an_output_below_a_file_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    text = refused(cli("train", folder, "--out", tmp_path / "file" / "run", *QUICK))
    assert "a part of the path is a file" in text


def test_another_run_in_the_way_is_named_and_overwritten_on_demand(folder: Path, tmp_path: Path) -> None:
    words = ("train", folder, "--out", tmp_path / "run", *QUICK)
    assert cli(*words).code == 0
    assert "seed was 0, now 1" in refused(cli(*words, "--seed", "1"))
    assert cli(*words, "--seed", "1", "--overwrite").code == 0
    assert read_config(tmp_path / "run")["config"]["seed"] == 1


# Evaluate


def test_evaluate_prints_a_table_with_the_chance_level(feature_run: Path) -> None:
    done = cli("evaluate", feature_run, "-k", "50")
    assert done.code == 0
    found = evaluate_codes(read_evaluation_codes([feature_run]), k=50)
    row = next(line for line in done.out.splitlines() if "mAP@50, peers" in line)
    assert f"{found.map_peers:.4f}" in row
    assert f"{found.chance_peers:.4f}" in row
    assert f"{found.ndcg:.4f}" in done.out
    assert "16 queries, 144 database items, 16 bits" in done.text


def test_evaluate_as_json_equals_python(feature_run: Path) -> None:
    done = cli("evaluate", feature_run, "--top", "30", "--seed", "4", "--json")
    assert done.code == 0
    expected = evaluate_codes(read_evaluation_codes([feature_run]), k=30, seed=4).to_dict()
    assert done.json == json.loads(json.dumps(expected))
    assert done.json["k"] == 30


def test_evaluate_shows_the_curve_by_radius(feature_run: Path) -> None:
    done = cli("evaluate", feature_run, "--curve")
    assert "by Hamming radius" in done.out
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


def test_queries_without_hits_are_counted(tmp_path: Path) -> None:
    labels = np.eye(3, dtype=bool)
    np.savez(tmp_path / "query.npz", codes=np.ones((2, 8)), labels=np.array([[1, 0, 0], [0, 0, 0]]))
    np.savez(tmp_path / "database.npz", codes=np.ones((2, 8)), labels=labels[1:])
    done = cli("evaluate", tmp_path / "query.npz", tmp_path / "database.npz")
    assert "2 queries without hits" in done.text
    assert "(2 have nothing relevant in the database, 1 have no label)" in done.text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["gone"], "no such run or code file: "),
        (["gone.npz", "gone.npz"], "no such file: "),
        (["."], "holds no finished run"),
        ([".", ".", "."], "got 3"),
    ],
)
def test_what_evaluate_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reason in refused(cli("evaluate", *words))


def test_exclude_self_without_ids_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "codes.npz", codes=np.ones((2, 8)), labels=np.ones((2, 3), bool))
    words = ("evaluate", tmp_path / "codes.npz", tmp_path / "codes.npz", "--exclude-self")
    assert "exclude_self needs the ids" in refused(cli(*words))


# Encode and explain


def test_encode_a_features_file(feature_run: Path, tmp_path: Path) -> None:
    features, _ = separable(9, seed=2)
    np.save(tmp_path / "features.npy", features)
    done = cli("encode", feature_run, tmp_path / "features.npy", "--out", tmp_path / "codes.npz")
    assert done.code == 0, done.err
    assert "9 codes of 16 bits" in done.out
    with np.load(tmp_path / "codes.npz") as arrays:
        expected = HashModel.load(feature_run).encode_features(features)
        assert np.array_equal(unpack(arrays["packed"], 16), expected)


def test_encode_and_evaluate_a_data_set(feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    assert cli("encode", feature_run, feature_folder, "--out", tmp_path / "codes.npz").code == 0
    words = ("evaluate", tmp_path / "codes.npz", tmp_path / "codes.npz", "--exclude-self", "--json")
    found = cli(*words).json
    assert found["queries_in_database"] == found["queries"] == 160


@pytest.fixture(scope="module")
def odd_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of every unusual kind that must work."""
    place, base = tmp_path_factory.mktemp("odd"), noise_image()
    base.convert("CMYK").save(place / "cmyk.jpg")
    base.convert("L").save(place / "grey.jpg")
    base.convert("P").save(place / "palette.png")
    base.convert("RGBA").save(place / "alpha.png")
    base.convert("1").save(place / "bits.png")
    Image.fromarray(np.asarray(base.convert("L")).astype(np.uint16) * 257).save(place / "deep.png")
    return place


def test_unusual_pictures_are_encoded(image_run: Path, odd_pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "codes.npz"
    for inputs in ([odd_pictures], [odd_pictures / "*.*"], sorted(odd_pictures.iterdir())):
        words = ("encode", image_run, *inputs, "--out", out, "--cache", tmp_path / "cache", "--device", "cpu")
        done = cli(*words)
        assert done.code == 0, done.err
        with np.load(out) as arrays:
            assert [Path(name).name for name in arrays["names"]] == sorted(
                p.name for p in odd_pictures.iterdir()
            )
            assert arrays["packed"].shape == (6, 4)


def test_broken_pictures_are_listed(image_run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("I am no picture.")
    noise_image(300).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:1500])
    noise_image().save(tmp_path / "good.png")
    words = ("encode", image_run, tmp_path, "--out", tmp_path / "codes.npz", "--cache", tmp_path / "cache")
    text = refused(cli(*words, "--device", "cpu"))
    assert "3 of 4 images cannot be read" in text
    assert all(name in text for name in ("empty.jpg", "text.jpg", "cut.jpg"))
    assert "good.png" not in text
    assert "--skip-broken" in text
    assert not (tmp_path / "codes.npz").exists()
    done = cli(*words, "--device", "cpu", "--skip-broken")
    assert done.code == 0
    assert "1 codes of 32 bits" in done.out
    text = refused(cli("explain", image_run, tmp_path / "cut.jpg", "--device", "cpu"))
    assert "cut.jpg" in text
    assert "truncated" in text


@pytest.mark.parametrize("name", ["encode", "explain"])
def test_images_or_models_that_are_not_there_are_named(image_run: Path, tmp_path: Path, name: str) -> None:
    out = ("--out", tmp_path / "codes.npz") if name == "encode" else ()
    assert "no such file or folder" in refused(cli(name, image_run, tmp_path / "gone.jpg", *out))
    assert "holds no finished model" in refused(cli(name, tmp_path / "gone", tmp_path / "gone.jpg", *out))


def test_a_model_of_features_cannot_take_images(feature_run: Path, odd_pictures: Path) -> None:
    text = refused(cli("explain", feature_run, odd_pictures / "grey.jpg"))
    assert "trained on precomputed features and has no backbone" in text


def test_explain_an_image(image_run: Path, scene_folder: Path) -> None:
    image = scene_folder / "images" / "000001.jpg"
    done = cli("explain", image_run, image, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    (found,) = done.json
    assert found["image"] == str(image)
    model = HashModel.load(image_run)
    features = model.features_of([image], device="cpu")
    codes = model.encode_features(features)
    distances = hamming(codes, model.centers.numpy().astype(np.int8))[0]
    weights = [row["weight"] for row in found["labels"]]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1, abs=1e-5)
    for row in found["labels"]:
        assert row["distance"] == distances[model.classes.index(row["label"])]
        assert -1 <= row["similarity"] <= 1

    shown = cli("explain", image_run, image, "--device", "cpu")
    assert shown.code == 0
    assert image.name in shown.text
    for row in found["labels"]:
        line = next(line for line in shown.out.splitlines() if f" {row['label']} " in line)
        assert f"{row['similarity']:+.2f}" in line
        assert f" {row['distance']} " in line


def test_explain_shows_as_many_centers_as_asked_for(image_run: Path, scene_folder: Path) -> None:
    image = scene_folder / "images" / "000002.jpg"
    total = len(open_dataset(scene_folder).classes)
    for top in (total, total + 50):
        done = cli("explain", image_run, image, "--device", "cpu", "--json", "--top", str(top))
        assert len(done.json[0]["labels"]) == total


def test_names_with_brackets_are_printed_as_they_are(image_run: Path, tmp_path: Path) -> None:
    """Square brackets and words between colons mean something to the library that prints tables."""
    for name in ("photo[b].png", "a[ /red].png", "my:dog:.png"):
        noise_image().save(tmp_path / name)
        shown = cli("explain", image_run, tmp_path / name, "--device", "cpu")
        assert shown.code == 0, shown.err
        assert name in shown.out
    folder = write_feature_folder(tmp_path / "data[red]", count=40)
    done = cli("train", folder, "--out", tmp_path / "run[red]", *QUICK)
    assert done.code == 0
    assert "run[red]" in done.out


def test_scenes_are_written(tmp_path: Path) -> None:
    done = cli("scenes", tmp_path / "scenes", "--count", "3", "--size", "48", "--seed", "2")
    assert done.code == 0
    assert "centerhash train" in done.out
    assert open_dataset(tmp_path / "scenes").size == 3
    text = refused(cli("scenes", tmp_path / "scenes", "--count", "4", "--size", "48", "--seed", "2"))
    assert "other settings" in text


# Real processes


@pytest.mark.slow
def test_the_whole_line_as_real_processes(tmp_path: Path) -> None:
    """From scenes to codes, a score and an explanation; a second training reuses the features."""
    scenes, run, cache = tmp_path / "scenes", tmp_path / "run", str(tmp_path / "cache")
    assert cli_process("scenes", scenes, "--count", "30", "--size", "64").code == 0
    for out in (run, tmp_path / "second"):
        done = cli_process("train", scenes, "--out", out, "--method", "csq", *QUICK, CENTERHASH_CACHE=cache)
        assert done.code == 0, done.err
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "second/model.safetensors").read_bytes()

    scored = cli_process("evaluate", run, "--json")
    assert scored.code == 0, scored.err
    codes = read_codes(run)
    expected = evaluate(
        codes.query, codes.database, codes.query_labels, codes.database_labels, bits=16,
        query_ids=codes.query_rows, database_ids=codes.database_rows,
    )  # fmt: skip
    assert scored.json == json.loads(json.dumps(expected.to_dict()))

    image = scenes / "images" / "000000.jpg"
    done = cli_process("encode", run, image, "--out", tmp_path / "codes.npz", CENTERHASH_CACHE=cache)
    assert done.code == 0, done.err
    explained = cli_process("explain", run, image, "--json")
    assert explained.code == 0, explained.err
    assert sum(row["weight"] for row in explained.json[0]["labels"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["train", "gone", "--out", "run"], "no such folder: 'gone'"),
        (["options", "isc"], "Did you mean 'ics'?"),
        (["train", "gone"], "--out"),
        (["evaluate", "gone"], "no such run or code file"),
    ],
)
def test_refusals_of_a_real_process(tmp_path: Path, words: list[str], reason: str) -> None:
    done = subprocess.run(command(words), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_help_and_methods_of_a_real_process() -> None:
    assert "centerhash train" in cli_process("train", "--help").out
    assert {row["name"] for row in cli_process("methods", "--json").json} >= {"csq", "ewcs", "ics"}
    assert "lambda" in cli_process("options", "ics").out


@pytest.mark.slow
def test_help_does_not_wait_for_torch() -> None:
    script = (
        "import sys; from tests.toys import cli; cli('train', '--help'); sys.exit('torch' in sys.modules)"
    )
    script = script.replace("from tests.toys import cli; cli('train', '--help')", _HELP)
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


_HELP = "sys.argv[1:] = ['train', '--help']; from centerhash.cli import app; app(standalone_mode=False)"


@pytest.mark.slow
def test_an_interrupt_ends_with_a_word_and_the_run_goes_on(tmp_path: Path) -> None:
    folder, run = write_feature_folder(tmp_path / "data", count=600), tmp_path / "run"
    words = ["train", folder, "--out", run, "--epochs", "2000", "--bits", "16", "--hidden", "16"]
    words += ["--device", "cpu", "--checkpoint-seconds", "0"]
    with started(*command(words)) as process:
        limit = time.monotonic() + 60
        while not (run / "log.jsonl").exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted: the same command goes on where it stopped" in err
    assert b"Traceback" not in err
    assert (run / "checkpoint.safetensors").exists()
    assert not list(run.glob(".*.part"))


def test_classes_of_the_toy_are_named(feature_run: Path) -> None:
    assert HashModel.load(feature_run).classes == CLASSES
