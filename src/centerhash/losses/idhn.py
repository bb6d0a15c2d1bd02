"""IDHN: pairs by how many labels they share."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import normalize, softsign

from centerhash.core.options import Option
from centerhash.losses.base import Batch, HashingLoss
from centerhash.losses.functional import different_images, logistic_loss, masked_mean


def label_cosine(labels: Tensor) -> Tensor:
    """Compute the cosine (B, B) |y_i and y_j| / sqrt(|y_i| |y_j|) of labels (B, C); 0 for an image without labels."""
    unit = normalize(labels.float(), dim=1)
    return unit @ unit.T


class IDHNLoss(HashingLoss):
    """IDHN (Zhang et al., 2019): pairs with all or no labels in common by likelihood, all others by squared error.

    Improved Deep Hashing with Soft Pairwise Similarity for Multi-label Image Retrieval,
    https://arxiv.org/abs/1803.02987. Options have the names of the paper; the authors' code calls lambda alpha.

        >>> loss = IDHNLoss(alpha=5.0, gamma=0.1)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar (), for any C and K.
    """

    def __init__(
        self,
        *,
        alpha: Annotated[float, Option("slope of the sigmoid over inner products, times K", gt=0)] = 10.0,
        gamma: Annotated[float, Option("coefficient of pairs that share only some labels", ge=0)] = 1.0,
        quantization: Annotated[
            float, Option("coefficient of the quantization loss, per bit", alias="lambda", ge=0)
        ] = 0.1,
    ) -> None:
        super().__init__()
        self.alpha, self.gamma, self.quantization = alpha, gamma, quantization

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean over hard and soft pairs and the quantization loss, of codes u = z / (1 + |z|).

        A soft pair shares only some labels; its loss is K ((<u_i, u_j> + K) / (2 K) - s)^2.
        """
        codes, similarity = softsign(batch.logits), label_cosine(batch.labels).to(batch.logits.dtype)
        products, bits = codes @ codes.T, codes.shape[1]
        hard = (similarity < 0.01) | (similarity > 0.99)
        soft_losses = bits * ((products / bits + 1) / 2 - similarity).square()
        hard_losses = logistic_loss(products, similarity, self.alpha / bits)
        losses = torch.where(hard, hard_losses, self.gamma * soft_losses)
        return {
            "pair": masked_mean(losses, different_images(codes)),
            "quantization": self.quantization * (codes.abs() - 1).abs().mean(),
        }
