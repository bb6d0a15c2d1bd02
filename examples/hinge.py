"""Hinge: each bit must lie on the side of its labels' centers by a margin, and is free if they disagree."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, relu

import centerhash as ch


def agreement(labels: Tensor, centers: Tensor) -> Tensor:
    """Mean (B, K) of the centers of each image's labels, in [-1, 1]: 0 if they disagree on a bit."""
    return ch.weights.equal_weights(labels, centers.dtype) @ centers


def bit_hinge(logits: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Loss (B,) = mean_k relu(m |t_k| - t_k z_k): 0 if z_k is on the side of t_k by the margin m."""
    return relu(margin * targets.abs() - targets * logits).mean(dim=1)


class HingeOptions(ch.losses.MethodOptions):
    """Options of Hinge."""

    margin: float = Field(1.0, gt=0, description="margin that a logit must keep from zero")


@ch.register_method("hinge", multi_label="mean of the labels' centers, weighted by their agreement")
class Hinge(ch.losses.CentralObjective):
    """Apply a hinge per bit, towards the mean of the labels' centers."""

    options: HingeOptions

    def image_terms(self, batch: ch.losses.Batch) -> dict[str, Tensor]:
        """Return the term of the loss per image (B,)."""
        targets = agreement(batch.labels, self.centers)
        return {"hinge": bit_hinge(batch.logits, targets, self.options.margin)}
