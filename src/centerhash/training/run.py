"""Train a model on a dataset, and evaluate a model on a dataset: the two public functions of this package.

    model = train("photos", method="ics", bits=64, out="run")
    print(evaluate(model, "photos"))

`train` calls `open_dataset`, `resolve` (config), `join_processes` (distributed), `open_run` (run_folder), `fit_model`
(pipeline) and `write_results` (run_folder), in this order.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from centerhash.core.errors import ConfigError, InputError, unknown_name
from centerhash.core.progress import Progress, resolve_progress
from centerhash.data import Dataset, open_dataset
from centerhash.encoding.code_files import evaluate_codes_of
from centerhash.evaluation import Evaluation
from centerhash.methods.registry import get_method
from centerhash.model.base import Model
from centerhash.model.model import HashModel
from centerhash.networks.cache import default_cache
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.context import (
    NO_ROWS,
    EpochRow,
    OnEpoch,
    RunContext,
    dataset_features,
    hold_out,
    no_log,
)
from centerhash.training.distributed import ProcessGroup, join_processes
from centerhash.training.pipeline import encode_splits, fit_model
from centerhash.training.run_folder import drop_checkpoints, is_finished, open_run, write_results


@runtime_checkable
class Logger(Protocol):
    """A receiver of metrics: any logger of Lightning, or a custom object with this method."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Store the metrics of epoch `step`."""


def train(
    data: Dataset | str | Path,
    *,
    method: str | None = None,
    bits: int | Sequence[int] | None = None,
    config: TrainConfig | None = None,
    out: str | Path | None = None,
    finetune: str | None = None,
    cache: str | Path | None = "auto",
    device: str = "auto",
    overwrite: bool = False,
    skip_broken: bool = False,
    checkpoint_seconds: float = 20.0,
    logger: Logger | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> HashModel:
    """Train a model on the training images of a dataset and return it.

    With `out`, the folder holds the whole run (model, codes, log): an interrupted run resumes to the same result, and
    a finished one is loaded. Without `out`, only the returned model is kept; fine-tuning needs it.

    Args:
        data: a dataset, or the path of one; missing splits are drawn with the seed.
        method: name of a method, such as "ics"; "ics-softmax" by default, "itq" for images without labels.
        bits: K, the length of the codes, 8 to 1024; 64 by default. Several lengths train nested codes: a shorter code
            is the beginning of a longer one. `HashModel.at` returns the model of a shorter length, and `out` has a
            folder for it, such as run/32.
        config: a configuration to start from; keywords override it.
        out: folder of the run.
        finetune: train the backbone too: "last" trains its last stages on maps that are computed once, "all" the
            whole network on augmented images; "off" by default.
        cache: folder of cached image features; "auto" is the user's cache folder, None disables caching.
        device: to compute on, such as "cpu" or "cuda"; "auto" uses a GPU if there is one.
        overwrite: start again if `out` holds another run.
        skip_broken: skip images that cannot be read instead of rejecting the data.
        checkpoint_seconds: minimum time between two checkpoints in `out`.
        logger: an object with log_metrics(metrics, step), such as a logger of Lightning, which receives the losses and
            the learning rate of every epoch; log.jsonl in `out` has them too.
        progress: True shows bars in a terminal or notebook, False nothing; or a callback (stage, done, total, note).
        **settings: other fields of `TrainConfig`, such as epochs, seed, learning_rate, options; `eval_interval=5`
            also measures mAP every five epochs on a tenth of the training images, which are held out.

    """
    arguments = {"method": method, "bits": bits, "finetune": finetune}
    settings |= {name: value for name, value in arguments.items() if value is not None}
    config = _configured(config, settings)
    dataset = as_dataset(data, config.seed)
    config = resolve(config, dataset)
    if logger is not None:
        _check_logger(logger, config)
    validation = hold_out(dataset, config.seed) if config.eval_interval else NO_ROWS
    group = join_processes(device, config.precision)
    with resolve_progress(progress if group.is_main else False) as report:
        context = RunContext(
            group,
            validation,
            cache_folder(cache) if dataset.kind == "images" else None,
            skip_broken=skip_broken,
            checkpoint_seconds=checkpoint_seconds,
            progress=report,
            on_epoch=no_log if logger is None else _log_epochs(logger),
        )
        if out is None:
            return fit_model(dataset, config, context).model
        folder = Path(out)
        with open_run(folder, dataset, config, context, overwrite=overwrite) as context:
            if is_finished(folder):
                drop_checkpoints(folder)
                return HashModel.load(folder)
            fit = fit_model(dataset, config, context)
            if group.is_main:
                write_results(folder, fit, dataset, context)
            group.barrier()
            return fit.model


def _configured(config: TrainConfig | None, settings: Mapping[str, Any]) -> TrainConfig:
    """Replace fields of a configuration; fields that were never set stay unset, for the method to decide."""
    if config is not None and not isinstance(config, TrainConfig):
        raise ConfigError(f"config must be a TrainConfig, got {type(config).__name__}.")
    for name in settings:
        if name not in TrainConfig.model_fields:
            parameters = set(inspect.signature(train).parameters) - {"data", "settings"}
            advice = "Options of a method go into options={...}."
            raise unknown_name(
                "setting of training", name, parameters | set(TrainConfig.model_fields), advice
            )
    fields = {} if config is None else {name: getattr(config, name) for name in config.model_fields_set}
    if "bits" in settings:
        # Other lengths replace all.
        fields.pop("shorter", None)
    return TrainConfig(**{**fields, **settings})


def _check_logger(logger: Logger, config: TrainConfig) -> None:
    """Reject an object that cannot log, or has nothing to log, before any work is done."""
    if not isinstance(logger, Logger):
        raise ConfigError(
            f"a logger needs log_metrics(metrics, step), which {type(logger).__name__} has not: pass a logger of "
            "Lightning, or any object with this method. The losses also stand in the run's log.jsonl."
        )
    if get_method(config.method).family == "shallow":
        raise ConfigError(f"method '{config.method}' has no epochs to log: omit the logger.")


def _log_epochs(logger: Logger) -> OnEpoch:
    """Return a callback that logs every epoch once; a resumed run begins again with the first."""
    logged = 0

    def on_epoch(log: list[EpochRow]) -> None:
        nonlocal logged
        for row in log[logged:]:
            metrics = {name: value for name, value in row.items() if name != "epoch"}
            logger.log_metrics(metrics, int(row["epoch"]))
        logged = len(log)

    return on_epoch


def as_dataset(data: Dataset | str | Path, seed: int) -> Dataset:
    """Return a dataset, or open the one at a path; splits that it does not name are drawn with `seed`."""
    if isinstance(data, str | Path):
        return open_dataset(data, seed)
    if not isinstance(data, Dataset):
        raise InputError(
            f"data must be a Dataset or the path of one, got {type(data).__name__}: `open_dataset` opens folders."
        )
    return data


def cache_folder(cache: str | Path | None) -> Path | None:
    """Return the folder of cached features: "auto" is the user's cache folder, None disables caching."""
    return default_cache() if cache == "auto" else None if cache is None else Path(cache)


def evaluate(
    model: Model,
    data: Dataset | str | Path,
    *,
    k: int = 5000,
    precision_at: Iterable[int] = (1, 10, 100, 1000, 5000),
    exclude_self: bool = False,
    seed: int = 0,
    cache: str | Path | None = "auto",
    device: str = "auto",
    skip_broken: bool = False,
    progress: bool | Progress = True,
) -> Evaluation:
    """Encode the queries and the database of a dataset, rank the database for every query, and compute the metrics.

    Args:
        model: of `train` or `load`.
        data: a dataset, or the path of one; missing splits are those of the training run.
        k: depth of mAP, NDCG, ACG and WAP; the whole database if it is smaller.
        precision_at: the numbers of ranks for precision.
        exclude_self: exclude a query's own item from its ranking.
        seed: of the random order that breaks ties.
        cache: folder of cached image features; "auto" is the user's cache folder, None disables caching.
        device: to compute features on, such as "cpu" or "cuda"; "auto" uses a GPU if there is one.
        skip_broken: skip images that cannot be read instead of rejecting the data.
        progress: True shows bars in a terminal or notebook, False nothing; or a callback (stage, done, total, note).

    """
    if not isinstance(model, Model):
        raise InputError(
            f"evaluate expects a model and a dataset, got {type(model).__name__}: `evaluate_codes` expects codes and "
            "labels."
        )
    dataset = as_dataset(data, model.spec.seed)
    dataset.check_labels("scoring")
    with resolve_progress(progress) as report:
        features = dataset.features
        if features is None:
            group, cached = ProcessGroup(device), cache_folder(cache)
            context = RunContext(group, cache=cached, skip_broken=skip_broken, progress=report)
            features, splits = dataset_features(dataset, model.backbone(), context)
            dataset = dataset.with_splits(splits)
        codes = encode_splits(model, features, dataset, report)
    return evaluate_codes_of(*codes, k=k, precision_at=precision_at, exclude_self=exclude_self, seed=seed)
