"""CSQ: one binary target per image."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from centerhash.core.options import Option
from centerhash.losses.base import Batch, CentralLoss
from centerhash.losses.functional import majority_center, quantization_loss, random_code, squared_quantization


class CSQLoss(CentralLoss):
    """CSQ (Yuan et al., 2020): one target per image, the majority of its labels' centers.

    Central Similarity Quantization for Efficient Image and Video Retrieval, https://arxiv.org/abs/1908.00347

        >>> loss = CSQLoss(hash_centers(classes=80, bits=64), gamma=0.1)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: `centers` (C, K) of -1 and +1, `seed` of the vector for tied bits, and the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar ().
    """

    tie_vector: Tensor

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        gamma: Annotated[float, Option("coefficient of the quantization loss, per bit", ge=0)] = 0.5,
        quantization: Annotated[
            Literal["log_cosh", "squared"], Option("quantization loss: log cosh, or squared")
        ] = "log_cosh",
        seed: int = 0,
    ) -> None:
        super().__init__(centers)
        self.gamma = gamma
        self.quantization = squared_quantization if quantization == "squared" else quantization_loss
        self.register_buffer("tie_vector", random_code(centers.shape[1], seed), persistent=False)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the binary cross entropy to the target and the quantization loss, both per bit."""
        logits, bits = batch.logits, batch.logits.shape[1]
        target = majority_center(batch.labels, self.centers, self.tie_vector)
        return {
            "center": softplus(-target * logits).mean(dim=1),
            "quantization": self.gamma * self.quantization(logits) / bits,
        }
