"""Centers that follow the data: semantic centers before training (SHC), reassigned (CRH) or learned (LSCSH) during it.

The other central methods decide the centers before training. Here the loss changes its own; `trained_centers` returns
what a model stores after the last epoch.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from centerhash.codes import Codes
from centerhash.core.errors import ConfigError
from centerhash.methods.assignment import cooccurrence
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses.base import Batch
from centerhash.methods.losses.central import (
    CSQ,
    ICS,
    CSQOptions,
    ICSOptions,
    squared_quantisation,
)
from centerhash.methods.losses.softmax import OrthoHash, OrthoHashOptions
from centerhash.methods.registry import Notes, Scores, register_method
from centerhash.methods.separation import distance_range, guaranteed_distance
from centerhash.methods.weights import equal_weights

_SAMPLE = 10_000  # training images of the classifier at most, evenly over all
_CLASSIFIER_EPOCHS, _CLASSIFIER_BATCH, _CLASSIFIER_RATE = 5, 256, 1e-3
MOST_CLASSES = 4096  # of SHC and LSCSH, which hold a number for every pair of classes
_SWEEPS = 50  # over all classes; a sweep that flips no bit ends the search


def _check_pairs(method: str, classes: int) -> None:
    if classes > MOST_CLASSES:
        raise ConfigError(
            f"{method} relates every pair of classes and takes at most {MOST_CLASSES}, got {classes}: train csq or ics."
        )


# --- SHC: semantic centers


def class_scores(features: NDArray[Any], labels: NDArray[np.bool_], seed: int) -> NDArray[np.float32]:
    """Train a linear classifier (softmax, targets 1/c) on features (n, D); return its scores (n, C) of these images."""
    inputs = torch.from_numpy(np.asarray(features, dtype=np.float32))
    inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp_min(1e-6)
    targets = equal_weights(torch.from_numpy(labels))
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs.shape[1], labels.shape[1])
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=_CLASSIFIER_RATE)
    with torch.enable_grad():
        for _ in range(_CLASSIFIER_EPOCHS):
            for rows in torch.split(torch.randperm(len(inputs), generator=generator), _CLASSIFIER_BATCH):
                optimizer.zero_grad()
                loss = -(targets[rows] * log_softmax(layer(inputs[rows]), dim=1)).sum(1).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    with torch.no_grad():
        scores: NDArray[np.float32] = layer(inputs).numpy()
    return scores


def confusion(scores: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean probability (C, C) of each other class j for the images of class i, by a softmax without i; 0 on the diagonal.

    An image with several labels counts for each of them, and only that label is masked.
    """
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True, initial=-np.inf)
    likely = np.exp(shifted)
    others = np.maximum(likely.sum(axis=1, keepdims=True) - likely, 1e-12)
    found: NDArray[np.float64] = (labels / others).T @ likely
    found /= np.maximum(labels.sum(axis=0), 1)[:, None]
    np.fill_diagonal(found, 0)
    return found


def scaled_similarity(similarity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale similarities (C, C) of classes to [-1, 1]: symmetric, each row minus its mean, over its largest deviation.

    The diagonal is 1 and does not count.
    """
    classes = len(similarity)
    apart = ~np.eye(classes, dtype=bool)
    scaled = (similarity + similarity.T) / 2
    if classes > 1:
        mean = np.where(apart, scaled, 0).sum(axis=1, keepdims=True) / (classes - 1)
        scaled = np.where(apart, scaled - mean, 0)
        scaled /= np.maximum(np.abs(scaled).max(axis=1, keepdims=True), 1e-12)
    symmetric: NDArray[np.float64] = np.where(apart, (scaled + scaled.T) / 2, 1.0)
    return symmetric


def semantic_centers(start: Codes, similarity: NDArray[np.float64]) -> Codes:
    """Centers (C, K) with small |S - H H^T / K|^2 and no pair nearer than Gilbert and Varshamov's bound.

    Flips one bit at a time, from `start`: of each class in turn the bit that lowers the objective most, until none does.
    A flip that would bring a pair below the bound, or below the nearest pair of `start`, is not made.
    """
    codes = start.astype(np.float64)
    classes, bits = codes.shape
    least = min(guaranteed_distance(classes, bits), distance_range(start)[0])
    inner = codes @ codes.T
    for _ in range(_SWEEPS):
        flips = 0
        for own in range(classes):
            for _ in range(bits):
                bit = _best_flip(codes, inner, similarity, own, least)
                if bit is None:
                    break
                change = -2 * codes[own, bit] * codes[:, bit]
                inner[own] += change
                inner[:, own] += change
                inner[own, own] = bits
                codes[own, bit] *= -1
                flips += 1
        if not flips:
            break
    return codes.astype(np.int8)


def _best_flip(
    codes: NDArray[np.float64],
    inner: NDArray[np.float64],
    similarity: NDArray[np.float64],
    own: int,
    least: int,
) -> int | None:
    """The bit of one center whose flip lowers the objective most and keeps every pair `least` apart, if any.

    Flipping bit k changes the inner product with center j by -2 h_k v_jk, so the objective of the pairs changes by
    sum_j of 4 h_k v_jk (S_j - inner_j / K) / K + 4 / K^2.
    """
    classes, bits = codes.shape
    gap = similarity[own] - inner[own] / bits
    gap[own] = 0
    change = 4 / bits * codes[own] * (gap @ codes) + 4 * (classes - 1) / bits**2
    near = inner[own] >= bits - 2 * least  # distance at the bound: a flip must move away from all of these
    near[own] = False
    allowed = (codes[near] == codes[own]).all(axis=0)
    change = np.where(allowed, change, np.inf)
    bit = int(change.argmin())
    return bit if change[bit] < -1e-9 else None


class SHCOptions(CSQOptions):
    """Options of SHC: those of CSQ, with the authors' quantization loss by default."""

    gamma: float = Field(0.05, ge=0, description="coefficient of the quantization loss, per bit")
    quantisation: Literal["log_cosh", "squared"] = Field(
        "squared", description="quantization loss: log cosh, or squared"
    )


@register_method(
    "shc",
    paper="Deep Hashing with Semantic Hash Centers for Image Retrieval (Chen et al.)",
    year=2025,
    multi_label="one centroid, the majority of the labels' centers",
    training={"centers": "mdsh", "assignment": "random"},
    space={"gamma": [0.05, 0.1, 0.5, 1.0], "centers": ["mdsh", "random"]},
    authors={"gamma": 0.05, "quantisation": "squared", "centers": "mdsh", "assignment": "random"},
    notes=Notes(
        source="the authors' PyTorch code",
        equations="""
            S_ij = mean over images of class i of  softmax_j( classifier's scores without i ),
                symmetric, rows minus their mean, scaled to [-1, 1]
            centers:  min over H in {-1, +1}^(C x K) of  || S - H H^T / K ||^2,
                      all pairs at least as far apart as Gilbert and Varshamov's bound
            network:  that of csq with these centers""",
        differences="""
            The authors have one label per image. With several, an image counts for each of its labels in S, and its
            target is the majority of their centers. The classifier is linear on the frozen features; with a fine-tuned
            backbone, S is the co-occurrence of labels.""",
        scores=Scores(0.846, 0.840, 0.840),
    ),
)
class SHC(CSQ):
    """SHC (Chen et al., 2025): centers of classes that a classifier confuses are near each other."""

    options: SHCOptions
    moves_centers = True

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        seed: int = 0,
        options: SHCOptions | None = None,
        **values: Any,
    ) -> None:
        super().__init__(centers, seed=seed, options=options, **values)
        _check_pairs("SHC", len(self.centers))
        self.seed = seed
        self.register_buffer(
            "centers", self.centers
        )  # stored with a checkpoint: fine-tuning goes on from them

    def prepare(self, features: NDArray[Any], rows: NDArray[np.int64], labels: NDArray[np.bool_]) -> None:
        """Compute class similarities from the training images, then move the centers."""
        step = -(-len(rows) // _SAMPLE)
        if features.shape[1]:
            scores = class_scores(features[rows[::step]], labels[::step], self.seed)
            similarity = confusion(scores, labels[::step])
        else:
            similarity = cooccurrence(labels)
        start = self.centers.cpu().numpy().astype(np.int8)
        found = semantic_centers(start, scaled_similarity(similarity))
        self.centers = torch.from_numpy(found).to(self.centers)


# --- CRH: centers reassigned during training


def reassigned(sums: NDArray[Any], counts: NDArray[Any], codebook: Codes, heads: int) -> Codes:
    """Give each class (C,) the code of the codebook (M, K) nearest to its images, head by head; no code twice in a head.

    `sums` (C, K) are the codes of each class's images added up, and `counts` (C,) their number: frequent classes choose
    first. A head is a run of bits, for which classes are assigned anew.
    """
    order = np.argsort(-counts, kind="stable")
    centers = np.empty((len(sums), codebook.shape[1]), dtype=np.int8)
    for head in np.array_split(np.arange(codebook.shape[1]), heads):
        free = np.ones(len(codebook), dtype=bool)
        part = codebook[:, head].astype(np.float64)
        for own in order.tolist():
            chosen = int(np.where(free, part @ sums[own, head], -np.inf).argmax())
            centers[own, head] = codebook[chosen, head]
            free[chosen] = False
    return centers


class CRHOptions(OrthoHashOptions):
    """Options of CRH: those of OrthoHash, of its quantization loss, and of the reassignment."""

    gamma: float = Field(0.05, ge=0, description="coefficient of the quantization loss, per bit")
    rounds: int = Field(5, ge=1, description="stages of training; each but the first starts with new centers")
    heads: int = Field(2, ge=1, description="parts of the code whose centers are assigned apart")
    codebook: int = Field(1, ge=1, le=16, description="codes to choose from, per class")


@register_method(
    "crh",
    paper="Codebook-Centric Deep Hashing: Joint Learning of Semantic Hash Centers and Hash Function (Yin et al.)",
    year=2026,
    multi_label="softmax over all centers, targets 1/c",
    training={"assignment": "random"},
    space={"heads": [1, 2, 4], "rounds": [5, 10, 30], "codebook": [1, 2, 4]},
    notes=Notes(
        source="the abstract and summaries of the paper; its text and code were not available",
        equations="""
            network:  mean over the labels j of  -log softmax_j( scale (cos(z, v_j) - margin at the labels) )
                      + gamma mean over bits of  (|tanh(z_k / 2)| - 1)^2
            at each stage of training, for each head of bits, classes by frequency:
                v_j = the free code of the codebook with the largest  <v, sum of u / c over images of class j>,
                u = tanh(z / 2) of the stage before""",
        differences="""
            The loss of several labels (as in OrthoHash), the number of stages and the greedy assignment are choices made
            here.""",
        scores=Scores(0.866, 0.850, None),
    ),
)
class CRH(OrthoHash):
    """CRH (Yin et al., 2026): classes choose the codes of a codebook nearest to their images again and again."""

    options: CRHOptions
    moves_centers = True
    sums: Tensor
    counts: Tensor
    stage: Tensor

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        seed: int = 0,
        options: CRHOptions | None = None,
        **values: Any,
    ) -> None:
        super().__init__(centers, options=options, **values)
        classes, bits = self.centers.shape
        given = self.centers.numpy().astype(np.int8)
        more = min((self.options.codebook - 1) * classes, 2 ** min(bits, 62) // 4)
        drawn = [hash_centers(more, bits, seed, "random")] if more else []
        self.codes = np.concatenate([given, *drawn])
        # all that a resumed run needs is stored with a checkpoint
        self.register_buffer("centers", self.centers)
        self.register_buffer("sums", torch.zeros(classes, bits))
        self.register_buffer("counts", torch.zeros(classes))
        self.register_buffer("stage", torch.zeros((), dtype=torch.long))

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the loss (B,) of the current centers; at the start of a stage classes choose theirs first."""
        self._advance(int(batch.progress * self.options.rounds))
        logits, labels = batch.logits, batch.labels
        with torch.no_grad():
            shares = equal_weights(labels, self.sums.dtype)
            self.sums += shares.T @ torch.tanh(logits / 2).to(self.sums.dtype)
            self.counts += shares.sum(dim=0)
        rounding = self.options.gamma * squared_quantisation(logits) / logits.shape[1]
        return {**super().image_terms(batch), "quantisation": rounding}

    def _advance(self, stage: int) -> None:
        """Reassign the centers if a stage begins and images were seen in the stage before."""
        if stage == int(self.stage):
            return
        self.stage.fill_(stage)
        sums, counts = self.sums.cpu().numpy(), self.counts.cpu().numpy()
        if counts.any():
            found = reassigned(sums, counts, self.codes, self.options.heads)
            if len(np.unique(found, axis=0)) == len(found):
                self.centers.copy_(torch.from_numpy(found))
        self.sums.zero_()
        self.counts.zero_()


# --- LSCSH: centers learned with the network


def center_cosines(centers: Tensor) -> Tensor:
    """Cosines (P,) of all pairs of different centers (C, K), each pair once."""
    unit = normalize(centers, dim=1)
    first, second = torch.triu_indices(len(centers), len(centers), offset=1, device=centers.device)
    return (unit @ unit.T)[first, second]


def relation_loss(cosines: Tensor, related: Tensor) -> Tensor:
    """Sum over pairs () of s log(s / h): s = (1 + related) / 2 of the classes, h = (1 + cosine) / 2 of their centers."""
    wanted, found = (1 + related) / 2, ((1 + cosines) / 2).clamp_min(1e-6)
    return (wanted * torch.log(wanted / found)).sum()


class LSCSHOptions(ICSOptions):
    """Options of LSCSH: those of ICS, and of the centers."""

    gamma: float = Field(0.05, ge=0, description="coefficient of the quantization loss, Eq. (12)")
    separate: float = Field(
        1.0, ge=0, alias="alpha_1", description="coefficient of the centers' similarities"
    )
    relate: float = Field(
        2.0, ge=0, alias="alpha_2", description="coefficient of the relation of centers to co-occurrence"
    )


@register_method(
    "lscsh",
    paper="Label-affinity Self-adaptive Central Similarity Hashing (LSCSH)",
    year=2023,
    multi_label="all labels' centers, weights solved per image",
    space={"alpha_1": [0.01, 0.1, 1.0], "alpha_2": [0.1, 0.5, 2.0], "gamma": [0.05, 0.5]},
    authors={
        "solver": "pgd",
        "keep": True,
        "steps": 1,
        "lambda": 0.001,
        "gamma": 0.05,
        "alpha_1": 1.0,
        "alpha_2": 0.5,
        "assignment": "random",
    },
    notes=Notes(
        source="public PyTorch code of the method",
        equations="""
            centers v_j = tanh(theta_j), learned
            codes and weights:  those of ics with these centers
            + alpha_1 sum over pairs of classes of  h,   h = (1 + cos(v_i, v_j)) / 2
            + alpha_2 2 / K sum over pairs of classes of  s log(s / h),   s = (1 + co-occurrence) / 2""",
        differences="""
            s is the cosine of the labels' columns; the code has BERT's vectors of the class names. theta is learned with
            the head; the code updates centers once per epoch. Weights are the exact minimizer.""",
        scores=Scores(0.850, 0.847, 0.830),
    ),
)
class LSCSH(ICS):
    """LSCSH (2023): ICS with centers that are learned, kept apart, and related as the classes are."""

    options: LSCSHOptions
    moves_centers = True
    related: Tensor

    def __init__(
        self, centers: Tensor | NDArray[Any], *, options: LSCSHOptions | None = None, **values: Any
    ) -> None:
        super().__init__(centers, options=options, **values)
        _check_pairs("LSCSH", len(self.centers))
        self.theta = nn.Parameter(self.centers.clone())
        pairs = len(centers) * (len(centers) - 1) // 2
        self.register_buffer("related", torch.zeros(pairs), persistent=False)

    def prepare(self, features: NDArray[Any], rows: NDArray[np.int64], labels: NDArray[np.bool_]) -> None:
        """Compute how often two classes share a training image."""
        super().prepare(features, rows, labels)
        together = cooccurrence(labels)[np.triu_indices(labels.shape[1], k=1)]
        self.related = torch.from_numpy(together).to(self.related)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms of ICS, and those of the centers alone."""
        terms = super().terms(batch)
        if terms and len(self.related):
            cosines = center_cosines(torch.tanh(self.theta))
            terms["separation"] = self.options.separate * ((1 + cosines) / 2).sum()
            terms["relation"] = (
                self.options.relate * 2 / batch.logits.shape[1] * relation_loss(cosines, self.related)
            )
        return terms

    def targets(self) -> Tensor:
        """Return the learned centers (C, K) in (-1, 1): soft targets of the cross entropy. Weights use their signs."""
        self.centers.copy_(self.trained_centers())
        return torch.tanh(self.theta)

    def trained_centers(self) -> Tensor:
        """Return the signs (C, K) of the learned centers."""
        return torch.where(self.theta.detach() >= 0, 1, -1).to(torch.int8)
