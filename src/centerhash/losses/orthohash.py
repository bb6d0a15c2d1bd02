"""OrthoHash: a softmax over all centers."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax

from centerhash.core.options import Option
from centerhash.losses.base import Batch, CentralLoss
from centerhash.losses.functional import center_similarities, weighted_distance
from centerhash.weights import equal_weights


class OrthoHashLoss(CentralLoss):
    """OrthoHash (Hoe et al., 2021): softmax over scaled cosines to all centers, targets 1/c at the c labels.

    One Loss for All: Deep Hashing with a Single Cosine Similarity based Learning Objective,
    https://arxiv.org/abs/2109.14449

        >>> loss = OrthoHashLoss(hash_centers(classes=80, bits=64), scale=8.0)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    There is no quantization loss: a large cosine to a binary vector implies a small quantization error.

    Args: `centers` (C, K) of -1 and +1, and the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar ().
    """

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        scale: Annotated[float, Option("sharpness of the softmax over all centers", gt=0)] = 4.0,
        margin: Annotated[float, Option("margin of the cosine to the labels' centers", ge=0, lt=2)] = 0.2,
    ) -> None:
        super().__init__(centers)
        self.scale, self.margin = scale, margin

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the cross entropy (B,) between equal targets over the labels and the softmax over all centers."""
        labels, similarities = batch.labels, center_similarities(batch.logits, self.centers)
        lessened = torch.where(labels, similarities - self.margin, similarities)
        distances = -log_softmax(self.scale * lessened, dim=1)
        return {"center": weighted_distance(equal_weights(labels, distances.dtype), distances)}
