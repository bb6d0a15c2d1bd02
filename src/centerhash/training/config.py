"""The configuration of a training run: everything except the data that determines the result."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import BeforeValidator, Field, model_validator

from centerhash.centers import KINDS
from centerhash.core.errors import ConfigError
from centerhash.core.options import Options, setting
from centerhash.methods.registry import METHODS, Method, get_method
from centerhash.model.spec import ShorterCode
from centerhash.networks.backbones import DEFAULT_BACKBONE, Backbone, get_backbone
from centerhash.networks.head_options import LABEL_UNITS, HeadOptions

if TYPE_CHECKING:
    from centerhash.data import Dataset

# 16 and bf16 are mixed with 32 bits.
Precision: TypeAlias = Literal["32", "bf16", "16"]

METHOD_WITHOUT_LABELS = "itq"
_LEAST_BITS_BETWEEN_LENGTHS = 8
_FINETUNE_DEFAULTS = {"epochs": 6, "batch_size": 64, "learning_rate": 1e-3}


class TrainConfig(Options):
    """All settings of a training run, which its config.json stores.

        config = TrainConfig(method="ics", bits=64, epochs=10)
        model = train("photos", config=config)
        config = resolve(config)    # with the defaults of the method

    Every `setting` is an option of `centerhash train`.
    """

    method: str = setting("ics-softmax", "see `centerhash methods`", shown="ics-softmax; itq without labels")
    bits: int = setting(
        64,
        "length of the codes, 8 to 1024; several for nested codes, e.g. 16,32,64",
        shown="64",
        ge=8,
        le=1024,
    )
    shorter: tuple[ShorterCode, ...] = Field((), description="nested codes, the shortest first; see `bits`")
    seed: int = setting(0, "seed of splits, centers, initial weights and order", ge=0)
    epochs: int = setting(30, "passes over the training images", shown="30; 6 with --finetune", ge=1)
    batch_size: int = setting(
        256, "images per step, over all processes", "Training", shown="256; 64 with --finetune", ge=2
    )
    learning_rate: float = setting(
        4e-3,
        "learning rate of the head",
        "Training",
        shown="0.004, or the method's own; 0.001 with --finetune",
        gt=0,
        le=10,
    )
    optimizer: str = setting("adamw", "decoupled weight decay or L2", "Training", choices=("adamw", "adam"))
    weight_decay: float = setting(1e-4, "weight decay", "Training", shown="0.0001", ge=0)
    schedule: str = setting(
        "cosine", "schedule of the learning rate", "Training", choices=("cosine", "steps", "constant")
    )
    gradient_accumulation_steps: int = setting(1, "parts of a batch, to save memory", "Training", ge=1)
    precision: Precision = setting(
        "32", "precision of training, 16 and bf16 mixed with 32", "Training", choices=get_args(Precision)
    )
    backbone: str = setting(DEFAULT_BACKBONE, "see `centerhash backbones`")
    weights: Annotated[
        str | None, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)
    ] = setting(
        None,
        "weights of the backbone: safetensors or a plain state dict",
        "Backbone",
        shown="the published ones",
    )
    pretrained: bool = setting(
        True, "start from ImageNet weights instead of random ones", "Backbone", shown="ImageNet"
    )
    crop: int | None = setting(None, "side of the center crop", "Backbone", shown="its own", ge=1)
    pool: str | None = setting(
        None,
        "pooling of the last feature map",
        "Backbone",
        shown="its own",
        choices=("mean", "max", "mean+max"),
    )
    finetune: str = setting(
        "off",
        "train the backbone too: its last stages, on maps that are computed once, or all of it",
        choices=("off", "last", "all"),
    )
    stages: int | None = setting(
        None,
        "number of stages that --finetune last trains",
        "Backbone",
        shown="2; 1 of ResNet and AlexNet",
        ge=1,
    )
    backbone_rate: float = setting(
        0.1, "learning rate of the backbone, as a share of the head's", "Backbone", ge=0
    )
    eval_interval: int = setting(
        0,
        "epochs between measurements of mAP on a tenth of the training images, which are held out",
        "Running",
        shown="never",
        ge=0,
    )
    backbone_norms: str = setting(
        "frozen",
        "batch norm statistics of the backbone with --finetune",
        "Backbone",
        choices=("frozen", "trained"),
    )
    warm_start: bool = Field(True, description="fine-tune from a head that was trained on frozen features")
    centers: str = setting("auto", "kind of hash centers", "Head", choices=KINDS)
    assignment: str = setting(
        "cooccurrence", "assignment of centers to classes", "Head", choices=("cooccurrence", "random")
    )
    sizes: bool = setting(
        True,
        "learn the typical size of each class if the data has areas; does not change the codes",
        "Head",
        shown="on",
    )
    head: HeadOptions = HeadOptions()
    options: dict[str, Any] = Field(default_factory=dict, description="options of the method")

    @model_validator(mode="before")
    @classmethod
    def _read_lengths(cls, values: Any) -> Any:
        """Read several lengths, as a list or as text with commas, as the longest and shorter ones."""
        bits = values.get("bits") if isinstance(values, dict) else None
        lengths = bits.split(",") if isinstance(bits, str) and "," in bits else bits
        if not isinstance(lengths, list | tuple):
            return values
        try:
            *shorter, longest = sorted({int(length) for length in lengths})
        except (TypeError, ValueError):
            raise ValueError(f"bits are lengths such as 64 or 16,32,64, got {bits!r:.80}") from None
        return {**values, "bits": longest, "shorter": [{"bits": length} for length in shorter]}

    @model_validator(mode="after")
    def _steps_between_lengths(self) -> Self:
        least = _LEAST_BITS_BETWEEN_LENGTHS
        if any(second - first < least for first, second in pairwise(self.lengths)):
            lengths = ", ".join(map(str, self.lengths))
            raise ValueError(f"lengths of nested codes differ by at least {least} bits, got {lengths}")
        return self

    @property
    def lengths(self) -> tuple[int, ...]:
        """All lengths of the codes, ascending; one unless they are nested."""
        return (*(code.bits for code in self.shorter), self.bits)


def backbone_of(config: TrainConfig) -> Backbone:
    """Return the backbone of a configuration."""
    return get_backbone(
        config.backbone, config.weights, config.pretrained, config.seed, config.crop, config.pool
    )


def resolve(config: TrainConfig, dataset: Dataset | None = None) -> TrainConfig:
    """Fill in the settings that depend on the dataset, the method and the number of bits.

    Images without labels are for ITQ unless a label-free method was named. Impossible combinations are rejected.
    """
    if dataset is not None and not dataset.has_labels:
        config = _without_labels(config, dataset)
    method = get_method(config.method)
    # An unknown backbone is rejected.
    backbone_of(config)
    defaults = {**method.training, **(_FINETUNE_DEFAULTS if config.finetune != "off" else {})}
    update = {name: value for name, value in defaults.items() if name not in config.model_fields_set}
    head = _resolve_head(config.head, method)
    _check_combination(config, method, head)
    shorter = tuple(
        code.model_copy(update={"options": method.options(code.options or config.options, code.bits)})
        for code in config.shorter
    )
    options = method.options(config.options, config.bits)
    return config.model_copy(update={**update, "options": options, "shorter": shorter, "head": head})


def _resolve_head(head: HeadOptions, method: Method) -> HeadOptions:
    """Fill in the options of the head that are None: off unless the method turns them on."""
    switches = ("divide", "rotate", "evidence", "presence")
    update: dict[str, Any] = {
        name: method.head.get(name, False) for name in switches if getattr(head, name) is None
    }
    if update.get("presence", head.presence) and head.presence_hidden is None:
        update["presence_hidden"] = LABEL_UNITS
    return head.model_copy(update=update)


def _without_labels(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    if "method" not in config.model_fields_set:
        return config.model_copy(update={"method": METHOD_WITHOUT_LABELS})
    if get_method(config.method).uses_labels:
        names = ", ".join(name for name, row in METHODS.items() if not row.uses_labels)
        raise ConfigError(
            f"method '{config.method}' learns from labels, and '{dataset.root}' has none. Train {names}, describe the "
            "images in a labels.csv (file_name,labels), or sort them into a folder per class."
        )
    return config


def _check_combination(config: TrainConfig, method: Method, head: HeadOptions) -> None:
    """Reject settings that exclude each other."""
    if head.evidence and not method.head.get("evidence"):
        names = ", ".join(name for name, row in METHODS.items() if row.head.get("evidence"))
        raise ConfigError(
            f"method '{method.name}' cannot use class evidence: leave it out, or train {names}."
        )
    shallow, nested = method.family == "shallow", bool(config.shorter)
    moves, advice = getattr(method.cls, "moves_centers", False), "train one length after the other"
    for is_impossible, reason in (
        (shallow and head.presence, "has no head that could read presence: leave it out"),
        (shallow and config.eval_interval, "has no epochs to evaluate: leave out `eval_interval=`"),
        (shallow and config.finetune != "off", "has no network to fine-tune: omit `finetune=`"),
        (nested and shallow, f"has no nested codes: {advice}"),
        (nested and moves, f"changes its centers in training, so its codes cannot be nested: {advice}"),
        (nested and head.divide, f"gives each bit its own features, so no code is nested: {advice}"),
    ):
        if is_impossible:
            raise ConfigError(f"method '{method.name}' {reason}.")
    if config.stages is not None and config.finetune != "last":
        raise ConfigError(
            '`stages=` is the number of stages that `finetune="last"` trains: pass both, or neither.'
        )
