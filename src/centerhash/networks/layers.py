"""Preprocessing of images inside a network, and batch norms that are folded into the convolutions before them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Normalized(nn.Module):
    """A network with its preprocessing, so that uint8 pixels are copied between devices, not floats."""

    shift: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, shift: Sequence[float], scale: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        for name, values in (("shift", shift), ("scale", scale)):
            self.register_buffer(name, torch.tensor(values).reshape(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Compute features (B, D) of uint8 images (B, H, W, 3)."""
        pixels = images.permute(0, 3, 1, 2).float().sub(self.shift).div(self.scale)
        features: Tensor = self.network(pixels)
        return features


def fold_batch_norms(network: nn.Module) -> None:
    """Fold every batch norm into the convolution before it, in place, which saves a third of the time.

    The activations that timm's norms contain replace the norms.
    """
    names = list(network._modules)
    for before, after in pairwise(names):
        convolution, norm = network._modules[before], network._modules[after]
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            network._modules[before] = fuse_conv_bn_eval(convolution, norm)
            network._modules[after] = getattr(norm, "act", nn.Identity())
    for child in network.children():
        fold_batch_norms(child)
