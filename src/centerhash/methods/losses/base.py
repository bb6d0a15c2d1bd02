"""What every loss is to the training loop: a module from a batch to a loss, with a step before training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn


class LossTerms(NamedTuple):
    """The loss of a batch and the parts that a log shows."""

    total: Tensor
    parts: dict[str, Tensor]


class Objective(nn.Module, ABC):
    """A loss of logits (B, K) and labels (B, C).

    Parameters of an objective (learned proxies, say) are trained beside the head's.
    """

    def prepare(self, features: NDArray[Any], rows: NDArray[np.int64], labels: NDArray[np.bool_]) -> None:
        """See the training images `features[rows]` (n, D) and labels (n, C) once before the first epoch.

        Must give the same result each time it is called: a run that goes on calls it again.
        """

    @abstractmethod
    def forward(
        self, logits: Tensor, labels: Tensor, places: Tensor | None = None, progress: float = 0.0
    ) -> LossTerms:
        """Loss of a batch.

        `places` (B,) are the images' places among the training images that `prepare` saw, `progress` in [0, 1)
        is the share of the training that is done, for losses that change on the way.
        """
