"""Naive references for the weight step: one row at a time, plain Python and brute force."""

from __future__ import annotations

import math
from collections.abc import Sequence


def project(values: Sequence[float]) -> list[float]:
    """Algorithm 2 as printed in the paper, for one image."""
    ordered = sorted(values, reverse=True)
    rho = max(j for j in range(1, len(ordered) + 1) if ordered[j - 1] + (1 - sum(ordered[:j])) / j > 0)
    xi = (1 - sum(ordered[:rho])) / rho
    return [max(value + xi, 0.0) for value in values]


def objective(
    weights: Sequence[float], distances: Sequence[float], beta: float, entropy: float, form: str
) -> float:
    """Eq. (4) or (8), 0 at distance 0 and divided by beta, plus lambda times Eq. (10)."""
    pairs = list(zip(weights, distances, strict=True))
    if form == "joint":
        first = (math.log1p(math.exp(beta * sum(w * d for w, d in pairs))) - math.log(2)) / beta
    else:
        first = sum((math.log1p(math.exp(beta * w * d)) - math.log(2)) / beta for w, d in pairs)
    return first + entropy * sum(w * math.log(w) for w in weights if w > 0)


def best_on_a_grid(
    distances: Sequence[float], beta: float, entropy: float, form: str, steps: int
) -> list[float]:
    """Minimizer among all weights that are multiples of 1/steps, for three labels."""
    grid = [
        (a / steps, b / steps, (steps - a - b) / steps)
        for a in range(steps + 1)
        for b in range(steps + 1 - a)
    ]
    return list(min(grid, key=lambda weights: objective(weights, distances, beta, entropy, form)))
