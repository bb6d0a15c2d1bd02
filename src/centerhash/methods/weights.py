"""Center weights, public as `centerhash.weights`: how much each label's center counts for one image (Sec. 3.3 and 3.4).

Every function accepts a batch of rows (B, L) with a mask (B, L) of the entries in use. Images with any number of labels
are solved together: L is C, or the largest number of labels in the batch (see `LabelSlots`). The weights of a row are
non-negative, zero outside the mask and sum to 1; a row without labels is all zero.

The weight step minimizes, with the network fixed and `d` (B, L) the distances to the centers,

    joint        bent(sum_j w_j d_j)  +  lambda * sum_j w_j log w_j        Eq. (4), (10)
    per_center   sum_j bent(w_j d_j)  +  lambda * sum_j w_j log w_j        Eq. (8), (10)

with bent(x) = (softplus(beta x) - log 2) / beta. This is the paper's -log p, divided by beta and 0 at x = 0. beta bends
the curve, and does not change its scale or height.

`printed_*` is the step as the paper prints it, whose gradient is not that of this objective (docs/explanation/paper.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = [
    "Form",
    "LabelSlots",
    "bent",
    "class_sizes",
    "descended_weights",
    "equal_weights",
    "exact_weights",
    "label_slots",
    "log_cosh",
    "printed_gradient",
    "printed_weights",
    "project_to_simplex",
    "projected_gradient_descent",
    "resized",
    "scatter_weights",
    "softmax_weights",
    "true_gradient",
    "weight_objective",
]

Form: TypeAlias = Literal["joint", "per_center"]
Gradient: TypeAlias = Callable[[Tensor], Tensor]

_SMALLEST_WEIGHT = 1e-12  # where log(w) is cut: far below any weight that changes a loss


class LabelSlots(NamedTuple):
    """Hold the labels of a batch in compact form: L = the largest number of labels of an image."""

    classes: Tensor  # (B, L) class of each slot, 0 where unused
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
    unnormalised = torch.exp(shifted)
    return unnormalised / unnormalised.sum(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


def project_to_simplex(values: Tensor, mask: Tensor) -> Tensor:
    """Project each row of values (B, L) to the probability simplex, Eq. (15) and Algorithm 2."""
    ordered = values.masked_fill(~mask, -torch.inf).sort(dim=1, descending=True).values  # line 1
    used = torch.isfinite(ordered)
    rank = torch.arange(1, values.shape[1] + 1, device=values.device, dtype=values.dtype)
    shift = (1 - ordered.masked_fill(~used, 0).cumsum(dim=1)) / rank
    support = used & (ordered + shift > 0)
    rho = support.sum(dim=1, keepdim=True)  # line 2: the condition holds for a prefix, so its length is rho
    xi = shift.gather(1, (rho - 1).clamp_min(0))  # line 3
    return torch.where(mask, (values + xi).clamp_min(0), 0)


def bent(values: Tensor, beta: float) -> Tensor:
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
    first = bent(weighted.sum(dim=1), beta) if form == "joint" else bent(weighted, beta).sum(dim=1)
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
    gradient: Gradient, mask: Tensor, steps: int, rate: float, start: Tensor
) -> Tensor:
    """Descend `steps` times from `start` (B, L): Eq. (14), each step projected by Algorithm 2."""
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
    """Compute weights (B, L) by ten printed steps of 0.1 along Eq. (13) from `start`, by default 1/c."""
    distances = distances.masked_fill(~mask, 0)
    start = equal_weights(mask, distances.dtype) if start is None else start
    return projected_gradient_descent(
        lambda weights: printed_gradient(weights, distances, entropy), mask, steps, rate, start
    )


def descended_weights(
    distances: Tensor,
    mask: Tensor,
    beta: float,
    entropy: float,
    rate: float,
    steps: int,
    form: Form = "joint",
    start: Tensor | None = None,
) -> Tensor:
    """Compute weights (B, L) by PGD on the true gradient from `start`, by default 1/c."""
    distances = distances.masked_fill(~mask, 0)
    return projected_gradient_descent(
        lambda weights: true_gradient(weights, distances, beta, entropy, form),
        mask,
        steps,
        rate,
        equal_weights(mask, distances.dtype) if start is None else start,
    )


def exact_weights(
    distances: Tensor, mask: Tensor, beta: float, entropy: float, form: Form = "joint"
) -> Tensor:
    """Minimize `weight_objective` on the simplex for distances (B, L) and a mask; return weights (B, L)."""
    solver = _exact_joint if form == "joint" else _exact_per_center
    return solver(distances.masked_fill(~mask, 0), mask, beta, entropy)


def _exact_joint(distances: Tensor, mask: Tensor, beta: float, entropy: float, rounds: int = 6) -> Tensor:
    """Solve the joint form by a root in one unknown.

    Setting the gradient of the Lagrangian to zero gives w = softmax(-t d / lambda) with
    t = sigmoid(beta * Omega(w)). Omega falls as t grows, so the gap sigmoid(beta * Omega(t)) - t falls
    strictly and has one root, which lies between the values of the nearest center and of equal weights.
    Newton's step is taken where it stays inside the bracket, the middle of the bracket otherwise; from the
    upper end five rounds give double precision, whatever the distances, beta and lambda, and fewer where the curve
    is nearly straight: the rounds end when no t moves any more.
    """
    nearest = distances.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True).nan_to_num(posinf=0.0)
    low = torch.sigmoid(beta * nearest)
    high = torch.sigmoid(beta * (equal_weights(mask, distances.dtype) * distances).sum(dim=1, keepdim=True))
    high = torch.maximum(low, high)
    offset = (
        distances - nearest
    ) / -entropy  # shifting d leaves the softmax as it is and keeps exp() in range
    t, smallest = high, torch.finfo(distances.dtype).eps  # t lies between 1/2 and 1
    for _ in range(rounds):
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


def _exact_per_center(
    distances: Tensor, mask: Tensor, beta: float, entropy: float, rounds: int = 16
) -> Tensor:
    """Solve the per-center form by a root in one unknown per image, the multiplier of sum w = 1.

    The objective is separable: at its minimum d_j sigmoid(beta w_j d_j) + lambda log w_j is the same number for
    every label. Each w_j grows with that number, so the sum of the weights crosses 1 once. Every weight is at
    most 1 and one is at least 1/c, which brackets the root. About ten times the cost of the joint form.
    """
    counts = mask.sum(dim=1, keepdim=True).clamp_min(1)
    pull = distances.masked_fill(~mask, torch.inf)  # unused slots get the weight exp(-inf) = 0
    high = (pull * torch.sigmoid(beta * pull)).amin(dim=1, keepdim=True)
    low = (pull * torch.sigmoid(beta * pull / counts)).amin(dim=1, keepdim=True) - entropy * torch.log(counts)
    low, high = low.nan_to_num(posinf=0.0), high.nan_to_num(posinf=0.0)
    number = high
    for _ in range(rounds):
        weights = _weights_at(number, distances, mask, beta, entropy)
        activation = torch.sigmoid(beta * weights * distances)
        curvature = beta * distances**2 * activation * (1 - activation) * weights + entropy
        total = weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        slope = (weights / curvature).sum(dim=1, keepdim=True) / total
        low, high = torch.where(total < 1, number, low), torch.where(total < 1, high, number)
        newton = number - torch.log(total) / slope  # the logarithm is nearly linear in the multiplier
        number = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
    weights = _weights_at(number, distances, mask, beta, entropy)
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def _weights_at(number: Tensor, distances: Tensor, mask: Tensor, beta: float, entropy: float) -> Tensor:
    """Weights (B, L) that solve d sigmoid(beta w d) + lambda log w = number, by bisection of log w.

    The sigmoid lies between 1/2 and 1, which brackets log w.
    """
    low, high = (number - distances) / entropy, ((number - distances / 2) / entropy).clamp_max(0)
    low = torch.minimum(low, high)
    for _ in range(30 if distances.dtype == torch.float32 else 60):
        middle = (low + high) / 2
        above = distances * torch.sigmoid(beta * distances * torch.exp(middle)) + entropy * middle > number
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return torch.where(mask, torch.exp((low + high) / 2), 0)


# What labels alone cannot tell: tables are large, forks are small


def resized(weights: Tensor, sizes: Tensor) -> Tensor:
    """Multiply weights (B, C) by exp(sizes) (C,) and normalize the rows; zero rows stay zero."""
    scaled = weights * torch.exp(sizes)
    return scaled / scaled.sum(dim=1, keepdim=True).clamp_min(torch.finfo(scaled.dtype).tiny)


def class_sizes(weights: Tensor, labels: Tensor, areas: Tensor, ridge: float = 1e-3) -> Tensor:
    """Fit the typical log size (C,) of each class, so that weights (N, C) agree with areas (N, C).

    Minimizes -mean_i sum_j a_ij log w'_ij + ridge |s|^2 with w' = resized(w, s). a are the areas' shares of their sum.
    The problem is convex. Images with one label or without areas are skipped. In float64.
    """
    visible = torch.where(labels, areas, 0).double()
    known = (labels.sum(dim=1) > 1) & (visible.sum(dim=1) > 0)
    labels, visible = labels[known], visible[known]
    sizes = torch.zeros(labels.shape[1], dtype=torch.float64, device=weights.device, requires_grad=True)
    if not len(labels):
        return sizes.detach()
    shares = visible / visible.sum(dim=1, keepdim=True)
    scores = torch.log(weights[known].double().clamp_min(_SMALLEST_WEIGHT))
    optimizer = torch.optim.LBFGS(
        [sizes], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        fitted = torch.log_softmax((scores + sizes).masked_fill(~labels, -torch.inf), dim=1)
        loss: Tensor = (
            -(shares * fitted.masked_fill(~labels, 0)).sum(dim=1).mean() + ridge * sizes.square().sum()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]
    return sizes.detach()
