"""What a model is made of, on disk and in words."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from centerhash.core.options import Options
from centerhash.networks.head_options import HeadOptions

TUNED = "backbone.safetensors"  # beside the model, where the backbone was fine-tuned
FILES = ("model.json", "model.safetensors", TUNED)
CARD = "README.md"


class ModelSpec(Options):
    """Everything about a model but its numbers; stored as model.json."""

    format: Literal[1] = 1
    method: str
    options: dict[str, Any]
    bits: int
    features: int
    classes: tuple[str, ...]
    head: HeadOptions
    backbone: str | None = Field(None, description="None: trained on features that came without images")
    weights: str | None = Field(None, description="file of the backbone's weights; None: the published ones")
    pretrained: bool = Field(
        True, description="False: the backbone's weights are random, drawn from the seed"
    )
    crop: int | None = Field(
        None, description="of the backbone's frame; None: a model from before the choice"
    )
    pool: str | None = Field(None, description="of the backbone's last map; None: the network's own")
    tuned: bool = Field(
        False, description="whether the backbone was fine-tuned; it then lies beside the model"
    )
    backbone_key: str | None = Field(
        None, description="of the features that it was trained on; None: not known"
    )
    label_threshold: float | None = Field(
        None, description="cosine to a center from which its label is predicted"
    )
    seed: int


def for_others(spec: ModelSpec) -> ModelSpec:
    """The same model without folders of this machine: of files of weights and of methods, the names stay."""
    weights = None if spec.weights is None else file_name(spec.weights)
    return spec.model_copy(update={"weights": weights, "method": file_name(spec.method)})


def file_name(path: str) -> str:
    """The last part of a path of any system."""
    return re.split(r"[\\/]", path)[-1]
