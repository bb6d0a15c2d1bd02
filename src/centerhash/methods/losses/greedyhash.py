"""GreedyHash: signs in the forward pass, the gradient as if there were none (Su et al., 2018)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, Objective, presence_loss
from centerhash.methods.weights import equal_weights


def straight_through_sign(logits: Tensor) -> Tensor:
    """Signs (B, K) of -1 and +1, zero counts as +1; their gradient goes to the logits unchanged."""
    signs = torch.where(logits >= 0, 1.0, -1.0).to(logits.dtype)
    return signs + (logits - logits.detach())  # exactly the signs, since the difference is 0


def cubic_gap(logits: Tensor) -> Tensor:
    """Penalty (B,), per bit: | |z| - 1 |^3, small around the corners, so that the sign's gradient stays meaningful."""
    return (logits.abs() - 1).abs().pow(3).mean(dim=1)


def class_loss(scores: Tensor, labels: Tensor, classifier: str) -> Tensor:
    """Loss () of scores (B, C): cross entropy per class summed over C, or that of a softmax with targets 1/c."""
    if classifier == "sigmoid":
        return presence_loss(scores, labels)
    return -(equal_weights(labels, scores.dtype) * log_softmax(scores, dim=1)).sum(dim=1).mean()


class GreedyHashOptions(MethodOptions):
    """Options of GreedyHash."""

    penalty: float = Field(1.0, ge=0, alias="alpha", description="coefficient of | |z| - 1 |^3, per bit")
    classifier: Literal["sigmoid", "softmax"] = Field(
        "softmax",
        description="one yes or no per class, or one choice among all as in the authors' code, targets 1/c",
    )


class GreedyHash(Objective):
    """GreedyHash (Su et al., 2018): a linear classifier on the signs, whose gradient passes the sign unchanged."""

    options: GreedyHashOptions

    def __init__(
        self,
        classes: int,
        bits: int,
        *,
        seed: int = 0,
        options: GreedyHashOptions | None = None,
        **values: Any,
    ) -> None:
        super().__init__(options=options, **values)
        self.sizes = (classes, bits)
        draw = torch.rand(classes, bits, generator=torch.Generator().manual_seed(seed))
        self.classifier = nn.Parameter((2 * draw - 1) / math.sqrt(bits))  # as nn.Linear, without a bias

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Loss of the classifier on the codes, and alpha times the penalty on the logits."""
        scores = straight_through_sign(batch.logits) @ self.classifier.T
        return {
            "class": class_loss(scores, batch.labels, self.options.classifier),
            "quantisation": self.options.penalty * cubic_gap(batch.logits).mean(),
        }
