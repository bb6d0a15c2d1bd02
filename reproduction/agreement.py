"""Agreement of weights with the areas of the labels, over the images with two labels or more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import InputError

METRICS = ("pearson", "centered_pearson", "largest")
# Samples of the images, drawn with replacement, for the 95 % intervals.
DRAWS = 1000


@dataclass(frozen=True)
class Agreement:
    """Weights and area shares (M,) of the labels of images with several, and the METRICS with 95 % intervals.

    `centered_pearson` subtracts 1/c from both, so that the number of labels explains nothing. `largest` is how often the
    label with the largest weight has the largest area, and `chance` is its value for a random guess.
    """

    weights: NDArray[np.float64]
    shares: NDArray[np.float64]
    images: int
    chance: float
    pearson: float
    centered_pearson: float
    largest: float
    intervals: dict[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics without the raw entries, ready for json."""
        return {name: value for name, value in vars(self).items() if name not in ("weights", "shares")}


def measure_agreement(weights: NDArray[Any], areas: NDArray[Any], labels: NDArray[np.bool_]) -> Agreement:
    """Compare weights (N, C) with areas (N, C) of labels (N, C).

    Ties of the largest weight count as a random choice among them, so that equal weights score `chance`. Intervals are
    percentiles over samples of images instead of labels, since the labels of one image are not independent.
    """
    if not weights.shape == areas.shape == labels.shape:
        raise InputError(
            f"weights {weights.shape}, areas {areas.shape}, labels {labels.shape} differ in shape."
        )
    rows = (labels.sum(axis=1) >= 2) & ((areas * labels).sum(axis=1) > 0)
    if not rows.any():
        raise InputError("no image has two labels with a known area: there is nothing to compare.")
    labels, images = labels[rows], int(rows.sum())
    weight, area = (np.where(labels, values[rows], 0).astype(np.float64) for values in (weights, areas))
    count = labels.sum(axis=1)
    top = labels & np.isclose(weight, weight.max(axis=1, keepdims=True), rtol=1e-9, atol=1e-12)
    biggest = labels & (area == area.max(axis=1, keepdims=True))
    hits = (top & biggest).sum(axis=1) / top.sum(axis=1)
    w, s = weight[labels], (area / area.sum(axis=1, keepdims=True))[labels]
    image = np.nonzero(labels)[0]
    even = 1 / count[image]

    def metrics(times: NDArray[Any]) -> tuple[float, ...]:
        """Return the METRICS if image i counts times[i] times."""
        each = times[image].astype(np.float64)
        return (pearson(w, s, each), pearson(w - even, s - even, each), float(times @ hits / times.sum()))

    generator = np.random.default_rng(0)
    samples = [np.bincount(generator.integers(images, size=images), minlength=images) for _ in range(DRAWS)]
    ends = np.percentile([metrics(times) for times in samples], (2.5, 97.5), axis=0).T.tolist()
    intervals = {name: (low, high) for name, (low, high) in zip(METRICS, ends, strict=True)}
    chance = float((biggest.sum(axis=1) / count).mean())
    values = dict(zip(METRICS, metrics(np.ones(images)), strict=True))
    return Agreement(w, s, images, chance, intervals=intervals, **values)


def pearson(first: NDArray[Any], second: NDArray[Any], times: NDArray[Any]) -> float:
    """Correlate two vectors (M,) whose entry i counts times[i] times; 0 if one of them does not vary."""
    total = times.sum()
    first, second = first - times @ first / total, second - times @ second / total
    lengths = float(np.sqrt(times @ first**2) * np.sqrt(times @ second**2))
    return float((times * first) @ second) / lengths if lengths > 1e-12 * total else 0.0
