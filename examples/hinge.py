"""Hinge: each bit must lie on the side of its labels' centers by a margin, and is free where they disagree."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, relu

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.central import CentralObjective
from centerhash.methods.weights import equal_weights


def agreement(labels: Tensor, centers: Tensor) -> Tensor:
    """Mean (B, K) of the centers of each image's labels, in [-1, 1]: 0 where they disagree on a bit."""
    return equal_weights(labels, centers.dtype) @ centers


def bit_hinge(logits: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Loss (B,) = mean_k relu(m |t_k| - t_k z_k): nothing once z_k is on the side of t_k by the margin m."""
    return relu(margin * targets.abs() - targets * logits).mean(dim=1)


class HingeOptions(MethodOptions):
    """Options of Hinge."""

    margin: float = Field(1.0, gt=0, description="how far a logit must be on the right side of zero")


class Hinge(CentralObjective):
    """A hinge per bit, towards the mean of the labels' centers."""

    def __init__(self, centers: Tensor, options: HingeOptions, seed: int = 0) -> None:
        super().__init__(centers)
        self.options = options

    def terms(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The one term of the loss, per image (B,)."""
        return {"hinge": bit_hinge(logits, agreement(labels, self.centers), self.options.margin)}
