"""Weights of an image's labels in numpy: what `methods/weights.py` computes with torch, for models without it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.model.spec import Shares

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

_JOINT_ROUNDS, _ROUNDS, _BISECTIONS = 6, 16, 60  # as in `methods/weights.py`


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
    distances = float(shares.scale or 0) * center_distances(logits.astype(np.float64), directions)
    solve = exact_joint if shares.form == "joint" else exact_per_center
    found = solve(np.where(labels, distances, 0), labels, float(shares.beta or 0), float(shares.entropy or 0))
    return found.astype(np.float32)


def center_distances(logits: Floats, directions: NDArray[np.float32]) -> Floats:
    """Binary cross entropy (N, C) between codes and centers, Eq. (2) of the ICS paper."""
    common = (np.logaddexp(0, logits) - logits / 2).sum(axis=1, keepdims=True)
    found: Floats = np.maximum(common - logits @ directions.T / 2, 0)
    return found


def equal_weights(mask: Mask) -> Floats:
    """Give every label of a row the weight 1/c."""
    found: Floats = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    return found


def softmax_weights(scores: Floats, mask: Mask) -> Floats:
    """Softmax of scores (N, C) over the mask; all zero if a row has no label."""
    filled = np.where(mask, scores, -np.inf)
    largest = np.maximum(filled.max(axis=1, keepdims=True), np.finfo(np.float64).min)
    unnormalized = np.exp(filled - largest)
    return _normalized(unnormalized)


def _normalized(weights: Floats) -> Floats:
    found: Floats = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return found


def _sigmoid(values: Floats) -> Floats:
    found: Floats = np.exp(-np.logaddexp(0, -values))
    return found


def exact_joint(distances: Floats, mask: Mask, beta: float, entropy: float) -> Floats:
    """Minimize the joint form, Eq. (4) with (10), by a root in one unknown t: w = softmax(-t d / lambda)."""
    nearest = np.where(mask, distances, np.inf).min(axis=1, keepdims=True)
    nearest = np.where(np.isfinite(nearest), nearest, 0)
    low = _sigmoid(beta * nearest)
    high = np.maximum(low, _sigmoid(beta * (equal_weights(mask) * distances).sum(axis=1, keepdims=True)))
    offset, t = (distances - nearest) / -entropy, high
    for _ in range(_JOINT_ROUNDS):
        weights = softmax_weights(offset * t, mask)
        mean = (weights * distances).sum(axis=1, keepdims=True)
        variance = (weights * (distances - mean) ** 2).sum(axis=1, keepdims=True)
        value = _sigmoid(beta * mean)
        gap = value - t
        low, high = np.where(gap > 0, t, low), np.where(gap > 0, high, t)
        newton = t + gap / (value * (1 - value) * beta * variance / entropy + 1)
        t = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
    return softmax_weights(offset * t, mask)


def exact_per_center(distances: Floats, mask: Mask, beta: float, entropy: float) -> Floats:
    """Minimize the per-center form, Eq. (8) with (10), by a root in one unknown: the multiplier of sum w = 1."""
    counts = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    pull = np.where(mask, distances, np.inf)
    high = (pull * _sigmoid(beta * pull)).min(axis=1, keepdims=True)
    low = (pull * _sigmoid(beta * pull / counts)).min(axis=1, keepdims=True) - entropy * np.log(counts)
    low, high = np.where(np.isfinite(low), low, 0), np.where(np.isfinite(high), high, 0)
    number = high
    for _ in range(_ROUNDS):
        weights = _weights_at(number, distances, mask, beta, entropy)
        activation = _sigmoid(beta * weights * distances)
        curvature = beta * distances**2 * activation * (1 - activation) * weights + entropy
        total = np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        slope = (weights / curvature).sum(axis=1, keepdims=True) / total
        low, high = np.where(total < 1, number, low), np.where(total < 1, high, number)
        newton = number - np.log(total) / np.where(slope > 0, slope, 1)
        number = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
    return _normalized(_weights_at(number, distances, mask, beta, entropy))


def _weights_at(number: Floats, distances: Floats, mask: Mask, beta: float, entropy: float) -> Floats:
    """Solve d sigmoid(beta w d) + lambda log w = number for weights (N, C), by bisection of log w."""
    high = np.minimum((number - distances / 2) / entropy, 0)
    low = np.minimum((number - distances) / entropy, high)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = distances * _sigmoid(beta * distances * np.exp(middle)) + entropy * middle > number
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(mask, np.exp((low + high) / 2), 0)
