"""Where the figures of every epoch go beside log.jsonl: a table, TensorBoard, Weights & Biases, MLflow.

The log of a training holds all its epochs and is part of the checkpoint. A logger is told all of them from the first,
also after a stop, so what it shows is that of an unbroken run: files are written again, services are asked what
they have.
"""

from __future__ import annotations

import csv
import io
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

from centerhash.core.errors import ConfigError, DataError, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import explain_write_errors, make_folder, parse_json, write_json, write_text
from centerhash.training.checkpoints import EpochRow
from centerhash.training.config import TrainConfig
from centerhash.training.session import OnEpoch, no_log

TABLE, IDS = "log.csv", "loggers.json"  # in the folder of a run
PROJECT = "centerhash"


@runtime_checkable
class Logger(Protocol):
    """What takes the figures of an epoch: any logger of Lightning, or an object of one's own with this method."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Take the figures of epoch `step`."""


def check_logger(logger: str | Logger | None, *, has_folder: bool) -> None:
    """Refuse an unknown logger, a library that is missing, and a file without a folder, before any work is done."""
    if not isinstance(logger, str):
        if logger is not None and not isinstance(logger, Logger):
            raise ConfigError(
                f"a logger needs log_metrics(metrics, step), which {type(logger).__name__} has not: give such an "
                f"object, or one of {', '.join(LOGGERS)}."
            )
        return
    if logger not in LOGGERS:
        raise unknown_name("logger", logger, LOGGERS)
    if logger in _LIBRARIES:
        require(_LIBRARIES[logger])
    if not has_folder and logger in ("csv", "tensorboard"):
        raise ConfigError(f"the logger '{logger}' writes into the folder of the run: name one (`out=`).")


@contextmanager
def opened(logger: str | Logger | None, folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """What is to be called after every epoch, for the block that trains."""
    if logger is None:
        yield no_log
    elif isinstance(logger, str):
        with LOGGERS[logger](folder, config) as told:
            yield told
    else:
        yield _Feed(logger.log_metrics)


class _Feed:
    """Gives every epoch of the log once, from the first."""

    def __init__(self, log_metrics: Callable[[dict[str, float], int], None]) -> None:
        self._log_metrics, self._told = log_metrics, 0

    def __call__(self, log: list[EpochRow]) -> None:
        for row in log[self._told :]:
            self._log_metrics(_figures(row), int(row["epoch"]))
        self._told = len(log)


def _figures(row: EpochRow) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "epoch"}


def as_table(log: list[EpochRow]) -> str:
    """The log as csv; a figure that some epochs do not have is empty there."""
    columns = list(dict.fromkeys(name for row in log for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(log)
    return text.getvalue()


Opened: TypeAlias = Callable[[Path | None, TrainConfig], Any]  # a context manager of OnEpoch


@contextmanager
def _csv(folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """log.csv, written again after every epoch: Lightning's own deletes the rows of before a stop."""
    assert folder is not None
    yield lambda log: write_text(folder / TABLE, as_table(log))


@contextmanager
def _tensorboard(folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """Event files in the run's folder `tensorboard`, by Fabric's logger; those of before a stop are replaced."""
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    assert folder is not None
    place = make_folder(folder / "tensorboard")
    with explain_write_errors(place):
        for file in place.glob("events.out.tfevents.*"):
            file.unlink()
    logger = TensorBoardLogger(folder, name=place.name, version="")
    feed = _Feed(logger.log_metrics)

    def tell(log: list[EpochRow]) -> None:
        feed(log)
        logger.save()  # who watches sees this epoch now

    try:
        yield tell
    finally:
        logger.finalize("done")


@contextmanager
def _wandb(folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """A run of Weights & Biases; one that goes on has the same id there, and is given what it has not."""
    wandb = require("wandb")
    advice = "Log in by `wandb login`, or set WANDB_MODE=offline"
    with _told_by(wandb.errors.Error, "wandb", advice):
        run = wandb.init(
            project=PROJECT,
            name=None if folder is None else folder.name,
            id=_kept_id(folder, "wandb", lambda: uuid.uuid4().hex[:12]),
            resume="allow",
            dir=None if folder is None else str(folder),
            config=config.model_dump(mode="json"),
        )
        first = run.step  # of a run that goes on, the first that it has not

        def tell(figures: dict[str, float], epoch: int) -> None:
            if epoch >= first:
                run.log(figures, step=epoch)

        try:
            yield _Feed(tell)
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()


@contextmanager
def _mlflow(folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """A run of MLflow; one that goes on has the same id there, and is given what it has not."""
    mlflow = require("mlflow")
    entities = require("mlflow.entities")
    advice = "Name a server in MLFLOW_TRACKING_URI, or `pip install mlflow` for a database"
    with _told_by(mlflow.exceptions.MlflowException, "mlflow", advice):
        client = mlflow.MlflowClient()

        def started() -> str:
            known = client.get_experiment_by_name(PROJECT)
            experiment = known.experiment_id if known else client.create_experiment(PROJECT)
            name = None if folder is None else folder.name
            return str(client.create_run(experiment, run_name=name).info.run_id)

        run = _kept_id(folder, "mlflow", started)
        client.update_run(run, status="RUNNING")
        settings = [
            entities.Param(name, str(value)) for name, value in config.model_dump(mode="json").items()
        ]
        client.log_batch(run, params=settings)
        last: dict[str, int] = {}  # the last epoch that it has of each figure

        def tell(figures: dict[str, float], epoch: int) -> None:
            for name in figures.keys() - last.keys():
                last[name] = max((point.step for point in client.get_metric_history(run, name)), default=0)
            now = int(time.time() * 1000)
            new = [entities.Metric(n, value, now, epoch) for n, value in figures.items() if epoch > last[n]]
            client.log_batch(run, metrics=new)

        try:
            yield _Feed(tell)
        except BaseException:
            client.set_terminated(run, status="FAILED")
            raise
        client.set_terminated(run)


def _kept_id(folder: Path | None, name: str, make: Callable[[], str]) -> str:
    """The id that a run has at a service: kept in its folder, so that a run that goes on is the same one there."""
    if folder is None:
        return make()
    path = folder / IDS
    try:
        ids = parse_json(path.read_text(encoding="utf-8")) if path.exists() else {}
        if not isinstance(ids, dict):
            raise ValueError("no json object")
    except ValueError as error:
        raise DataError(f"'{path}' is damaged ({error}): delete it to log as a new run.") from None
    if name not in ids:
        ids[name] = make()
        write_json(path, ids)
    return str(ids[name])


@contextmanager
def _told_by(error: type[Exception], name: str, advice: str) -> Iterator[None]:
    """Turn an error of a service into one sentence."""
    try:
        yield
    except error as found:
        reason = (str(found).strip().splitlines() or [type(found).__name__])[0].rstrip(".")
        raise ConfigError(f"{name} did not take the log: {reason}. {advice}, then train again.") from found


LOGGERS: Mapping[str, Opened] = MappingProxyType(
    {"csv": _csv, "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
)
_LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
