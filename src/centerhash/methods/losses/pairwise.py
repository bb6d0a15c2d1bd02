"""Pairwise losses: codes of images that share labels are drawn together (DPSH, DHN, HashNet, DCH, IDHN).

One small function per equation, then one thin class per method. A network's output is `logits` (B, K), labels
(B, C) are bool. The pairs S are all B (B - 1) ordered pairs of two different images of a batch: the papers sum
over pairs of training images, and an image with itself says nothing. S1 are the similar ones, which share a
label, S0 the others. An image without labels is similar to none, as in the evaluation.

Where the papers sum, these are means, so that neither the size of a batch nor K decides what a coefficient
means: over pairs, over images and, in the quantisation loss of DHN, over bits. A batch without similar pairs,
without dissimilar ones or without any has the loss of what is left.
"""

from __future__ import annotations

import math
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize, softplus, softsign

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, Objective
from centerhash.methods.weights import log_cosh

# bits, added to DCH's distance: the logarithm of a dissimilar pair stays finite at 0
_SMALLEST_DISTANCE = 0.01
SMALLEST_NORM = 1e-6  # below it a code counts as having no direction, and its gradient stays in range


def shared_labels(labels: Tensor) -> Tensor:
    """Whether two images share a label, (B, B) bool, for labels (B, C) bool."""
    numbers = labels.float()
    return numbers @ numbers.T > 0


def pairs_of_two(count: int, device: torch.device) -> Tensor:
    """Pairs (B, B) bool of two different images."""
    return ~torch.eye(count, dtype=torch.bool, device=device)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values in the mask; 0 with a gradient of 0 when there is none."""
    return torch.where(mask, values, 0).sum() / mask.sum().clamp_min(1)


def balanced_mean(values: Tensor, similar: Tensor, pairs: Tensor) -> Tensor:
    """Weighted mean over S of values (B, B): weights |S| / |S1| for similar pairs, |S| / |S0| for the others.

    Eq. (2) of HashNet, and DCH's. It is the mean over S1 plus the mean over S0, both counted in this batch; the
    papers count them in all training images.
    """
    return masked_mean(values, pairs & similar) + masked_mean(values, pairs & ~similar)


def upweighted_mean(values: Tensor, similar: Tensor, pairs: Tensor) -> Tensor:
    """Mean over S of values (B, B) in which only similar pairs have a weight, |S| / |S1|: DCH's released code.

    It is the mean over S1 plus the sum over S0 divided by |S|.
    """
    others = torch.where(pairs & ~similar, values, 0).sum() / pairs.sum().clamp_min(1)
    return masked_mean(values, pairs & similar) + others


def weighted_mean(values: Tensor, similar: Tensor, pairs: Tensor, weight: float) -> Tensor:
    """Mean over S of values (B, B) in which a similar pair counts `weight` times; 0 without pairs.

    As HashNet's authors have it, with their class_num for the weight: 1 is the plain mean.
    """
    counts = torch.where(similar, weight, 1.0) * pairs
    return (counts * values).sum() / counts.sum().clamp_min(min(weight, 1.0))


def logistic_loss(products: Tensor, similar: Tensor, slope: float) -> Tensor:
    """Negative log-likelihood (B, B) of similarities: log(1 + exp(x)) - s x with x = slope * <u_i, u_j>.

    For inner products (B, B) of relaxed codes. DPSH has the slope 1/2, DHN's authors 1, HashNet's Eq. (4) alpha,
    IDHN's authors 5 / K.
    """
    scaled = slope * products
    return softplus(scaled) - scaled * similar


def bimodal_loss(codes: Tensor) -> Tensor:
    """DHN's quantisation loss (B,), per bit: log cosh(|u| - 1), the smooth form of a bi-modal Laplacian prior."""
    return log_cosh(codes.abs() - 1).mean(dim=1)


def jaccard(labels: Tensor) -> Tensor:
    """Share of common labels (B, B): |y_i and y_j| / |y_i or y_j|; 0 for two images without labels."""
    numbers = labels.float()
    common, counts = numbers @ numbers.T, numbers.sum(dim=1)
    return common / (counts[:, None] + counts - common).clamp_min(1)


def continuous_similarity(labels: Tensor) -> Tensor:
    """Factor (B, B) of similar pairs in HashNet's code: 4 |y_i and y_j|^2 / (|y_i| |y_j|); 0 for all others."""
    numbers = labels.float()
    common, counts = numbers @ numbers.T, numbers.sum(dim=1).clamp_min(1)
    return 4 * common**2 / (counts[:, None] * counts)


def continuation(progress: float, stages: int, last: float) -> float:
    """HashNet's beta at the share `progress` in [0, 1) of the training: from 1 to `last` in equal stages.

    The square grows by the same amount from stage to stage, so beta grows fast at first and slowly later.
    """
    if stages == 1:
        return last
    stage = min(int(progress * stages), stages - 1)
    return math.sqrt(1 + (last**2 - 1) * stage / (stages - 1))


def cosine_distance(left: Tensor, right: Tensor) -> Tensor:
    """Relaxed Hamming distance in bits between rows (B, K) and (M, K): K/2 (1 - cosine), (B, M)."""
    cosine = normalize(left, dim=1, eps=SMALLEST_NORM) @ normalize(right, dim=1, eps=SMALLEST_NORM).T
    return left.shape[1] / 2 * (1 - cosine).clamp_min(0)


def squared_distance(left: Tensor, right: Tensor) -> Tensor:
    """Squared Euclidean distances (B, M) between rows (B, K) and (M, K): of codes, four times Hamming's."""
    squares = (left * left).sum(dim=1)[:, None] + (right * right).sum(dim=1)
    return squares - 2 * left @ right.T


def cauchy_loss(distances: Tensor, similar: Tensor, gamma: float) -> Tensor:
    """Cauchy cross entropy (B, B): log(1 + d / gamma) of a similar pair, log(1 + gamma / d) of another.

    This is s log(d / gamma) + log(1 + gamma / d), DCH's loss, without the difference of two infinities at
    d = 0, and with 0.01 bits added to d.
    """
    distances = distances + _SMALLEST_DISTANCE
    return torch.where(similar, torch.log1p(distances / gamma), torch.log1p(gamma / distances))


def cauchy_quantisation(codes: Tensor, gamma: float) -> Tensor:
    """DCH's quantisation loss (B,): log(1 + d(|h|, 1) / gamma), the prior of a bit near +-1."""
    corner = torch.ones_like(codes[:1])
    return torch.log1p(cosine_distance(codes.abs(), corner)[:, 0] / gamma)


def sign_gap(logits: Tensor) -> Tensor:
    """DPSH's quantisation loss (B,), per bit: (z - sign(z))^2, of logits that nothing squashes."""
    return (logits.abs() - 1).square().mean(dim=1)


def label_cosine(labels: Tensor) -> Tensor:
    """IDHN's similarity (B, B): cosine |y_i and y_j| / sqrt(|y_i| |y_j|) of labels; 0 with an image without any."""
    unit = normalize(labels.float(), dim=1)
    return unit @ unit.T


def soft_pair_loss(products: Tensor, similarity: Tensor, bits: int) -> Tensor:
    """IDHN's loss (B, B) of a pair that shares some labels: K ((<u_i, u_j> + K) / (2 K) - s)^2."""
    return bits * ((products / bits + 1) / 2 - similarity).square()


class DPSHOptions(MethodOptions):
    """Options of DPSH."""

    slope: float = Field(0.5, gt=0, description="slope of the sigmoid over inner products")
    quantisation: float = Field(
        1.0, ge=0, alias="lambda", description="coefficient of the quantisation loss, per bit"
    )


class DPSH(Objective):
    """DPSH (Li et al., 2016): logistic likelihood of the pairs of plain logits, and their distance to the signs."""

    options: DPSHOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Unweighted mean over all pairs, and lambda times the quantisation loss, of the logits z themselves."""
        logits = batch.logits
        losses = logistic_loss(logits @ logits.T, shared_labels(batch.labels), self.options.slope)
        return {
            "pair": masked_mean(losses, pairs_of_two(len(logits), logits.device)),
            "quantisation": self.options.quantisation * sign_gap(logits).mean(),
        }


class DHNOptions(MethodOptions):
    """Options of DHN."""

    slope: float = Field(
        1.0, gt=0, description="slope of the sigmoid over inner products; 1 in the authors' code"
    )
    quantisation: float | None = Field(
        None, ge=0, alias="lambda", description="coefficient of the quantisation loss, per bit"
    )

    def quantisation_at(self, bits: int) -> float:
        """0.3 K unless given: 0.3 for the sum over the bits, as in the authors' code."""
        return 0.3 * bits if self.quantisation is None else self.quantisation

    def for_bits(self, bits: int) -> DHNOptions:
        """Fill in lambda."""
        return self.model_copy(update={"quantisation": self.quantisation_at(bits)})


class DHN(Objective):
    """DHN (Zhu et al., 2016): logistic likelihood of the pairs, and a bi-modal Laplacian prior on the codes."""

    options: DHNOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Unweighted mean over all pairs, and lambda times the quantisation loss, of codes tanh(z)."""
        codes, similar = torch.tanh(batch.logits), shared_labels(batch.labels)
        losses = logistic_loss(codes @ codes.T, similar, self.options.slope)
        return {
            "pair": masked_mean(losses, pairs_of_two(len(codes), codes.device)),
            "quantisation": self.options.quantisation_at(codes.shape[1]) * bimodal_loss(codes).mean(),
        }


class HashNetOptions(MethodOptions):
    """Options of HashNet."""

    alpha: float | None = Field(None, gt=0, description="slope of the sigmoid over inner products, Eq. (4)")
    stages: int = Field(10, ge=1, description="stages of the continuation, each with a beta of its own")
    last_beta: float = Field(10.0, ge=1, description="beta of the last stage; the first has 1")
    jaccard: bool = Field(False, description="weight similar pairs by their share of common labels, Eq. (2)")
    continuous: bool | None = Field(
        None,
        description="weight similar pairs as the authors' code does: 4 common^2 / (labels of one x of the other)",
    )
    class_num: float = Field(
        0.0,
        ge=0,
        description="how often a similar pair counts, 1 in the authors' COCO file; 0: what balances a batch",
    )

    @model_validator(mode="after")
    def _one_weight(self) -> Self:
        if self.jaccard and self.continuous:
            raise ValueError("jaccard and continuous are two weights of the same pairs: choose one")
        return self

    def alpha_at(self, bits: int) -> float:
        """10 / K unless given, so that the sigmoid sees the same range at every length."""
        return self.alpha or 10 / bits

    def for_bits(self, bits: int) -> HashNetOptions:
        """Fill in alpha, and the authors' weights unless others are asked for."""
        return self.model_copy(
            update={"alpha": self.alpha_at(bits), "continuous": self.weights_continuously()}
        )

    def weights_continuously(self) -> bool:
        """Whether similar pairs have the weights of the authors' code: unless told, where they have no others."""
        return not self.jaccard if self.continuous is None else self.continuous


class HashNet(Objective):
    """HashNet (Cao et al., 2017): weighted likelihood of the pairs, of codes tanh(beta z) with beta growing.

    The continuation takes the place of a quantisation loss. The paper trains every stage to its end and lets beta
    go to infinity; here the stages share the training evenly and the last beta is finite.
    """

    options: HashNetOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Eq. (4) with the weights of Eq. (2).

        Eq. (2) multiplies by the Jaccard similarity of the labels. That would drop all dissimilar pairs, so they
        keep the factor 1, as they do in the authors' code.
        """
        beta = continuation(batch.progress, self.options.stages, self.options.last_beta)
        codes, similar = torch.tanh(beta * batch.logits), shared_labels(batch.labels)
        losses = logistic_loss(codes @ codes.T, similar, self.options.alpha_at(codes.shape[1]))
        if self.options.jaccard or self.options.weights_continuously():
            factor = jaccard if self.options.jaccard else continuous_similarity
            losses = torch.where(similar, factor(batch.labels) * losses, losses)
        pairs, weight = pairs_of_two(len(codes), codes.device), self.options.class_num
        return {
            "pair": weighted_mean(losses, similar, pairs, weight)
            if weight
            else balanced_mean(losses, similar, pairs)
        }


class DCHOptions(MethodOptions):
    """Options of DCH."""

    gamma: float | None = Field(
        None, gt=0, description="scale of the Cauchy distribution, in bits: the radius that is kept dense"
    )
    quantisation: float = Field(1.0, ge=0, alias="lambda", description="coefficient of the quantisation loss")
    distance: Literal["cosine", "squared"] = Field(
        "cosine", description="of two codes: K/2 (1 - cosine), or squared Euclidean as in the released code"
    )
    weights: Literal["both", "similar"] = Field(
        "both", description="whose pairs are weighted by how rare they are; similar as in the released code"
    )

    def gamma_at(self, bits: int) -> float:
        """2 K unless given: the paper keeps a radius of two bits dense, a ranking of the whole database wants more."""
        return self.gamma or 2.0 * bits

    def for_bits(self, bits: int) -> DCHOptions:
        """Fill in gamma."""
        return self.model_copy(update={"gamma": self.gamma_at(bits)})


class DCH(Objective):
    """DCH (Cao et al., 2018): Cauchy likelihood of the pairs, and a Cauchy prior on the codes."""

    options: DCHOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Weighted Cauchy cross entropy, and lambda times the quantisation loss, of codes tanh(z)."""
        codes, similar = torch.tanh(batch.logits), shared_labels(batch.labels)
        gamma = self.options.gamma_at(codes.shape[1])
        measure = cosine_distance if self.options.distance == "cosine" else squared_distance
        mean = balanced_mean if self.options.weights == "both" else upweighted_mean
        losses = cauchy_loss(measure(codes, codes), similar, gamma)
        return {
            "pair": mean(losses, similar, pairs_of_two(len(codes), codes.device)),
            "quantisation": self.options.quantisation * cauchy_quantisation(codes, gamma).mean(),
        }


class IDHNOptions(MethodOptions):
    """Options of IDHN, by the names of the paper; the authors' code calls lambda alpha."""

    alpha: float = Field(10.0, gt=0, description="slope of the sigmoid over inner products, times K")
    gamma: float = Field(1.0, ge=0, description="coefficient of pairs that share some labels but not all")
    quantisation: float = Field(
        0.1, ge=0, alias="lambda", description="coefficient of the quantisation loss, per bit"
    )


class IDHN(Objective):
    """IDHN (Zhang et al., 2019): pairs with all or no labels in common by likelihood, all others by squared error."""

    options: IDHNOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Mean over all pairs, hard or soft by their labels, and the quantisation loss, of codes z / (1 + |z|)."""
        codes, similarity = softsign(batch.logits), label_cosine(batch.labels).to(batch.logits.dtype)
        products, bits = codes @ codes.T, codes.shape[1]
        hard = (similarity < 0.01) | (similarity > 0.99)
        losses = torch.where(
            hard,
            logistic_loss(products, similarity, self.options.alpha / bits),
            self.options.gamma * soft_pair_loss(products, similarity, bits),
        )
        return {
            "pair": masked_mean(losses, pairs_of_two(len(codes), codes.device)),
            "quantisation": self.options.quantisation * (codes.abs() - 1).abs().mean(),
        }
