"""GreedyHash: a linear classifier on the signs."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from centerhash.core.options import Option
from centerhash.losses.base import Batch, HashingLoss
from centerhash.losses.functional import label_loss
from centerhash.weights import equal_weights


def straight_through_sign(logits: Tensor) -> Tensor:
    """Signs (B, K) of -1 and +1, zero counts as +1; their gradient goes to the logits unchanged."""
    signs = torch.where(logits >= 0, 1.0, -1.0).to(logits.dtype)
    return signs + (logits - logits.detach())  # exactly the signs, since the difference is 0


class GreedyHashLoss(HashingLoss):
    """GreedyHash (Su et al., 2018): a linear classifier on the signs, with a straight-through gradient.

    Greedy Hash: Towards Fast Optimization for Accurate Hash Coding in CNN, NeurIPS 2018.

    Args: numbers of `classes` (C) and `bits` (K); `seed` draws the classifier (C, K), which is trained.
    """

    def __init__(
        self,
        classes: int,
        bits: int,
        *,
        alpha: Annotated[float, Option("coefficient of | |z| - 1 |^3, per bit", ge=0)] = 1.0,
        classifier: Annotated[
            Literal["sigmoid", "softmax"],
            Option("binary decisions per class, or a softmax with targets 1/c"),
        ] = "softmax",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.sizes = (classes, bits)
        self.alpha, self.kind = alpha, classifier
        draw = torch.rand(classes, bits, generator=torch.Generator().manual_seed(seed))
        self.classifier = nn.Parameter((2 * draw - 1) / math.sqrt(bits))  # as nn.Linear, without a bias

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the loss of the classifier, and alpha | |z| - 1 |^3 per bit (B,), which is small around the corners."""
        scores = straight_through_sign(batch.logits) @ self.classifier.T
        if self.kind == "sigmoid":
            loss = label_loss(scores, batch.labels)
        else:
            targets = equal_weights(batch.labels, scores.dtype)
            loss = -(targets * log_softmax(scores, dim=1)).sum(dim=1).mean()
        return {
            "class": loss,
            "quantization": self.alpha * (batch.logits.abs() - 1).abs().pow(3).mean(dim=1),
        }
