"""Loggers: send the metrics of every epoch, besides log.jsonl, to a table, TensorBoard, Weights & Biases or MLflow.

The log of a run holds all its epochs and is part of the checkpoint. A logger receives all of them from the first, also
after an interruption, so its content is that of an uninterrupted run: files are written again, services are queried
for what they have.
"""

from __future__ import annotations

import csv
import io
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeAlias, runtime_checkable

from centerhash.core.errors import ConfigError, DataError, first_line, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import explain_write_errors, make_folder, parse_json, write_json, write_text
from centerhash.training.config import TrainConfig
from centerhash.training.run_folder import EpochRow
from centerhash.training.session import OnEpoch, no_log

TABLE, IDS = "log.csv", "loggers.json"  # in the folder of a run
PROJECT = "centerhash"


@runtime_checkable
class Logger(Protocol):
    """A receiver of metrics: any logger of Lightning, or a custom object with this method."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Store the metrics of epoch `step`."""


def check_logger(logger: str | Logger | None, *, has_folder: bool) -> None:
    """Reject an unknown logger, a missing library, and a file without a folder, before any work is done."""
    if not isinstance(logger, str):
        if logger is not None and not isinstance(logger, Logger):
            raise ConfigError(
                f"a logger needs log_metrics(metrics, step), which {type(logger).__name__} has not: give such an "
                f"object, or one of {', '.join(LOGGERS)}."
            )
        return
    if logger not in LOGGERS:
        raise unknown_name("logger", logger, LOGGERS)
    if logger != "csv":
        require(logger)
    if not has_folder and logger in ("csv", "tensorboard"):
        raise ConfigError(f"the logger '{logger}' writes into the folder of the run: name one (`out=`).")


@contextmanager
def opened(logger: str | Logger | None, folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """Open a logger for the block that trains; yield the function to be called after every epoch."""
    if logger is None:
        yield no_log
    elif isinstance(logger, str):
        with LOGGERS[logger](folder, config) as on_epoch:
            yield on_epoch
    else:
        yield _once(logger.log_metrics)


def _once(log_metrics: Callable[[dict[str, float], int], None]) -> OnEpoch:
    """Pass on every epoch of the log once, from the first."""
    logged = 0

    def on_epoch(log: list[EpochRow]) -> None:
        nonlocal logged
        for row in log[logged:]:
            metrics = {name: value for name, value in row.items() if name != "epoch"}
            log_metrics(metrics, int(row["epoch"]))
        logged = len(log)

    return on_epoch


def as_table(log: list[EpochRow]) -> str:
    """Format the log as csv; metrics that some epochs lack are empty there."""
    columns = list(dict.fromkeys(name for row in log for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(log)
    return text.getvalue()


@contextmanager
def _csv(folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """Write log.csv again after every epoch: Lightning's own logger deletes the rows before an interruption."""
    assert folder is not None
    yield lambda log: write_text(folder / TABLE, as_table(log))


@contextmanager
def _tensorboard(folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """Write event files in the run's folder `tensorboard` by Fabric's logger, replacing earlier ones."""
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    assert folder is not None
    place = make_folder(folder / "tensorboard")
    with explain_write_errors(place):
        for file in place.glob("events.out.tfevents.*"):
            file.unlink()
    logger = TensorBoardLogger(folder, name=place.name, version="")
    log_new = _once(logger.log_metrics)

    def on_epoch(log: list[EpochRow]) -> None:
        log_new(log)
        logger.save()  # visible at once

    try:
        yield on_epoch
    finally:
        logger.finalize("done")


@contextmanager
def _wandb(folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """Log to a run of Weights & Biases; a resumed run keeps its id and receives what is missing."""
    wandb = require("wandb")
    advice = "Log in by `wandb login`, or set WANDB_MODE=offline"
    with _explained_errors(wandb.errors.Error, "wandb", advice):
        run = wandb.init(
            project=PROJECT,
            name=None if folder is None else folder.name,
            id=_stored_id(folder, "wandb", lambda: uuid.uuid4().hex[:12]),
            resume="allow",
            dir=None if folder is None else str(folder),
            config=config.model_dump(mode="json"),
        )
        first = run.step  # of a resumed run, the first that is missing

        def log_metrics(metrics: dict[str, float], epoch: int) -> None:
            if epoch >= first:
                run.log(metrics, step=epoch)

        try:
            yield _once(log_metrics)
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()


@contextmanager
def _mlflow(folder: Path | None, config: TrainConfig) -> Iterator[OnEpoch]:
    """Log to a run of MLflow; a resumed run keeps its id and receives what is missing."""
    mlflow, entities = require("mlflow"), require("mlflow.entities")
    advice = "Name a server in MLFLOW_TRACKING_URI, or `pip install mlflow` for a database"
    with _explained_errors(mlflow.exceptions.MlflowException, "mlflow", advice):
        client = mlflow.MlflowClient()

        def create_run() -> str:
            known = client.get_experiment_by_name(PROJECT)
            experiment = known.experiment_id if known else client.create_experiment(PROJECT)
            name = None if folder is None else folder.name
            return str(client.create_run(experiment, run_name=name).info.run_id)

        run = _stored_id(folder, "mlflow", create_run)
        client.update_run(run, status="RUNNING")
        settings = config.model_dump(mode="json").items()
        client.log_batch(run, params=[entities.Param(name, str(value)) for name, value in settings])
        last: dict[str, int] = {}  # the last stored epoch of each metric

        def log_metrics(metrics: dict[str, float], epoch: int) -> None:
            for name in metrics.keys() - last.keys():
                last[name] = max((point.step for point in client.get_metric_history(run, name)), default=0)
            now = int(time.time() * 1000)
            new = [entities.Metric(n, value, now, epoch) for n, value in metrics.items() if epoch > last[n]]
            client.log_batch(run, metrics=new)

        try:
            yield _once(log_metrics)
        except BaseException:
            client.set_terminated(run, status="FAILED")
            raise
        client.set_terminated(run)


def _stored_id(folder: Path | None, name: str, make: Callable[[], str]) -> str:
    """Return the id of a run at a service: stored in the run's folder, so that a resumed run keeps it."""
    if folder is None:
        return make()
    path = folder / IDS
    try:
        ids = parse_json(path.read_text(encoding="utf-8")) if path.exists() else {}
        if not isinstance(ids, dict):
            raise ValueError("not a json object")
    except ValueError as error:
        raise DataError(f"'{path}' is damaged ({error}): delete it to log as a new run.") from None
    if name not in ids:
        ids[name] = make()
        write_json(path, ids)
    return str(ids[name])


@contextmanager
def _explained_errors(error: type[Exception], name: str, advice: str) -> Iterator[None]:
    """Turn an error of a service into one sentence."""
    try:
        yield
    except error as found:
        reason = first_line(found)
        raise ConfigError(f"{name} rejected the log: {reason}. {advice}, then train again.") from found


_Opener: TypeAlias = Callable[[Path | None, TrainConfig], AbstractContextManager[OnEpoch]]
LOGGERS: Mapping[str, _Opener] = MappingProxyType(  # by name, which is also that of the library
    {"csv": _csv, "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
)
