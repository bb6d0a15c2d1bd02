"""Loggers: any object with log_metrics receives every epoch once, from the first."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from centerhash.core.errors import ConfigError
from centerhash.training.run import train
from tests.toys import Killed, feature_dataset, run_contents, run_log, toy_config

BRIEF = {"epochs": 4, "batch_size": 16, "eval_interval": 2}


class Rows:
    """A custom logger."""

    def __init__(self) -> None:
        self.rows = list[dict[str, float]]()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append({"epoch": float(step or 0), **metrics})

    def without_time(self) -> list[dict[str, float]]:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in self.rows]


def test_every_epoch_is_logged_once(tmp_path: Path) -> None:
    in_memory, in_folder = Rows(), Rows()
    train(feature_dataset(), config=toy_config(**BRIEF), logger=in_memory)
    train(feature_dataset(), config=toy_config(**BRIEF), out=tmp_path / "run", logger=in_folder)
    train(feature_dataset(), config=toy_config(**BRIEF), out=tmp_path / "plain")
    assert in_memory.without_time() == in_folder.without_time() == run_log(tmp_path / "run")
    assert {"loss", "learning_rate", "validation_map"} <= in_folder.rows[1].keys()
    assert run_contents(tmp_path / "run") == run_contents(tmp_path / "plain")


def test_resumed_run_logs_all_epochs(tmp_path: Path) -> None:
    def kill(stage: str, done: int, total: int, note: str = "") -> None:
        if (stage, done) == ("training", 3):
            raise Killed

    config, logger = toy_config(**BRIEF), Rows()
    with pytest.raises(Killed):
        train(feature_dataset(), config=config, out=tmp_path, checkpoint_seconds=0, progress=kill)
    train(feature_dataset(), config=config, out=tmp_path, logger=logger)
    assert logger.without_time() == run_log(tmp_path)


def test_lightning_logger(tmp_path: Path) -> None:
    from lightning_fabric.loggers import CSVLogger

    logger = CSVLogger(tmp_path, name="log", version="")
    train(feature_dataset(), config=toy_config(epochs=3, batch_size=16), out=tmp_path / "run", logger=logger)
    logger.save()
    with next(tmp_path.glob("log/**/metrics.csv")).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in run_log(tmp_path / "run")]


@pytest.mark.parametrize(("logger", "method"), [(3, "ics"), ("csv", "ics"), (Rows(), "itq")])
def test_rejected_loggers(tmp_path: Path, logger: object, method: str) -> None:
    with pytest.raises(ConfigError, match="log"):
        train(feature_dataset(), method=method, bits=16, out=tmp_path / "run", logger=logger)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
