"""Nested codes: one network for several lengths, whose shorter codes are the first bits of the longest one.

The loss is the sum of a method's losses of all prefixes (Kusupati et al., 2022, do so for real-valued features). Each
prefix has the options of its length, and the centers of the longest code begin with those of the shorter ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.codes import Codes
from centerhash.methods.assignment import assign_centers
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.base import Batch, HeadOutput, Objective


def nested_centers(
    lengths: Sequence[int], labels: NDArray[np.bool_], seed: int, kind: str, *, assign: bool
) -> Codes:
    """Create centers (C, K) of the largest of ascending lengths, whose first bits are centers of each other length.

    Every block of bits has centers of its own. With `assign`, classes that share images in labels (N, C) get near ones.
    """
    blocks, before = [], 0
    for bits in lengths:
        drawn = hash_centers(labels.shape[1], bits - before, seed + before, kind)
        blocks.append(assign_centers(drawn, labels) if assign else drawn)
        before = bits
    return np.concatenate(blocks, axis=1)


class NestedObjective(Objective):
    """The sum of the losses of all prefixes of the logits, each with the weight (k / K)^2.

    Shorter codes keep their quality at small weights, and with equal weights the longest one loses some.
    """

    def __init__(self, parts: Mapping[int, Objective]) -> None:
        super().__init__()
        self.by_length = dict(parts)
        self.parts = nn.ModuleList(parts.values())  # so that their parameters are found

    def prepare(
        self, features: NDArray[np.floating], rows: NDArray[np.int64], labels: NDArray[np.bool_]
    ) -> None:
        """Prepare the loss of every length."""
        for part in self.by_length.values():
            part.prepare(features, rows, labels)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms of the longest code by name, and of each shorter one with its length in the name."""
        found, longest = {}, max(self.by_length)
        for bits, part in self.by_length.items():
            whole = bits == longest
            output = (
                batch.output._replace(label_log_odds=None) if whole else HeadOutput(batch.logits[:, :bits])
            )
            for name, value in part.terms(batch._replace(output=output)).items():
                found[name if whole else f"{name}_{bits}"] = value * (bits / longest) ** 2
        return found
