"""Two stages: codes of the training images from their similarities alone, then a network to these codes (CNNH).

Stage 1 finds H (n, K) in [-1, 1] that minimises

    || S - H H^T / K ||^2,      S (n, n): +1 where two images share a label (and on the diagonal), else -1,

by coordinate descent with the paper's Newton step. With R = H H^T - K S, the entry H_ij has the derivatives
4 (R h_j)_i and about 4 (h_j^T h_j + H_ij^2 + R_ii); its step is minus their ratio, cut so that it stays in [-1, 1].
The paper moves one entry at a time and keeps R. Here the entries of one column move together for a block of rows,
by these very steps times the common factor in [0, 1] that lowers the objective most, so the objective never rises.
Rows of S are made from the labels when their block's turn comes and H^T H (K, K) stands for H H^T: n = 10,000
needs 40 MB where S and R would take 800 MB. The signs of H are the codes.

Stage 2 is a cross entropy between each bit and its code. The paper's second variant, CNNH+, also predicts the labels
besides the bits; it is left out, since the network here ends in the bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from centerhash.core.errors import InputError
from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, Objective
from centerhash.methods.registry import Notes, Scores, register_method

_BLOCK = 512  # rows that move together, at most; fewer when there are few images
_BLOCKS = 16

FloatArray = NDArray[np.float32]


def similarity_rows(labels: NDArray[Any], start: int, stop: int) -> FloatArray:
    """Rows start..stop of S (b, n) for labels (n, C): +1 where two images share a label, else -1; +1 to itself."""
    numbers = labels.astype(np.float32, copy=False)
    rows = np.where(numbers[start:stop] @ numbers.T > 0, np.float32(1), np.float32(-1))
    own = np.arange(start, len(rows) + start)
    rows[own - start, own] = 1
    return rows


def newton_step(column: FloatArray, slope: FloatArray, square: float, residual: FloatArray) -> FloatArray:
    """Newton steps (b,) of the entries h of one column, cut to keep h + step in [-1, 1].

    `slope` is R h, `square` is h^T h over all images, `residual` the diagonal of R, all without the common factor 4.
    """
    curvature = square + column**2 + residual
    step: FloatArray = np.clip(-slope / np.maximum(curvature, np.float32(1e-6)), -1 - column, 1 - column)
    return step


def step_length(first: float, second: float, third: float, fourth: float) -> float:
    """Factor t in [0, 1] at which first t + second t^2 + third t^3 + fourth t^4 is smallest."""
    roots = np.roots([4 * fourth, 3 * third, 2 * second, first])
    inside = [float(root.real) for root in roots if abs(root.imag) < 1e-9 and 0 < root.real < 1]
    candidates = [0.0, *inside, 1.0]
    return min(candidates, key=lambda t: t * (first + t * (second + t * (third + t * fourth))))


def descend_block(codes: FloatArray, gram: FloatArray, rows: FloatArray, start: int) -> None:
    """Move the rows start..start + b of H (n, K), column by column; update H and H^T H (K, K) in place.

    `rows` are the block's rows of S. Moving the column h by t d on the block changes H H^T by
    t (d h^T + h d^T) + t^2 d d^T, which makes the objective a polynomial of degree four in t.
    """
    length, bits = len(rows), codes.shape[1]
    block, own = codes[start : start + length], rows[:, start : start + length]
    products = rows @ codes  # S H on the block, (b, K)
    for j in range(bits):
        column, square = block[:, j].copy(), float(gram[j, j])
        slope = block @ gram[:, j] - bits * products[:, j]
        step = newton_step(column, slope, square, np.square(block).sum(axis=1) - bits)
        along, size = float(step @ column), float(step @ step)
        bend = float(np.square(step @ block).sum()) - bits * float(step @ (own @ step))  # d^T R d
        scale = step_length(
            4 * float(step @ slope),
            2 * bend + 2 * (size * square + along**2),
            4 * along * size,
            size**2,
        )
        change = np.float32(scale) * step
        gram_change = change @ block
        gram[j] += gram_change
        gram[:, j] += gram_change
        gram[j, j] += change @ change
        block[:, j] = np.clip(column + change, -1, 1)
        products[:, j] += own @ change


def relaxed_codes(labels: NDArray[np.bool_], bits: int, sweeps: int, seed: int) -> FloatArray:
    """Stage 1: H (n, K) in [-1, 1] for labels (n, C), from uniform random numbers, after `sweeps` over all entries."""
    numbers = labels.astype(np.float32)
    codes = np.random.default_rng(seed).uniform(-1, 1, size=(len(labels), bits)).astype(np.float32)
    block = max(1, min(_BLOCK, len(labels) // _BLOCKS))
    for _ in range(sweeps):
        gram = codes.T @ codes  # afresh in every sweep, so that rounding does not add up
        for start in range(0, len(codes), block):
            descend_block(codes, gram, similarity_rows(numbers, start, start + block), start)
    return codes


class CNNHOptions(MethodOptions):
    """Options of CNNH."""

    sweeps: int = Field(20, ge=1, description="passes of the coordinate descent over all code entries")


@register_method(
    "cnnh",
    family="two-stage",
    paper="Supervised Hashing for Image Retrieval via Image Representation Learning (Xia et al.)",
    year=2014,
    multi_label="similar if a label is shared",
    training={"learning_rate": 0.001},
    space={"sweeps": [5, 10, 20]},
    notes=Notes(
        source="a port",
        equations="""
            stage 1:  min over H in [-1, 1]^(n x K) of  || S - H H^T / K ||^2,  codes = sign(H)
            stage 2:  mean over bits of  softplus(-c_k z_k)  for the image's code c""",
        differences="""
            The port has a squared error in stage 2. CNNH+, which also predicts labels, is not included.""",
        scores=Scores(0.776, 0.762, None),
    ),
)
class CNNH(Objective):
    """CNNH (Xia et al., 2014): codes of the training images from the similarity matrix, then learned by the network."""

    options: CNNHOptions
    codes: Tensor

    def __init__(
        self, bits: int, *, seed: int = 0, options: CNNHOptions | None = None, **values: Any
    ) -> None:
        super().__init__(options=options, **values)
        self.sizes, self.seed = (None, bits), seed
        # not stored: `prepare` makes it again before a run is resumed, and only training needs it
        self.register_buffer("codes", torch.empty(0, bits), persistent=False)

    def prepare(self, features: NDArray[Any], rows: NDArray[np.int64], labels: NDArray[np.bool_]) -> None:
        """Compute stage 1: codes (n, K) in {-1, +1} of the training images."""
        found = relaxed_codes(labels, self.codes.shape[1], self.options.sweeps, self.seed)
        self.codes = torch.from_numpy(np.where(found >= 0, np.float32(1), np.float32(-1))).to(
            self.codes.device
        )

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute stage 2: the mean cross entropy between sigmoid(z) and the image's code."""
        if batch.places is None or not len(self.codes):
            raise InputError(
                "CNNH learns codes of single images: call prepare() with the training images first. Then pass the "
                "positions (B,) of a batch among them to the loss."
            )
        targets = self.codes[batch.places].to(batch.logits.dtype)
        return {"code": softplus(-targets * batch.logits).mean()}
