"""Triplets: an image is nearer to one that shares a label than to one that shares none (DNNH).

A network's output is `logits` (B, K), labels (B, C) are bool. The triplets are *all* of a batch: anchor i,
another image p that shares a label with it, an image n that shares none. A batch of B has up to B^3 of them; the
loss and its gradient follow from counts that sorted rows give in B^2 log B, so none is drawn at random or left
out. An image without labels is similar to none: never an anchor or a positive, a negative for all others.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, Objective
from centerhash.methods.losses.pairwise import pairs_of_two, shared_labels, squared_distance


def piecewise_threshold(activations: Tensor, epsilon: float) -> Tensor:
    """Push activations in (0, 1) to a bit: 0 below 1/2 - epsilon, 1 above 1/2 + epsilon, unchanged between.

    With epsilon = 1/2 nothing is pushed. A pushed bit has no gradient.
    """
    pushed = torch.where(activations > 0.5 + epsilon, 1.0, activations)
    return torch.where(activations < 0.5 - epsilon, 0.0, pushed)


def triplet_counts(
    shifted: Tensor, distances: Tensor, similar: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """How many triplets with a loss each pair (B, B) is in: as (anchor, positive), as (anchor, negative).

    A triplet has a loss where distances[i, n] < shifted[i, p]. Both counts compare the same numbers, so every
    triplet is in both or in neither.
    """
    negatives = distances.masked_fill(~other, torch.inf).sort(dim=1).values
    positives = shifted.masked_fill(~similar, -torch.inf).sort(dim=1).values
    below = torch.searchsorted(negatives, shifted.contiguous())
    above = len(shifted) - torch.searchsorted(positives, distances.contiguous(), right=True)
    return below * similar, above * other


def triplet_loss(distances: Tensor, similar: Tensor, other: Tensor, margin: float) -> Tensor:
    """Mean over all triplets of [d(i, p) - d(i, n) + margin]+, for distances (B, B); 0 without triplets.

    The sum is linear in the distances as long as the same triplets have a loss, so its gradient is their counts.
    """
    shifted = distances + margin
    with torch.no_grad():
        as_positive, as_negative = triplet_counts(shifted, distances, similar, other)
        total = (similar.sum(dim=1) * other.sum(dim=1)).sum().clamp_min(1)
    return ((as_positive * shifted).sum() - (as_negative * distances).sum()) / total


class DNNHOptions(MethodOptions):
    """Options of DNNH."""

    margin: float = Field(1.0, gt=0, description="what a negative must be farther by, in bits")
    epsilon: float = Field(
        0.25, gt=0, le=0.5, description="half the width in which the threshold lets a bit through"
    )


class DNNH(Objective):
    """DNNH (Lai et al., 2015): triplet ranking of codes in (0, 1) behind the piece-wise threshold.

    The paper's divide-and-encode module is `DivideAndEncode`, the last layer of the head.
    """

    options: DNNHOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Mean ranking loss over all triplets of the batch."""
        codes = piecewise_threshold(torch.sigmoid(batch.logits), self.options.epsilon)
        shares, pairs = shared_labels(batch.labels), pairs_of_two(len(codes), codes.device)
        distances = squared_distance(codes, codes)
        return {"triplet": triplet_loss(distances, pairs & shares, pairs & ~shares, self.options.margin)}
