"""Backbones: images to features, each with its own preprocessing.

Importing this package is quick; torch, timm and torchvision are imported when a network is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from centerhash.networks.backbones.backbone import Backbone
from centerhash.networks.backbones.devices import choose_device
from centerhash.networks.backbones.imports import import_timm, import_torchvision
from centerhash.networks.backbones.table import (
    BACKBONES,
    DEFAULT_BACKBONE,
    backbone_rows,
    first_preprocessing,
    get_backbone,
)

if TYPE_CHECKING:
    from centerhash.networks.backbones.layers import fold_batch_norms

__all__ = [
    "BACKBONES",
    "DEFAULT_BACKBONE",
    "Backbone",
    "backbone_rows",
    "choose_device",
    "first_preprocessing",
    "fold_batch_norms",
    "get_backbone",
    "import_timm",
    "import_torchvision",
]


def __getattr__(name: str) -> Any:
    if name == "fold_batch_norms":  # its module imports torch
        from centerhash.networks.backbones import layers

        return layers.fold_batch_norms
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
