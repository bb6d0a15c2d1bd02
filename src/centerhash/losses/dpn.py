"""DPN: a hinge per bit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from centerhash.core.options import Option
from centerhash.losses.base import Batch, CentralLoss
from centerhash.losses.functional import majority_center, random_code


def polarization(logits: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Compute the polarization loss (B,), per bit: [m - z t]+ of logits and targets (B, K) in {-1, +1}."""
    return torch.relu(margin - logits * targets).mean(dim=-1)


def polarization_to_centers(logits: Tensor, centers: Tensor, margin: float) -> Tensor:
    """Compute the polarization loss (B, C) of logits (B, K) to each of the centers (C, K).

    A bit's loss depends on its center's sign alone, so that two matrix products stand for a (B, C, K) tensor.
    """
    towards, against = torch.relu(margin - logits), torch.relu(margin + logits)
    positive = (centers > 0).to(logits.dtype)
    return (towards @ positive.T + against @ (1 - positive).T) / logits.shape[1]


class DPNLoss(CentralLoss):
    """DPN (Fan et al., 2020): a hinge per bit, towards the majority of the labels' centers.

    Deep Polarized Network for Supervised Learning of Accurate Binary Hashing Codes,
    https://www.ijcai.org/proceedings/2020/115

        >>> loss = DPNLoss(hash_centers(classes=80, bits=64), margin=0.5)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: `centers` (C, K) of -1 and +1, `seed` of the vector for tied bits, and the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar ().
    """

    tie_vector: Tensor

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        margin: Annotated[float, Option("distance from zero that a bit must keep", gt=0)] = 1.0,
        target: Annotated[
            Literal["majority", "each"],
            Option("target with several labels: majority of their centers, or the sum over each"),
        ] = "majority",
        seed: int = 0,
    ) -> None:
        super().__init__(centers)
        self.margin, self.target = margin, target
        self.register_buffer("tie_vector", random_code(centers.shape[1], seed), persistent=False)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the polarization loss (B,) to one target per image, or summed over its labels."""
        logits, labels = batch.logits, batch.labels
        if self.target == "each":
            losses = polarization_to_centers(logits, self.centers, self.margin)
            return {"center": (losses * labels).sum(dim=1)}
        target = majority_center(labels, self.centers, self.tie_vector)
        return {"center": polarization(logits, target, self.margin)}
