"""ICS-softmax, our instance-weighted form: the likelihood of a center is a softmax over *all* centers.

Codes and weights want different things. A code is found best when it stays between the centers of its labels, so it is
trained towards flat weights; the share of the picture that a label has is read best from evidence that was trained
towards sharp ones. So the head reads both from one hidden layer (`heads.Readings`), and both learn by the
paper's two steps: solve the weights with the network fixed, then descend with the weights fixed.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import log_softmax

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch
from centerhash.methods.losses.central import CentralObjective, center_similarities, weighted_distance
from centerhash.methods.weights import LabelSlots, softmax_weights

# of the weights that train the codes, as a softmax of the cosine, at every number of bits
CODE_SHARPNESS = 2.0


class IcsSoftmaxOptions(MethodOptions):
    """Options of ICS-softmax. docs/paper.md says how a validation split chose them."""

    scale: float = Field(6.0, gt=0, description="sharpness of the softmax over all centers")
    entropy: float | None = Field(
        None,
        gt=0,
        alias="lambda",
        description="coefficient of the entropy of the weights that train the codes",
    )
    evidence_entropy: float = Field(
        0.5, gt=0, alias="evidence_lambda", description="the same for the weights that train the evidence"
    )
    share_entropy: float = Field(
        6.0, gt=0, alias="share_lambda", description="the same for the weights that are given out"
    )

    def for_bits(self, bits: int) -> IcsSoftmaxOptions:
        """Fill in lambda: the weights that train the codes are as sharp whatever the scale."""
        return self.model_copy(update={"entropy": self.entropy or self.scale / CODE_SHARPNESS})


def step_loss(distances: Tensor, labels: Tensor, entropy: float) -> Tensor:
    """Both steps for distances (B, C): sum_j w_j d_j (B,) with w = softmax(-d / lambda) over the labels held fixed.

    These w minimise sum_j w_j d_j + lambda sum_j w_j log w_j on the simplex, exactly.
    """
    return weighted_distance(softmax_weights(-distances.detach() / entropy, labels), distances)


class IcsSoftmax(CentralObjective):
    """d_j = -log p_j with p = softmax(scale * cosine(logits, centers)) for the code, softmax(evidence) for the weights.

    The loss is the sum of both steps' losses. Equal weights (lambda -> infinity) give OrthoHash's codes.
    """

    options: IcsSoftmaxOptions

    def __init__(
        self, centers: Tensor | NDArray[Any], *, options: IcsSoftmaxOptions | None = None, **values: Any
    ) -> None:
        super().__init__(centers, options=options, **values)
        self.scale, self.entropy = self.options.scale, float(self.options.entropy or 0)

    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Losses (B,) of the code and, where the head reads it, of the evidence."""
        labels, terms = batch.labels, {}
        terms["center"] = step_loss(self.distances(batch.logits), labels, self.entropy)
        if batch.output.evidence is not None:
            surprise = -log_softmax(batch.output.evidence, dim=1)
            terms["evidence"] = step_loss(surprise, labels, self.options.evidence_entropy)
        return terms

    def slot_weights(self, batch: Batch, slots: LabelSlots) -> Tensor:
        """Weights (B, L): softmax of -d / lambda over the image's labels, by the evidence where there is some."""
        if batch.output.evidence is None:
            scores = -self.distances(batch.logits) / self.entropy
        else:
            scores = batch.output.evidence / self.options.share_entropy
        return softmax_weights(scores.gather(1, slots.classes), slots.mask)

    def distances(self, logits: Tensor) -> Tensor:
        """Negative log-likelihood (B, C) of each center."""
        return -log_softmax(self.scale * center_similarities(logits, self.centers), dim=1)
