"""Whole networks: a head on frozen features first, then backbone and head together on augmented images (Sec. 4.3).

An image is squashed to the backbone's frame, cropped at a random place and flipped every other time; a backbone that
reads the whole frame gets crops of at least LEAST_SIDE of its side, enlarged. All is drawn from (seed, epoch, image)
alone, so a run that resumes repeats what an unbroken run would have seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

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
from centerhash.methods.losses.base import HeadOutput
from centerhash.model.model import TUNED, HashModel
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.encoder import pixels_of
from centerhash.networks.heads import build_head
from centerhash.training.config import TrainConfig, backbone_of, resolve
from centerhash.training.distributed import Team
from centerhash.training.features import BROKEN_ADVICE, features_of
from centerhash.training.frozen import finished_model, known_areas, model_spec, objective_of, with_visual_code
from centerhash.training.loop import Inputs, OnEpoch, ParameterGroup, fit_head, fit_network, no_log
from centerhash.training.watching import NOTHING, logits_of, parted, validation_map

LEAST_SIDE = 7 / 8  # of the frame, as in the paper's crops of 224 out of 256
_AHEAD = 3  # batches that are decoded while one is in use


def fit_whole(
    dataset: Dataset,
    config: TrainConfig,
    folder: Path,
    *,
    team: Team | None = None,
    held: NDArray[np.int64] = NOTHING,
    cache: Path | None = None,
    skip_broken: bool = False,
    checkpoint_seconds: float = 20.0,
    progress: Progress = silent,
    on_epoch: OnEpoch = no_log,
) -> HashModel:
    """Train backbone and head together; checkpoints and the tuned backbone are stored in `folder`.

    Training images among the rows `held` are not trained on: the training is watched by them.
    """
    config, team = resolve(config), team or Team()
    trained_norms = config.backbone_norms == "trained"
    if trained_norms and team.size > 1:
        raise ConfigError(
            f"{team.size} processes cannot agree on the statistics of the backbone's batch norms: train them in one "
            "process, or leave them frozen."
        )
    if dataset.image_paths is None:
        raise ConfigError(
            "fine-tuning needs images: this data set holds features, whose network is not known."
        )
    rows = _readable(dataset, skip_broken, progress)
    rows, validation = parted(rows[dataset.labels[rows].any(axis=1)], held)
    sources, apart = ([dataset.image_paths[row] for row in part.tolist()] for part in (rows, validation))
    labels = dataset.labels[rows]
    backbone = backbone_of(config)
    start = None
    if config.warm_start:
        table = features_of(sources, backbone, cache, team, progress)
        start = _warm_head(table.features, labels, config, team, folder, progress)

    def build() -> WholeNetwork:
        head = build_head(backbone.features, config.bits, config.head, labels.shape[1])
        if start is not None:
            head.load_state_dict(start)
        return WholeNetwork(backbone.trainable(), head, trained_norms)

    def measure(network: WholeNetwork) -> float:
        asking, searched = (
            logits_of(network, plain_inputs(side, backbone, config.batch_size), team.device)
            for side in (apart, sources)
        )
        rotate = bool(config.head.rotate)
        return validation_map(asking, searched, dataset.labels[validation], labels, rotate)

    objective, centers = objective_of(config, labels)
    network, _ = fit_network(
        build,
        image_inputs(sources, backbone, config.seed),
        labels,
        objective,
        config,
        team=team,
        prepare=lambda: objective.prepare(np.zeros((len(rows), 0)), np.arange(len(rows)), labels),
        groups=lambda whole: whole.groups(config.backbone_rate),
        measure=measure if apart else None,
        checkpoint=folder / "checkpoint.safetensors",
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
        on_epoch=on_epoch,
    )
    if team.first:
        write_backbone(network, folder / TUNED)
    team.wait()
    tuned = get_backbone(config.backbone, folder / TUNED, crop=config.crop, pool=config.pool)
    spec = model_spec(dataset, config, backbone.features, tuned).model_copy(update={"tuned": True})
    few = sources[:2_000]  # enough to learn from which cosine on a label is predicted
    features = features_of(few, tuned, cache, team).features
    areas = known_areas(dataset, config, rows[: len(few)])
    model = finished_model(spec, network.head, centers, features, labels[: len(few)], areas, folder)
    return with_visual_code(model, features, np.arange(len(features)))


def _readable(dataset: Dataset, skip_broken: bool, progress: Progress) -> NDArray[np.int64]:
    """The training rows without images that cannot be decoded; an error unless they may be skipped."""
    train, paths = dataset.splits.train.tolist(), dataset.image_paths or ()
    broken = find_broken([paths[row] for row in train], progress)
    if broken and not skip_broken:
        shown = first_reasons(broken.values())
        raise DataError(
            f"{len(broken)} of {len(train)} training images cannot be read:\n{shown}\n{BROKEN_ADVICE}"
        )
    return dataset.splits.without([train[place] for place in broken]).train


def _warm_head(
    features: NDArray[np.float32],
    labels: NDArray[np.bool_],
    config: TrainConfig,
    team: Team,
    folder: Path,
    progress: Progress,
) -> dict[str, Tensor]:
    """A head trained on frozen features (n, D) with labels (n, C), by the defaults of such a training."""
    kept = ("method", "bits", "seed", "head", "options", "centers", "assignment")
    plain = resolve(TrainConfig(**{name: getattr(config, name) for name in kept}))
    objective, _ = objective_of(config, labels)
    head, _ = fit_head(
        features,
        np.arange(len(labels)),
        labels,
        objective,
        plain,
        team=team,
        checkpoint=folder / "checkpoint-head.safetensors",
        progress=lambda stage, done, total, note="": progress("head", done, total, note),
    )
    return head.state_dict()


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
        """What the head reads from a batch."""
        output: HeadOutput = self.head(self.backbone(images))
        return output

    def groups(self, backbone_rate: float) -> list[ParameterGroup]:
        """The head's parameters, and the backbone's at the share `backbone_rate` of the learning rate."""
        return [
            ParameterGroup(self.head.parameters()),
            ParameterGroup(self.backbone.parameters(), backbone_rate),
        ]


def augmented(source: ImageSource, backbone: Backbone, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Pixels (crop, crop, 3) of one image at a random place of its frame, flipped every other time."""
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
    """What the training loop reads: augmented images (B, crop, crop, 3) uint8, decoded in threads ahead of it."""

    def decode(place: int, epoch: int) -> NDArray[np.uint8]:
        return augmented(sources[place], backbone, np.random.default_rng((seed, epoch, place)))

    def inputs(batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        return _decoded(lambda place: decode(place, epoch), (batch.tolist() for batch in batches), backbone)

    return inputs


def plain_inputs(sources: Sequence[ImageSource], backbone: Backbone, batch: int) -> Iterator[Tensor]:
    """Images (B, crop, crop, 3) uint8 as they will be encoded, batch by batch."""
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
    """Which images cannot be decoded, by place: better known before a training of hours than in its middle."""

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


def write_backbone(network: WholeNetwork, path: Path) -> None:
    """Store the tuned backbone as `get_backbone(name, weights=path)` reads it."""
    normalised = network.backbone
    if not isinstance(normalised.network, nn.Module):
        raise DataError("the backbone has no network inside: it was not made by Backbone.trainable.")
    tensors = {name: tensor.contiguous() for name, tensor in normalised.network.state_dict().items()}
    with atomic(path) as stream:
        stream.write(save(tensors))
