"""Random logits with labels for the tests of losses."""

from __future__ import annotations

import torch
from torch import Tensor

BITS, CLASSES = 16, 6


def sample(rows: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random logits (rows, BITS) and labels (rows, CLASSES), at least one each."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, BITS, generator=generator, dtype=torch.float64)
    labels = torch.rand(rows, CLASSES, generator=generator) < 0.4
    labels[:, 0] |= ~labels.any(dim=1)
    return logits, labels


def labels_of(labels: Tensor, row: int) -> list[int]:
    """The classes of one image."""
    classes: list[int] = labels[row].nonzero().flatten().tolist()
    return classes
