"""MDSH: binary decisions by a softmax over all centers, and attraction of similar pairs."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize, softplus

from centerhash.core.options import Option
from centerhash.losses.base import Batch, CentralLoss, Defaults
from centerhash.losses.functional import (
    SMALLEST_NORM,
    center_similarities,
    different_images,
    masked_mean,
    shared_labels,
)

# The loss of a wrong center stays finite: it no longer grows from this probability on.
_LARGEST_PROBABILITY = 1 - 1e-6


def choice_loss(similarities: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Compute the mean (B,) over C of -log p_j at labels, else -log(1 - p_j), with p = softmax(scale * cosine)."""
    scores = scale * similarities
    positive = torch.logsumexp(scores, dim=1, keepdim=True) - scores
    negative = -torch.log1p(-torch.exp(-positive).clamp_max(_LARGEST_PROBABILITY))
    return torch.where(labels, positive, negative).mean(dim=1)


def attraction(logits: Tensor) -> Tensor:
    """Compute the loss (B, B) of pairs that share a label: log(1 + exp((1 - cosine) / 2)) of codes tanh(z)."""
    unit = normalize(torch.tanh(logits), dim=1, eps=SMALLEST_NORM)
    return softplus((1 - unit @ unit.T) / 2)


class MDSHLoss(CentralLoss):
    """MDSH (Wang et al., 2023): one binary decision per class by a softmax over all centers, and a pair loss.

    Deep Hashing with Minimal-Distance-Separated Hash Centers,
    https://openaccess.thecvf.com/content/CVPR2023/html/Wang_Deep_Hashing_With_Minimal-Distance-Separated_Hash_Centers_CVPR_2023_paper.html

        >>> loss = MDSHLoss(hash_centers(classes=80, bits=16, kind="mdsh"))
        >>> logits, labels = torch.randn(4, 16, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: `centers` (C, K) of -1 and +1, and the options of the signature. The kind "mdsh" is the paper's first stage.
    Shape: logits (B, K) and labels (B, C) to a scalar ().
    """

    # As in the authors' code.
    derived_defaults: ClassVar[Defaults] = {"scale": lambda options, bits: math.sqrt(bits)}

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        scale: Annotated[
            float | None, Option("sharpness of the softmax over all centers; sqrt(K) by default", gt=0)
        ] = None,
        beta: Annotated[float, Option("coefficient of the pair loss", ge=0)] = 0.01,
        quantization: Annotated[
            float, Option("coefficient of the quantization loss, per bit", alias="lambda", ge=0)
        ] = 1e-4,
    ) -> None:
        super().__init__(centers)
        self.scale = math.sqrt(centers.shape[1]) if scale is None else scale
        self.beta, self.quantization = beta, quantization

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the center loss (B,), lambda (|u_k| - 1)^2 per bit (B,) of u = tanh(z), and beta times a pair loss."""
        codes = torch.tanh(batch.logits)
        pairs = shared_labels(batch.labels) & different_images(codes)
        return {
            "center": choice_loss(center_similarities(codes, self.centers), batch.labels, self.scale),
            "quantization": self.quantization * (codes.abs() - 1).square().mean(dim=1),
            "pair": self.beta * masked_mean(attraction(batch.logits), pairs),
        }
