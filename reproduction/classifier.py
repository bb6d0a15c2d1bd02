"""Linear classifier on features: the simplest other use of the labels, as a baseline for codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

Matrix = NDArray[np.float32]
# The weight decay, unless one is chosen on validation images.
DECAY = 0.003


def classifier_logits(
    features: NDArray[Any], labels: NDArray[np.bool_], train: NDArray[np.int64], decay: float
) -> Matrix:
    """Fit a linear classifier on the rows `train` of features (N, D) and labels (N, C); return its logits (N, C)."""
    centered = features - features[train].mean(axis=0, dtype=np.float32)
    inputs = torch.from_numpy((centered / centered[train].std()).astype(np.float32))
    examples = inputs[torch.from_numpy(train.copy())]
    targets = torch.from_numpy(labels[train].astype(np.float32))
    weight = torch.zeros(inputs.shape[1], targets.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    optimizer: Any = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        cross_entropy = binary_cross_entropy_with_logits(examples @ weight + bias, targets, reduction="none")
        loss = cross_entropy.sum(dim=1).mean() + decay * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)
    return (inputs @ weight + bias).detach().numpy()


def probability_features(logits: Matrix) -> Matrix:
    """Return sqrt(-log(1 - p^2)) (N, C), whose inner products ITQ preserves well."""
    return np.sqrt(-np.log1p(-(sigmoid(logits) ** 2)))


def sigmoid(logits: Matrix) -> Matrix:
    """Return probabilities (N, C), kept away from 0 and 1."""
    probabilities: Matrix = np.clip(torch.from_numpy(logits).sigmoid().numpy(), 1e-6, 1 - 1e-6)
    return probabilities
