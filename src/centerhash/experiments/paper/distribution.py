"""How the weights of images are spread: histogram, variance, and how many ended in a corner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 41  # an odd number: 1/2 is then in the middle of a bin, and equal weights in one
CORNER = 0.99  # a weight from which one center has taken all


def weight_distribution(weights: NDArray[Any], labels: NDArray[np.bool_]) -> dict[str, Any]:
    """Facts about the weights (N, C) of the labels (N, C) of images, ready for json.

    `variance` is over all labels of all images, and least for equal weights; the others are over images with two
    labels or more: `variance_several`, the mean square of w - 1/c, a histogram, how many have one weight above
    CORNER, and by number of labels the images and how uneven they are on average: 0 where all weights are 1/c, 1
    in a corner.
    """
    if weights.shape != labels.shape:
        raise InputError(f"weights {weights.shape} and labels {labels.shape} must have one shape (N, C).")
    counts = labels.sum(axis=1)
    several = counts >= 2
    every = weights[labels].astype(np.float64)
    chosen = weights[several][labels[several]].astype(np.float64)
    even = np.repeat(1 / np.maximum(counts[several], 1), counts[several])
    largest = np.where(labels, weights, 0).max(axis=1)
    by_count = {
        str(count): {
            "images": int((counts == count).sum()),
            "uneven": float((largest[counts == count] - 1 / count).mean() / (1 - 1 / count)),
        }
        for count in np.unique(counts[several]).tolist()
    }
    return {
        "labels": len(every),
        "variance": _variance(every),
        "variance_several": _variance(chosen),
        "variance_uneven": float(((chosen - even) ** 2).mean()) if len(chosen) else 0.0,
        "histogram": np.histogram(chosen, bins=BINS, range=(0, 1))[0].tolist(),
        "by_count": by_count,
        "corner": float((largest[several] > CORNER).mean()) if several.any() else 0.0,
    }


def _variance(values: NDArray[np.float64]) -> float:
    return float(values.var()) if len(values) else 0.0


def histogram(axis: Axes, counts: Any, colour: str) -> None:
    """Shares of weights by size."""
    edges = np.linspace(0, 1, BINS + 1)
    axis.stairs(counts / max(1, counts.sum()), edges, fill=True, color=colour)
    axis.set_xlim(0, 1)
