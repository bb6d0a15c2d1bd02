"""HashNet: weighted likelihood of pairs, with codes that become binary during training."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from centerhash.core.options import Option
from centerhash.losses.base import Batch, Defaults, HashingLoss
from centerhash.losses.functional import balanced_mean, different_images, logistic_loss, shared_labels


def weighted_mean(values: Tensor, similar: Tensor, pairs: Tensor, weight: float) -> Tensor:
    """Compute the mean over S of values (B, B) in which a similar pair counts `weight` times; 0 without pairs.

    `weight` is `class_num` of HashNet's authors: 1 is the plain mean.
    """
    counts = torch.where(similar, weight, 1.0) * pairs
    return (counts * values).sum() / counts.sum().clamp_min(min(weight, 1.0))


def continuous_similarity(labels: Tensor) -> Tensor:
    """Compute the factor (B, B) of similar pairs in HashNet's code: 4 |y_i and y_j|^2 / (|y_i| |y_j|); else 0."""
    numbers = labels.float()
    common, counts = numbers @ numbers.T, numbers.sum(dim=1).clamp_min(1)
    return 4 * common**2 / (counts[:, None] * counts)


def continuation(progress: float, stages: int, last: float) -> float:
    """Return HashNet's beta at the share `progress` in [0, 1) of the training: from 1 to `last` in equal stages.

    The square grows by the same amount from stage to stage, so beta grows fast at first and slowly later.
    """
    if stages == 1:
        return last
    stage = min(int(progress * stages), stages - 1)
    return math.sqrt(1 + (last**2 - 1) * stage / (stages - 1))


class HashNetLoss(HashingLoss):
    """HashNet (Cao et al., 2017): weighted likelihood of the pairs, of codes tanh(beta z) with beta growing.

    HashNet: Deep Learning to Hash by Continuation, https://arxiv.org/abs/1702.00758

        >>> loss = HashNetLoss(last_beta=7.141, class_num=1.0)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels, progress=0.5).backward()

    The continuation replaces a quantization loss. The stages have equal length, and the last beta is finite.

    Args: the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar (), for any C and K; `progress` in [0, 1) selects beta.
    """

    # The sigmoid has the same range at every length.
    derived_defaults: ClassVar[Defaults] = {"alpha": lambda options, bits: 10 / bits}

    def __init__(
        self,
        *,
        alpha: Annotated[
            float | None, Option("slope of the sigmoid over inner products; 10 / K by default", gt=0)
        ] = None,
        stages: Annotated[int, Option("stages of the continuation, each with its own beta", ge=1)] = 10,
        last_beta: Annotated[float, Option("beta of the last stage; the first is 1", ge=1)] = 10.0,
        continuous: Annotated[bool, Option("weight similar pairs by 4 |common|^2 / (|y_i| |y_j|)")] = True,
        class_num: Annotated[float, Option("weight of a similar pair; 0 balances the batch", ge=0)] = 0.0,
    ) -> None:
        super().__init__()
        self.alpha, self.stages, self.last_beta = alpha, stages, last_beta
        self.continuous, self.class_num = continuous, class_num

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the weighted likelihood; dissimilar pairs keep the factor 1, as in the authors' code."""
        beta = continuation(batch.progress, self.stages, self.last_beta)
        codes, similar = torch.tanh(beta * batch.logits), shared_labels(batch.labels)
        losses = logistic_loss(codes @ codes.T, similar, self.alpha or 10 / codes.shape[1])
        if self.continuous:
            losses = torch.where(similar, continuous_similarity(batch.labels) * losses, losses)
        pairs = different_images(codes)
        if self.class_num:
            return {"pair": weighted_mean(losses, similar, pairs, self.class_num)}
        return {"pair": balanced_mean(losses, similar, pairs)}
