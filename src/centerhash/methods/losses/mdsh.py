"""MDSH: centers with a guaranteed distance first, then codes near them and near each other (Wang et al., 2023)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, softplus

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch
from centerhash.methods.losses.central import CentralObjective, center_similarities
from centerhash.methods.losses.pairwise import SMALLEST_NORM, masked_mean, pairs_of_two, shared_labels

_SURE = 1 - 1e-6  # a wrong center's probability from which its loss grows no more: it stays finite


def choice_loss(similarities: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Loss (B,) of p = softmax(scale * cosine) (B, C): mean over classes of -log p_j at labels, else -log(1 - p_j)."""
    scores = scale * similarities
    surprise = torch.logsumexp(scores, dim=1, keepdim=True) - scores
    others = -torch.log1p(-torch.exp(-surprise).clamp_max(_SURE))
    return torch.where(labels, surprise, others).mean(dim=1)


def attraction(codes: Tensor) -> Tensor:
    """Pair loss (B, B) of codes (B, K): log(1 + exp((1 - cosine) / 2)), of pairs that share a label."""
    unit = normalize(codes, dim=1, eps=SMALLEST_NORM)
    return softplus((1 - unit @ unit.T) / 2)


class MDSHOptions(MethodOptions):
    """Options of MDSH."""

    scale: float | None = Field(None, gt=0, description="sharpness of the softmax over all centers")
    pair: float = Field(
        0.01, ge=0, alias="beta", description="coefficient of the pair loss; 1 in the authors' code"
    )
    quantisation: float = Field(
        1e-4, ge=0, alias="lambda", description="coefficient of the quantisation loss, per bit"
    )

    def for_bits(self, bits: int) -> MDSHOptions:
        """Fill in the scale, sqrt(K) as in the authors' code."""
        return self.model_copy(update={"scale": self.scale or bits**0.5})


class MDSH(CentralObjective):
    """MDSH (Wang et al., 2023): yes or no to every center by a softmax over all, and similar pairs drawn together.

    Its first stage makes the centers: `centers` of the kind "mdsh" unless others are asked for.
    """

    options: MDSHOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Means over labelled images, and beta times the mean over pairs that share a label."""
        terms = super().terms(batch)
        if terms:
            pairs = shared_labels(batch.labels) & pairs_of_two(len(batch.labels), batch.labels.device)
            terms["pair"] = self.options.pair * masked_mean(attraction(torch.tanh(batch.logits)), pairs)
        return terms

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Center loss and lambda (|u_k| - 1)^2 per bit (B,), of codes u = tanh(z)."""
        codes = torch.tanh(batch.logits)
        similarities = center_similarities(codes, self.centers)
        return {
            "center": choice_loss(similarities, batch.labels, float(self.options.scale or 0)),
            "quantisation": self.options.quantisation * (codes.abs() - 1).square().mean(dim=1),
        }
