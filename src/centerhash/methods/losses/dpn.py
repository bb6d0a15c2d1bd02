"""DPN: every bit is pushed past a margin on its target's side (Fan et al., 2020)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch
from centerhash.methods.losses.central import CentralObjective, majority_centroid, random_code


def polarization(logits: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Polarization loss (B, ...), per bit: [m - z t]+ of logits and targets (..., K) in {-1, +1}."""
    return torch.relu(margin - logits * targets).mean(dim=-1)


def polarization_to_centers(logits: Tensor, centers: Tensor, margin: float) -> Tensor:
    """Polarization loss (B, C) of logits (B, K) to each of the centers (C, K).

    A bit's loss depends on its center's sign alone, so that two matrix products stand for a (B, C, K) tensor.
    """
    towards, against = torch.relu(margin - logits), torch.relu(margin + logits)
    positive = (centers > 0).to(logits.dtype)
    return (towards @ positive.T + against @ (1 - positive).T) / logits.shape[1]


class DPNOptions(MethodOptions):
    """Options of DPN."""

    margin: float = Field(1.0, gt=0, description="how far a bit is pushed past zero")
    target: Literal["majority", "each"] = Field(
        "majority",
        description="of several labels: the majority of their centers as CSQ has it, or each, summed, as the authors",
    )


class DPN(CentralObjective):
    """DPN (Fan et al., 2020): a hinge per bit, towards the center of the label."""

    options: DPNOptions
    tie_vector: Tensor

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        seed: int = 0,
        options: DPNOptions | None = None,
        **values: Any,
    ) -> None:
        super().__init__(centers, options=options, **values)
        self.register_buffer("tie_vector", random_code(centers.shape[1], seed), persistent=False)

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Polarization loss (B,), to one target per image or summed over those of its labels."""
        logits, labels, margin = batch.logits, batch.labels, self.options.margin
        if self.options.target == "each":
            losses = polarization_to_centers(logits, self.centers, margin)
            return {"center": (losses * labels).sum(dim=1)}
        target = majority_centroid(labels, self.centers, self.tie_vector)
        return {"center": polarization(logits, target, margin)}
