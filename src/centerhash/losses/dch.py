"""DCH: Cauchy likelihood of pairs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from centerhash.core.options import Option
from centerhash.losses.base import Batch, Defaults, HashingLoss
from centerhash.losses.functional import (
    SMALLEST_NORM,
    balanced_mean,
    different_images,
    masked_mean,
    shared_labels,
    squared_distance,
)

# These bits are added to a distance: the logarithm of a dissimilar pair stays finite at 0.
_SMALLEST_DISTANCE = 0.01


def upweighted_mean(values: Tensor, similar: Tensor, pairs: Tensor) -> Tensor:
    """Compute the mean over S of values (B, B) in which only similar pairs have a weight, |S| / |S1|: released code.

    It is the mean over S1 plus the sum over S0 divided by |S|.
    """
    dissimilar = torch.where(pairs & ~similar, values, 0).sum() / pairs.sum().clamp_min(1)
    return masked_mean(values, pairs & similar) + dissimilar


def cosine_distance(left: Tensor, right: Tensor) -> Tensor:
    """Compute the relaxed Hamming distance K/2 (1 - cosine) in bits, (B, M), between rows (B, K) and (M, K)."""
    cosine = normalize(left, dim=1, eps=SMALLEST_NORM) @ normalize(right, dim=1, eps=SMALLEST_NORM).T
    return left.shape[1] / 2 * (1 - cosine).clamp_min(0)


def cauchy_loss(distances: Tensor, similar: Tensor, gamma: float) -> Tensor:
    """Compute the Cauchy cross entropy (B, B): log(1 + d / gamma) of similar pairs, log(1 + gamma / d) of others.

    This is s log(d / gamma) + log(1 + gamma / d), DCH's loss, without the difference of two infinities at
    d = 0, and with 0.01 bits added to d.
    """
    distances = distances + _SMALLEST_DISTANCE
    return torch.where(similar, torch.log1p(distances / gamma), torch.log1p(gamma / distances))


class DCHLoss(HashingLoss):
    """DCH (Cao et al., 2018): Cauchy likelihood of the pairs, and a Cauchy prior on the codes.

    Deep Cauchy Hashing for Hamming Space Retrieval,
    https://openaccess.thecvf.com/content_cvpr_2018/html/Cao_Deep_Cauchy_Hashing_CVPR_2018_paper.html

        >>> loss = DCHLoss(gamma=20.0)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar (), for any C and K.
    """

    # The paper keeps a radius of two bits dense; ranking the whole database needs more.
    derived_defaults: ClassVar[Defaults] = {"gamma": lambda options, bits: 2.0 * bits}

    def __init__(
        self,
        *,
        gamma: Annotated[
            float | None, Option("scale of the Cauchy distribution, in bits; 2 K by default", gt=0)
        ] = None,
        quantization: Annotated[
            float, Option("coefficient of the quantization loss", alias="lambda", ge=0)
        ] = 1.0,
        distance: Annotated[
            Literal["cosine", "squared"], Option("K/2 (1 - cosine), or squared Euclidean")
        ] = "cosine",
        weights: Annotated[
            Literal["both", "similar"], Option("pairs weighted by rarity: both kinds, or similar ones only")
        ] = "both",
    ) -> None:
        super().__init__()
        self.gamma, self.quantization = gamma, quantization
        self.distance = cosine_distance if distance == "cosine" else squared_distance
        self.mean = balanced_mean if weights == "both" else upweighted_mean

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the weighted Cauchy cross entropy, and lambda log(1 + d(|u|, 1) / gamma) (B,), of codes u = tanh(z)."""
        codes, similar = torch.tanh(batch.logits), shared_labels(batch.labels)
        gamma = self.gamma or 2.0 * codes.shape[1]
        losses = cauchy_loss(self.distance(codes, codes), similar, gamma)
        corner = cosine_distance(codes.abs(), torch.ones_like(codes[:1]))[:, 0]
        return {
            "pair": self.mean(losses, similar, different_images(codes)),
            "quantization": self.quantization * torch.log1p(corner / gamma),
        }
