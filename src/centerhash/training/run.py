"""Train a model on a dataset, and evaluate a model on a dataset: the two public functions of this package."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, InputError, unknown_name
from centerhash.core.files import WriterLock, make_folder
from centerhash.core.progress import Progress, resolve_progress
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.evaluation import Evaluation
from centerhash.evaluation import evaluate as evaluate_codes
from centerhash.methods.registry import get_method
from centerhash.model.base import Model
from centerhash.model.model import HashModel
from centerhash.training.config import TrainConfig, backbone_of, resolve, suited
from centerhash.training.distributed import ProcessGroup, join_processes
from centerhash.training.finetuning import fit_whole
from centerhash.training.finish import packed_codes, with_visual_code, write_results
from centerhash.training.frozen import fit_frozen
from centerhash.training.last_stages import fit_last
from centerhash.training.loggers import Logger, check_logger, opened
from centerhash.training.run_folder import (
    EpochRow,
    drop_checkpoints,
    init_or_check_run,
    is_finished,
    write_log,
)
from centerhash.training.session import (
    NO_ROWS,
    Session,
    as_dataset,
    cache_folder,
    dataset_features,
    hold_out,
)

LOCK = "lock"  # in the run's folder, only during training
BUSY = (
    "process {holder} is training into '{folder}': wait until it has finished, or train into another folder."
)


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
    logger: str | Logger | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> HashModel:
    """Train a model on the training images of a dataset and return it.

    With `out`, the folder holds the whole run (model, codes, log): an interrupted run resumes to the same result, and
    a finished one is loaded. Without `out`, only the returned model is kept.

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
        logger: receives the losses and the learning rate of every epoch: "csv" and "tensorboard" write into `out`,
            "wandb" and "mlflow" send to these services; or an object with log_metrics(metrics, step), such as
            Lightning's.
        progress: True shows bars in a terminal or notebook, False nothing; or a callback (stage, done, total, note).
        **settings: other fields of `TrainConfig`, such as epochs, seed, learning_rate, options; `watch=5` also
            measures mAP every five epochs on a tenth of the training images, which are held out.

    """
    named = {"method": method, "bits": bits, "finetune": finetune}
    given = {name: value for name, value in named.items() if value is not None}
    config = _configured(config, {**given, **settings})
    dataset = as_dataset(data, config.seed)
    config = resolve(suited(config, dataset))
    if logger is not None and get_method(config.method).family == "shallow":
        raise ConfigError(f"method '{config.method}' has no epochs to log: omit `logger=`.")
    check_logger(logger, has_folder=out is not None)
    folder = None if out is None else make_folder(out)
    held_out = hold_out(dataset, config.seed) if config.watch else NO_ROWS
    group = join_processes(device, config.precision)
    with resolve_progress(progress if group.is_main else False) as report:
        session = Session(
            group,
            held_out,
            cache_folder(cache),
            skip_broken,
            folder,
            checkpoint_seconds=checkpoint_seconds,
            progress=report,
        )
        own_logger = logger if group.is_main else None
        if folder is None:
            return _train_in_memory(dataset, config, session, own_logger)
        lock = None
        if group.is_main and (overwrite or not is_finished(folder)):  # a finished run is only read
            lock = WriterLock.take(folder / LOCK, BUSY)
        try:
            if group.is_main:
                init_or_check_run(folder, dataset, config, overwrite)
            group.barrier()
            return _train_into(folder, dataset, config, session, own_logger)
        finally:
            if lock is not None:
                lock.release(delete=True)


def _configured(config: TrainConfig | None, settings: Mapping[str, Any]) -> TrainConfig:
    """Replace fields of a configuration; fields that were never set stay unset, for the method to decide."""
    if config is not None and not isinstance(config, TrainConfig):
        raise ConfigError(f"config must be a TrainConfig, got {type(config).__name__}.")
    for name in settings:
        if name not in TrainConfig.model_fields:
            own = set(inspect.signature(train).parameters) - {"data", "settings"}
            see = "Options of a method go into options={...}."
            raise unknown_name("setting of training", name, own | set(TrainConfig.model_fields), see)
    kept = {} if config is None else {name: getattr(config, name) for name in config.model_fields_set}
    if "bits" in settings:  # other lengths replace all
        kept.pop("shorter", None)
    return TrainConfig(**{**kept, **settings})


def _train_in_memory(
    dataset: Dataset, config: TrainConfig, session: Session, logger: str | Logger | None
) -> HashModel:
    """Train without keeping anything but the model."""
    if config.finetune == "off":
        with opened(logger, None, config) as on_epoch:
            return _train_frozen(dataset, config, replace(session, on_epoch=on_epoch))[0]
    if session.group.size > 1:
        raise ConfigError("several processes cannot fine-tune without a folder to share: give one (out).")
    home = TemporaryDirectory(prefix="centerhash-", ignore_cleanup_errors=True)
    try:
        with opened(logger, None, config) as on_epoch:
            own = replace(session, folder=Path(home.name), on_epoch=on_epoch)
            last = config.finetune == "last"
            model = fit_last(dataset, config, own)[0] if last else fit_whole(dataset, config, own)
    except BaseException:
        home.cleanup()
        raise
    drop_checkpoints(Path(home.name))
    weakref.finalize(model, home.cleanup)  # the model reads its backbone from there
    return model


def _train_into(
    folder: Path, dataset: Dataset, config: TrainConfig, session: Session, logger: str | Logger | None
) -> HashModel:
    """Train into a folder, resuming from the checkpoint of an interrupted run with the same settings."""
    if is_finished(folder):
        drop_checkpoints(folder)
        return HashModel.load(folder)
    with opened(logger, folder, config) as log_epoch:

        def on_epoch(log: list[EpochRow]) -> None:
            write_log(folder, log)
            log_epoch(log)

        session = replace(session, on_epoch=on_epoch)
        fit = _train_frozen if config.finetune == "off" else _finetuned
        model, features, splits = fit(dataset, config, session)
    if session.group.is_main:
        write_results(folder, model, features, dataset, splits, session)
    session.group.barrier()
    return model


def _train_frozen(
    dataset: Dataset, config: TrainConfig, session: Session
) -> tuple[HashModel, NDArray[Any], Splits]:
    """Train on features of a frozen backbone; return them, and the splits without broken images, too."""
    features, splits = dataset_features(dataset, backbone_of(config), session)
    model = fit_frozen(dataset.with_splits(splits), features, config, session)
    return with_visual_code(model, features, session.split_off(splits.train)[0]), features, splits


def _finetuned(
    dataset: Dataset, config: TrainConfig, session: Session
) -> tuple[HashModel, NDArray[Any], Splits]:
    """Train the backbone too; return the features of the tuned one, and the splits without broken images, as well."""
    if config.finetune == "last":
        return fit_last(dataset, config, session)
    model = fit_whole(dataset, config, session)
    return model, *dataset_features(dataset, model.backbone(), session)


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
        if dataset.features is not None:
            features, splits = dataset.features, dataset.splits
        else:
            session = Session(
                ProcessGroup(device), cache=cache_folder(cache), skip_broken=skip_broken, progress=report
            )
            features, splits = dataset_features(dataset, model.backbone(), session)
        query, database = packed_codes(model, features, (splits.query, splits.database), report)
    return evaluate_codes(
        query,
        database,
        dataset.labels[splits.query],
        dataset.labels[splits.database],
        bits=model.bits,
        query_ids=splits.query,
        database_ids=splits.database,
        k=k,
        precision_at=precision_at,
        exclude_self=exclude_self,
        seed=seed,
    )
