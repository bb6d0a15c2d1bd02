"""A plain classifier with the same head: what instance weights have to be better than."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from centerhash.experiments.grid import Bench
from centerhash.methods.losses.base import Batch, Objective
from centerhash.methods.weights import softmax_weights
from centerhash.training.loop import TrainConfig, fit_head

_CHUNK = 4096  # rows per pass through the head


class Classification(Objective):
    """Binary cross entropy of every class, one logit each."""

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Mean over images and classes of logits (B, C) against labels (B, C)."""
        targets = batch.labels.to(batch.logits.dtype)
        return {"class": binary_cross_entropy_with_logits(batch.logits, targets)}


def fit_classifier(bench: Bench, config: TrainConfig) -> nn.Module:
    """Train the head of `config` with one output per class on the training images; returned in eval mode."""
    labels, rows = bench.dataset.labels, bench.dataset.splits.train
    as_wide = config.model_copy(update={"bits": labels.shape[1]})
    head, _ = fit_head(
        bench.features, rows, labels[rows], Classification(), as_wide, device=_device(bench.device)
    )
    return head


def _device(name: str) -> torch.device:
    from centerhash.networks.backbones import choose_device

    return torch.device(choose_device(name))


def classifier_weights(
    head: nn.Module, features: NDArray[Any], labels: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Softmax (N, C) of a classifier's logits over the labels (N, C) of images with features (N, D)."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(features), _CHUNK):
            rows = slice(start, start + _CHUNK)
            logits = head(torch.from_numpy(features[rows].astype(np.float32))).logits
            parts.append(softmax_weights(logits, torch.from_numpy(labels[rows].copy())).numpy())
    return np.concatenate(parts) if parts else np.zeros(labels.shape, dtype=np.float32)
