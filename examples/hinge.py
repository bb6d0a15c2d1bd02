"""Hinge: each bit must lie on the side of its labels' centers by a margin, unless the centers disagree on it."""

from __future__ import annotations

from typing import Annotated, Any

from numpy.typing import NDArray
from torch import Tensor, relu

import centerhash as ch
from centerhash.losses import Batch, CentralLoss, Option


def agreement(labels: Tensor, centers: Tensor) -> Tensor:
    """Compute the mean (B, K) of the centers of each image's labels, in [-1, 1]: 0 if they disagree on a bit."""
    return ch.weights.equal_weights(labels, centers.dtype) @ centers


def bit_hinge(logits: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Compute the loss (B,) = mean_k relu(m |t_k| - t_k z_k): 0 if z_k is on the side of t_k by the margin m."""
    return relu(margin * targets.abs() - targets * logits).mean(dim=1)


@ch.register_method("hinge")
class Hinge(CentralLoss):
    """Hinge per bit, towards the mean of the labels' centers."""

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        margin: Annotated[float, Option("margin that a logit must keep from zero", gt=0)] = 1.0,
    ) -> None:
        super().__init__(centers)
        self.margin = margin

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss per image (B,)."""
        targets = agreement(batch.labels, self.centers)
        return {"hinge": bit_hinge(batch.logits, targets, self.margin)}
