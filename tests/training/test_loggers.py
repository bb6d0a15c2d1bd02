"""Loggers: every epoch once, also after a stop, wherever it goes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import make_folder
from centerhash.data import open_dataset
from centerhash.training.config import resolve
from centerhash.training.loggers import LOGGERS, as_table
from centerhash.training.run import train
from centerhash.training.run_folder import init_or_check_run
from tests.toys import (
    QUICK,
    Killed,
    cli,
    feature_dataset,
    refused,
    run_contents,
    run_log,
    toy_config,
    write_feature_folder,
)

BRIEF = {"epochs": 6, "batch_size": 16, "watch": 3}
EPOCHS = [1, 2, 3, 4, 5, 6]


def broken_and_resumed(folder: Path, run: Path, logger: str) -> None:
    """A run that is killed after its fourth epoch, with a checkpoint of the second, and goes on."""

    def kill(stage: str, done: int, total: int, note: str = "") -> None:
        if (stage, done) == ("training", 2):
            saved.append((run / "checkpoint.safetensors").read_bytes())
        if (stage, done) == ("training", 4):
            raise Killed

    saved: list[bytes] = []
    config = toy_config(**BRIEF)
    with pytest.raises(Killed):
        train(folder, config=config, out=run, logger=logger, checkpoint_seconds=0, progress=kill)
    (run / "checkpoint.safetensors").write_bytes(saved[0])
    train(folder, config=config, out=run, logger=logger, progress=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_feature_folder(tmp_path / "data")


@pytest.fixture
def expected(folder: Path, tmp_path: Path) -> list[dict[str, float]]:
    """The log of a run that nobody stopped and no logger saw."""
    train(folder, config=toy_config(**BRIEF), out=tmp_path / "plain", progress=False)
    return run_log(tmp_path / "plain")


@pytest.mark.slow
def test_the_table_has_a_line_per_epoch_also_after_a_stop(
    folder: Path, expected: list[dict[str, float]], tmp_path: Path
) -> None:
    broken_and_resumed(folder, tmp_path / "run", "csv")
    with (tmp_path / "run" / "log.csv").open(newline="") as stream:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(stream)]
    for row in rows:
        assert float(row.pop("seconds")) >= 0
    assert [{name: float(value) for name, value in row.items()} for row in rows] == expected
    assert run_contents(tmp_path / "run") == run_contents(tmp_path / "plain")  # a logger changes nothing


def test_a_figure_that_comes_late_has_a_column() -> None:
    assert as_table([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "validation_map": 1.0}]) == (
        "epoch,loss,validation_map\n1,0.5,\n2,0.25,1.0\n"
    )


def test_tensorboard_has_every_epoch_once_also_after_a_stop(
    folder: Path, expected: list[dict[str, float]], tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    broken_and_resumed(folder, tmp_path / "run", "tensorboard")
    shown = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    shown.Reload()
    for name in ("loss", "learning_rate", "validation_map"):
        points = {point.step: point.value for point in shown.Scalars(name)}
        wanted = {int(row["epoch"]): row[name] for row in expected if name in row}
        assert len(shown.Scalars(name)) == len(wanted)
        assert points == pytest.approx(wanted, rel=1e-6)


@pytest.mark.slow
def test_mlflow_has_every_epoch_once_also_after_a_stop(
    folder: Path, expected: list[dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a server would be a process to wait for
    broken_and_resumed(folder, tmp_path / "run", "mlflow")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("centerhash")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["method"] == toy_config().method
    for name in ("loss", "learning_rate", "validation_map"):
        points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        assert sorted(points) == [(row["epoch"], row[name]) for row in expected if name in row]


def wandb_history(path: Path) -> list[dict[str, Any]]:
    """The rows of an offline file: after 7 bytes, records in blocks of 32 KiB, each with its length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, whole, rows = path.read_bytes(), 7, b"", list[dict[str, Any]]()
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # full, or the last part
            record = Record.FromString(whole)
            items = {
                item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item
            }
            rows += [items] if items else []
            whole = b""
    return rows


@pytest.mark.slow
def test_wandb_is_given_every_epoch_once(
    folder: Path, expected: list[dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, each process writes a whole history of the same id, of which the last is the run."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    broken_and_resumed(folder, tmp_path / "run", "wandb")
    files = sorted(
        (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"), key=lambda p: p.stat().st_mtime
    )
    (name,) = {file.stem for file in files}
    assert name == "run-" + json.loads((tmp_path / "run" / "loggers.json").read_text())["wandb"]
    rows = wandb_history(files[-1])
    assert [row["_step"] for row in rows] == EPOCHS
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected])


class Rows:
    """A logger of one's own."""

    def __init__(self) -> None:
        self.rows = list[tuple[int | None, dict[str, float]]]()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, metrics))


@pytest.mark.slow
def test_an_object_of_ones_own_is_told_every_epoch_with_and_without_a_folder(tmp_path: Path) -> None:
    for out in (None, tmp_path / "run"):
        own = Rows()
        train(feature_dataset(), config=toy_config(**BRIEF), out=out, logger=own)
        assert [step for step, _ in own.rows] == EPOCHS
        assert {"loss", "learning_rate", "seconds", "validation_map"} <= set(own.rows[2][1])
        assert "epoch" not in own.rows[0][1]


@pytest.mark.slow
def test_starting_over_forgets_what_services_call_the_run(folder: Path, tmp_path: Path) -> None:
    run, config = tmp_path / "run", toy_config(**BRIEF)
    train(folder, config=config, out=run, logger="csv")
    (run / "loggers.json").write_text('{"wandb": "old"}')
    train(folder, config=config, out=run, overwrite=True)
    assert not {"log.csv", "loggers.json"} & {path.name for path in run.iterdir()}


@pytest.mark.parametrize("content", ["[]", "{"])
def test_damaged_ids_of_services_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    init_or_check_run(
        make_folder(tmp_path / "run"), open_dataset(folder), resolve(toy_config(**BRIEF)), overwrite=False
    )
    (tmp_path / "run" / "loggers.json").write_text(content)
    with pytest.raises(DataError, match=r"loggers\.json"):
        train(folder, config=toy_config(**BRIEF), out=tmp_path / "run", logger="mlflow")


def test_a_service_that_refuses_is_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://")
    with pytest.raises(ConfigError, match=r"^mlflow .*MLFLOW_TRACKING_URI"):
        train(folder, config=toy_config(**BRIEF), out=tmp_path / "run", logger="mlflow")


def test_what_cannot_log_is_refused_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="csvv"):
        train(folder, logger="csvv", out=tmp_path / "run")
    with pytest.raises(ConfigError, match="out="):
        train(folder, logger="csv")
    with pytest.raises(ConfigError, match="int"):
        train(folder, logger=3)  # type: ignore[arg-type]
    said = refused(
        cli("train", folder, "--method", "itq", "--bits", "16", "--logger", "csv", "--out", tmp_path / "run")
    )
    assert "--logger" in said
    assert not (tmp_path / "run").exists()


def test_the_command_line_takes_logger_and_watch(folder: Path, tmp_path: Path) -> None:
    done = cli("train", folder, *QUICK, "--logger", "csv", "--watch", "1", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    lines = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("epoch,loss,")
    assert lines[0].endswith("validation_map")
    assert list(LOGGERS) == ["csv", "tensorboard", "wandb", "mlflow"]
