"""Proxy losses: codes are drawn to learned proxies of their labels (HyP2).

A network's output is `logits` (B, K), labels (B, C) are bool, proxies (C, K) are learned beside the network.
Codes are relaxed to u = tanh(logits) and compared by their cosine.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, Objective
from centerhash.methods.losses.pairwise import SMALLEST_NORM, masked_mean, pairs_of_two, shared_labels

# distances of the best linear codes that miss the Griesmer bound, by dimension and bits, at lengths in use
_MISSED = {(5, 12): 4, (6, 16): 6, (8, 16): 5, (6, 24): 10, (7, 32): 14, (7, 48): 22}


def griesmer_distance(dimension: int, bits: int) -> int:
    """Largest distance d that the Griesmer bound allows a linear code: sum_i ceil(d / 2^i) <= K over i < dimension."""
    return max(
        (d for d in range(1, bits + 1) if sum(-(-d // 2**i) for i in range(dimension)) <= bits), default=0
    )


def code_distance(classes: int, bits: int) -> int:
    """Distance of the best known linear code of 2^k >= C words of K bits: the bound's, but where none meets it."""
    dimension = max(1, (classes - 1).bit_length())
    return _MISSED.get((dimension, bits), griesmer_distance(dimension, bits))


def cosine_threshold(classes: int, bits: int) -> float:
    """HyP2's zeta(K, C): the cosine 1 - 2 d / K that C codes of K bits can all keep from each other.

    Never below 0, although two or three classes could be opposite: images with both labels need them near.
    """
    return max(0.0, 1 - 2 * code_distance(classes, bits) / bits)


def excess(cosines: Tensor, threshold: float) -> Tensor:
    """How far a cosine is above the threshold: what an irrelevant proxy or image costs."""
    return torch.relu(cosines - threshold)


def proxy_loss(cosines: Tensor, labels: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Multi-label proxy loss of cosines (B, C) to the proxies, as two means over (image, class).

    1 - cosine over an image's labels, [cosine - zeta]+ over its other classes.
    """
    return masked_mean(1 - cosines, labels), masked_mean(excess(cosines, threshold), ~labels)


def irrelevant_pairs(labels: Tensor) -> Tensor:
    """Pairs (B, B) bool that share no label, both images with at least two labels of their own.

    The proxies keep images with one label apart by themselves; between those of several labels they cannot.
    """
    several = labels.sum(dim=1) > 1
    pairs = pairs_of_two(len(labels), labels.device) & ~shared_labels(labels)
    return pairs & several[:, None] & several


class HyP2Options(MethodOptions):
    """Options of HyP2."""

    threshold: float | None = Field(
        None, ge=-1, lt=1, alias="zeta", description="cosine from which irrelevant codes are pushed apart"
    )
    pair: float = Field(
        0.5, ge=0, alias="beta", description="coefficient of the pair loss beside the proxy loss"
    )
    squash: bool = Field(True, alias="tanh", description="compare tanh(z); else z itself, as the authors do")
    kaiming: bool = Field(False, description="draw proxies with variance 2 / C as the authors do; else 1")


class HyP2(Objective):
    """HyP2 (Xu et al., 2022): a proxy per class, and pairs of images with several labels but none in common."""

    options: HyP2Options

    def __init__(
        self,
        classes: int,
        bits: int,
        *,
        seed: int = 0,
        options: HyP2Options | None = None,
        **values: Any,
    ) -> None:
        super().__init__(options=options, **values)
        self.sizes = (classes, bits)
        given = self.options.threshold
        self.threshold = cosine_threshold(classes, bits) if given is None else given
        draw = torch.randn(classes, bits, generator=torch.Generator().manual_seed(seed))
        self.proxies = nn.Parameter(draw * math.sqrt(2 / classes) if self.options.kaiming else draw)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Proxy loss of a batch and beta times its pair loss; an image without labels is far from every proxy."""
        relaxed = torch.tanh(batch.logits) if self.options.squash else batch.logits
        codes = normalize(relaxed, dim=1, eps=SMALLEST_NORM)
        cosines = codes @ normalize(self.proxies, dim=1, eps=SMALLEST_NORM).T
        near, far = proxy_loss(cosines, batch.labels, self.threshold)
        apart = masked_mean(excess(codes @ codes.T, self.threshold), irrelevant_pairs(batch.labels))
        return {"near": near, "far": far, "pair": self.options.pair * apart}
