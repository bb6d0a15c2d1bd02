"""Fine-tuning: a head on frozen features first, then a backbone, or its last stages, and the head together (Sec. 4.3).

fit = fit_finetuned(dataset, config, context)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from centerhash.core.errors import ConfigError
from centerhash.core.files import atomic
from centerhash.data import Dataset
from centerhash.losses.base import HeadOutput
from centerhash.model.spec import TUNED
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.heads import build_head
from centerhash.training.augmentation import WholeImages
from centerhash.training.config import TrainConfig, backbone_of, resolve
from centerhash.training.context import RunContext, no_log
from centerhash.training.finish import (
    Fit,
    finished_model,
    general_sample,
    validation_measure,
    with_general_code,
)
from centerhash.training.last_stages import LastStageMaps
from centerhash.training.loop import ParameterGroup, fit_head, fit_network, make_objective


def fit_finetuned(dataset: Dataset, config: TrainConfig, context: RunContext) -> Fit:
    """Train a backbone, or its last stages, and a head together by a resolved configuration.

    Checkpoints and the backbone are stored in the folder of the context.
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
    network, trained_part = images.trainable()

    def build() -> TunedNetwork:
        head = build_head(backbone_of(config).features, config.bits, config.head, labels.shape[1])
        objective.prepare(labels)
        if start is not None:
            head.load_state_dict(start[0])
            objective.load_state_dict(start[1])
        return TunedNetwork(trained_part.train(), head, config.backbone_norms == "trained")

    tuned, _ = fit_network(
        build,
        images.augmented(rows),
        labels,
        objective,
        config,
        context,
        groups=lambda network: network.groups(config.backbone_rate),
        measure=validation_measure(dataset, rows, validation, images.plain, config, context.group.device),
    )
    backbone = stored_backbone(network, config, context)
    features, splits = images.tuned_features(backbone)
    model = finished_model(dataset, config, tuned.head, objective, rows, features, backbone, context.folder)
    return Fit(with_general_code(model, features, rows, untrained), features, splits)


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
    shared = ("method", "bits", "shorter", "seed", "head", "options", "centers", "assignment")
    frozen = resolve(TrainConfig(**{name: getattr(config, name) for name in shared}))
    objective = make_objective(config, labels)

    def progress(stage: str, done: int, total: int, note: str = "", /) -> None:
        context.progress("head", done, total, note)

    warming = replace(
        context, checkpoint_name="checkpoint-head.safetensors", progress=progress, on_epoch=no_log
    )
    head, _ = fit_head(features, np.arange(len(labels)), labels, objective, frozen, warming)
    return head.state_dict(), objective.state_dict()


class TunedNetwork(nn.Module):
    """A backbone, or a part of one, and a head: images or maps in, the head's output out.

    The backbone's batch norms keep their pretrained statistics unless `trained_norms`: those of small batches are noise,
    and several processes would have to exchange them.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, trained_norms: bool = False) -> None:
        super().__init__()
        self.backbone, self.head, self.trained_norms = backbone, head, trained_norms

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all layers except the backbone's frozen batch norms."""
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
        factors = ((self.head, 1.0), (self.backbone, backbone_rate))
        return [{"params": list(module.parameters()), "factor": factor} for module, factor in factors]


def stored_backbone(network: nn.Module, config: TrainConfig, context: RunContext) -> Backbone:
    """Store a network of `Backbone.trainable` in the folder of the run, and return the backbone that reads it."""
    assert context.folder is not None
    assert isinstance(network.network, nn.Module)
    path = context.folder / TUNED
    if context.group.is_main:
        state = network.network.state_dict()
        tensors = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
        with atomic(path) as stream:
            stream.write(save(tensors))
    context.group.barrier()
    return get_backbone(config.backbone, path, crop=config.crop, pool=config.pool)
