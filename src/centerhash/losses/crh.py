"""CRH: OrthoHash with centers that are assigned anew during training."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from centerhash.centers import hash_centers
from centerhash.codes import Codes
from centerhash.core.options import Option
from centerhash.losses.base import Batch
from centerhash.losses.functional import squared_quantization
from centerhash.losses.orthohash import OrthoHashLoss
from centerhash.weights import equal_weights


def reassign(sums: NDArray[Any], counts: NDArray[Any], codebook: Codes, heads: int) -> Codes:
    """Assign each class (C,) the code of the codebook (M, K) nearest to its images, head by head, as centers (C, K).

    `sums` (C, K) are the codes of each class's images added up, and `counts` (C,) their number: frequent classes choose
    first. A head is a run of bits, in which no code is assigned twice.
    """
    order = np.argsort(-counts, kind="stable")
    centers = np.empty((len(sums), codebook.shape[1]), dtype=np.int8)
    for head in np.array_split(np.arange(codebook.shape[1]), heads):
        available = np.ones(len(codebook), dtype=bool)
        part = codebook[:, head].astype(np.float64)
        for label in order.tolist():
            nearest = int(np.where(available, part @ sums[label, head], -np.inf).argmax())
            centers[label, head] = codebook[nearest, head]
            available[nearest] = False
    return centers


class CRHLoss(OrthoHashLoss):
    """CRH (Yin et al., 2026): OrthoHash, whose classes choose the codes nearest to their images again and again.

    Codebook-Centric Deep Hashing: End-to-End Joint Learning of Semantic Hash Centers and Neural Hash Function,
    https://arxiv.org/abs/2511.12162

        >>> loss = CRHLoss(hash_centers(classes=80, bits=64), rounds=3)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels, progress=0.5).backward()

    Args: `centers` (C, K) of -1 and +1, the first codes of the codebook, `seed` of its other codes, and the options of
    the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar (); `progress` in [0, 1) counts the rounds.
    """

    moves_centers = True
    sums: Tensor
    counts: Tensor
    stage: Tensor

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        scale: Annotated[float, Option("sharpness of the softmax over all centers", gt=0)] = 4.0,
        margin: Annotated[float, Option("margin of the cosine to the labels' centers", ge=0, lt=2)] = 0.2,
        gamma: Annotated[float, Option("coefficient of the quantization loss, per bit", ge=0)] = 0.05,
        rounds: Annotated[
            int, Option("stages of training; each but the first starts with new centers", ge=1)
        ] = 5,
        heads: Annotated[int, Option("parts of the code whose centers are assigned apart", ge=1)] = 2,
        codebook: Annotated[int, Option("codes to choose from, per class", ge=1, le=16)] = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(centers, scale=scale, margin=margin)
        self.gamma, self.rounds, self.heads = gamma, rounds, heads
        classes, bits = self.centers.shape
        self.codebook = self.centers.numpy().astype(np.int8)
        if count := min((codebook - 1) * classes, 2 ** min(bits, 62) // 4):
            self.codebook = np.concatenate([self.codebook, hash_centers(count, bits, seed, "random")])
        # A checkpoint stores all that a resumed run needs.
        self.register_buffer("centers", self.centers)
        self.register_buffer("sums", torch.zeros(classes, bits))
        self.register_buffer("counts", torch.zeros(classes))
        self.register_buffer("stage", torch.zeros((), dtype=torch.long))

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the loss (B,) of the current centers, which are reassigned at the start of a stage."""
        stage = int(batch.progress * self.rounds)
        if stage != int(self.stage):
            self._reassign()
            self.stage.fill_(stage)
        logits, shares = batch.logits, equal_weights(batch.labels, self.sums.dtype)
        self.sums += shares.T @ torch.tanh(logits.detach() / 2).to(self.sums.dtype)
        self.counts += shares.sum(dim=0)
        quantization = self.gamma * squared_quantization(logits) / logits.shape[1]
        return {**super().terms(batch), "quantization": quantization}

    def _reassign(self) -> None:
        """Reassign the centers by the images of the stage that ends, unless two would be equal."""
        if self.counts.any():
            centers = reassign(self.sums.cpu().numpy(), self.counts.cpu().numpy(), self.codebook, self.heads)
            if len(np.unique(centers, axis=0)) == len(centers):
                self.centers.copy_(torch.from_numpy(centers))
        self.sums.zero_()
        self.counts.zero_()
