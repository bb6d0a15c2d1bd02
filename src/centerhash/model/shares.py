"""Weights of an image's labels in numpy, for models that run without PyTorch; `weights.py` computes the same in it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.model.spec import Shares

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

# These are the constants of `weights.py`.
_ROUNDS, _SMALLEST_WEIGHT = 6, 1e-12


def label_weights(
    shares: Shares,
    labels: Mask,
    logits: NDArray[np.float32],
    share_logits: NDArray[np.float32] | None,
    directions: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Compute the weight (N, C) of each label; rows sum to 1, or to 0 without labels.

    Logits are (N, K), share_logits (N, C) if the shares are their softmax, directions (C, K).
    """
    if shares.by == "softmax":
        assert share_logits is not None
        return softmax_weights(share_logits.astype(np.float64), labels).astype(np.float32)
    if shares.by == "equal":
        return equal_weights(labels).astype(np.float32)
    values = logits.astype(np.float64)
    common = (np.logaddexp(0, values) - values / 2).sum(axis=1, keepdims=True)
    distances = np.maximum(common - values @ directions.T / 2, 0)  # Eq. (2)
    distances = np.where(labels, float(shares.scale or 0) * distances, 0)
    if shares.solver != "exact":
        return descended(distances, labels, shares).astype(np.float32)
    beta, entropy = float(shares.beta or 0), float(shares.entropy or 0)
    return exact_weights(distances, labels, beta, entropy).astype(np.float32)


def equal_weights(mask: Mask) -> Floats:
    """Assign the weight 1/c to every label of a row (N, C)."""
    return np.asarray(mask / np.maximum(mask.sum(axis=1, keepdims=True), 1))


def softmax_weights(scores: Floats, mask: Mask) -> Floats:
    """Compute the softmax of scores (N, C) over the mask; zero for rows without labels."""
    filled = np.where(mask, scores, -np.inf)
    largest = np.maximum(filled.max(axis=1, keepdims=True), np.finfo(np.float64).min)
    weights: Floats = np.exp(filled - largest)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return weights


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0, -values)))


def exact_weights(distances: Floats, mask: Mask, beta: float, entropy: float) -> Floats:
    """Minimize the joint form, Eq. (4) with (10), by a root in one unknown t: w = softmax(-t d / lambda)."""
    nearest = np.where(mask, distances, np.inf).min(axis=1, keepdims=True)
    nearest = np.where(np.isfinite(nearest), nearest, 0)
    low = _sigmoid(beta * nearest)
    high = np.maximum(low, _sigmoid(beta * (equal_weights(mask) * distances).sum(axis=1, keepdims=True)))
    offset, t = (distances - nearest) / -entropy, high
    for _ in range(_ROUNDS):
        weights = softmax_weights(offset * t, mask)
        mean = (weights * distances).sum(axis=1, keepdims=True)
        variance = (weights * (distances - mean) ** 2).sum(axis=1, keepdims=True)
        value = _sigmoid(beta * mean)
        gap = value - t
        low, high = np.where(gap > 0, t, low), np.where(gap > 0, high, t)
        newton = t + gap / (value * (1 - value) * beta * variance / entropy + 1)
        t = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
    return softmax_weights(offset * t, mask)


def project_to_simplex(values: Floats, mask: Mask) -> Floats:
    """Project each row of values (N, C) to the probability simplex, Algorithm 2; zero outside the mask."""
    ordered = -np.sort(-np.where(mask, values, -np.inf), axis=1)
    used = np.isfinite(ordered)
    shift = (1 - np.where(used, ordered, 0).cumsum(axis=1)) / np.arange(1, values.shape[1] + 1)
    rho = (used & (np.where(used, ordered, 0) + shift > 0)).sum(axis=1, keepdims=True)
    xi = np.take_along_axis(shift, np.maximum(rho - 1, 0), axis=1)
    return np.where(mask, np.maximum(values + xi, 0), 0)


def descended(distances: Floats, mask: Mask, shares: Shares) -> Floats:
    """Compute weights (N, C) by the steps of `pgd` or `printed` from 1/c, as `pgd_weights` and `printed_weights` do."""
    beta, entropy = float(shares.beta or 0), float(shares.entropy or 0)
    weights = equal_weights(mask)
    rate: float | Floats = shares.rate
    if shares.solver == "pgd":
        counts = np.maximum(mask.sum(axis=1, keepdims=True), 1)
        farthest = distances.max(axis=1, keepdims=True)
        nearest = np.where(mask, distances, np.inf).min(axis=1, keepdims=True)
        spread = farthest * _sigmoid(beta * farthest) - np.where(np.isfinite(nearest), nearest, 0) / 2
        smaller = np.exp(-spread / entropy) / (entropy * counts)
        rate = np.where(shares.rate * entropy * counts < 2, shares.rate, smaller)
    for _ in range(shares.steps):
        weighted = weights * distances
        if shares.solver == "printed":
            slope = -weights * _sigmoid(-weighted)
        else:
            omega = weighted.sum(axis=1, keepdims=True) if shares.form == "joint" else weighted
            slope = distances * _sigmoid(beta * omega)
        gradient = slope + entropy * (1 + np.log(np.maximum(weights, _SMALLEST_WEIGHT)))
        weights = project_to_simplex(weights - rate * gradient, mask)
    return weights
