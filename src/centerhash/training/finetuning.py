"""Whole networks: a head on frozen features first, then backbone and head together on augmented images (Sec. 4.3).

An image is squashed to the backbone's frame, cropped at a random position and flipped with probability 0.5; for a
backbone that reads the whole frame, crops of at least LEAST_SIDE of its side are enlarged. All is drawn from (seed,
epoch, image) alone, so a run that resumes sees the same images as an uninterrupted one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn

from centerhash.core.errors import ConfigError, DataError, ImageError, first_reasons
from centerhash.core.files import atomic
from centerhash.core.parallel import batches_ahead
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset
from centerhash.data.images import ImageSource, load_image
from centerhash.methods.losses.base import HeadOutput, Objective
from centerhash.model.model import HashModel
from centerhash.model.spec import TUNED
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.encoder import pixels_of
from centerhash.networks.heads import build_head
from centerhash.training.config import TrainConfig, backbone_of, resolve
from centerhash.training.finish import (
    finished_model,
    known_areas,
    network_logits,
    validation_map,
    with_visual_code,
)
from centerhash.training.frozen import model_spec, objective_of, stored_centers
from centerhash.training.loop import Inputs, ParameterGroup, fit_head, fit_network
from centerhash.training.run_folder import HEAD_CHECKPOINT
from centerhash.training.session import BROKEN_ADVICE, Session, image_features, no_log

LEAST_SIDE = 7 / 8  # of the frame, as in the paper's crops of 224 out of 256
_AHEAD = 3  # batches that are decoded while one is in use


class ImageInputs(NamedTuple):
    """What a backbone in training reads of images: pixels, or maps of its lower stages."""

    augmented: Inputs  # of the training images, by position
    plain: Callable[[NDArray[np.int64]], Iterable[Tensor]]  # rows as they will be encoded, in batches
    frozen: Callable[[NDArray[np.int64]], NDArray[np.float32]]  # features (n, D) of rows before training


def check_finetuning(dataset: Dataset, config: TrainConfig, session: Session) -> None:
    """Reject data without images, and batch norms that several processes would train."""
    size = session.group.size
    if config.backbone_norms == "trained" and size > 1:
        raise ConfigError(
            f"{size} processes cannot agree on the statistics of the backbone's batch norms: train them in one "
            "process, or leave them frozen."
        )
    if dataset.kind != "images":
        raise ConfigError(
            "fine-tuning needs images: this dataset holds features, and their network is unknown."
        )


def fit_backbone(
    layers: Callable[[], nn.Module],
    images: ImageInputs,
    dataset: Dataset,
    rows: NDArray[np.int64],
    validation: NDArray[np.int64],
    config: TrainConfig,
    session: Session,
) -> tuple[WholeNetwork, Objective]:
    """Train `layers` of a backbone and a head together on `rows` of a dataset; return both, and the trained loss."""
    labels, width = dataset.labels[rows], backbone_of(config).features
    start = warm_head(images.frozen(rows), labels, config, session) if config.warm_start else None

    def build() -> WholeNetwork:
        head = build_head(width, config.bits, config.head, labels.shape[1])
        if start is not None:
            head.load_state_dict(start.head)
        return WholeNetwork(layers(), head, config.backbone_norms == "trained")

    def measure(network: WholeNetwork) -> float:
        device = session.group.device
        query, database = (network_logits(network, images.plain(side), device) for side in (validation, rows))
        rotate, shorter = bool(config.head.rotate), config.lengths[:-1]
        return validation_map(query, database, dataset.labels[validation], labels, rotate, shorter)

    objective = objective_of(config, labels)
    network, _ = fit_network(
        build,
        images.augmented,
        labels,
        objective,
        config,
        session,
        prepare=lambda: prepare_objective(objective, labels, start),
        groups=lambda whole: whole.groups(config.backbone_rate),
        measure=measure if len(validation) else None,
    )
    return network, objective


def stored_backbone(network: nn.Module, config: TrainConfig, session: Session) -> Backbone:
    """Store a tuned network in the folder of the run, and return the backbone that reads it."""
    assert session.folder is not None
    path = session.folder / TUNED
    if session.group.is_main:
        write_backbone(network, path)
    session.group.barrier()
    return get_backbone(config.backbone, path, crop=config.crop, pool=config.pool)


def tuned_model(
    dataset: Dataset,
    config: TrainConfig,
    session: Session,
    tuned: Backbone,
    head: nn.Module,
    objective: Objective,
    rows: NDArray[np.int64],
    features: NDArray[np.float32],
) -> HashModel:
    """Make the model of a tuned backbone and a head; `rows` are training images with their new features (n, D)."""
    spec = model_spec(dataset, config, tuned.features, tuned).model_copy(update={"tuned": True})
    areas, centers = known_areas(dataset, config, rows), stored_centers(objective)
    return finished_model(spec, head, centers, features, dataset.labels[rows], areas, session.folder)


def fit_whole(dataset: Dataset, config: TrainConfig, session: Session) -> HashModel:
    """Train backbone and head together by a resolved configuration.

    Checkpoints and the fine-tuned backbone are stored in the session's folder.
    """
    check_finetuning(dataset, config, session)
    rows = _readable_rows(dataset, session)
    rows, validation = session.split_off(rows[dataset.labels[rows].any(axis=1)])
    backbone = backbone_of(config)

    def files(chosen: NDArray[np.int64]) -> list[Path]:
        return [(dataset.image_paths or ())[row] for row in chosen.tolist()]

    images = ImageInputs(
        image_inputs(files(rows), backbone, config.seed),
        lambda chosen: plain_inputs(files(chosen), backbone, config.batch_size),
        lambda chosen: image_features(files(chosen), backbone, session).features,
    )
    network, objective = fit_backbone(backbone.trainable, images, dataset, rows, validation, config, session)
    tuned = stored_backbone(network.backbone, config, session)
    few = rows[:2_000]  # enough for rotation, label threshold and visual code
    features = image_features(files(few), tuned, replace(session, progress=silent)).features
    model = tuned_model(dataset, config, session, tuned, network.head, objective, few, features)
    return with_visual_code(model, features, np.arange(len(features)), images.frozen(few))


def _readable_rows(dataset: Dataset, session: Session) -> NDArray[np.int64]:
    """Return the training rows without images that cannot be decoded; an error unless they may be skipped."""
    train, paths = dataset.splits.train.tolist(), dataset.image_paths or ()
    broken = find_broken([paths[row] for row in train], session.progress)
    if broken and not session.skip_broken:
        shown = first_reasons(broken.values())
        raise DataError(
            f"{len(broken)} of {len(train)} training images cannot be read:\n{shown}\n{BROKEN_ADVICE}"
        )
    return dataset.splits.without([train[position] for position in broken]).train


class WarmStart(NamedTuple):
    """What fine-tuning starts from: a head that was trained on frozen features, and what its loss learned."""

    head: dict[str, Tensor]
    objective: dict[str, Tensor]


def warm_head(
    features: NDArray[np.float32], labels: NDArray[np.bool_], config: TrainConfig, session: Session
) -> WarmStart:
    """Train a head on frozen features (n, D) with labels (n, C), by the defaults of frozen training."""
    kept = ("method", "bits", "shorter", "seed", "head", "options", "centers", "assignment")
    plain = resolve(TrainConfig(**{name: getattr(config, name) for name in kept}))
    objective = objective_of(config, labels)

    def progress(stage: str, done: int, total: int, note: str = "", /) -> None:
        session.progress("head", done, total, note)

    own = replace(session, checkpoint_name=HEAD_CHECKPOINT, progress=progress, on_epoch=no_log)
    head, _ = fit_head(features, np.arange(len(labels)), labels, objective, plain, own)
    return WarmStart(head.state_dict(), objective.state_dict())


def prepare_objective(objective: Objective, labels: NDArray[np.bool_], start: WarmStart | None) -> None:
    """Prepare a loss for images with labels (n, C) whose features will change; centers and proxies go on from `start`."""
    objective.prepare(np.zeros((len(labels), 0)), np.arange(len(labels)), labels)
    if start is not None:
        objective.load_state_dict(start.objective)


class WholeNetwork(nn.Module):
    """A backbone and a head, uint8 images (B, H, W, 3) in, the head's output out.

    The backbone's batch norms keep the statistics of its first training unless `trained_norms`: those of small batches
    are noise, and several processes then agree without talking.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, trained_norms: bool = False) -> None:
        super().__init__()
        self.backbone, self.head, self.trained_norms = backbone, head, trained_norms

    def train(self, mode: bool = True) -> Self:
        """Set the mode of everything but the backbone's batch norms that are frozen."""
        super().train(mode)
        if self.trained_norms:
            return self
        for layer in self.backbone.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
        return self

    def forward(self, images: Tensor) -> HeadOutput:
        """Compute the head's output for a batch."""
        output: HeadOutput = self.head(self.backbone(images))
        return output

    def groups(self, backbone_rate: float) -> list[ParameterGroup]:
        """Return the head's parameters, and the backbone's at the share `backbone_rate` of the learning rate."""
        parts = ((self.head, 1.0), (self.backbone, backbone_rate))
        return [{"params": list(part.parameters()), "factor": factor} for part, factor in parts]


def augmented(source: ImageSource, backbone: Backbone, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Crop one image at a random position of its frame and flip it with probability 0.5: pixels (crop, crop, 3)."""
    image = load_image(source, at_least=2 * backbone.resize)
    frame, side = backbone.resize, backbone.crop
    if side == frame:
        side = int(generator.integers(round(LEAST_SIDE * frame), frame + 1))
    left, top = generator.integers(0, frame - side + 1, size=2).tolist()
    flipped = bool(generator.integers(2))
    # one resampling straight to the crop gives the pixels of squashing the whole frame first, but for its border
    step_x, step_y = image.width / frame, image.height / frame
    box = (left * step_x, top * step_y, (left + side) * step_x, (top + side) * step_y)
    filter_kind = Image.Resampling[backbone.interpolation.upper()]
    pixels = np.asarray(image.resize((backbone.crop, backbone.crop), filter_kind, box=box))
    return np.ascontiguousarray(pixels[:, ::-1] if flipped else pixels)


def image_inputs(sources: Sequence[ImageSource], backbone: Backbone, seed: int) -> Inputs:
    """Make the input of the training loop: augmented images (B, crop, crop, 3) uint8, decoded ahead in threads."""

    def decode(position: int, epoch: int) -> NDArray[np.uint8]:
        return augmented(sources[position], backbone, np.random.default_rng((seed, epoch, position)))

    def inputs(batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        return _decoded(
            lambda position: decode(position, epoch), (batch.tolist() for batch in batches), backbone
        )

    return inputs


def plain_inputs(sources: Sequence[ImageSource], backbone: Backbone, batch: int) -> Iterator[Tensor]:
    """Yield images (B, crop, crop, 3) uint8 as they will be encoded, batch by batch."""
    places = (range(start, min(start + batch, len(sources))) for start in range(0, len(sources), batch))
    return _decoded(lambda place: pixels_of(sources[place], backbone), places, backbone)


def _decoded(
    decode: Callable[[int], NDArray[np.uint8]], batches: Iterable[Sequence[int]], backbone: Backbone
) -> Iterator[Tensor]:
    for futures in batches_ahead(decode, batches, _AHEAD, most_threads=16):
        pixels = [future.result() for future in futures]
        shape = (len(pixels), backbone.crop, backbone.crop, 3)
        yield torch.from_numpy(np.stack(pixels) if pixels else np.zeros(shape, np.uint8))


def find_broken(sources: Sequence[ImageSource], progress: Progress = silent) -> dict[int, ImageError]:
    """Find images that cannot be decoded, by position: before training, which may take hours."""

    def problem(source: ImageSource) -> ImageError | None:
        try:
            load_image(source, at_least=64)
        except ImageError as error:
            return error
        return None

    broken = {}
    with ThreadPoolExecutor(max_workers=min(16, (os.cpu_count() or 1) + 1)) as pool:
        for place, found in enumerate(pool.map(problem, sources)):
            if found is not None:
                broken[place] = found
            if place % 64 == 0 or place + 1 == len(sources):
                progress("checking", place + 1, len(sources))
    return broken


def write_backbone(normalized: nn.Module, path: Path) -> None:
    """Store a tuned backbone, made by `Backbone.trainable`, as `get_backbone(name, weights=path)` reads it."""
    if not isinstance(normalized.network, nn.Module):
        raise DataError("the backbone has no network inside: it was not made by Backbone.trainable.")
    tensors = {name: tensor.contiguous() for name, tensor in normalized.network.state_dict().items()}
    with atomic(path) as stream:
        stream.write(save(tensors))
