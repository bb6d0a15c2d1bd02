"""The description of a model on disk: model.json, and the names of the other files."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from centerhash.core.options import Options
from centerhash.networks.head_options import HeadOptions

TUNED = "backbone.safetensors"  # a fine-tuned backbone
FILES = ("model.json", "model.safetensors", TUNED)


class ModelSpec(Options):
    """Everything about a model except its tensors; stored as model.json."""

    format: Literal[1] = 1
    method: str
    options: dict[str, Any]
    bits: int
    features: int
    classes: tuple[str, ...]
    head: HeadOptions
    backbone: str | None = Field(None, description="None: trained on precomputed features")
    weights: str | None = Field(None, description="file of the backbone's weights; None: the published ones")
    pretrained: bool = Field(
        True, description="False: the backbone's weights are random, drawn from the seed"
    )
    crop: int | None = Field(None, description="of the backbone's frame; None without a backbone")
    pool: str | None = Field(None, description="of the backbone's last map; None: the network's own")
    tuned: bool = Field(
        False, description="whether the backbone was fine-tuned; it is then stored next to the model"
    )
    backbone_key: str | None = Field(
        None, description="of the features that it was trained on; None: not known"
    )
    label_threshold: float | None = Field(
        None, description="cosine to a center from which its label is predicted"
    )
    seed: int

    @property
    def needs_local_weights(self) -> bool:
        """Whether the model needs a file of backbone weights that is not stored next to it."""
        return self.backbone is not None and self.weights is not None and not self.tuned

    def without_paths(self) -> ModelSpec:
        """Return the description without folders of this machine; names of files stay."""
        weights = None if self.weights is None else file_name(self.weights)
        return self.model_copy(update={"weights": weights, "method": file_name(self.method)})


def file_name(path: str) -> str:
    """Return the last part of a path of any system."""
    return re.split(r"[\\/]", path)[-1]
