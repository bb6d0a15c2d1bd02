"""Loggers: any object with `log_metrics(metrics, step)`, such as Lightning's, receives the metrics of every epoch.

    from lightning_fabric.loggers import TensorBoardLogger
    centerhash.train("photos", out="run", logger=TensorBoardLogger("run"))

The log of a run holds all its epochs and is part of the checkpoint; a resumed run passes on all of them from the first.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from centerhash.core.errors import ConfigError
from centerhash.training.context import OnEpoch
from centerhash.training.run_folder import EpochRow


@runtime_checkable
class Logger(Protocol):
    """A receiver of metrics: any logger of Lightning, or a custom object with this method."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Store the metrics of epoch `step`."""


def check_logger(logger: Logger) -> None:
    """Reject an object that cannot log, before any work is done."""
    if not isinstance(logger, Logger):
        raise ConfigError(
            f"a logger needs log_metrics(metrics, step), which {type(logger).__name__} has not: pass a logger of "
            "Lightning, or any object with this method. The losses also stand in the run's log.jsonl."
        )


def log_epochs(logger: Logger) -> OnEpoch:
    """Pass on every epoch of the log once, from the first."""
    logged = 0

    def on_epoch(log: list[EpochRow]) -> None:
        nonlocal logged
        for row in log[logged:]:
            metrics = {name: value for name, value in row.items() if name != "epoch"}
            logger.log_metrics(metrics, int(row["epoch"]))
        logged = len(log)

    return on_epoch
