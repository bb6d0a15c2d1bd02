"""The last step of training: rotate the logits so that taking their signs loses as little as possible.

Training compares directions of logits with the centers, and a rotation of both keeps all angles. An image with several
labels lies between centers, where many logits are near 0 and their signs say little; a rotation spreads what is known
over all bits. It is ITQ's, started where training ended (Gong and Lazebnik, 2011).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.methods.shallow.projections import iterative_quantisation
from centerhash.networks.heads import Rotation

ROUNDS = 60  # after which a validation split saw no change
_SAMPLE = 20_000  # training images that a rotation is found from at most


def rotation_sample(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places among the training rows (n,) of a data set whose logits the rotation is found from."""
    return np.argsort(rows)[:_SAMPLE]  # in the order of the file, which memory-mapped features like


def code_rotation(logits: NDArray[Any], rounds: int = ROUNDS) -> NDArray[np.float64]:
    """Rotation (K, K) that brings the directions of logits (n, K) nearest to binary codes, found from the identity."""
    wide = logits.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    directions = wide / np.where(lengths > 0, lengths, 1) * np.sqrt(wide.shape[1])
    rotation, _ = iterative_quantisation(directions, rounds, np.eye(wide.shape[1]))
    return rotation


def rotate_head(head: nn.Module, logits: NDArray[Any]) -> Tensor:
    """Set the head's rotation (K, K) from its training logits (n, K), and return it."""
    rotation = torch.from_numpy(code_rotation(logits)).float()
    for layer in head.modules():
        if isinstance(layer, Rotation):
            layer.matrix.copy_(rotation)
    return rotation
