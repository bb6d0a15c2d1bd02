"""DHN: logistic likelihood of pairs of codes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated

import torch
from torch import Tensor

from centerhash.core.options import Option
from centerhash.losses.base import Batch, HashingLoss
from centerhash.losses.functional import different_images, logistic_loss, masked_mean, shared_labels
from centerhash.weights import log_cosh


class DHNLoss(HashingLoss):
    """DHN (Zhu et al., 2016): logistic likelihood of the pairs, and a bi-modal Laplacian prior on the codes.

    Deep Hashing Network for Efficient Similarity Retrieval, https://ojs.aaai.org/index.php/AAAI/article/view/10235
    """

    # As in the authors' code, where the quantization loss is summed over the bits.
    filled = MappingProxyType({"quantization": lambda options, bits: 0.3 * bits})

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
            "pair": masked_mean(losses, different_images(len(codes), codes.device)),
            "quantization": coefficient * log_cosh(codes.abs() - 1).mean(dim=1),
        }
