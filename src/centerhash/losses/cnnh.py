"""CNNH in two stages: codes of the training images from their similarities alone, then a network to these codes.

Stage 1 finds H (n, K) in [-1, 1] that minimizes || S - H H^T / K ||^2 by coordinate descent, with S (n, n): +1 if two
images share a label (and on the diagonal), else -1. With R = H H^T - K S, the paper's Newton step of the entry H_ij is
-(R h_j)_i / (h_j^T h_j + H_ij^2 + R_ii), cut so that it stays in [-1, 1].

The paper moves one entry at a time and stores R. This module moves the entries of one column together for a block of
rows, by these steps times the common factor in [0, 1] that lowers the objective most. Rows of S are computed from the
labels when needed and H^T H (K, K) stands for H H^T, so that n = 10,000 needs 40 MB instead of 800. Stage 2 is a cross
entropy between each bit and its code. CNNH+, which also predicts the labels, is not included.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from centerhash.core.errors import InputError
from centerhash.core.options import Option
from centerhash.losses.base import Batch, HashingLoss

# These many rows move together, or a sixteenth of all images if that is less.
_MOST_BLOCK_ROWS, _LEAST_BLOCKS = 512, 16

FloatArray = NDArray[np.float32]


def similarity_rows(labels: NDArray[Any], start: int, stop: int) -> FloatArray:
    """Return rows start..stop of S (b, n) for labels (n, C): +1 if two images share a label or are one, else -1."""
    numbers = labels.astype(np.float32, copy=False)
    rows = np.where(numbers[start:stop] @ numbers.T > 0, np.float32(1), np.float32(-1))
    np.fill_diagonal(rows[:, start:], 1)
    return rows


def step_length(first: float, second: float, third: float, fourth: float) -> float:
    """Return the factor t in [0, 1] at which first t + second t^2 + third t^3 + fourth t^4 is smallest."""
    roots = np.roots([4 * fourth, 3 * third, 2 * second, first])
    inside = [float(root.real) for root in roots if abs(root.imag) < 1e-9 and 0 < root.real < 1]
    return min([0.0, *inside, 1.0], key=lambda t: t * (first + t * (second + t * (third + t * fourth))))


def descend_block(codes: FloatArray, gram: FloatArray, rows: FloatArray, start: int) -> None:
    """Move the rows start..start + b of H (n, K), column by column; update H and H^T H (K, K) in place.

    `rows` are the block's rows of S. Moving the column h by t d on the block changes H H^T by
    t (d h^T + h d^T) + t^2 d d^T, which makes the objective a polynomial of degree four in t.
    """
    bits = codes.shape[1]
    block, block_rows = codes[start : start + len(rows)], rows[:, start : start + len(rows)]
    products = rows @ codes  # S H on the block, (b, K)
    for j in range(bits):
        column, square = block[:, j].copy(), float(gram[j, j])
        slope = block @ gram[:, j] - bits * products[:, j]
        curvature = square + column**2 + (np.square(block).sum(axis=1) - bits)
        step = np.clip(-slope / np.maximum(curvature, np.float32(1e-6)), -1 - column, 1 - column)
        along, size = float(step @ column), float(step @ step)
        bend = float(np.square(step @ block).sum()) - bits * float(step @ (block_rows @ step))  # d^T R d
        second = 2 * bend + 2 * (size * square + along**2)
        change = np.float32(step_length(4 * float(step @ slope), second, 4 * along * size, size**2)) * step
        gram_change = change @ block
        gram[j] += gram_change
        gram[:, j] += gram_change
        gram[j, j] += change @ change
        block[:, j] = np.clip(column + change, -1, 1)
        products[:, j] += block_rows @ change


def relaxed_codes(labels: NDArray[np.bool_], bits: int, sweeps: int, seed: int) -> FloatArray:
    """Compute stage 1: H (n, K) in [-1, 1] for labels (n, C), from uniform numbers by `sweeps` over all entries."""
    numbers = labels.astype(np.float32)
    codes = np.random.default_rng(seed).uniform(-1, 1, size=(len(labels), bits)).astype(np.float32)
    block = max(1, min(_MOST_BLOCK_ROWS, len(labels) // _LEAST_BLOCKS))
    for _ in range(sweeps):
        # It is computed anew in every sweep, so that rounding does not add up.
        gram = codes.T @ codes
        for start in range(0, len(codes), block):
            descend_block(codes, gram, similarity_rows(numbers, start, start + block), start)
    return codes


class CNNHLoss(HashingLoss):
    """CNNH (Xia et al., 2014): codes of the training images from the similarity matrix, then learned by the network.

    Supervised Hashing for Image Retrieval via Image Representation Learning,
    https://ojs.aaai.org/index.php/AAAI/article/view/8952

        >>> loss, labels = CNNHLoss(bits=64, sweeps=5), torch.rand(100, 80) < 0.1
        >>> loss.prepare(labels.numpy())
        >>> loss(torch.randn(4, 64, requires_grad=True), labels[:4], indices=torch.arange(4)).backward()

    Args: number of `bits` (K), `seed` of the start of stage 1, and the options of the signature.
    Shape: logits (B, K), labels (B, C) and `indices` (B,) of the images among those of `prepare` to a scalar ().
    """

    codes: Tensor

    def __init__(
        self,
        bits: int,
        *,
        sweeps: Annotated[int, Option("passes of the coordinate descent over all code entries", ge=1)] = 20,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.sizes, self.sweeps, self.seed = (None, bits), sweeps, seed
        # Not stored, since only training needs it: a resumed run calls `prepare` again.
        self.register_buffer("codes", torch.empty(0, bits), persistent=False)

    def prepare(self, labels: NDArray[np.bool_]) -> None:
        """Compute stage 1: codes (n, K) in {-1, +1} of the training images."""
        relaxed = relaxed_codes(labels, self.codes.shape[1], self.sweeps, self.seed)
        signs = np.where(relaxed >= 0, np.float32(1), np.float32(-1))
        self.codes = torch.from_numpy(signs).to(self.codes.device)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute stage 2: the mean cross entropy between sigmoid(z) and the image's code."""
        if batch.indices is None or not len(self.codes):
            raise InputError(
                "CNNH learns codes of single images: call prepare() with the training images first. Then pass the "
                "indices (B,) of a batch among them to the loss."
            )
        targets = self.codes[batch.indices].to(batch.logits.dtype)
        return {"code": softplus(-targets * batch.logits).mean()}
