"""LSCSH: ICS with centers that are learned with the network."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from centerhash.centers import cooccurrence
from centerhash.core.errors import ConfigError
from centerhash.core.options import Option
from centerhash.losses.base import Batch
from centerhash.losses.ics import ICSLoss

# LSCSH stores a number for every pair of classes.
MOST_CLASSES = 4096


def center_cosines(centers: Tensor) -> Tensor:
    """Compute the cosines (P,) of all pairs of different centers (C, K), each pair once."""
    unit = normalize(centers, dim=1)
    first, second = torch.triu_indices(len(centers), len(centers), offset=1, device=centers.device)
    return (unit @ unit.T)[first, second]


def relation_loss(cosines: Tensor, related: Tensor) -> Tensor:
    """Sum s log(s / h) over pairs, (): s = (1 + related) / 2 of two classes, h = (1 + cosine) / 2 of their centers."""
    classes, centers = (1 + related) / 2, ((1 + cosines) / 2).clamp_min(1e-6)
    return (classes * torch.log(classes / centers)).sum()


class LSCSHLoss(ICSLoss):
    """LSCSH (2023): ICS with centers that are learned, kept apart, and related as the classes are.

    Label-affinity Self-adaptive Central Similarity Hashing for Image Retrieval, IEEE Transactions on Multimedia 2023.

        >>> loss = LSCSHLoss(hash_centers(classes=80, bits=64), alpha_2=0.5)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: `centers` (C, K) of -1 and +1, from which learning starts, the options of the signature and of `ICSLoss`.
    The centers are a parameter: the optimizer needs it. `prepare(labels)` relates the classes that share images.
    Shape: logits (B, K) and labels (B, C) to a scalar ().
    """

    moves_centers = True
    related: Tensor

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        gamma: Annotated[float, Option("coefficient of the quantization loss, Eq. (12)", ge=0)] = 0.05,
        alpha_1: Annotated[float, Option("coefficient of the centers' similarities", ge=0)] = 1.0,
        alpha_2: Annotated[
            float, Option("coefficient of the relation of centers to co-occurrence", ge=0)
        ] = 2.0,
        **options: Any,
    ) -> None:
        super().__init__(centers, gamma=gamma, **options)
        if len(self.centers) > MOST_CLASSES:
            raise ConfigError(
                f"LSCSH relates every pair of classes and accepts at most {MOST_CLASSES}, got {len(self.centers)}: train "
                "csq or ics."
            )
        self.alpha_1, self.alpha_2 = alpha_1, alpha_2
        self.theta = nn.Parameter(self.centers.clone())
        pairs = len(centers) * (len(centers) - 1) // 2
        self.register_buffer("related", torch.zeros(pairs), persistent=False)

    def prepare(self, labels: NDArray[np.bool_]) -> None:
        """Compute how often two classes share a training image."""
        super().prepare(labels)
        together = cooccurrence(labels)[np.triu_indices(labels.shape[1], k=1)]
        self.related = torch.from_numpy(together).to(self.related)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms of ICS, with weights by the signs of the centers, and those of the centers alone."""
        self.centers.copy_(self.trained_centers())
        terms, cosines = super().terms(batch), center_cosines(torch.tanh(self.theta))
        if len(self.related):
            factor = self.alpha_2 * 2 / batch.logits.shape[1]
            terms["separation"] = self.alpha_1 * ((1 + cosines) / 2).sum()
            terms["relation"] = factor * relation_loss(cosines, self.related)
        return terms

    def targets(self) -> Tensor:
        """Return the learned centers (C, K) in (-1, 1): soft targets of the cross entropy."""
        return torch.tanh(self.theta)
