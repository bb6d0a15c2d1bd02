"""The descriptions of a model on disk: model.json, the metadata of model.onnx, and the names of the files."""

from __future__ import annotations

from base64 import b64decode
from pathlib import PureWindowsPath
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from centerhash.codes import Codes, packed_width, unpack
from centerhash.core.options import Options
from centerhash.networks.head_options import HeadOptions

# A fine-tuned backbone is stored next to its model.
TUNED = "backbone.safetensors"
# This file is the whole model, which runs without PyTorch. Its metadata have a `PortableSpec` at this key.
PORTABLE, METADATA_KEY = "model.onnx", "centerhash"
TORCH_FILES = ("model.json", "model.safetensors")
FILES = (*TORCH_FILES, TUNED, PORTABLE)


class ShorterCode(Options):
    """A shorter code of a model: the first bits of its code, with the options of the method at this length."""

    bits: int = Field(ge=8, le=1024)
    options: dict[str, Any] = Field(default_factory=dict)
    label_threshold: float | None = None


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
    pretrained: bool = Field(True, description="False: the weights are random, drawn from the seed")
    crop: int | None = Field(None, description="of the backbone's frame; None without a backbone")
    pool: str | None = Field(None, description="of the backbone's last map; None: the network's own")
    tuned: bool = Field(False, description="whether a fine-tuned backbone is stored next to the model")
    backbone_key: str | None = Field(None, description="of the features that it was trained on")
    label_threshold: float | None = Field(None, description="least cosine to a center of a predicted label")
    shorter: tuple[ShorterCode, ...] = Field((), description="nested codes, the shortest first")
    seed: int

    @property
    def needs_local_weights(self) -> bool:
        """Whether the model needs a file of backbone weights that is not stored next to it."""
        return self.backbone is not None and self.weights is not None and not self.tuned

    def without_paths(self) -> ModelSpec:
        """Return the description with names of files in place of paths."""
        # A path of Windows may have the separators of any system.
        weights = None if self.weights is None else PureWindowsPath(self.weights).name
        return self.model_copy(update={"weights": weights, "method": PureWindowsPath(self.method).name})


class Preprocessing(Options):
    """How an image becomes pixels; `shift` and `scale` are applied inside the network."""

    resize: int = Field(ge=1, le=4_096, description="the whole frame is squashed to resize x resize")
    crop: int = Field(ge=1, le=4_096, description="then the middle crop x crop is kept")
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
    shift: tuple[float, float, float]
    scale: tuple[float, float, float]


class Shares(Options):
    """How the weights of an image's labels are computed."""

    # They are a softmax of the output share_logits over the labels, 1/c, or the weight step of the ICS paper.
    by: Literal["softmax", "equal", "ics"]
    beta: float | None = Field(None, gt=0, description="of ICS, Eq. (4)")
    entropy: float | None = Field(None, gt=0, description="of ICS: lambda, Eq. (10)")
    scale: float | None = Field(None, gt=0, description="of ICS: factor of the distances to the centers")
    form: Literal["joint", "per_center"] = "joint"
    solver: Literal["exact", "pgd", "printed"] = "exact"
    rate: float = Field(0.1, gt=0, description="of pgd and printed: step size")
    steps: int = Field(10, ge=1, le=10_000, description="of pgd and printed")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.by == "ics" and None in (self.beta, self.entropy, self.scale):
            raise ValueError("shares by 'ics' need beta, entropy and scale")
        return self


class PortableSpec(Options):
    """Everything about a model in model.onnx except the network; stored as its metadata."""

    format: Literal[2] = 2
    version: str
    method: str
    bits: int = Field(ge=1, le=65_536)
    features: int = Field(ge=1, description="width of the input, or of all outputs if the input is an image")
    classes: tuple[str, ...]
    centers: str | None = Field(None, description="packed codes (C, ceil(K/8)) in base64")
    directions: str | None = Field(None, description="rotated centers, float32 (C, K) in base64")
    label_threshold: float | None = None
    general_bits: int | None = Field(None, ge=1, le=65_536)
    probabilities: bool = False
    shares: Shares | None = Field(None, description="None without centers")
    backbone: str | None = Field(None, description="None: the input is features")
    backbone_key: str | None = None
    preprocessing: Preprocessing | None = None
    seed: int = 0
    digest: str = Field(description="of the PyTorch model that the file was made of")
    network_size: int = Field(ge=0, description="bytes before the metadata")
    network_checksum: int = Field(description="CRC-32 of these bytes")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Reject fields that contradict each other; arrays of other shapes raise ValueError when they are read."""
        self.center_codes()
        directions = self.center_directions()
        if directions is not None and not np.isfinite(directions).all():
            raise ValueError("directions are not finite")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("a class is named twice")
        if len({part is None for part in (self.centers, self.directions, self.shares)}) > 1:
            raise ValueError("of centers, directions and shares some are missing")
        if (self.backbone is None) != (self.preprocessing is None):
            raise ValueError("a backbone without preprocessing, or the other way round")
        if self.backbone is not None and self.features != sum(self.outputs().values()):
            raise ValueError(f"outputs of {sum(self.outputs().values())} numbers, not {self.features}")
        return self

    def outputs(self) -> dict[str, int]:
        """Return the widths of the outputs that a search needs, by name; `code` is for other programs."""
        widths = {"logits": self.bits}
        if self.general_bits is not None:
            widths["general"] = packed_width(self.general_bits)
        if self.probabilities:
            widths["probability"] = len(self.classes)
        if self.shares is not None and self.shares.by == "softmax":
            widths["share_logits"] = len(self.classes)
        return widths

    def center_codes(self) -> Codes | None:
        """Return the hash centers (C, K); None for a method without."""
        if self.centers is None:
            return None
        packed = np.frombuffer(b64decode(self.centers, validate=True), np.uint8)
        return unpack(packed.reshape(len(self.classes), packed_width(self.bits)), self.bits)

    def center_directions(self) -> NDArray[np.float32] | None:
        """Return the centers (C, K), rotated as the logits were; None for a method without."""
        if self.directions is None:
            return None
        numbers = np.frombuffer(b64decode(self.directions, validate=True), "<f4")
        return numbers.reshape(len(self.classes), self.bits).astype(np.float32)
