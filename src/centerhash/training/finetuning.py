"""Fine-tuning: a head on frozen features first, then a backbone, or its last stages, and the head together (Sec. 4.3).

model, features, splits = fit_finetuned(dataset, config, context)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from centerhash.core.errors import ConfigError
from centerhash.core.files import atomic
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.losses.base import HeadOutput
from centerhash.model.model import HashModel
from centerhash.model.spec import TUNED
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.heads import build_head
from centerhash.training.augmentation import WholeImages
from centerhash.training.config import TrainConfig, backbone_of, resolve
from centerhash.training.context import RunContext, no_log
from centerhash.training.finish import (
    finished_model,
    general_sample,
    network_logits,
    rotation_sample,
    validation_map,
    with_general_code,
)
from centerhash.training.last_stages import LastStageMaps
from centerhash.training.loop import ParameterGroup, fit_head, fit_network, make_objective


def fit_finetuned(
    dataset: Dataset, config: TrainConfig, context: RunContext
) -> tuple[HashModel, NDArray[Any], Splits]:
    """Train a backbone, or its last stages, and a head together by a resolved configuration.

    Return the model, features (N, D) of the dataset by its backbone, and the splits without broken images. Checkpoints
    and the backbone are stored in the folder of the context.
    """
    check_finetuning(dataset, config, context)
    source = LastStageMaps if config.finetune == "last" else WholeImages
    images: LastStageMaps | WholeImages = source(dataset, config, context)
    dataset = dataset.with_splits(images.splits)
    train = images.splits.train
    rows, validation = context.split_validation(train[dataset.labels[train].any(axis=1)])
    labels, sample = dataset.labels[rows], general_sample(rows)
    objective = make_objective(config, labels)
    if config.warm_start:
        features = images.untrained_features(rows)
        untrained, start = features[sample], warm_head(features, labels, config, context)
    else:
        untrained, start = images.untrained_features(rows[sample]), None
    whole, part = images.trainable()

    def build() -> TunedNetwork:
        head = build_head(backbone_of(config).features, config.bits, config.head, labels.shape[1])
        if start is not None:
            head.load_state_dict(start[0])
        return TunedNetwork(part.train(), head, config.backbone_norms == "trained")

    def prepare() -> None:
        objective.prepare(labels)
        if start is not None:  # centers and proxies go on from it
            objective.load_state_dict(start[1])

    def measure(network: TunedNetwork) -> float:
        device = context.group.device
        query, database = (network_logits(network, images.plain(side), device) for side in (validation, rows))
        return validation_map(query, database, dataset.labels[validation], labels, config)

    network, _ = fit_network(
        build,
        images.augmented(rows),
        labels,
        objective,
        config,
        context,
        prepare=prepare,
        groups=lambda network: network.groups(config.backbone_rate),
        measure=measure if len(validation) else None,
    )
    tuned = stored_backbone(whole, config, context)
    features, splits = images.tuned_features(tuned)
    some = rows[rotation_sample(rows)]
    model = finished_model(
        dataset, config, network.head, objective, some, features[some], tuned, context.folder
    )
    return with_general_code(model, features, rows, untrained), features, splits


def check_finetuning(dataset: Dataset, config: TrainConfig, context: RunContext) -> None:
    """Reject data without images, and batch norms that several processes would train."""
    size = context.group.size
    if config.backbone_norms == "trained" and size > 1:
        raise ConfigError(
            f"{size} processes cannot agree on the statistics of the backbone's batch norms: train them in one "
            "process, or leave them frozen."
        )
    if dataset.kind != "images":
        raise ConfigError(
            "fine-tuning needs images: this dataset holds features, and their network is unknown."
        )
    if context.folder is None:
        raise ConfigError("fine-tuning stores its backbone in the folder of the run: name one as `out=`.")


def warm_head(
    features: NDArray[np.float32], labels: NDArray[np.bool_], config: TrainConfig, context: RunContext
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train a head on frozen features (n, D) with labels (n, C), by the defaults of frozen training.

    Return the tensors of the head, and those that its loss learned.
    """
    kept = ("method", "bits", "shorter", "seed", "head", "options", "centers", "assignment")
    plain = resolve(TrainConfig(**{name: getattr(config, name) for name in kept}))
    objective = make_objective(config, labels)

    def progress(stage: str, done: int, total: int, note: str = "", /) -> None:
        context.progress("head", done, total, note)

    warming = replace(
        context, checkpoint_name="checkpoint-head.safetensors", progress=progress, on_epoch=no_log
    )
    head, _ = fit_head(features, np.arange(len(labels)), labels, objective, plain, warming)
    return head.state_dict(), objective.state_dict()


class TunedNetwork(nn.Module):
    """A backbone, or a part of one, and a head: images or maps in, the head's output out.

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


def stored_backbone(network: nn.Module, config: TrainConfig, context: RunContext) -> Backbone:
    """Store a network of `Backbone.trainable` in the folder of the run, and return the backbone that reads it."""
    assert context.folder is not None
    path, inner = context.folder / TUNED, network.network
    assert isinstance(inner, nn.Module)
    if context.group.is_main:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in inner.state_dict().items()}
        with atomic(path) as stream:
            stream.write(save(tensors))
    context.group.barrier()
    return get_backbone(config.backbone, path, crop=config.crop, pool=config.pool)
