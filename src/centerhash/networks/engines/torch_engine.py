"""The backbone in PyTorch: on a GPU, and where nothing faster is installed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from centerhash.networks.backbones import Backbone
from centerhash.networks.engines.table import Pixels, check_pixels


class TorchEngine:
    """A backbone on one device; the whole batch goes through it at once."""

    name = "torch"

    def __init__(
        self, backbone: Backbone, device: torch.device | str = "cpu", warnings: tuple[str, ...] = ()
    ) -> None:
        self.backbone, self.device, self.warnings = backbone, device, warnings
        self._network = backbone.load(device)

    def features(self, pixels: Pixels) -> NDArray[np.float32]:
        """Features (B, D) of images (B, H, W, 3)."""
        check_pixels(pixels, self.backbone.crop)
        if not len(pixels):
            return np.zeros((0, self.backbone.features), dtype=np.float32)
        with torch.inference_mode():
            batch = torch.from_numpy(pixels).to(self.device)
            found: NDArray[np.float32] = self._network(batch).float().cpu().numpy()
        return found
