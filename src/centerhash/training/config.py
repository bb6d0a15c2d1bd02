"""The configuration of a training run: everything except the data that determines the result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from centerhash.core.errors import ConfigError
from centerhash.core.options import Options
from centerhash.data import Dataset
from centerhash.methods.centers import KINDS
from centerhash.methods.registry import METHODS, get_method
from centerhash.networks.backbones import DEFAULT_BACKBONE, Backbone, get_backbone
from centerhash.networks.heads import HeadOptions
from centerhash.training.distributed import Precision

WITHOUT_LABELS = "itq"  # the method for images without labels
_FINETUNE = {"epochs": 6, "batch_size": 64, "learning_rate": 1e-3}  # of short fine-tuning from a trained head


def _plain_path(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


class TrainConfig(Options):
    """Everything that decides a run's result beside the data; stored in the run's config.json."""

    method: str = "ics-softmax"
    bits: int = Field(64, ge=8, le=1024)
    seed: int = Field(0, ge=0)
    epochs: int = Field(30, ge=1)
    batch_size: int = Field(256, ge=2)
    learning_rate: float = Field(4e-3, gt=0, le=10)
    optimizer: str = Field(
        "adamw", pattern="^(adamw|adam)$", description="adamw: decay beside the gradient; adam: L2 within it"
    )
    weight_decay: float = Field(1e-4, ge=0, description="0.9 is the printed value")
    schedule: str = Field("cosine", pattern="^(cosine|steps|constant)$")
    accumulate: int = Field(1, ge=1, description="parts that a batch is computed in, to save memory")
    precision: Precision = Field("32", description="of the network: 32 bits, or mixed with bf16 or 16")
    backbone: str = DEFAULT_BACKBONE
    weights: Annotated[str | None, BeforeValidator(_plain_path)] = Field(
        None, description="file of the backbone's weights; None: the published ones"
    )
    pretrained: bool = Field(True, description="False: the backbone starts from random weights")
    crop: int | None = Field(None, ge=1, description="of the backbone's frame; None: as the backbone has it")
    pool: str | None = Field(
        None, pattern=r"^(mean|max|mean\+max)$", description="of its last map; None: as the backbone has it"
    )
    finetune: bool = Field(False, description="train the backbone too, on augmented images")
    backbone_rate: float = Field(0.1, ge=0, description="share of the learning rate that the backbone has")
    watch: int = Field(
        0,
        ge=0,
        description="mAP of held-out training images every so many epochs; 0: never, all images train",
    )
    backbone_norms: str = Field(
        "frozen", pattern="^(frozen|trained)$", description="statistics of its batch norms when fine-tuned"
    )
    warm_start: bool = Field(True, description="fine-tune from a head that was trained on frozen features")
    centers: str = Field("auto", pattern=f"^({'|'.join(KINDS)})$", description="kind of hash centers")
    assignment: str = Field(
        "cooccurrence", pattern="^(cooccurrence|random)$", description="of centers to classes"
    )
    sizes: bool = Field(
        True,
        description="weights know the typical size of each class, where the data has areas; codes do not",
    )
    head: HeadOptions = HeadOptions()
    options: dict[str, Any] = Field(default_factory=dict, description="options of the method")


def backbone_of(config: TrainConfig) -> Backbone:
    """Return the backbone of a configuration."""
    return get_backbone(
        config.backbone, config.weights, config.pretrained, config.seed, config.crop, config.pool
    )


def suited(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    """Return the configuration for a dataset: without labels "itq", unless a label-free method was chosen."""
    if dataset.has_labels:
        return config
    if "method" not in config.model_fields_set:
        return config.model_copy(update={"method": WITHOUT_LABELS})
    if get_method(config.method).uses_labels:
        able = ", ".join(name for name, row in METHODS.items() if not row.uses_labels)
        raise ConfigError(
            f"method '{config.method}' learns from labels, and '{dataset.root}' has none: train {able}, describe the "
            "images in a labels.csv (file_name,labels), or sort them into a folder per class."
        )
    return config


def resolve(config: TrainConfig) -> TrainConfig:
    """Fill in the settings that depend on method and number of bits; reject impossible combinations."""
    method = get_method(config.method)
    backbone_of(config)  # rejects an unknown name
    defaults = dict(method.training)
    head = config.head.filled(dict(method.head))
    if head.evidence and not method.head.get("evidence"):
        able = ", ".join(name for name, row in METHODS.items() if row.head.get("evidence"))
        raise ConfigError(f"method '{method.name}' cannot use class evidence: leave it out, or train {able}.")
    if method.family == "shallow":
        for given, problem in (
            (head.presence, "has no head that could read presence: leave it out"),
            (config.watch, "has no epochs to watch: leave out `watch=`"),
            (config.finetune, "has no network to fine-tune: train it without finetune"),
        ):
            if given:
                raise ConfigError(f"method '{method.name}' {problem}.")
    if config.finetune:
        defaults |= _FINETUNE
    unset = {name: value for name, value in defaults.items() if name not in config.model_fields_set}
    options = method.options(config.options, config.bits).model_dump(by_alias=True)
    return config.model_copy(update={**unset, "options": options, "head": head})
