"""Which class gets which center: classes that share images should have centers that share bits.

An image with two labels is pulled to two centers. Where they agree in many bits, one code can be near both;
where they are opposite, it can be near neither. Hadamard rows are all equally far apart, so this matters for
[H; -H], which holds opposite pairs, and for random centers, that is for many classes at few bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import InputError

MOST_CLASSES = 1024  # a swap costs C^2 and about C swaps are made: a second at 1,024 classes


def cooccurrence(labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Cosine (C, C) between the columns of labels (N, C): how often two classes share an image; 0 on the diagonal."""
    counts = labels.astype(np.float32).T @ labels.astype(np.float32)
    size = np.sqrt(np.maximum(np.diag(counts), 1))
    together: NDArray[np.float64] = (counts / np.outer(size, size)).astype(np.float64)
    np.fill_diagonal(together, 0)
    return together


def assign_centers(centers: NDArray[np.int8], labels: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Reorder centers (C, K) so that sum_ij A_ij <v_i, v_j> is large, A the co-occurrence in labels (N, C).

    Starts from their order and makes the best swap of two classes until none improves: a local optimum of
    this quadratic assignment problem. Past `MOST_CLASSES` classes the order stays as it is.
    """
    classes, bits = centers.shape
    if labels.ndim != 2 or labels.shape[1] != classes:
        raise InputError(
            f"labels of shape {labels.shape} do not fit {classes} centers: they must be (N, {classes})."
        )
    if classes < 3 or classes > MOST_CLASSES:
        return centers
    together = cooccurrence(labels)
    order = np.arange(classes)
    inner = centers.astype(np.float64) @ centers.T.astype(np.float64)
    attraction = together @ inner  # (C, C): how well class a would sit at the center of class b
    for _ in range(20 * classes):
        gain = _swap_gains(together, inner, attraction, bits)
        first, second = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[first, second] <= 1e-9:
            break
        order[[first, second]] = order[[second, first]]
        swap = np.arange(classes)
        swap[[first, second]] = second, first
        swapped = inner[np.ix_(swap, swap)]
        changed = swapped - inner
        attraction += _product_of_change(together, changed, int(first), int(second))
        inner = swapped
    return centers[order]


def _swap_gains(
    together: NDArray[np.float64], inner: NDArray[np.float64], attraction: NDArray[np.float64], bits: int
) -> NDArray[np.float64]:
    """Half of what the objective gains when classes a and b swap their centers, for every pair (C, C)."""
    current = np.diag(attraction)
    gains: NDArray[np.float64] = (
        attraction + attraction.T - current[:, None] - current[None, :] - 2 * together * (bits - inner)
    )
    return gains


def _product_of_change(
    together: NDArray[Any], changed: NDArray[Any], first: int, second: int
) -> NDArray[np.float64]:
    """together @ changed, where only two rows and two columns of `changed` are not zero."""
    product: NDArray[np.float64] = together[:, [first, second]] @ changed[[first, second], :]
    rest = changed[:, [first, second]].copy()
    rest[[first, second], :] = 0  # these rows are in the product above already
    product[:, [first, second]] += together @ rest
    return product
