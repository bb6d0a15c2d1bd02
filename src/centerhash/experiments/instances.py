"""Do the weights say how much of the picture each object is? Measures of weight against area share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.errors import InputError


@dataclass(frozen=True)
class Agreement:
    """Weights and area shares of the labels of images with at least two labels, one entry per label."""

    weights: NDArray[np.float64]  # (M,)
    shares: NDArray[np.float64]  # (M,) area of the label over the area of all labels of its image
    images: int
    pearson: float
    spearman: float
    centred_pearson: float  # after subtracting 1/c from both, so that the number of labels explains nothing
    largest: float  # how often the label with the largest weight has the largest area
    chance: float  # what a random guess would reach in `largest`

    def to_dict(self) -> dict[str, Any]:
        """Return the figures without the raw entries, ready for json."""
        return {name: value for name, value in vars(self).items() if name not in ("weights", "shares")}


def measure_agreement(weights: NDArray[Any], areas: NDArray[Any], labels: NDArray[np.bool_]) -> Agreement:
    """Compare weights (N, C) with visible areas (N, C) over the images with two labels or more.

    Ties of the largest weight count as the share of a random choice among them: equal weights score chance.
    """
    if not weights.shape == areas.shape == labels.shape:
        raise InputError(
            f"weights {weights.shape}, areas {areas.shape} and labels {labels.shape} must have one shape (N, C)."
        )
    several = (labels.sum(axis=1) >= 2) & ((areas * labels).sum(axis=1) > 0)
    if not several.any():
        raise InputError("no image has two labels with a known area: there is nothing to compare.")
    chosen = labels[several]
    counts = chosen.sum(axis=1)
    weight = np.where(chosen, weights[several], 0).astype(np.float64)
    area = np.where(chosen, areas[several], 0).astype(np.float64)
    share = area / area.sum(axis=1, keepdims=True)
    even = 1 / counts[:, None] * chosen
    top = chosen & np.isclose(weight, weight.max(axis=1, keepdims=True), rtol=1e-9, atol=1e-12)
    biggest = chosen & (area == area.max(axis=1, keepdims=True))
    flat_weight, flat_share, flat_even = weight[chosen], share[chosen], even[chosen]
    return Agreement(
        weights=flat_weight,
        shares=flat_share,
        images=int(several.sum()),
        pearson=pearson(flat_weight, flat_share),
        spearman=pearson(average_ranks(flat_weight), average_ranks(flat_share)),
        centred_pearson=pearson(flat_weight - flat_even, flat_share - flat_even),
        largest=float(((top & biggest).sum(axis=1) / top.sum(axis=1)).mean()),
        chance=float((biggest.sum(axis=1) / counts).mean()),
    )


def pearson(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Correlation of two vectors (M,); 0 when one of them does not vary, since it then explains nothing."""
    first, second = first - first.mean(), second - second.mean()
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths > 1e-12 * len(first) else 0.0


def average_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks (M,) from 1, ties sharing the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse].astype(np.float64)
    return ranks
