"""ICS-softmax: the paper's two steps, with the likelihood of a center as a softmax over all centers.

A code works best if it stays between the centers of its labels, so it is trained towards flat weights. The area share of
a label is read best from class logits that were trained towards sharp weights. So the head has both outputs on one hidden
layer (`heads.Outputs`), and both learn by two steps: solve the weights with the network fixed, then descend with the
weights fixed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax

from centerhash.core.options import Option
from centerhash.losses.base import Batch, CentralLoss, Defaults
from centerhash.losses.functional import center_similarities, weighted_distance
from centerhash.weights import LabelSlots, softmax_weights

# The weights that train the codes are a softmax of this times the cosine, whatever the scale.
CODE_SHARPNESS = 2.0


def step_loss(distances: Tensor, labels: Tensor, entropy: float) -> Tensor:
    """Compute both steps for distances (B, C): sum_j w_j d_j (B,), w = softmax(-d / lambda) over the labels held fixed.

    These w minimize sum_j w_j d_j + lambda sum_j w_j log w_j on the simplex, exactly.
    """
    return weighted_distance(softmax_weights(-distances.detach() / entropy, labels), distances)


class ICSSoftmaxLoss(CentralLoss):
    """ICS-softmax (this project, 2026): ICS with a softmax over all centers, and class logits for the weights.

        >>> loss, labels = ICSSoftmaxLoss(hash_centers(classes=80, bits=64)), torch.rand(4, 80) < 0.1
        >>> logits, class_logits = torch.randn(4, 64, requires_grad=True), torch.randn(4, 80)
        >>> loss(HeadOutput(logits, class_logits), labels).backward()

    d_j = -log p_j with p = softmax(scale * cosine(logits, centers)) for the code, softmax(e) for the weights; e are class
    logits. The loss is the sum of both steps' losses. Equal weights (lambda -> infinity) give OrthoHash's codes.
    docs/explanation/paper.md describes how a validation split chose the defaults.

    Args: `centers` (C, K) of -1 and +1, and the options of the signature.
    Shape: logits (B, K), or a `HeadOutput` with class logits (B, C), and labels (B, C) to a scalar ().
    """

    derived_defaults: ClassVar[Defaults] = {
        "entropy": lambda options, bits: options["scale"] / CODE_SHARPNESS
    }

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        scale: Annotated[float, Option("sharpness of the softmax over all centers", gt=0)] = 6.0,
        entropy: Annotated[
            float | None,
            Option(
                "entropy coefficient of the weights that train the codes; scale / 2 by default",
                alias="lambda",
                gt=0,
            ),
        ] = None,
        evidence_lambda: Annotated[
            float, Option("entropy coefficient of the weights that train the class logits", gt=0)
        ] = 0.5,
        share_lambda: Annotated[float, Option("entropy coefficient of the reported weights", gt=0)] = 6.0,
    ) -> None:
        super().__init__(centers)
        self.scale = scale
        self.entropy = scale / CODE_SHARPNESS if entropy is None else entropy
        self.evidence_lambda, self.share_lambda = evidence_lambda, share_lambda
        self.size_scale = share_lambda

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the losses (B,) of the code and, if the head has them, of the class logits."""
        terms = {"center": step_loss(self.distances(batch.logits), batch.labels, self.entropy)}
        if batch.output.class_logits is not None:
            class_distances = -log_softmax(batch.output.class_logits, dim=1)
            terms["evidence"] = step_loss(class_distances, batch.labels, self.evidence_lambda)
        return terms

    def slot_weights(self, batch: Batch, slots: LabelSlots) -> Tensor:
        """Compute weights (B, L) over the image's labels, from the class logits if the head has them."""
        if batch.output.class_logits is None:
            scores = -self.distances(batch.logits) / self.entropy
        else:
            scores = batch.output.class_logits / self.share_lambda
        return softmax_weights(scores.gather(1, slots.classes), slots.mask)

    def distances(self, logits: Tensor) -> Tensor:
        """Compute the negative log-likelihood (B, C) of each center."""
        return -log_softmax(self.scale * center_similarities(logits, self.centers), dim=1)
