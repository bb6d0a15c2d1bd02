"""Center weights, public as `centerhash.weights`: how much each label's center counts for one image (Sec. 3.3 and 3.4).

Every function accepts a batch of rows (B, L) with a mask (B, L) of the entries in use. Images with any number of labels
are solved together: L is C, or the largest number of labels in the batch (see `LabelSlots`). The weights of a row are
non-negative, zero outside the mask and sum to 1; a row without labels is all zero.

The weight step minimizes, with the network fixed and `d` (B, L) the distances to the centers,

    joint        scaled_softplus(sum_j w_j d_j)  +  lambda * sum_j w_j log w_j        Eq. (4), (10)
    per_center   sum_j scaled_softplus(w_j d_j)  +  lambda * sum_j w_j log w_j        Eq. (8), (10)

with scaled_softplus(x) = (softplus(beta x) - log 2) / beta. This is the paper's -log p, divided by beta and 0 at x = 0:
beta changes the curvature, not the scale. The joint form has an exact solver; PGD minimizes both.

`printed_*` is the step as the paper prints it, whose gradient is not that of this objective (docs/explanation/paper.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import softplus

Form: TypeAlias = Literal["joint", "per_center"]
Gradient: TypeAlias = Callable[[Tensor], Tensor]

# Five Newton steps of the exact solver give double precision.
_NEWTON_STEPS = 6
# Logarithms use at least this weight, which is far below any that changes a loss.
_SMALLEST_WEIGHT = 1e-12


class LabelSlots(NamedTuple):
    """The labels of a batch in compact form, with L = the largest number of labels of an image."""

    classes: Tensor  # (B, L), 0 in an unused slot
    mask: Tensor  # (B, L) bool


def label_slots(labels: Tensor) -> LabelSlots:
    """Gather the set labels (B, C) bool into slots (B, L), so that solvers skip all other classes."""
    counts = labels.sum(dim=1)
    width = max(1, int(counts.max())) if len(labels) else 1
    mask = torch.arange(width, device=labels.device) < counts[:, None]
    index = torch.zeros(mask.shape, dtype=torch.long, device=labels.device)
    index[mask] = labels.nonzero()[:, 1]
    return LabelSlots(index, mask)


def scatter_weights(weights: Tensor, slots: LabelSlots, classes: int) -> Tensor:
    """Spread slot weights (B, L) over all classes (B, C), zero outside the labels."""
    dense = weights.new_zeros(len(weights), classes)
    return dense.scatter_add_(1, slots.classes, weights * slots.mask)


def equal_weights(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Assign the weight 1/c to every label of a row (B, C)."""
    used = mask.to(dtype)
    return used / used.sum(dim=1, keepdim=True).clamp_min(1)


def softmax_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax of scores (B, L) over the mask; zero for rows without labels."""
    filled = scores.masked_fill(~mask, -torch.inf)
    shifted = filled - filled.amax(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    unnormalized = torch.exp(shifted)
    return unnormalized / unnormalized.sum(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


def project_to_simplex(values: Tensor, mask: Tensor) -> Tensor:
    """Project each row of values (B, L) to the probability simplex, Eq. (15) and Algorithm 2."""
    ordered = values.masked_fill(~mask, -torch.inf).sort(dim=1, descending=True).values  # line 1
    used = torch.isfinite(ordered)
    rank = torch.arange(1, values.shape[1] + 1, device=values.device, dtype=values.dtype)
    shift = (1 - ordered.masked_fill(~used, 0).cumsum(dim=1)) / rank
    support = used & (ordered + shift > 0)
    # The condition of line 2 holds for a prefix, whose length is rho.
    rho = support.sum(dim=1, keepdim=True)
    xi = shift.gather(1, (rho - 1).clamp_min(0))  # line 3
    return torch.where(mask, (values + xi).clamp_min(0), 0)


def scaled_softplus(values: Tensor, beta: float) -> Tensor:
    """Compute (softplus(beta x) - log 2) / beta = x / 2 + log(cosh(beta x / 2)) / beta, stable for small beta."""
    return values / 2 + log_cosh(beta * values / 2) / beta


def log_cosh(values: Tensor) -> Tensor:
    """Compute log(cosh(x)) elementwise, finite for any x."""
    magnitude = values.abs()
    return magnitude + softplus(-2 * magnitude) - math.log(2)


def weight_objective(
    weights: Tensor, distances: Tensor, beta: float, entropy: float, form: Form = "joint"
) -> Tensor:
    """Compute the objective of the weight step per image (B,): J1 + lambda R, Eq. (4) or (8) with (10).

    `entropy` is the paper's lambda. Masked entries have weight 0 and add nothing.
    """
    weighted = weights * distances
    weighted = weighted.sum(dim=1, keepdim=True) if form == "joint" else weighted
    first = scaled_softplus(weighted, beta).sum(dim=1)
    negative_entropy: Tensor = torch.special.xlogy(weights, weights).sum(dim=1)  # R, Eq. (9)
    return first + entropy * negative_entropy


def true_gradient(
    weights: Tensor, distances: Tensor, beta: float, entropy: float, form: Form = "joint"
) -> Tensor:
    """Compute the gradient (B, L) of `weight_objective`: d * sigmoid(beta * Omega) + lambda (1 + log w)."""
    weighted = weights * distances
    argument = weighted.sum(dim=1, keepdim=True) if form == "joint" else weighted
    return distances * torch.sigmoid(beta * argument) + entropy * _one_plus_log(weights)


def printed_gradient(weights: Tensor, distances: Tensor, entropy: float) -> Tensor:
    """Compute the printed gradient, Eq. (13): -w / (1 + exp(w d)) + lambda (1 + log w), (B, L)."""
    return -weights * torch.sigmoid(-weights * distances) + entropy * _one_plus_log(weights)


def _one_plus_log(weights: Tensor) -> Tensor:
    return 1 + torch.log(weights.clamp_min(_SMALLEST_WEIGHT))


def projected_gradient_descent(
    gradient: Gradient, mask: Tensor, steps: int, rate: float | Tensor, start: Tensor
) -> Tensor:
    """Descend `steps` times from `start` (B, L): Eq. (14), each step projected by Algorithm 2.

    `rate` is the step size, one for all images or one per image (B, 1).
    """
    weights = start
    for _ in range(steps):
        weights = project_to_simplex(weights - rate * gradient(weights), mask)
    return weights


def printed_weights(
    distances: Tensor,
    mask: Tensor,
    entropy: float = 0.01,
    rate: float = 0.1,
    steps: int = 10,
    start: Tensor | None = None,
) -> Tensor:
    """Compute weights (B, L) by steps along the printed gradient, Eq. (13), from `start`, by default 1/c."""
    distances = distances.masked_fill(~mask, 0)
    start = equal_weights(mask, distances.dtype) if start is None else start
    return projected_gradient_descent(
        lambda weights: printed_gradient(weights, distances, entropy), mask, steps, rate, start
    )


def stable_rate(distances: Tensor, mask: Tensor, beta: float, entropy: float, rate: float) -> Tensor:
    """Return the step size (B, 1) of PGD per image: `rate`, or a smaller one if PGD would diverge.

    The entropy gives a step at the weight w the slope 1 - eta lambda / w, so PGD overshoots at 1/c if eta lambda c is at
    least 2. Then the step is w / lambda for the smallest weight that the minimizer can have, exp(-spread / lambda) / c,
    where the spread of the gradients of J1 is at most d_max sigmoid(beta d_max) - d_min / 2.
    """
    counts = mask.sum(dim=1, keepdim=True).clamp_min(1)
    farthest = distances.masked_fill(~mask, 0).amax(dim=1, keepdim=True)
    nearest = distances.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True).nan_to_num(posinf=0.0)
    spread = farthest * torch.sigmoid(beta * farthest) - nearest / 2
    smaller = torch.exp(-spread / entropy) / (entropy * counts)
    return torch.where(rate * entropy * counts < 2, torch.full_like(smaller, rate), smaller)


def pgd_weights(
    distances: Tensor,
    mask: Tensor,
    beta: float,
    entropy: float,
    rate: float = 0.1,
    steps: int = 10,
    form: Form = "joint",
    start: Tensor | None = None,
) -> Tensor:
    """Compute weights (B, L) by PGD on the true gradient from `start`, by default 1/c, in steps of `stable_rate`."""
    distances = distances.masked_fill(~mask, 0)
    start = equal_weights(mask, distances.dtype) if start is None else start
    step_size = stable_rate(distances, mask, beta, entropy, rate)
    return projected_gradient_descent(
        lambda weights: true_gradient(weights, distances, beta, entropy, form), mask, steps, step_size, start
    )


def exact_weights(distances: Tensor, mask: Tensor, beta: float, entropy: float) -> Tensor:
    """Minimize the joint `weight_objective` on the simplex, by a root in one unknown per image; return weights (B, L).

    Setting the gradient of the Lagrangian to zero gives w = softmax(-t d / lambda) with
    t = sigmoid(beta * Omega(w)). Omega falls as t grows, so the gap sigmoid(beta * Omega(t)) - t falls
    strictly and has one root, which lies between the values of the nearest center and of equal weights.
    A Newton step that would leave the bracket is replaced by its middle. Iteration ends when no t moves any more.
    """
    distances = distances.masked_fill(~mask, 0)
    nearest = distances.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True).nan_to_num(posinf=0.0)
    low = torch.sigmoid(beta * nearest)
    high = torch.sigmoid(beta * (equal_weights(mask, distances.dtype) * distances).sum(dim=1, keepdim=True))
    high = torch.maximum(low, high)
    # Shifting d leaves the softmax as it is and keeps exp() in range.
    offset = (distances - nearest) / -entropy
    t, smallest = high, torch.finfo(distances.dtype).eps  # t lies between 1/2 and 1
    for _ in range(_NEWTON_STEPS):
        weights = softmax_weights(offset * t, mask)
        mean = (weights * distances).sum(dim=1, keepdim=True)
        variance = (weights * (distances - mean) ** 2).sum(dim=1, keepdim=True)
        value = torch.sigmoid(beta * mean)
        gap = value - t
        low, high = torch.where(gap > 0, t, low), torch.where(gap > 0, high, t)
        slope = -value * (1 - value) * beta * variance / entropy - 1
        newton = t - gap / slope
        before, t = t, torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        if not bool(((t - before).abs() > smallest).any()):
            break
    return softmax_weights(offset * t, mask)


def class_sizes(weights: Tensor, labels: Tensor, areas: Tensor, ridge: float = 1e-3) -> Tensor:
    """Fit the typical log size (C,) of each class, so that weights (N, C) agree with areas (N, C).

    Minimizes -mean_i sum_j a_ij log w'_ij + ridge |s|^2; w'_ij = w_ij exp(s_j), normalized over j. a are shares of areas.
    The problem is convex, and solved in float64. Images with one label or without areas are skipped.
    """
    areas = torch.where(labels, areas, 0).double()
    usable = (labels.sum(dim=1) > 1) & (areas.sum(dim=1) > 0)
    labels, areas = labels[usable], areas[usable]
    sizes = torch.zeros(labels.shape[1], dtype=torch.float64, device=weights.device, requires_grad=True)
    if not len(labels):
        return sizes.detach()
    shares = areas / areas.sum(dim=1, keepdim=True)
    scores = torch.log(weights[usable].double().clamp_min(_SMALLEST_WEIGHT))
    optimizer = torch.optim.LBFGS(
        [sizes], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        fitted = torch.log_softmax((scores + sizes).masked_fill(~labels, -torch.inf), dim=1)
        cross_entropy = -(shares * fitted.masked_fill(~labels, 0)).sum(dim=1).mean()
        loss = cross_entropy + ridge * sizes.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]
    return sizes.detach()
