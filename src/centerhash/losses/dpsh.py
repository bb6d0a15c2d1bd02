"""DPSH: logistic likelihood of pairs of plain logits."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from centerhash.core.options import Option
from centerhash.losses.base import Batch, HashingLoss
from centerhash.losses.functional import different_images, logistic_loss, masked_mean, shared_labels


class DPSHLoss(HashingLoss):
    """DPSH (Li et al., 2016): logistic likelihood of the pairs of plain logits, and their distance to the signs.

    Feature Learning based Deep Supervised Hashing with Pairwise Labels, https://arxiv.org/abs/1511.03855

        >>> loss = DPSHLoss(quantization=0.1)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar (), for any C and K.
    """

    def __init__(
        self,
        *,
        slope: Annotated[float, Option("slope of the sigmoid over inner products", gt=0)] = 0.5,
        quantization: Annotated[
            float, Option("coefficient of the quantization loss, per bit", alias="lambda", ge=0)
        ] = 1.0,
    ) -> None:
        super().__init__()
        self.slope, self.quantization = slope, quantization

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean over all pairs and lambda (z - sign(z))^2 per bit, of logits z that nothing squashes."""
        logits = batch.logits
        losses = logistic_loss(logits @ logits.T, shared_labels(batch.labels), self.slope)
        return {
            "pair": masked_mean(losses, different_images(logits)),
            "quantization": self.quantization * (logits.abs() - 1).square().mean(dim=1),
        }
