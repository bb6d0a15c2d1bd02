"""OrthoHash: one cross entropy over the cosines to all hash centers (Hoe et al., 2021)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import log_softmax

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch
from centerhash.methods.losses.central import CentralObjective, center_similarities, weighted_distance
from centerhash.methods.weights import equal_weights


def margin_logits(similarities: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """Class logits (B, C): scale times the cosine, lessened by the margin at the image's own labels."""
    return scale * torch.where(labels, similarities - margin, similarities)


class OrthoHashOptions(MethodOptions):
    """Options of OrthoHash."""

    scale: float = Field(4.0, gt=0, description="sharpness of the softmax over all centers")
    margin: float = Field(0.2, ge=0, lt=2, description="what the cosine to an own center must be ahead by")


class OrthoHash(CentralObjective):
    """OrthoHash (Hoe et al., 2021): softmax over scaled cosines to all centers, targets 1/c at the c labels.

    A large cosine to a binary vector is a small quantisation error, so there is no loss of its own for it.
    """

    options: OrthoHashOptions

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Cross entropy (B,) between equal targets over the labels and the softmax over all centers."""
        labels, similarities = batch.labels, center_similarities(batch.logits, self.centers)
        scores = margin_logits(similarities, labels, self.options.scale, self.options.margin)
        distances = -log_softmax(scores, dim=1)
        return {"center": weighted_distance(equal_weights(labels, distances.dtype), distances)}
