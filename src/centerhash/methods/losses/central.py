"""Central similarity: pull a code to the hash centers of its labels (CSQ, DPN, E-WCS, ICS).

One small function per equation, then one thin class per method. A network's output is `logits` (B, K),
b = sigmoid(logits); centers are (C, K) in {-1, +1}; labels (B, C) are bool. Every class returns the mean loss
over the batch's labelled images and gives the weight of each label (B, C).
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize, softplus

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, CentralObjective
from centerhash.methods.registry import Notes, Scores, register_method
from centerhash.methods.weights import (
    Form,
    LabelSlots,
    bent,
    descended_weights,
    equal_weights,
    exact_weights,
    label_slots,
    log_cosh,
    printed_weights,
)

PAPER = "Instance-weighted Central Similarity for Multi-label Image Retrieval (Zhang and Peng)"


def center_distances(logits: Tensor, centers: Tensor) -> Tensor:
    """Binary cross entropy (B, C) between codes and centers, Eq. (2) with the sign of a distance.

    d_ij = -sum_k [ t_jk log b_ik + (1 - t_jk) log(1 - b_ik) ] with targets t = (v + 1) / 2. From logits z
    this is sum_k [ softplus(z_k) - z_k / 2 ] - <z, v> / 2: finite, and one matrix product for all centers.
    """
    common = (softplus(logits) - logits / 2).sum(dim=1, keepdim=True)
    return (common - logits @ centers.T / 2).clamp_min(0)


def weighted_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Omega (B,) = sum_j w_j d_j, Eq. (3)."""
    return (weights * distances).sum(dim=1)


def central_loss(
    weights: Tensor, distances: Tensor, mask: Tensor, beta: float, form: Form, normalised: bool
) -> Tensor:
    """J1 per image (B,): -log p(Omega), Eq. (4) for `joint`, Eq. (8) for `per_center`.

    Normalised: `bent`, so that beta does not scale the loss. As printed, `joint` is softplus(beta x) and
    `per_center` is beta * softplus(x), which all but vanish for small beta.
    """
    if form == "joint":
        omega = weighted_distance(weights, distances)
        return bent(omega, beta) if normalised else softplus(beta * omega)
    weighted = weights * distances
    per_center = bent(weighted, beta) if normalised else beta * softplus(weighted)
    return (per_center * mask).sum(dim=1)


def quantisation_loss(logits: Tensor) -> Tensor:
    """J_q per image (B,) = sum_k log cosh(|2 b_k - 1| - 1), Eq. (11), with 2b - 1 = tanh(logit / 2)."""
    return log_cosh(torch.tanh(logits / 2).abs() - 1).sum(dim=1)


def squared_quantisation(logits: Tensor) -> Tensor:
    """CSQ's quantisation per image (B,) = sum_k (|2 b_k - 1| - 1)^2, as its authors' code has it."""
    return (torch.tanh(logits / 2).abs() - 1).square().sum(dim=1)


def majority_centroid(labels: Tensor, centers: Tensor, tie_vector: Tensor) -> Tensor:
    """CSQ's one target (B, K): sign of the sum of the labels' centers, tied bits from one vector (K,)."""
    total = labels.to(centers.dtype) @ centers
    return torch.where(total == 0, tie_vector, total.sign())


def random_code(bits: int, seed: int) -> Tensor:
    """One code (K,) of -1 and +1 for tied bits, drawn once from the seed."""
    return torch.randint(0, 2, (bits,), generator=torch.Generator().manual_seed(seed)).float() * 2 - 1


def polarization(logits: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Polarization loss (B, ...), per bit: [m - z t]+ of logits and targets (..., K) in {-1, +1}."""
    return torch.relu(margin - logits * targets).mean(dim=-1)


def polarization_to_centers(logits: Tensor, centers: Tensor, margin: float) -> Tensor:
    """Polarization loss (B, C) of logits (B, K) to each of the centers (C, K).

    A bit's loss depends on its center's sign alone, so that two matrix products stand for a (B, C, K) tensor.
    """
    towards, against = torch.relu(margin - logits), torch.relu(margin + logits)
    positive = (centers > 0).to(logits.dtype)
    return (towards @ positive.T + against @ (1 - positive).T) / logits.shape[1]


def center_similarities(logits: Tensor, centers: Tensor) -> Tensor:
    """Cosine (B, C) between logits and centers, in [-1, 1]; every center has the length sqrt(K)."""
    return normalize(logits, dim=1) @ centers.T / math.sqrt(centers.shape[1])


class CentroidObjective(CentralObjective):
    """Base of losses with one target per image: the majority of its labels' centers, ties from one random vector."""

    tie_vector: Tensor

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        seed: int = 0,
        options: MethodOptions | None = None,
        **values: Any,
    ) -> None:
        super().__init__(centers, options=options, **values)
        self.register_buffer("tie_vector", random_code(centers.shape[1], seed), persistent=False)


class CSQOptions(MethodOptions):
    """Options of CSQ."""

    gamma: float = Field(0.5, ge=0, description="coefficient of the quantization loss, per bit")
    quantisation: Literal["log_cosh", "squared"] = Field(
        "log_cosh", description="quantization loss: log cosh, or squared"
    )


@register_method(
    "csq",
    paper="Central Similarity Quantization for Efficient Image and Video Retrieval (Yuan et al.)",
    year=2020,
    multi_label="one centroid, the majority of the labels' centers",
    space={"gamma": [0.05, 0.1, 0.5, 1.0], "centers": ["auto", "random"]},
    authors={"gamma": 0.05, "quantisation": "squared", "centers": "random", "assignment": "random"},
    notes=Notes(
        source="the authors' PyTorch code",
        equations="""
            target t = sign( sum of v_j over the labels ), ties from one random vector
            mean over bits of  softplus(-t_k z_k)  + gamma mean over bits of  log cosh(|tanh(z_k / 2)| - 1)""",
        differences="""
            Both terms are means over bits. The authors' head has three layers, and their backbone learns at 0.05 of
            the rate.""",
        scores=Scores(0.850, 0.841, 0.819),
    ),
)
class CSQ(CentroidObjective):
    """CSQ (Yuan et al., 2020): one binary centroid per image, the majority of its labels' centers."""

    options: CSQOptions

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the BCE to the centroid and the quantization loss, both per bit."""
        logits = batch.logits
        target = majority_centroid(batch.labels, self.centers, self.tie_vector)
        distance = softplus(-target * logits).mean(dim=1)  # Eq. (2) with the one center of this image
        squared = self.options.quantisation == "squared"
        rounding = squared_quantisation(logits) if squared else quantisation_loss(logits)
        return {"center": distance, "quantisation": self.options.gamma * rounding / logits.shape[1]}


class DPNOptions(MethodOptions):
    """Options of DPN."""

    margin: float = Field(1.0, gt=0, description="distance from zero that a bit must keep")
    target: Literal["majority", "each"] = Field(
        "majority",
        description="target with several labels: majority of their centers, or the sum over each",
    )


@register_method(
    "dpn",
    paper="Deep Polarized Network for Supervised Learning of Accurate Binary Hashing Codes (Fan et al.)",
    year=2020,
    multi_label="one centroid, the majority of the labels' centers",
    space={"margin": [0.5, 1.0, 2.0], "target": ["majority", "each"]},
    authors={"margin": 1.0, "target": "each", "centers": "bernoulli", "assignment": "random"},
    notes=Notes(
        source="the authors' PyTorch code and a port",
        equations="""
            target t = sign( sum of v_j over the labels ), ties from one random vector
            mean over bits of  [ m - t_k z_k ]+""",
        differences="""
            The target is the majority of the labels' centers, as in the port; the authors sum over all centers. Moving
            targets (DPN-A) and ternary codes are not included.""",
        scores=Scores(0.850, 0.843, 0.819),
    ),
)
class DPN(CentroidObjective):
    """DPN (Fan et al., 2020): a hinge per bit, towards the center of the label."""

    options: DPNOptions

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the polarization loss (B,) to one target per image, or summed over its labels."""
        logits, labels, margin = batch.logits, batch.labels, self.options.margin
        if self.options.target == "each":
            losses = polarization_to_centers(logits, self.centers, margin)
            return {"center": (losses * labels).sum(dim=1)}
        target = majority_centroid(labels, self.centers, self.tie_vector)
        return {"center": polarization(logits, target, margin)}


class EWCSOptions(MethodOptions):
    """Options of E-WCS."""

    gamma: float = Field(0.05, ge=0, description="coefficient of the quantization loss, per bit")


@register_method(
    "ewcs",
    title="E-WCS",
    paper="the equal-weight ablation of the ICS paper",
    year=2021,
    multi_label="all labels' centers, weights 1/c",
    training={"centers": "random"},
    space={"gamma": [0.05, 0.1, 0.5, 1.0], "centers": ["auto", "random"]},
    authors={"gamma": 0.05, "assignment": "random"},
    notes=Notes(
        source="the text of the ICS paper",
        equations="""
            Omega = 1/c sum over the labels of d_j,   d_j = sum over bits of softplus(-v_jk z_k)       Eq. (2), (3)
            Omega / K + gamma J_q / K,   J_q = sum over bits of log cosh(|tanh(z_k / 2)| - 1)          Eq. (11)""",
        differences="""
            Both terms are means over bits. See the [notes on the paper](../explanation/paper.md).""",
        scores=Scores(0.851, 0.844, 0.820),
    ),
)
class EWCS(CentralObjective):
    """E-WCS (Zhang and Peng, 2021, Sec. 4.5.1): all centers of an image's labels, each with the weight 1/c."""

    options: EWCSOptions

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean BCE to the labels' centers and the quantization loss, both per bit."""
        logits, bits = batch.logits, batch.logits.shape[1]
        equal = equal_weights(batch.labels, logits.dtype)
        omega = weighted_distance(equal, center_distances(logits, self.centers))
        return {"center": omega / bits, "quantisation": self.options.gamma * quantisation_loss(logits) / bits}


PRINTED_BETA = {16: 0.001, 32: 0.01, 64: 0.1}  # Sec. 4.5.2


class ICSOptions(MethodOptions):
    """Options of ICS. docs/explanation/paper.md lists where the defaults leave the printed form, and why."""

    solver: Literal["exact", "pgd", "printed"] = Field(
        "exact",
        description="solver of the weights: exact minimizer, PGD on the true gradient, or PGD as printed, Eq. (13)",
    )
    form: Form = Field("joint", description="one softplus per image, Eq. (4), or one per center, Eq. (8)")
    beta: float | None = Field(None, gt=0, description="slope of the sigmoid, Eq. (4)")
    normalised: bool = Field(True, description="divide by beta, which then does not scale the loss")
    per_bit: bool = Field(True, description="d and the quantization loss as means over bits")
    entropy: float | None = Field(
        None, gt=0, alias="lambda", description="coefficient of the entropy, Eq. (10)"
    )
    gamma: float = Field(0.5, ge=0, description="coefficient of the quantization loss, Eq. (12)")
    rate: float = Field(0.1, gt=0, description="step size eta of PGD, Eq. (14)")
    steps: int = Field(10, ge=1, description="steps of PGD")
    keep: bool = Field(False, description="start PGD from the weights of the previous epoch instead of 1/c")

    @model_validator(mode="after")
    def _keeps_steps(self) -> Self:
        if self.keep and self.solver == "exact":
            raise ValueError("the exact solver has no start to keep: choose the solver pgd or printed")
        return self

    def for_bits(self, bits: int) -> ICSOptions:
        """Fill in beta and lambda: what a validation split preferred per bit, or the paper's for summed distances.

        At 16 bits few centers can be near one code, so it pays to follow the nearest ones (lambda .03); at 64 bits
        there is room for more (lambda 2).
        """
        nearest = min(PRINTED_BETA, key=lambda tabled: abs(tabled - bits))
        beta = self.beta or (0.001 if self.per_bit else PRINTED_BETA[nearest])
        entropy = self.entropy or (bits**3 / 131072 if self.per_bit else 0.01)
        return self.model_copy(update={"beta": beta, "entropy": entropy})


@register_method(
    "ics-printed",
    title="ICS as printed",
    paper="the ICS paper, every equation as printed",
    year=2021,
    multi_label="all labels' centers, weights by ten printed steps",
    defaults={
        "solver": "printed",
        "form": "per_center",
        "normalised": False,
        "per_bit": False,
        "lambda": 0.1,
        "gamma": 0.05,
    },
    training={"centers": "printed", "assignment": "random"},
    space={"lambda": [0.01, 0.1, 1.0], "gamma": [0.05, 0.25, 0.5]},
    authors={"lambda": 0.01, "gamma": 0.05, "assignment": "random"},
    notes=Notes(
        source="the text of the ICS paper",
        equations="""
            w <- projection onto the simplex of  w - eta (-w / (1 + exp(w d)) + lambda (1 + log w)),
                ten steps                                                                Eq. (13), (14)
            network:  beta sum over the labels of softplus(w_j d_j) + gamma J_q                          Eq. (8), (12)""",
        differences="""
            No difference is intended ([notes](../explanation/paper.md)). The head and its schedule are those of all
            methods, unless `--preset paper-alexnet` or `paper-resnet50` is set.""",
        scores=Scores(0.604, 0.541, 0.596),
    ),
)
@register_method(
    "ics",
    paper=PAPER,
    year=2021,
    multi_label="all labels' centers, weights solved per image",
    training={"learning_rate": 0.002},
    space={"lambda": ["default", "default*4", "default*16"], "gamma": [0.05, 0.25, 0.5]},
    authors={"gamma": 0.05, "assignment": "random"},
    notes=Notes(
        source="the text of the ICS paper",
        equations="""
            Omega = sum over the labels of w_j d_j,  d_j = BCE to center j, per bit                    Eq. (2), (3)
            w = argmin over the simplex of  J1(Omega) + lambda sum_j w_j log w_j                       Eq. (10)
            network:  J1(Omega) with w fixed + gamma J_q                                               Eq. (12)""",
        differences="""
            The weights are the exact minimizer, d is a mean over bits, and the loss is divided by beta
            ([reasons](../explanation/paper.md)). lambda is (K / 32)^3 / 4.""",
        scores=Scores(0.856, 0.844, 0.827),
    ),
)
class ICS(CentralObjective):
    """ICS (Zhang and Peng, 2021): solve the weights with the network fixed, then minimize with the weights fixed."""

    options: ICSOptions
    kept: Tensor

    def __init__(
        self, centers: Tensor | NDArray[Any], *, options: ICSOptions | None = None, **values: Any
    ) -> None:
        super().__init__(centers, options=options, **values)
        self.beta, self.entropy = float(self.options.beta or 0), float(self.options.entropy or 0)
        self.scale = 1 / centers.shape[1] if self.options.per_bit else 1.0
        if self.options.keep:
            self.register_buffer("kept", torch.empty(0, 0))  # (n, L), stored with a checkpoint

    def prepare(self, features: NDArray[Any], rows: NDArray[np.int64], labels: NDArray[np.bool_]) -> None:
        """Set w = 1/c for every training image if weights are kept (first line of Algorithm 1)."""
        if self.options.keep:
            mask = label_slots(torch.from_numpy(labels)).mask
            self.kept = equal_weights(mask).to(self.centers)

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute Algorithm 1 for one batch: J1 of Eq. (4) or (8) with fixed weights, and gamma J_q of Eq. (12).

        lambda R does not depend on the network and is omitted.
        """
        slots = label_slots(batch.labels)
        distances = self.slot_distances(batch, slots, self.targets())
        weights = self.solve(distances.detach(), slots, self.start(batch, slots))
        if self.options.keep and batch.places is not None:
            self.kept[batch.places, : weights.shape[1]] = weights.to(self.kept.dtype)
        loss = central_loss(
            weights, distances, slots.mask, self.beta, self.options.form, self.options.normalised
        )
        return {
            "center": loss,
            "quantisation": self.options.gamma * self.scale * quantisation_loss(batch.logits),
        }

    def targets(self) -> Tensor:
        """Return the centers (C, K) that the network is trained towards."""
        return self.centers

    def slot_distances(self, batch: Batch, slots: LabelSlots, centers: Tensor) -> Tensor:
        """Compute distances (B, L) to the centers of an image's labels."""
        return self.scale * center_distances(batch.logits, centers).gather(1, slots.classes)

    def slot_weights(self, batch: Batch, slots: LabelSlots) -> Tensor:
        """Compute weights (B, L) for these outputs of the network."""
        return self.solve(self.slot_distances(batch, slots, self.centers), slots)

    def start(self, batch: Batch, slots: LabelSlots) -> Tensor | None:
        """Return weights (B, L) of the previous epoch, if they are kept and the images are known."""
        if not self.options.keep or batch.places is None:
            return None
        return self.kept[batch.places, : slots.mask.shape[1]].to(batch.logits.dtype)

    def solve(self, distances: Tensor, slots: LabelSlots, start: Tensor | None = None) -> Tensor:
        """Solve the weights (B, L) for distances (B, L)."""
        options = self.options
        if options.solver == "printed":
            return printed_weights(distances, slots.mask, self.entropy, options.rate, options.steps, start)
        if options.solver == "exact":
            return exact_weights(distances, slots.mask, self.beta, self.entropy, options.form)
        return descended_weights(
            distances, slots.mask, self.beta, self.entropy, options.rate, options.steps, options.form, start
        )
