"""How well weights agree with area shares, and how they are distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import InputError

METRICS = ("pearson", "spearman", "centred_pearson", "largest")


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
        """The metrics without the raw entries, ready for json."""
        return {name: value for name, value in vars(self).items() if name not in ("weights", "shares")}


def measure_agreement(weights: NDArray[Any], areas: NDArray[Any], labels: NDArray[np.bool_]) -> Agreement:
    """Compare weights (N, C) with visible areas (N, C) over the images with two labels or more.

    Ties of the largest weight count as the share of a random choice among them: equal weights score chance.
    """
    found = _entries(weights, areas, labels)
    metrics = dict(zip(METRICS, found.metrics(np.ones(found.images)), strict=True))
    chance = float(found.guess.mean())
    return Agreement(found.weight, found.share, images=found.images, chance=chance, **metrics)


def bootstrap_intervals(
    weights: NDArray[Any], areas: NDArray[Any], labels: NDArray[np.bool_], draws: int
) -> dict[str, tuple[float, float]]:
    """95 % percentile intervals of the METRICS over images drawn with replacement; arguments as `measure_agreement`.

    Whole images are drawn, since the labels of one image are not independent.
    """
    entries = _entries(weights, areas, labels)
    generator = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        drawn = generator.integers(entries.images, size=entries.images)
        found.append(entries.metrics(np.bincount(drawn, minlength=entries.images).astype(np.float64)))
    low, high = np.percentile(np.array(found), (2.5, 97.5), axis=0).tolist()
    return dict(zip(METRICS, zip(low, high, strict=True), strict=True))


@dataclass(frozen=True)
class _Entries:
    """Labels of images one after the other, for metrics with any count per image."""

    image: NDArray[np.int64]  # (M,) of each label
    weight: NDArray[np.float64]  # (M,)
    share: NDArray[np.float64]  # (M,)
    even: NDArray[np.float64]  # (M,) 1/c
    hit: NDArray[np.float64]  # (I,) whether the largest weight is on the largest object, ties as their share
    guess: NDArray[np.float64]  # (I,) how often a random guess would be right
    groups: tuple[NDArray[np.int64], NDArray[np.int64]]  # (M,) each value's place among the distinct ones

    @property
    def images(self) -> int:
        return len(self.hit)

    def metrics(self, counts: NDArray[np.float64]) -> tuple[float, ...]:
        """The METRICS when image i is counted counts[i] times."""
        times, ranks = counts[self.image], []
        for group in self.groups:
            totals = np.bincount(group, times)
            ranks.append((np.cumsum(totals) - (totals - 1) / 2)[group])  # average ranks (M,)
        return (
            _pearson(self.weight, self.share, times),
            _pearson(ranks[0], ranks[1], times),
            _pearson(self.weight - self.even, self.share - self.even, times),
            float(counts @ self.hit / counts.sum()),
        )


def _pearson(first: NDArray[np.float64], second: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Correlation of two vectors (M,) whose entry i stands counts[i] times; 0 when one of them does not vary."""
    total = counts.sum()
    first, second = first - counts @ first / total, second - counts @ second / total
    lengths = float(np.sqrt(counts @ first**2) * np.sqrt(counts @ second**2))
    return float((counts * first) @ second) / lengths if lengths > 1e-12 * total else 0.0


def _entries(weights: NDArray[Any], areas: NDArray[Any], labels: NDArray[np.bool_]) -> _Entries:
    """The labels of the images with two labels or more, checked."""
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
    top = chosen & np.isclose(weight, weight.max(axis=1, keepdims=True), rtol=1e-9, atol=1e-12)
    biggest = chosen & (area == area.max(axis=1, keepdims=True))
    flat_weight, flat_share = weight[chosen], (area / area.sum(axis=1, keepdims=True))[chosen]
    image = np.nonzero(chosen)[0]
    return _Entries(
        image=image,
        weight=flat_weight,
        share=flat_share,
        even=1 / counts[image],
        hit=(top & biggest).sum(axis=1) / top.sum(axis=1),
        guess=biggest.sum(axis=1) / counts,
        groups=(
            np.unique(flat_weight, return_inverse=True)[1],
            np.unique(flat_share, return_inverse=True)[1],
        ),
    )


# How weights are spread, without areas to compare with

BINS = 41  # of histograms; an odd number: 1/2 is then in the middle of a bin, and equal weights in one
CORNER = 0.99  # above this weight, one center has all


def weight_distribution(weights: NDArray[Any], labels: NDArray[np.bool_]) -> dict[str, Any]:
    """Describe the weights (N, C) of the labels (N, C) of images, ready for json.

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
        "variance": float(every.var()) if len(every) else 0.0,
        "variance_several": float(chosen.var()) if len(chosen) else 0.0,
        "variance_uneven": float(((chosen - even) ** 2).mean()) if len(chosen) else 0.0,
        "histogram": np.histogram(chosen, bins=BINS, range=(0, 1))[0].tolist(),
        "by_count": by_count,
        "corner": float((largest[several] > CORNER).mean()) if several.any() else 0.0,
    }
