"""The one trainer: a data set and settings in, a model out, with or without a folder that holds the run."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, unknown_name
from centerhash.core.files import WriterLock, make_folder
from centerhash.core.progress import Progress, resolve_progress
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.methods.registry import get_method
from centerhash.model.model import HashModel
from centerhash.networks.backbones import Backbone
from centerhash.training.checkpoints import EpochRow
from centerhash.training.config import TrainConfig, backbone_of, resolve, suited
from centerhash.training.distributed import Team, open_team
from centerhash.training.features import as_dataset, cache_folder, dataset_features
from centerhash.training.finetuning import fit_whole
from centerhash.training.folder import claim, drop_checkpoints, is_finished, write_log, write_results
from centerhash.training.frozen import fit_frozen, with_visual_code
from centerhash.training.loggers import Logger, check_logger, opened
from centerhash.training.loop import OnEpoch
from centerhash.training.watching import NOTHING, hold_out, parted

LOCK = "lock"  # only while a run is trained
BUSY = (
    "process {holder} is training into '{folder}': wait until it has finished, or train into another folder."
)


def train(
    data: Dataset | str | Path,
    *,
    method: str | None = None,
    bits: int | None = None,
    config: TrainConfig | None = None,
    out: str | Path | None = None,
    finetune: bool | None = None,
    cache: str | Path | None = "auto",
    device: str = "auto",
    overwrite: bool = False,
    skip_broken: bool = False,
    checkpoint_seconds: float = 20.0,
    logger: str | Logger | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> HashModel:
    """Train a model on a data set's training images and return it.

    With `out`, the folder holds the whole run (model, codes, log): a run that was broken off resumes to the same
    result, and a finished one is read. Without `out`, nothing is kept but the model returned.

    Args:
        data: a data set, or the path of one; splits that it does not name are drawn with the seed.
        method: name of a method, such as "ics"; "ics-softmax" unless given, "itq" for images without labels.
        bits: K, the length of the codes, 8 to 1024; 64 unless given.
        config: a configuration to start from; the keywords go before it.
        out: folder of the run.
        finetune: train the backbone too, on augmented images.
        cache: folder where features of images are kept; "auto" is the user's cache folder, None keeps none.
        device: to compute on, such as "cpu" or "cuda"; "auto" takes a GPU where there is one.
        overwrite: start again where `out` holds another run.
        skip_broken: leave out images that cannot be read instead of refusing the data.
        checkpoint_seconds: least time between two checkpoints in `out`.
        logger: takes the losses and the learning rate of every epoch: "csv" and "tensorboard" write into `out`, "wandb"
            and "mlflow" tell these services; or an object with log_metrics(metrics, step), such as Lightning's.
        progress: True shows bars in a terminal or notebook, False nothing; or a callback (stage, done, total, note).
        **settings: other fields of `TrainConfig`, such as epochs, seed, learning_rate, options; `watch=5` also
            measures mAP every five epochs on a tenth of the training images, which are then not trained on.

    """
    named = {"method": method, "bits": bits, "finetune": finetune}
    given = {name: value for name, value in named.items() if value is not None}
    config = _configured(config, {**given, **settings})
    dataset = as_dataset(data, config.seed)
    config = resolve(suited(config, dataset))
    if logger is not None and get_method(config.method).family == "shallow":
        raise ConfigError(f"method '{config.method}' has no epochs to log: leave out `logger=`.")
    check_logger(logger, has_folder=out is not None)
    folder = None if out is None else make_folder(out)
    held = hold_out(dataset, config.seed) if config.watch else NOTHING
    team = open_team(device, config.precision)
    with resolve_progress(progress if team.first else False) as tell:
        job = _Job(
            dataset, config, held, team, cache_folder(cache), skip_broken, checkpoint_seconds, logger, tell
        )
        return job.in_memory() if folder is None else job.into(folder, overwrite)


def _configured(config: TrainConfig | None, settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration with some fields replaced; what was never set stays unset, for the method to decide."""
    if config is not None and not isinstance(config, TrainConfig):
        raise ConfigError(f"config must be a TrainConfig, got {type(config).__name__}.")
    for name in settings:
        if name not in TrainConfig.model_fields:
            own = set(inspect.signature(train).parameters) - {"data", "settings"}
            see = "Options of a method go into options={...}."
            raise unknown_name("setting of training", name, own | set(TrainConfig.model_fields), see)
    kept = {} if config is None else {name: getattr(config, name) for name in config.model_fields_set}
    return TrainConfig(**{**kept, **settings})


@dataclass(frozen=True)
class _Job:
    """One training, and how it is done."""

    dataset: Dataset
    config: TrainConfig
    held: NDArray[np.int64]  # rows of training images that only watch
    team: Team
    cache: Path | None
    skip_broken: bool
    checkpoint_seconds: float
    logger: str | Logger | None
    progress: Progress

    def _logged(self, folder: Path | None = None) -> AbstractContextManager[OnEpoch]:
        return opened(self.logger if self.team.first else None, folder, self.config)

    def in_memory(self) -> HashModel:
        """Train without keeping anything but the model."""
        if not self.config.finetune:
            with self._logged() as on_epoch:
                return self._fit(*self._features(backbone_of(self.config)), on_epoch)
        if self.team.size > 1:
            raise ConfigError("several processes cannot fine-tune without a folder to share: give one (out).")
        home = TemporaryDirectory(prefix="centerhash-", ignore_cleanup_errors=True)
        try:
            with self._logged() as on_epoch:
                model = self._tune(Path(home.name), on_epoch)
        except BaseException:
            home.cleanup()
            raise
        drop_checkpoints(Path(home.name))
        weakref.finalize(
            model, home.cleanup
        )  # the tuned backbone is read from there as long as the model lives
        return model

    def into(self, folder: Path, overwrite: bool) -> HashModel:
        """Train into a folder, resuming from what a broken run of the same settings left there."""
        lock = None
        if self.team.first and (overwrite or not is_finished(folder)):  # a finished run is only read
            lock = WriterLock.take(folder / LOCK, BUSY)
        try:
            return self._locked_into(folder, overwrite)
        finally:
            if lock is not None:
                lock.release(delete=True)

    def _locked_into(self, folder: Path, overwrite: bool) -> HashModel:
        if self.team.first:
            claim(folder, self.dataset, self.config, overwrite)
        self.team.wait()
        if is_finished(folder):
            drop_checkpoints(folder)
            return HashModel.load(folder)
        with self._logged(folder) as tell:

            def on_epoch(log: list[EpochRow]) -> None:
                write_log(folder, log)
                tell(log)

            if self.config.finetune:
                model = self._tune(folder, on_epoch)
                features, splits = self._features(model.backbone())
            else:
                features, splits = self._features(backbone_of(self.config))
                model = self._fit(features, splits, on_epoch, folder / "checkpoint.safetensors")
        if self.team.first:
            train, held = parted(splits.train, self.held)
            splits = replace(splits, train=train)
            write_results(folder, model, features, self.dataset, splits, held, self.progress)
        self.team.wait()
        return model

    def _features(self, backbone: Backbone) -> tuple[NDArray[Any], Splits]:
        return dataset_features(
            self.dataset,
            backbone,
            cache=self.cache,
            team=self.team,
            skip_broken=self.skip_broken,
            progress=self.progress,
        )

    def _fit(
        self,
        features: NDArray[Any],
        splits: Splits,
        on_epoch: OnEpoch,
        checkpoint: Path | None = None,
    ) -> HashModel:
        model = fit_frozen(
            self.dataset.with_splits(splits),
            features,
            self.config,
            team=self.team,
            held=self.held,
            checkpoint=checkpoint,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=self.progress,
            on_epoch=on_epoch,
        )
        return with_visual_code(model, features, parted(splits.train, self.held)[0])

    def _tune(self, folder: Path, on_epoch: OnEpoch) -> HashModel:
        return fit_whole(
            self.dataset,
            self.config,
            folder,
            team=self.team,
            held=self.held,
            cache=self.cache,
            skip_broken=self.skip_broken,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=self.progress,
            on_epoch=on_epoch,
        )
