"""Exact expectations of average precision: over the orders of tied items, and over all orders (chance)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from centerhash.evaluation import kernels


def expected_average_precision(
    counts: NDArray[np.int64], relevant: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the expectation (Q,) over all orders of tied items, by the peers' and the textbook denominator.

    Args:
        counts: (Q, groups) number of tied items per group, nearest group first.
        relevant: (Q, groups) how many of them are relevant.
        k: number of places that count.

    """
    cut = min(k, int(counts.sum(axis=1).max()))
    harmonic = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, cut + 1))))
    groups = np.ascontiguousarray(counts), np.ascontiguousarray(relevant)
    sums, peers = kernels.expected_precision(*groups, cut, harmonic).T
    return peers, sums / np.clip(relevant.sum(axis=1), 1, k)


def chance_level(
    items: NDArray[np.int64], relevant: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the expected average precision (Q,) of a uniformly random order, by both denominators.

    A random order is one group of ties. Queries with the same number of items (Q,) and of relevant items (Q,)
    have the same chance, so each pair of numbers is worked out once.
    """
    pairs, place = np.unique(np.stack([items, relevant], axis=1), axis=0, return_inverse=True)
    place = place.reshape(-1)  # numpy 2.0 adds an axis
    peers, textbook = expected_average_precision(pairs[:, :1], pairs[:, 1:], k)
    return peers[place], textbook[place]
