"""How far centers are apart: what the tests of all kinds of centers measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import check_codes
from centerhash.methods.separation import distance_range, mean_distance


@dataclass(frozen=True)
class CenterStatistics:
    """How well centers (C, K) are spread.

    `minimum`, `mean` and `maximum` are of the Hamming distances of all pairs; a single center has no pair and
    counts as K apart. `balance` is the share of the rarer value in the least balanced center: 0.5 when each has
    half its bits +1, 0 when one is constant.
    """

    classes: int
    bits: int
    minimum: int
    mean: float
    maximum: int
    balance: float


def center_statistics(centers: NDArray[Any]) -> CenterStatistics:
    """Measure centers (C, K), any number of them: memory stays bounded, no (C, C) array is made."""
    centers = check_codes(centers, "centers")
    classes, bits = centers.shape
    minimum, maximum = distance_range(centers)
    ones = (centers > 0).sum(axis=1)
    balance = float(np.minimum(ones, bits - ones).min()) / bits
    return CenterStatistics(classes, bits, minimum, mean_distance(centers), maximum, balance)
