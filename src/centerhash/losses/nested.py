"""Nested codes: one network for several lengths, whose shorter codes are the first bits of the longest one.

The loss is the sum of a method's losses of all prefixes (Kusupati et al., 2022, do so for real-valued features). Each
prefix has the options of its length, and the centers of the longest code begin with those of the shorter ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.centers import MOST_ASSIGNED_CLASSES, assign_centers, hash_centers
from centerhash.codes import Codes
from centerhash.losses.base import Batch, HashingLoss, HeadOutput


def nested_centers(
    lengths: Sequence[int], labels: NDArray[np.bool_], seed: int, kind: str, *, assign: bool
) -> Codes:
    """Create centers (C, K) of the largest of ascending lengths, whose first bits are centers of each other length.

    They are the centers of one length K with their bits in another order. With `assign`, classes that share images in
    labels (N, C) receive near centers, as a mean over all lengths.
    """
    longest = lengths[-1]
    centers = hash_centers(labels.shape[1], longest, seed, kind)
    if len(lengths) > 1 and len(centers) <= MOST_ASSIGNED_CLASSES:
        centers = centers[:, separating_order(centers, lengths[-2])]
    if assign:
        repeated = [centers[:, :bits] for bits in lengths for _ in range(longest // bits)]
        centers = assign_centers(np.concatenate(repeated, axis=1), labels)[:, -longest:]
    return centers


def separating_order(centers: Codes, count: int) -> NDArray[np.int64]:
    """Order the bits of centers (C, K) so that each of the first `count` separates the nearest ones best, greedily.

    The sum of exp(inner product) over all pairs of prefixes is kept small: with weights W = exp(inner products) so far,
    the next bit is the column v with the smallest v' W v.
    """
    columns, inner = centers.astype(np.float64), np.zeros((len(centers), len(centers)))
    order, left = list[int](), list(range(centers.shape[1]))
    for _ in range(count):
        weights, rest = np.exp(inner - len(order)), columns[:, left]
        order.append(left.pop(int(np.einsum("ck,cd,dk->k", rest, weights, rest, optimize=True).argmin())))
        inner += np.outer(columns[:, order[-1]], columns[:, order[-1]])
    return np.array([*order, *left])


class NestedLoss(HashingLoss):
    """The sum of the losses of all prefixes of the logits, each with the weight (k / K)^1.5.

        loss = NestedLoss({16: DPSHLoss(), 64: DPSHLoss()})(logits, labels)     # logits (B, 64)

    Shorter codes keep their quality at small weights, while the longest one becomes worse with equal weights.
    """

    def __init__(self, losses: Mapping[int, HashingLoss]) -> None:
        super().__init__()
        self.by_length = dict(losses)
        # The optimizer trains the parameters of all losses.
        self.parts = nn.ModuleList(losses.values())
        self.size_scale = self.longest.size_scale

    @property
    def longest(self) -> HashingLoss:
        """The loss of the longest code."""
        return self.by_length[max(self.by_length)]

    def prepare(self, labels: NDArray[np.bool_]) -> None:
        """Prepare the loss of every length."""
        for part in self.by_length.values():
            part.prepare(labels)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms of the longest code by name, and of each shorter one with its length in the name."""
        terms, longest = {}, max(self.by_length)
        for bits, part in self.by_length.items():
            output = batch.output if bits == longest else HeadOutput(batch.logits[:, :bits])
            for name, value in part.mean_terms(batch._replace(output=output)).items():
                terms[name if bits == longest else f"{name}_{bits}"] = value * (bits / longest) ** 1.5
        return terms
