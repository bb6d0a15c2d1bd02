"""Hamming distances by the definition: count the bits that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def hamming_naive(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
    distances = np.zeros((len(first), len(second)), dtype=np.int64)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            distances[i, j] = sum(int(x != y) for x, y in zip(a, b, strict=True))
    return distances
