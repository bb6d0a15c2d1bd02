"""Losses with a learned vector per class: proxies (HyP2) and a linear classifier on the codes (GreedyHash).

A network's output is `logits` (B, K), labels (B, C) are bool; the vectors (C, K) are learned together with the network.
HyP2 relaxes codes to u = tanh(logits) and compares them by their cosine; GreedyHash has signs in the forward pass, and
the gradient as if there were none.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, Objective, label_loss
from centerhash.methods.losses.pairwise import SMALLEST_NORM, masked_mean, pairs_of_two, shared_labels
from centerhash.methods.registry import Notes, Scores, register_method
from centerhash.methods.weights import equal_weights

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
        None, ge=-1, lt=1, alias="zeta", description="cosine above which irrelevant codes are separated"
    )
    pair: float = Field(
        0.5, ge=0, alias="beta", description="coefficient of the pair loss next to the proxy loss"
    )
    squash: bool = Field(True, alias="tanh", description="compare tanh(z); otherwise z")
    kaiming: bool = Field(False, description="proxy variance 2 / C; otherwise 1")


@register_method(
    "hyp2",
    family="pairwise",
    paper="HyP2 Loss: Beyond Hypersphere Metric Space for Multi-label Image Retrieval (Xu et al.)",
    year=2022,
    multi_label="near each label's proxy, apart from images that share none",
    space={"beta": [0.5, 1.0, 2.0], "tanh": [True, False]},
    authors={"beta": 0.5, "tanh": False, "kaiming": True},
    notes=Notes(
        source="the authors' PyTorch code",
        equations="""
            mean over labels of (1 - cos(u, p_j)) + mean over other classes of [cos(u, p_j) - zeta]+
            + beta mean over pairs without a common label, both with several, of [cos(u_i, u_j) - zeta]+
            u = tanh(z), proxies p_j learned;  zeta = 1 - 2 d / K, at least 0, d the distance that C codes can keep""",
        differences="""
            The authors' zeta comes from a table of codes and can be negative. Here d is the Griesmer bound, or that of
            the best known linear code.""",
        scores=Scores(0.847, 0.834, 0.818),
    ),
)
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
        """Compute the proxy loss and beta times the pair loss; an image without labels is far from every proxy."""
        relaxed = torch.tanh(batch.logits) if self.options.squash else batch.logits
        codes = normalize(relaxed, dim=1, eps=SMALLEST_NORM)
        cosines = codes @ normalize(self.proxies, dim=1, eps=SMALLEST_NORM).T
        near, far = proxy_loss(cosines, batch.labels, self.threshold)
        apart = masked_mean(excess(codes @ codes.T, self.threshold), irrelevant_pairs(batch.labels))
        return {"near": near, "far": far, "pair": self.options.pair * apart}


def straight_through_sign(logits: Tensor) -> Tensor:
    """Signs (B, K) of -1 and +1, zero counts as +1; their gradient goes to the logits unchanged."""
    signs = torch.where(logits >= 0, 1.0, -1.0).to(logits.dtype)
    return signs + (logits - logits.detach())  # exactly the signs, since the difference is 0


def cubic_gap(logits: Tensor) -> Tensor:
    """Penalty (B,), per bit: | |z| - 1 |^3, small around the corners, so that the sign's gradient stays meaningful."""
    return (logits.abs() - 1).abs().pow(3).mean(dim=1)


def class_loss(scores: Tensor, labels: Tensor, classifier: str) -> Tensor:
    """Loss () of scores (B, C): cross entropy per class summed over C, or that of a softmax with targets 1/c."""
    if classifier == "sigmoid":
        return label_loss(scores, labels)
    return -(equal_weights(labels, scores.dtype) * log_softmax(scores, dim=1)).sum(dim=1).mean()


class GreedyHashOptions(MethodOptions):
    """Options of GreedyHash."""

    penalty: float = Field(1.0, ge=0, alias="alpha", description="coefficient of | |z| - 1 |^3, per bit")
    classifier: Literal["sigmoid", "softmax"] = Field(
        "softmax",
        description="binary decisions per class, or a softmax with targets 1/c",
    )


@register_method(
    "greedyhash",
    paper="Greedy Hash: Towards Fast Optimization for Accurate Hash Coding in CNN (Su et al.)",
    year=2018,
    multi_label="softmax targets 1/c at the labels",
    training={"learning_rate": 0.001},
    space={"alpha": [0.01, 0.1, 1.0], "classifier": ["sigmoid", "softmax"]},
    authors={"alpha": 0.1, "classifier": "softmax"},
    notes=Notes(
        source="the authors' PyTorch code",
        equations="""
            b = sign(z) forward,  dL/dz = dL/db backward
            cross entropy of W b with the labels  + alpha mean over bits of  | |z_k| - 1 |^3""",
        differences="""
            The authors have one label per image; with several, the softmax targets are 1/c.""",
        scores=Scores(0.842, 0.830, 0.830),
    ),
)
class GreedyHash(Objective):
    """GreedyHash (Su et al., 2018): a linear classifier on the signs, with a straight-through gradient."""

    options: GreedyHashOptions

    def __init__(
        self,
        classes: int,
        bits: int,
        *,
        seed: int = 0,
        options: GreedyHashOptions | None = None,
        **values: Any,
    ) -> None:
        super().__init__(options=options, **values)
        self.sizes = (classes, bits)
        draw = torch.rand(classes, bits, generator=torch.Generator().manual_seed(seed))
        self.classifier = nn.Parameter((2 * draw - 1) / math.sqrt(bits))  # as nn.Linear, without a bias

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the loss of the classifier and alpha times the penalty on the logits."""
        scores = straight_through_sign(batch.logits) @ self.classifier.T
        return {
            "class": class_loss(scores, batch.labels, self.options.classifier),
            "quantisation": self.options.penalty * cubic_gap(batch.logits).mean(),
        }
