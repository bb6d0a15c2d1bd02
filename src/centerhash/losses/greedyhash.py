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
    """Return signs (B, K) of -1 and +1, zero counts as +1; their gradient goes to the logits unchanged."""
    signs = torch.where(logits >= 0, 1.0, -1.0).to(logits.dtype)
    # The difference is exactly 0.
    return signs + (logits - logits.detach())


class GreedyHashLoss(HashingLoss):
    """GreedyHash (Su et al., 2018): a linear classifier on the signs, with a straight-through gradient.

    Greedy Hash: Towards Fast Optimization for Accurate Hash Coding in CNN,
    https://papers.nips.cc/paper/2018/hash/13f3cf8c531952d72e5847c4183e6910-Abstract.html

        >>> loss = GreedyHashLoss(classes=80, bits=64, alpha=0.1)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: numbers of `classes` (C) and `bits` (K), `seed` of the classifier, and the options of the signature.
    The classifier (C, K) is a parameter: the optimizer needs it.
    Shape: logits (B, K) and labels (B, C) to a scalar ().
    """

    def __init__(
        self,
        classes: int,
        bits: int,
        *,
        alpha: Annotated[float, Option("coefficient of | |z| - 1 |^3, per bit", ge=0)] = 1.0,
        classifier: Annotated[
            Literal["sigmoid", "softmax"], Option("binary decisions per class, or a softmax with targets 1/c")
        ] = "softmax",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.sizes = (classes, bits)
        self.alpha, self.kind = alpha, classifier
        uniform = torch.rand(classes, bits, generator=torch.Generator().manual_seed(seed))
        # These are the weights of nn.Linear, without a bias.
        self.classifier = nn.Parameter((2 * uniform - 1) / math.sqrt(bits))

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the loss of the classifier, and alpha | |z| - 1 |^3 per bit (B,), which is small around the corners."""
        scores = straight_through_sign(batch.logits) @ self.classifier.T
        if self.kind == "sigmoid":
            loss = label_loss(scores, batch.labels)
        else:
            targets = equal_weights(batch.labels, scores.dtype)
            loss = -(targets * log_softmax(scores, dim=1)).sum(dim=1).mean()
        return {"class": loss, "quantization": self.alpha * (batch.logits.abs() - 1).abs().pow(3).mean(dim=1)}
