"""HyP2: a learned proxy per class, and pairs of images with several labels but none in common."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from centerhash.core.options import Option
from centerhash.losses.base import Batch, HashingLoss
from centerhash.losses.functional import SMALLEST_NORM, different_images, masked_mean, shared_labels

# Distances of the best linear codes that miss the Griesmer bound, by dimension and bits, at lengths in use.
_MISSED = {(5, 12): 4, (6, 16): 6, (8, 16): 5, (6, 24): 10, (7, 32): 14, (7, 48): 22}


def code_distance(classes: int, bits: int) -> int:
    """Return the distance of the best known linear code of 2^k >= C words of K bits.

    This is the Griesmer bound, the largest d with sum_i ceil(d / 2^i) <= K over i < k, unless no code meets it.
    """
    dimension = max(1, (classes - 1).bit_length())
    allowed = (d for d in range(1, bits + 1) if sum(-(-d // 2**i) for i in range(dimension)) <= bits)
    return _MISSED.get((dimension, bits), max(allowed, default=0))


def cosine_threshold(classes: int, bits: int) -> float:
    """Return HyP2's zeta(K, C): the cosine 1 - 2 d / K that C codes of K bits can all keep from each other.

    Never below 0, although two or three classes could be opposite: images with both labels need them near.
    """
    return max(0.0, 1 - 2 * code_distance(classes, bits) / bits)


def irrelevant_pairs(labels: Tensor) -> Tensor:
    """Return the pairs (B, B) bool of images with at least two labels each that share none.

    The proxies alone separate images with one label, but not images with several.
    """
    several = labels.sum(dim=1) > 1
    pairs = different_images(labels) & ~shared_labels(labels)
    return pairs & several[:, None] & several


class HyP2Loss(HashingLoss):
    """HyP2 (Xu et al., 2022): near the proxy of each label, apart from images that share none.

    HyP2 Loss: Beyond Hypersphere Metric Space for Multi-label Image Retrieval, https://arxiv.org/abs/2208.06866

        >>> loss = HyP2Loss(classes=80, bits=64, beta=1.0)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: numbers of `classes` (C) and `bits` (K), `seed` of the proxies, and the options of the signature.
    The proxies (C, K) are parameters: the optimizer needs them.
    Shape: logits (B, K) and labels (B, C) to a scalar ().
    """

    def __init__(
        self,
        classes: int,
        bits: int,
        *,
        zeta: Annotated[
            float | None,
            Option("cosine above which irrelevant codes are separated; by C and K by default", ge=-1, lt=1),
        ] = None,
        beta: Annotated[float, Option("coefficient of the pair loss next to the proxy loss", ge=0)] = 0.5,
        tanh: Annotated[bool, Option("compare tanh(z); otherwise z")] = True,
        kaiming: Annotated[bool, Option("proxy variance 2 / C; otherwise 1")] = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.sizes = (classes, bits)
        self.zeta = cosine_threshold(classes, bits) if zeta is None else zeta
        self.beta, self.tanh = beta, tanh
        normal = torch.randn(classes, bits, generator=torch.Generator().manual_seed(seed))
        self.proxies = nn.Parameter(normal * math.sqrt(2 / classes) if kaiming else normal)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute 1 - cosine to the proxies of the labels, [cosine - zeta]+ to the others, and of irrelevant pairs.

        Each is a mean (); an image without labels is far from every proxy.
        """
        relaxed = torch.tanh(batch.logits) if self.tanh else batch.logits
        codes = normalize(relaxed, dim=1, eps=SMALLEST_NORM)
        cosines = codes @ normalize(self.proxies, dim=1, eps=SMALLEST_NORM).T
        excess, labels = torch.relu(cosines - self.zeta), batch.labels
        apart = torch.relu(codes @ codes.T - self.zeta)
        return {
            "near": masked_mean(1 - cosines, labels),
            "far": masked_mean(excess, ~labels),
            "pair": self.beta * masked_mean(apart, irrelevant_pairs(labels)),
        }
