"""The likelihood of a center as a softmax over *all* centers (OrthoHash, MDSH, and our ICS-softmax).

In ICS-softmax, codes and weights have different needs. A code is found best when it stays between the centers of its
labels, so it is trained towards flat weights; the area share of a label is read best from class logits that were
trained towards sharp ones. So the head has both outputs on one hidden layer (`heads.Outputs`), and both learn by the
paper's two steps: solve the weights with the network fixed, then descend with the weights fixed.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import log_softmax, normalize, softplus

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, CentralObjective
from centerhash.methods.losses.central import center_similarities, weighted_distance
from centerhash.methods.losses.pairwise import SMALLEST_NORM, masked_mean, pairs_of_two, shared_labels
from centerhash.methods.registry import Notes, Scores, register_method
from centerhash.methods.weights import LabelSlots, equal_weights, softmax_weights

_SURE = 1 - 1e-6  # a wrong center's probability from which its loss grows no more: it stays finite
# of the weights that train the codes, as a softmax of the cosine, at every number of bits
CODE_SHARPNESS = 2.0


def margin_logits(similarities: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """Class logits (B, C): scale times the cosine, lessened by the margin at the image's own labels."""
    return scale * torch.where(labels, similarities - margin, similarities)


class OrthoHashOptions(MethodOptions):
    """Options of OrthoHash."""

    scale: float = Field(4.0, gt=0, description="sharpness of the softmax over all centers")
    margin: float = Field(0.2, ge=0, lt=2, description="margin of the cosine to the labels' centers")


@register_method(
    "orthohash",
    paper="One Loss for All: Deep Hashing with a Single Cosine Similarity (Hoe et al.)",
    year=2021,
    multi_label="softmax over all centers, targets 1/c",
    training={"learning_rate": 0.002},
    space={"scale": [4.0, 6.0, 8.0], "margin": [0.0, 0.1, 0.2]},
    authors={
        "scale": 8.0,
        "margin": 0.2,
        "centers": "bernoulli",
        "assignment": "random",
        "head": {"logit_norm": True},
    },
    notes=Notes(
        source="the authors' PyTorch code",
        equations="""
            mean over the labels j of  -log softmax_j( scale (cos(z, v_j) - margin at the labels) ) over all centers""",
        differences="""
            The authors have a batch norm on the logits (`logit_norm = true` in `[head]` of a preset file).""",
        scores=Scores(0.869, 0.858, 0.839),
    ),
)
class OrthoHash(CentralObjective):
    """OrthoHash (Hoe et al., 2021): softmax over scaled cosines to all centers, targets 1/c at the c labels.

    A large cosine to a binary vector implies a small quantization error, so there is no quantization loss.
    """

    options: OrthoHashOptions

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the cross entropy (B,) between equal targets over the labels and the softmax over all centers."""
        labels, similarities = batch.labels, center_similarities(batch.logits, self.centers)
        scores = margin_logits(similarities, labels, self.options.scale, self.options.margin)
        distances = -log_softmax(scores, dim=1)
        return {"center": weighted_distance(equal_weights(labels, distances.dtype), distances)}


def choice_loss(similarities: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Loss (B,) of p = softmax(scale * cosine) (B, C): mean over classes of -log p_j at labels, else -log(1 - p_j)."""
    scores = scale * similarities
    surprise = torch.logsumexp(scores, dim=1, keepdim=True) - scores
    others = -torch.log1p(-torch.exp(-surprise).clamp_max(_SURE))
    return torch.where(labels, surprise, others).mean(dim=1)


def attraction(codes: Tensor) -> Tensor:
    """Pair loss (B, B) of codes (B, K): log(1 + exp((1 - cosine) / 2)), of pairs that share a label."""
    unit = normalize(codes, dim=1, eps=SMALLEST_NORM)
    return softplus((1 - unit @ unit.T) / 2)


class MDSHOptions(MethodOptions):
    """Options of MDSH."""

    scale: float | None = Field(None, gt=0, description="sharpness of the softmax over all centers")
    pair: float = Field(0.01, ge=0, alias="beta", description="coefficient of the pair loss")
    quantisation: float = Field(
        1e-4, ge=0, alias="lambda", description="coefficient of the quantization loss, per bit"
    )

    def for_bits(self, bits: int) -> MDSHOptions:
        """Fill in the scale, sqrt(K) as in the authors' code."""
        return self.model_copy(update={"scale": self.scale or bits**0.5})


@register_method(
    "mdsh",
    paper="Deep Hashing with Minimal-Distance-Separated Hash Centers (Wang et al.)",
    year=2023,
    multi_label="softmax over all centers, one binary decision per class",
    training={"centers": "mdsh"},
    space={"beta": [0.01, 0.1, 1.0], "scale": ["default", "default*2"], "lambda": [0.0001, 0.01]},
    authors={"beta": 1.0, "scale": "default", "lambda": 0.0001, "centers": "mdsh", "assignment": "random"},
    notes=Notes(
        source="the authors' PyTorch code",
        equations="""
            stage 1:  centers v in {-1, +1}^(C x K) with a large minimum distance;
            stage 2:  mean over classes of  -y_j log p_j - (1 - y_j) log(1 - p_j),
                      p = softmax( scale cos(u, v) ) over all centers
                      + beta mean over pairs that share a label of  log(1 + exp( (1 - cos(u_i, u_j)) / 2 ))
                      + lambda mean over bits of  (|u_k| - 1)^2,   u = tanh(z)""",
        differences="""
            The authors have a batch norm on the logits, and pair a batch with stored codes of all training images. Their
            beta is for one label per image: with several, mAP stays at that of a random ranking.""",
        scores=Scores(0.847, 0.835, 0.337),
    ),
)
class MDSH(CentralObjective):
    """MDSH (Wang et al., 2023): binary decisions by a softmax over all centers, and attraction of similar pairs.

    Its first stage creates the centers: kind "mdsh" by default.
    """

    options: MDSHOptions

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute means over labeled images, and beta times the mean over pairs that share a label."""
        terms = super().terms(batch)
        if terms:
            pairs = shared_labels(batch.labels) & pairs_of_two(len(batch.labels), batch.labels.device)
            terms["pair"] = self.options.pair * masked_mean(attraction(torch.tanh(batch.logits)), pairs)
        return terms

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the center loss and lambda (|u_k| - 1)^2 per bit (B,), of codes u = tanh(z)."""
        codes = torch.tanh(batch.logits)
        similarities = center_similarities(codes, self.centers)
        return {
            "center": choice_loss(similarities, batch.labels, float(self.options.scale or 0)),
            "quantisation": self.options.quantisation * (codes.abs() - 1).square().mean(dim=1),
        }


class IcsSoftmaxOptions(MethodOptions):
    """Options of ICS-softmax. docs/explanation/paper.md describes how a validation split chose them."""

    scale: float = Field(6.0, gt=0, description="sharpness of the softmax over all centers")
    entropy: float | None = Field(
        None,
        gt=0,
        alias="lambda",
        description="entropy coefficient of the weights that train the codes",
    )
    evidence_entropy: float = Field(
        0.5,
        gt=0,
        alias="evidence_lambda",
        description="entropy coefficient of the weights that train the class logits",
    )
    share_entropy: float = Field(
        6.0, gt=0, alias="share_lambda", description="entropy coefficient of the reported weights"
    )

    def for_bits(self, bits: int) -> IcsSoftmaxOptions:
        """Fill in lambda: the weights that train the codes are as sharp whatever the scale."""
        return self.model_copy(update={"entropy": self.entropy or self.scale / CODE_SHARPNESS})


def step_loss(distances: Tensor, labels: Tensor, entropy: float) -> Tensor:
    """Both steps for distances (B, C): sum_j w_j d_j (B,) with w = softmax(-d / lambda) over the labels held fixed.

    These w minimise sum_j w_j d_j + lambda sum_j w_j log w_j on the simplex, exactly.
    """
    return weighted_distance(softmax_weights(-distances.detach() / entropy, labels), distances)


@register_method(
    "ics-softmax",
    title="ICS-softmax (ours)",
    paper="this project",
    year=2026,
    multi_label="softmax over all centers, weights solved per image",
    head={"rotate": True, "evidence": True, "presence": True},
    training={"learning_rate": 0.001},
    space={"scale": [6.0, 8.0, 10.0], "lambda": ["default*0.25", "default*0.5", "default"]},
    authors={"scale": 8.0},
    notes=Notes(
        source="no other code: the method is ours",
        equations="""
            code:     d_j = -log softmax_j( scale cos(z, v) ) over all centers
            class logits e:  d_j = -log softmax_j(e) over all classes
            w = argmin over the simplex of  sum_j w_j d_j + lambda sum_j w_j log w_j
                = softmax(-d / lambda) over the labels
            network:  sum over the labels of w_j d_j with w fixed, for the code and for the class logits""",
        differences="""
            `--no-rotate`, `--no-evidence` and `--no-sizes` disable its additions to ICS
            ([explanation](../explanation/ics-softmax.md)).""",
        scores=Scores(0.872, 0.855, None),
    ),
)
class IcsSoftmax(CentralObjective):
    """ICS-softmax: a softmax likelihood over all centers for the code, and over class logits for the weights.

    d_j = -log p_j with p = softmax(scale * cosine(logits, centers)) for the code, softmax(e) for the weights; e are
    class logits. The loss is the sum of both steps' losses. Equal weights (lambda -> infinity) give OrthoHash's
    codes.
    """

    options: IcsSoftmaxOptions

    def __init__(
        self, centers: Tensor | NDArray[Any], *, options: IcsSoftmaxOptions | None = None, **values: Any
    ) -> None:
        super().__init__(centers, options=options, **values)
        self.scale, self.entropy = self.options.scale, float(self.options.entropy or 0)

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the losses (B,) of the code and, if the head has them, of the class logits."""
        labels, terms = batch.labels, {}
        terms["center"] = step_loss(self.distances(batch.logits), labels, self.entropy)
        if batch.output.class_logits is not None:
            surprise = -log_softmax(batch.output.class_logits, dim=1)
            terms["evidence"] = step_loss(surprise, labels, self.options.evidence_entropy)
        return terms

    def slot_weights(self, batch: Batch, slots: LabelSlots) -> Tensor:
        """Compute weights (B, L) over the image's labels, from the class logits if the head has them."""
        if batch.output.class_logits is None:
            scores = -self.distances(batch.logits) / self.entropy
        else:
            scores = batch.output.class_logits / self.options.share_entropy
        return softmax_weights(scores.gather(1, slots.classes), slots.mask)

    def distances(self, logits: Tensor) -> Tensor:
        """Compute the negative log-likelihood (B, C) of each center."""
        return -log_softmax(self.scale * center_similarities(logits, self.centers), dim=1)
