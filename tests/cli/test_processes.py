from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from centerhash.encoding.code_files import read_run_codes
from centerhash.evaluation import evaluate
from tests.shapes import write_shapes
from tests.toys import (
    QUICK,
    cli,
    cli_process,
    fresh_process,
    noise_image,
    refused,
    started,
    wait_for_process,
    write_feature_folder,
)


@pytest.mark.slow
def test_train_evaluate_explain(tmp_path: Path) -> None:
    """From scenes to codes, a score and an explanation; a second training reuses the features."""
    scenes, run, cache = tmp_path / "scenes", tmp_path / "run", str(tmp_path / "cache")
    write_shapes(scenes, 30, size=64)
    words = ["train", scenes, "--method", "csq", "--crop", "64", *QUICK]
    done = fresh_process(*words, "--out", run, CENTERHASH_CACHE=cache)
    assert done.code == 0, done.err
    assert cli(*words, "--out", tmp_path / "second", "--cache", cache).code == 0
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "second/model.safetensors").read_bytes()

    scored = cli_process("evaluate", run, "--json")
    assert scored.code == 0, scored.err
    query, database = read_run_codes(run)
    expected = evaluate(
        query.packed, database.packed, query.labels, database.labels, bits=16,
        query_ids=query.ids, database_ids=database.ids,
    )  # fmt: skip
    assert scored.json == json.loads(json.dumps(expected.to_dict()))

    image = scenes / "images" / "000000.jpg"
    done = cli("encode", run, image, "--out", tmp_path / "codes.npz", "--cache", cache)
    assert done.code == 0, done.err
    explained = cli_process("explain", run, image, "--json")
    assert explained.code == 0, explained.err
    assert sum(row["weight"] for row in explained.json[0]["labels"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["train", "gone", "--out", "run"], "cannot open the folder 'gone': No such file or directory"),
        (["methods", "icss"], "Did you mean 'ics'?"),
        (["train", "gone"], "--out"),
        (["evaluate", "gone"], "'gone' holds no finished run"),
    ],
)
def test_rejected_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reason in refused(cli_process(*words))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_interrupt(tmp_path: Path) -> None:
    folder, run = write_feature_folder(tmp_path / "data", count=600), tmp_path / "run"
    words = ["train", folder, "--out", run, "--epochs", "2000", "--bits", "16", "--hidden", "16"]
    words += ["--device", "cpu", "--checkpoint-seconds", "0"]
    with started(*words) as process:
        wait_for_process(process, (run / "log.jsonl").exists, "an epoch is over")
        assert process.signal(signal.SIGINT) == 130
        assert "interrupted: the same command resumes where it stopped" in process.err
        assert "Traceback" not in process.err
    assert (run / "checkpoint.safetensors").exists()
    # an interrupt just between making a file and guarding it leaves one, which the next start sweeps up
    assert len(list(run.glob(".*.part"))) <= 1


@pytest.mark.slow
def test_ascii_terminal(image_run: Path, tmp_path: Path) -> None:
    noise_image().save(image := tmp_path / "Müll█.jpg")
    done = fresh_process("explain", image_run, image, PYTHONIOENCODING="ascii")
    assert done.code == 0, done.err
    assert done.out.isascii()
    assert "Traceback" not in done.err
