"""Equations that several losses share, as functions of tensors.

A network's output is `logits` (B, K), b = sigmoid(logits); centers are (C, K) in {-1, +1}; labels (B, C) are bool. The
pairs of a batch are all B (B - 1) ordered pairs of two different images. Two images are similar if they share a label;
an image without labels is similar to none, as in the evaluation.

Where papers sum, these are means, so that neither the size of a batch nor K changes what a coefficient means. A batch
without similar pairs, without dissimilar ones or without any has the loss of the rest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, softplus

from centerhash.weights import log_cosh

# Below this norm a code counts as having no direction, so that its gradient stays in range.
SMALLEST_NORM = 1e-6


def label_loss(log_odds: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross entropy () of the labels' log-odds (B, C) with labels (B, C): summed over C, mean over B."""
    losses = binary_cross_entropy_with_logits(log_odds, labels.to(log_odds.dtype), reduction="none")
    return losses.sum(1).mean()


# --- Codes and centers


def center_distances(logits: Tensor, centers: Tensor) -> Tensor:
    """Compute the binary cross entropy (B, C) between codes and centers, Eq. (2) with the sign of a distance.

    d_ij = -sum_k [ t_jk log b_ik + (1 - t_jk) log(1 - b_ik) ] with targets t = (v + 1) / 2. From logits z
    this is sum_k [ softplus(z_k) - z_k / 2 ] - <z, v> / 2: finite, and one matrix product for all centers.
    """
    common = (softplus(logits) - logits / 2).sum(dim=1, keepdim=True)
    return (common - logits @ centers.T / 2).clamp_min(0)


def center_similarities(logits: Tensor, centers: Tensor) -> Tensor:
    """Compute the cosine (B, C) between logits and centers, in [-1, 1]; every center has the length sqrt(K)."""
    return normalize(logits, dim=1) @ centers.T / math.sqrt(centers.shape[1])


def weighted_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Compute Omega (B,) = sum_j w_j d_j, Eq. (3)."""
    return (weights * distances).sum(dim=1)


def majority_center(labels: Tensor, centers: Tensor, tie_vector: Tensor) -> Tensor:
    """Return CSQ's one target (B, K): sign of the sum of the labels' centers, tied bits from one vector (K,)."""
    total = labels.to(centers.dtype) @ centers
    return torch.where(total == 0, tie_vector, total.sign())


def random_code(bits: int, seed: int) -> Tensor:
    """Draw one code (K,) of -1 and +1 for tied bits."""
    return torch.randint(0, 2, (bits,), generator=torch.Generator().manual_seed(seed)).float() * 2 - 1


def quantization_loss(logits: Tensor) -> Tensor:
    """Compute J_q per image (B,) = sum_k log cosh(|2 b_k - 1| - 1), Eq. (11), with 2b - 1 = tanh(logit / 2)."""
    return log_cosh(torch.tanh(logits / 2).abs() - 1).sum(dim=1)


def squared_quantization(logits: Tensor) -> Tensor:
    """Compute the quantization loss of CSQ's released code per image (B,) = sum_k (|2 b_k - 1| - 1)^2."""
    return (torch.tanh(logits / 2).abs() - 1).square().sum(dim=1)


# --- Pairs


def shared_labels(labels: Tensor) -> Tensor:
    """Return whether two images share a label, (B, B) bool, for labels (B, C) bool."""
    numbers = labels.float()
    return numbers @ numbers.T > 0


def different_images(rows: Tensor) -> Tensor:
    """Return the pairs (B, B) bool of two different images, for any rows (B, ...)."""
    return ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean of the values in the mask; 0 with a gradient of 0 if the mask is empty."""
    return torch.where(mask, values, 0).sum() / mask.sum().clamp_min(1)


def balanced_mean(values: Tensor, similar: Tensor, pairs: Tensor) -> Tensor:
    """Compute the weighted mean over S of values (B, B): |S| / |S1| for similar pairs, |S| / |S0| for the others.

    Eq. (2) of HashNet, and DCH's. It is the mean over S1 plus the mean over S0, both counted in this batch; the
    papers count them in all training images.
    """
    return masked_mean(values, pairs & similar) + masked_mean(values, pairs & ~similar)


def logistic_loss(products: Tensor, similar: Tensor, slope: float) -> Tensor:
    """Compute the negative log-likelihood (B, B) of similarities: log(1 + exp(x)) - s x, x = slope * <u_i, u_j>.

    For inner products (B, B) of relaxed codes. DPSH has the slope 1/2, DHN's authors 1, HashNet's Eq. (4) alpha,
    IDHN's authors 5 / K.
    """
    scaled = slope * products
    return softplus(scaled) - scaled * similar


def squared_distance(left: Tensor, right: Tensor) -> Tensor:
    """Compute squared Euclidean distances (B, M) of rows (B, K) and (M, K): of codes, four times Hamming's."""
    squares = (left * left).sum(dim=1)[:, None] + (right * right).sum(dim=1)
    return squares - 2 * left @ right.T
