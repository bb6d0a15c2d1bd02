"""DNNH: all triplets of a batch.

A triplet is an anchor i, another image p that shares a label with it, and an image n that shares none. A batch of B has
up to B^3 triplets. Counts from sorted rows give the loss of all of them and its gradient in B^2 log B steps, so that no
triplet is sampled or left out.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from centerhash.core.options import Option
from centerhash.losses.base import Batch, HashingLoss
from centerhash.losses.functional import different_images, shared_labels, squared_distance


def piecewise_threshold(activations: Tensor, epsilon: float) -> Tensor:
    """Push activations in (0, 1) to a bit: 0 below 1/2 - epsilon, 1 above 1/2 + epsilon, unchanged between.

    With epsilon = 1/2 nothing is pushed. A pushed bit has no gradient.
    """
    pushed = torch.where(activations > 0.5 + epsilon, 1.0, activations)
    return torch.where(activations < 0.5 - epsilon, 0.0, pushed)


def triplet_counts(
    shifted: Tensor, distances: Tensor, similar: Tensor, dissimilar: Tensor
) -> tuple[Tensor, Tensor]:
    """Count the triplets with a loss that contain each pair (B, B): as (anchor, positive), as (anchor, negative).

    A triplet has a loss if distances[i, n] < shifted[i, p]. Both counts compare the same numbers, so every
    triplet is in both or in neither.
    """
    negatives = distances.masked_fill(~dissimilar, torch.inf).sort(dim=1).values
    positives = shifted.masked_fill(~similar, -torch.inf).sort(dim=1).values
    below = torch.searchsorted(negatives, shifted.contiguous())
    above = len(shifted) - torch.searchsorted(positives, distances.contiguous(), right=True)
    return below * similar, above * dissimilar


def triplet_loss(distances: Tensor, similar: Tensor, dissimilar: Tensor, margin: float) -> Tensor:
    """Compute the mean over all triplets of [d(i, p) - d(i, n) + margin]+ for distances (B, B); 0 without triplets.

    The sum is linear in the distances as long as the same triplets have a loss, so its gradient is their counts.
    """
    shifted = distances + margin
    with torch.no_grad():
        as_positive, as_negative = triplet_counts(shifted, distances, similar, dissimilar)
        total = (similar.sum(dim=1) * dissimilar.sum(dim=1)).sum().clamp_min(1)
    return ((as_positive * shifted).sum() - (as_negative * distances).sum()) / total


class DNNHLoss(HashingLoss):
    """DNNH (Lai et al., 2015): triplet ranking loss of codes in (0, 1) after a piecewise threshold.

    Simultaneous Feature Learning and Hash Coding with Deep Neural Networks, https://arxiv.org/abs/1504.03410

        >>> loss = DNNHLoss(margin=2.0)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    The divide-and-encode module is `DivideAndEncode`, the last layer of the head.

    Args: the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar (), for any C and K.
    """

    def __init__(
        self,
        *,
        margin: Annotated[float, Option("margin between positive and negative, in bits", gt=0)] = 1.0,
        epsilon: Annotated[
            float, Option("half width of the range that the threshold leaves unchanged", gt=0, le=0.5)
        ] = 0.25,
    ) -> None:
        super().__init__()
        self.margin, self.epsilon = margin, epsilon

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean ranking loss over all triplets of the batch."""
        codes = piecewise_threshold(torch.sigmoid(batch.logits), self.epsilon)
        similar, pairs = shared_labels(batch.labels), different_images(codes)
        distances = squared_distance(codes, codes)
        return {"triplet": triplet_loss(distances, pairs & similar, pairs & ~similar, self.margin)}
