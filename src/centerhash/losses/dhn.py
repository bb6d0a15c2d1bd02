"""DHN: logistic likelihood of pairs of codes."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from centerhash.core.options import Option
from centerhash.losses.base import Batch, Defaults, HashingLoss
from centerhash.losses.functional import different_images, logistic_loss, masked_mean, shared_labels
from centerhash.weights import log_cosh


class DHNLoss(HashingLoss):
    """DHN (Zhu et al., 2016): logistic likelihood of the pairs, and a bi-modal Laplacian prior on the codes.

    Deep Hashing Network for Efficient Similarity Retrieval, https://ojs.aaai.org/index.php/AAAI/article/view/10235

        >>> loss = DHNLoss(slope=0.5)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar (), for any C and K.
    """

    # The authors' code sums the quantization loss over the bits.
    derived_defaults: ClassVar[Defaults] = {"quantization": lambda options, bits: 0.3 * bits}

    def __init__(
        self,
        *,
        slope: Annotated[float, Option("slope of the sigmoid over inner products", gt=0)] = 1.0,
        quantization: Annotated[
            float | None,
            Option("coefficient of the quantization loss, per bit; 0.3 K by default", alias="lambda", ge=0),
        ] = None,
    ) -> None:
        super().__init__()
        self.slope, self.quantization = slope, quantization

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean over all pairs and lambda log cosh(|u| - 1) per bit, of codes u = tanh(z)."""
        codes, similar = torch.tanh(batch.logits), shared_labels(batch.labels)
        coefficient = 0.3 * codes.shape[1] if self.quantization is None else self.quantization
        losses = logistic_loss(codes @ codes.T, similar, self.slope)
        return {
            "pair": masked_mean(losses, different_images(codes)),
            "quantization": coefficient * log_cosh(codes.abs() - 1).mean(dim=1),
        }
