"""What the tests of losses share: random logits with labels, and a small head that learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from centerhash.codes import binarise, pack
from centerhash.data import Dataset
from centerhash.evaluation import evaluate
from centerhash.methods.losses.base import Objective
from centerhash.training.loop import EpochRow, TrainConfig, fit_head

BITS, CLASSES = 16, 6


def sample(rows: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random logits (rows, BITS) and labels (rows, CLASSES), at least one each."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, BITS, generator=generator, dtype=torch.float64)
    labels = torch.rand(rows, CLASSES, generator=generator) < 0.4
    labels[:, 0] |= ~labels.any(dim=1)
    return logits, labels


def learned(
    dataset: Dataset, objective: Objective, config: TrainConfig
) -> tuple[nn.Module, list[EpochRow], float]:
    """A head trained on features, its log, and its mAP@20 by the peers' denominator."""
    assert dataset.features is not None
    rows, splits, labels = dataset.splits.train, dataset.splits, dataset.labels
    head, log = fit_head(dataset.features, rows, labels[rows], objective, config)
    with torch.inference_mode():
        codes = pack(binarise(head(torch.from_numpy(dataset.features)).numpy()))
    query, database = codes[splits.query], codes[splits.database]
    found = evaluate(query, database, labels[splits.query], labels[splits.database], bits=config.bits, k=20)
    return head, log, found.map_peers
