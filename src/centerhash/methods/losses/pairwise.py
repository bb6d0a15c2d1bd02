"""Losses of pairs and triplets: codes of images that share labels are drawn together (DPSH to IDHN, and DNNH).

One small function per equation, then one thin class per method. A network's output is `logits` (B, K), labels
(B, C) are bool. The pairs S are all B (B - 1) ordered pairs of two different images of a batch: the papers sum
over pairs of training images, and an image with itself carries no information. S1 are the similar ones, which share a
label, S0 the others. An image without labels is similar to none, as in the evaluation.

Where the papers sum, these are means, so that neither the size of a batch nor K decides what a coefficient
means: over pairs, over images and, in the quantisation loss of DHN, over bits. A batch without similar pairs,
without dissimilar ones or without any has the loss of what is left.

The triplets of DNNH are *all* of a batch: anchor i, another image p that shares a label with it, an image n that shares
none. A batch of B has up to B^3 of them; the loss and its gradient follow from counts that sorted rows give in
B^2 log B, so none is drawn at random or left out.
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
from centerhash.methods.registry import Notes, Scores, register_method
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
        1.0, ge=0, alias="lambda", description="coefficient of the quantization loss, per bit"
    )


@register_method(
    "dpsh",
    family="pairwise",
    paper="Feature Learning based Deep Supervised Hashing with Pairwise Labels (Li, Wang and Kang)",
    year=2016,
    multi_label="similar if a label is shared",
    training={"learning_rate": 0.001},
    space={"slope": ["8/K", 0.5], "lambda": [0.01, 0.1, 1.0]},
    authors={"slope": 0.5, "lambda": 0.1},
    notes=Notes(
        source="PyTorch code of the authors' group and a port",
        equations="""
            mean over pairs of  log(1 + exp(x_ij)) - s_ij x_ij,   x_ij = <z_i, z_j> / 2
            + lambda mean over bits of  (z_k - sign(z_k))^2""",
        differences="""
            The group's code pairs a batch with the latest outputs of all n training images. Its quantization term
            corresponds to lambda 10 K / n here.""",
        scores=Scores(0.813, 0.773, 0.684),
    ),
)
class DPSH(Objective):
    """DPSH (Li et al., 2016): logistic likelihood of the pairs of plain logits, and their distance to the signs."""

    options: DPSHOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean over all pairs and lambda times the quantization loss, of logits z."""
        logits = batch.logits
        losses = logistic_loss(logits @ logits.T, shared_labels(batch.labels), self.options.slope)
        return {
            "pair": masked_mean(losses, pairs_of_two(len(logits), logits.device)),
            "quantisation": self.options.quantisation * sign_gap(logits).mean(),
        }


class DHNOptions(MethodOptions):
    """Options of DHN."""

    slope: float = Field(1.0, gt=0, description="slope of the sigmoid over inner products")
    quantisation: float | None = Field(
        None, ge=0, alias="lambda", description="coefficient of the quantization loss, per bit"
    )

    def for_bits(self, bits: int) -> DHNOptions:
        """Fill in lambda, 0.3 K: 0.3 for the sum over the bits, as in the authors' code."""
        given = self.quantisation
        return self.model_copy(update={"quantisation": 0.3 * bits if given is None else given})


@register_method(
    "dhn",
    family="pairwise",
    paper="Deep Hashing Network for Efficient Similarity Retrieval (Zhu et al.)",
    year=2016,
    multi_label="similar if a label is shared",
    training={"learning_rate": 0.002},
    space={"slope": ["8/K", 0.5, 1.0], "lambda": [1.0, "K*0.1", "K*0.3"]},
    authors={"slope": 1.0, "lambda": "K*0.3"},
    notes=Notes(
        source="the authors' Caffe code, in two repositories",
        equations="""
            mean over pairs of  log(1 + exp(x_ij)) - s_ij x_ij,   x_ij = slope <u_i, u_j>,  u = tanh(z)
            + lambda mean over bits of  log cosh(|u_k| - 1)""",
        differences="""
            There are no differences.""",
        scores=Scores(0.807, 0.790, 0.775),
    ),
)
class DHN(Objective):
    """DHN (Zhu et al., 2016): logistic likelihood of the pairs, and a bi-modal Laplacian prior on the codes."""

    options: DHNOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean over all pairs and lambda times the quantization loss, of codes tanh(z)."""
        codes, similar = torch.tanh(batch.logits), shared_labels(batch.labels)
        options = self.options.for_bits(codes.shape[1])
        losses = logistic_loss(codes @ codes.T, similar, options.slope)
        return {
            "pair": masked_mean(losses, pairs_of_two(len(codes), codes.device)),
            "quantisation": (options.quantisation or 0.0) * bimodal_loss(codes).mean(),
        }


class HashNetOptions(MethodOptions):
    """Options of HashNet."""

    alpha: float | None = Field(None, gt=0, description="slope of the sigmoid over inner products")
    stages: int = Field(10, ge=1, description="stages of the continuation, each with its own beta")
    last_beta: float = Field(10.0, ge=1, description="beta of the last stage; the first is 1")
    jaccard: bool = Field(False, description="weight similar pairs by the Jaccard index of their labels")
    continuous: bool | None = Field(
        None,
        description="weight similar pairs by 4 |common|^2 / (|y_i| |y_j|)",
    )
    class_num: float = Field(
        0.0,
        ge=0,
        description="weight of a similar pair; 0 balances the batch",
    )

    @model_validator(mode="after")
    def _one_weight(self) -> Self:
        if self.jaccard and self.continuous:
            raise ValueError("jaccard and continuous are two weights of the same pairs: choose one")
        return self

    def for_bits(self, bits: int) -> HashNetOptions:
        """Fill in alpha, 10 / K: the sigmoid has the same range at every length; and the authors' weights of pairs."""
        continuous = not self.jaccard if self.continuous is None else self.continuous
        return self.model_copy(update={"alpha": self.alpha or 10 / bits, "continuous": continuous})


@register_method(
    "hashnet",
    family="pairwise",
    paper="HashNet: Deep Learning to Hash by Continuation (Cao et al.)",
    year=2017,
    multi_label="similar if a label is shared, weighted by rarity",
    training={"learning_rate": 0.001},
    space={"class_num": [0.0, 1.0], "last_beta": [7.1414, 10.0], "continuous": [True, False]},
    authors={"class_num": 1.0, "last_beta": 7.1414, "continuous": True},
    notes=Notes(
        source="the authors' Caffe and PyTorch code",
        equations="""
            sum over pairs of  w_ij ( log(1 + exp(x_ij)) - s_ij x_ij ),   x_ij = alpha <u_i, u_j>,  u = tanh(beta z)
            w_ij = |S| / |S1| for similar pairs, |S| / |S0| for the others;  beta grows from 1 to 10 in 10 stages""",
        differences="""
            Pair weights are counted in the batch. The authors' COCO file does not balance pairs.""",
        scores=Scores(0.798, 0.770, 0.765),
    ),
)
class HashNet(Objective):
    """HashNet (Cao et al., 2017): weighted likelihood of the pairs, of codes tanh(beta z) with beta growing.

    The continuation replaces a quantization loss. The stages have equal length, and the last beta is finite.
    """

    options: HashNetOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the weighted likelihood; dissimilar pairs keep the factor 1, as in the authors' code."""
        options = self.options.for_bits(batch.logits.shape[1])
        beta = continuation(batch.progress, options.stages, options.last_beta)
        codes, similar = torch.tanh(beta * batch.logits), shared_labels(batch.labels)
        losses = logistic_loss(codes @ codes.T, similar, float(options.alpha or 0))
        if options.jaccard or options.continuous:
            factor = jaccard if options.jaccard else continuous_similarity
            losses = torch.where(similar, factor(batch.labels) * losses, losses)
        pairs = pairs_of_two(len(codes), codes.device)
        if options.class_num:
            return {"pair": weighted_mean(losses, similar, pairs, options.class_num)}
        return {"pair": balanced_mean(losses, similar, pairs)}


class DCHOptions(MethodOptions):
    """Options of DCH."""

    gamma: float | None = Field(None, gt=0, description="scale of the Cauchy distribution, in bits")
    quantisation: float = Field(1.0, ge=0, alias="lambda", description="coefficient of the quantization loss")
    distance: Literal["cosine", "squared"] = Field(
        "cosine", description="K/2 (1 - cosine), or squared Euclidean"
    )
    weights: Literal["both", "similar"] = Field(
        "both", description="pairs weighted by rarity: both kinds, or similar ones only"
    )

    def for_bits(self, bits: int) -> DCHOptions:
        """Fill in gamma, 2 K: the paper keeps a radius of two bits dense, ranking the whole database needs more."""
        return self.model_copy(update={"gamma": self.gamma or 2.0 * bits})


@register_method(
    "dch",
    family="pairwise",
    paper="Deep Cauchy Hashing for Hamming Space Retrieval (Cao et al.)",
    year=2018,
    multi_label="similar if a label is shared, weighted by rarity",
    training={"learning_rate": 0.002},
    space={"gamma": [20.0, "K", "K*2"], "lambda": [0.0, 0.1, 1.0]},
    authors={"gamma": 20.0, "lambda": 0.0, "distance": "squared", "weights": "similar"},
    notes=Notes(
        source="the authors' TensorFlow code and a PyTorch port",
        equations="""
            sum over pairs of  w_ij ( s_ij log(d_ij / gamma) + log(1 + gamma / d_ij) ),   d = K/2 (1 - cos(u_i, u_j))
            + lambda mean over images of  log(1 + d(|u_i|, 1) / gamma),   u = tanh(z)""",
        differences="""
            0.01 is added to d to keep the logarithm finite.""",
        scores=Scores(0.768, 0.755, 0.669),
    ),
)
class DCH(Objective):
    """DCH (Cao et al., 2018): Cauchy likelihood of the pairs, and a Cauchy prior on the codes."""

    options: DCHOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the weighted Cauchy cross entropy and lambda times the quantization loss, of codes tanh(z)."""
        codes, similar = torch.tanh(batch.logits), shared_labels(batch.labels)
        gamma = float(self.options.for_bits(codes.shape[1]).gamma or 0)
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
    gamma: float = Field(1.0, ge=0, description="coefficient of pairs that share only some labels")
    quantisation: float = Field(
        0.1, ge=0, alias="lambda", description="coefficient of the quantization loss, per bit"
    )


@register_method(
    "idhn",
    family="pairwise",
    paper="Improved Deep Hashing with Soft Pairwise Similarity for Multi-label Image Retrieval (Zhang et al.)",
    year=2019,
    multi_label="similarity is the cosine of the labels",
    training={"learning_rate": 0.002},
    space={"alpha": [5.0, 10.0], "gamma": [0.1, 1.0], "lambda": [0.01, 0.1, 1.0]},
    authors={"alpha": 5.0, "gamma": 0.1, "lambda": 0.1},
    notes=Notes(
        source="the authors' TensorFlow code and a port",
        equations="""
            s_ij = cosine of the labels of i and j;   u = z / (1 + |z|)
            s_ij below 0.01 or above 0.99:  log(1 + exp(x_ij)) - s_ij x_ij,   x_ij = alpha / K <u_i, u_j>
            any other pair:  gamma K ( (<u_i, u_j> + K) / (2 K) - s_ij )^2
            + lambda mean over bits of  | |u_k| - 1 |""",
        differences="""
            The port weights pairs that share some labels about 4 K times as much.""",
        scores=Scores(0.812, 0.783, 0.757),
    ),
)
class IDHN(Objective):
    """IDHN (Zhang et al., 2019): pairs with all or no labels in common by likelihood, all others by squared error."""

    options: IDHNOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean over hard and soft pairs and the quantization loss, of codes z / (1 + |z|)."""
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


def piecewise_threshold(activations: Tensor, epsilon: float) -> Tensor:
    """Push activations in (0, 1) to a bit: 0 below 1/2 - epsilon, 1 above 1/2 + epsilon, unchanged between.

    With epsilon = 1/2 nothing is pushed. A pushed bit has no gradient.
    """
    pushed = torch.where(activations > 0.5 + epsilon, 1.0, activations)
    return torch.where(activations < 0.5 - epsilon, 0.0, pushed)


def triplet_counts(
    shifted: Tensor, distances: Tensor, similar: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """How many triplets with a loss each pair (B, B) is in: as (anchor, positive), as (anchor, negative).

    A triplet has a loss where distances[i, n] < shifted[i, p]. Both counts compare the same numbers, so every
    triplet is in both or in neither.
    """
    negatives = distances.masked_fill(~other, torch.inf).sort(dim=1).values
    positives = shifted.masked_fill(~similar, -torch.inf).sort(dim=1).values
    below = torch.searchsorted(negatives, shifted.contiguous())
    above = len(shifted) - torch.searchsorted(positives, distances.contiguous(), right=True)
    return below * similar, above * other


def triplet_loss(distances: Tensor, similar: Tensor, other: Tensor, margin: float) -> Tensor:
    """Mean over all triplets of [d(i, p) - d(i, n) + margin]+, for distances (B, B); 0 without triplets.

    The sum is linear in the distances as long as the same triplets have a loss, so its gradient is their counts.
    """
    shifted = distances + margin
    with torch.no_grad():
        as_positive, as_negative = triplet_counts(shifted, distances, similar, other)
        total = (similar.sum(dim=1) * other.sum(dim=1)).sum().clamp_min(1)
    return ((as_positive * shifted).sum() - (as_negative * distances).sum()) / total


class DNNHOptions(MethodOptions):
    """Options of DNNH."""

    margin: float = Field(1.0, gt=0, description="margin between positive and negative, in bits")
    epsilon: float = Field(
        0.25, gt=0, le=0.5, description="half width of the range that the threshold leaves unchanged"
    )


@register_method(
    "dnnh",
    family="triplet",
    paper="Simultaneous Feature Learning and Hash Coding with Deep Neural Networks (Lai et al.)",
    year=2015,
    multi_label="nearer to images that share a label",
    head={"divide": True},
    space={"margin": [1.0, 2.0, 4.0], "epsilon": [0.25, 0.5]},
    authors={"margin": 1.0, "epsilon": 0.5},
    notes=Notes(
        source="a Caffe port",
        equations="""
            mean over triplets (i, p, n) of  [ |c_i - c_p|^2 - |c_i - c_n|^2 + margin ]+
            c = piecewise threshold of sigma(z): 0 below 1/2 - epsilon, 1 above 1/2 + epsilon, unchanged between
            divide and encode: bit k sees only slice k of the last hidden layer""",
        differences="""
            All triplets of a batch are used instead of sampled ones.""",
        scores=Scores(0.786, 0.775, 0.763),
    ),
)
class DNNH(Objective):
    """DNNH (Lai et al., 2015): triplet ranking loss of codes in (0, 1) after a piecewise threshold.

    The divide-and-encode module is `DivideAndEncode`, the last layer of the head.
    """

    options: DNNHOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean ranking loss over all triplets of the batch."""
        codes = piecewise_threshold(torch.sigmoid(batch.logits), self.options.epsilon)
        shares, pairs = shared_labels(batch.labels), pairs_of_two(len(codes), codes.device)
        distances = squared_distance(codes, codes)
        return {"triplet": triplet_loss(distances, pairs & shares, pairs & ~shares, self.options.margin)}
