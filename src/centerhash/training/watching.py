"""Watching a training: mAP of training images that were held out, searched among those that are trained on.

The queries are never used, and no epoch is chosen: the model is that of the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.codes import binarize, pack
from centerhash.core.errors import DataError
from centerhash.data import Dataset
from centerhash.evaluation import evaluate
from centerhash.methods.losses.base import HeadOutput
from centerhash.training.rotation import code_rotation

SHARE, MOST, LEAST = 10, 1_000, 20  # a tenth is held out, at most 1,000 images; of fewer than 20, none can be
_ROTATED, _ROUNDS = (
    2_000,
    20,
)  # images and rounds of the rotation: as the end does it, it would cost more than an epoch
NOTHING = np.empty(0, dtype=np.int64)


def hold_out(dataset: Dataset, seed: int) -> NDArray[np.int64]:
    """Rows of a tenth of the training images, drawn with `seed` from those that have labels and are no queries."""
    splits = dataset.splits
    rows = np.setdiff1d(splits.train[dataset.labels[splits.train].any(axis=1)], splits.query)
    if len(rows) < LEAST:
        raise DataError(
            f"`watch=` holds out a tenth of the training images: {len(rows)} with labels are too few, "
            f"{LEAST} are needed. Leave it out, or train on more images."
        )
    count = min(MOST, len(rows) // SHARE)
    return np.sort(np.random.default_rng((seed, 1)).choice(rows, size=count, replace=False))


def parted(rows: NDArray[np.int64], held: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that are trained on, and those that are held out, each in their order."""
    apart = np.isin(rows, held)
    return rows[~apart], rows[apart]


def logits_of(network: nn.Module, batches: Iterable[Tensor], device: torch.device) -> NDArray[np.float32]:
    """Logits (n, K) of batches as the network now is; it is left in eval mode."""
    network.eval()
    with torch.no_grad():
        found = [_logits(network(batch.to(device))) for batch in batches]
    return np.concatenate(found)


def _logits(output: HeadOutput) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = output.logits.float().cpu().numpy()
    return logits


def validation_map(
    held: NDArray[np.float32],
    trained: NDArray[np.float32],
    held_labels: NDArray[np.bool_],
    trained_labels: NDArray[np.bool_],
    rotate: bool,
) -> float:
    """mAP of held-out images (m, K) that search the trained ones (n, K), by about the codes of a model now."""
    sides: list[NDArray[Any]] = [held, trained]
    if rotate:  # as the end of training will do
        rotation = code_rotation(trained[:: -(-len(trained) // _ROTATED)], _ROUNDS)
        sides = [side @ rotation for side in sides]
    query, database = (pack(binarize(side)) for side in sides)
    bits = held.shape[1]
    return evaluate(query, database, held_labels, trained_labels, bits=bits, precision_at=()).map_peers
