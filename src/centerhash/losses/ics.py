"""ICS and its equal-weight ablation E-WCS: all centers of an image's labels, with weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from centerhash.core.errors import ConfigError
from centerhash.core.options import Option
from centerhash.losses.base import Batch, CentralLoss, Defaults
from centerhash.losses.functional import center_distances, quantization_loss, weighted_distance
from centerhash.weights import (
    Form,
    LabelSlots,
    equal_weights,
    exact_weights,
    label_slots,
    pgd_weights,
    printed_weights,
    scaled_softplus,
)

Solver: TypeAlias = Literal["exact", "pgd", "printed"]

PRINTED_BETA = {16: 0.001, 32: 0.01, 64: 0.1}  # Sec. 4.5.2, by bits


def central_loss(
    weights: Tensor, distances: Tensor, mask: Tensor, beta: float, form: Form, normalized: bool
) -> Tensor:
    """Compute J1 per image (B,): -log p(Omega), Eq. (4) and (7), for `joint`, Eq. (8) for `per_center`.

    Normalized: `scaled_softplus`, so that beta does not scale the loss. As printed, `joint` is softplus(beta x) and
    `per_center` is beta * softplus(x), which all but vanish for small beta.
    """
    if form == "joint":
        omega = weighted_distance(weights, distances)
        return scaled_softplus(omega, beta) if normalized else softplus(beta * omega)
    weighted = weights * distances
    per_center = scaled_softplus(weighted, beta) if normalized else beta * softplus(weighted)
    return (per_center * mask).sum(dim=1)


def default_beta(options: Mapping[str, Any], bits: int) -> float:
    """Return the slope of the sigmoid: 0.001 for distances per bit, the paper's of the nearest length for summed ones."""
    nearest = min(PRINTED_BETA, key=lambda length: abs(length - bits))
    return 0.001 if options["per_bit"] else PRINTED_BETA[nearest]


def default_entropy(options: Mapping[str, Any], bits: int) -> float:
    """Return lambda: (K / 32)^3 / 4 for distances per bit, as a validation split preferred; 0.01 for summed ones.

    At 16 bits few centers can be near one code, so it pays to follow the nearest ones (0.03). At 64 bits there is room
    for more (2).
    """
    return bits**3 / 131072 if options["per_bit"] else 0.01


class EWCSLoss(CentralLoss):
    """E-WCS (Zhang and Peng, 2021): all centers of an image's labels, each with the weight 1/c.

    Sec. 4.5.1 of the ICS paper, https://arxiv.org/abs/2108.05274

        >>> loss = EWCSLoss(hash_centers(classes=80, bits=64), gamma=0.5)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    Args: `centers` (C, K) of -1 and +1, and the options of the signature.
    Shape: logits (B, K) and labels (B, C) to a scalar ().
    """

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        gamma: Annotated[float, Option("coefficient of the quantization loss, per bit", ge=0)] = 0.05,
    ) -> None:
        super().__init__(centers)
        self.gamma = gamma

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute Omega of Eq. (3) with equal weights and the quantization loss, both per bit."""
        logits, bits = batch.logits, batch.logits.shape[1]
        weights = equal_weights(batch.labels, logits.dtype)
        omega = weighted_distance(weights, center_distances(logits, self.centers))
        return {"center": omega / bits, "quantization": self.gamma * quantization_loss(logits) / bits}


class ICSLoss(CentralLoss):
    """ICS (Zhang and Peng, 2021): all centers of an image's labels, with weights that are solved per image.

    Instance-weighted Central Similarity for Multi-label Image Retrieval, https://arxiv.org/abs/2108.05274

        >>> loss = ICSLoss(hash_centers(classes=80, bits=64), gamma=0.05)
        >>> logits, labels = torch.randn(4, 64, requires_grad=True), torch.rand(4, 80) < 0.1
        >>> loss(logits, labels).backward()

    The equations are functions: (2), (3) and (11) in `losses.functional`, (4), (7) and (8) in `central_loss`, (9), (10)
    and (13) to (15) in `weights`. docs/explanation/paper.md lists where the defaults leave the printed form, and why.

    Args: `centers` (C, K) of -1 and +1, and the options of the signature. `beta` and `entropy` depend on K by default.
    Shape: logits (B, K) and labels (B, C) to a scalar (). With `keep`, also `indices` (B,) of the images.
    """

    derived_defaults: ClassVar[Defaults] = {"beta": default_beta, "entropy": default_entropy}
    kept: Tensor

    def __init__(
        self,
        centers: Tensor | NDArray[Any],
        *,
        solver: Annotated[
            Solver,
            Option(
                "solver of the weights: exact minimizer, PGD on the true gradient, or PGD as printed, Eq. (13)"
            ),
        ] = "exact",
        form: Annotated[
            Form, Option("one softplus per image, Eq. (4), or one per center, Eq. (8), by pgd or printed")
        ] = "joint",
        beta: Annotated[float | None, Option("slope of the sigmoid, Eq. (4)", gt=0)] = None,
        normalized: Annotated[bool, Option("divide by beta, which then does not scale the loss")] = True,
        per_bit: Annotated[bool, Option("d and the quantization loss as means over bits")] = True,
        entropy: Annotated[
            float | None, Option("coefficient of the entropy, Eq. (10)", alias="lambda", gt=0)
        ] = None,
        gamma: Annotated[float, Option("coefficient of the quantization loss, Eq. (12)", ge=0)] = 0.5,
        rate: Annotated[float, Option("step size eta of PGD, Eq. (14)", gt=0)] = 0.1,
        steps: Annotated[int, Option("steps of PGD", ge=1)] = 10,
        keep: Annotated[
            bool, Option("start PGD from the weights of the previous epoch instead of 1/c")
        ] = False,
    ) -> None:
        super().__init__(centers)
        bits = centers.shape[1]
        options = {"solver": solver, "form": form, "keep": keep, "per_bit": per_bit}
        options = self.fill_options({**options, "beta": beta, "entropy": entropy}, bits)
        self.beta, self.entropy = float(options["beta"]), float(options["entropy"])
        self.solver, self.form, self.normalized, self.gamma = solver, form, normalized, gamma
        self.rate, self.steps, self.keep = rate, steps, keep
        self.scale = 1 / bits if per_bit else 1.0
        if keep:
            # Weights (n, L) of the training images, stored with a checkpoint.
            self.register_buffer("kept", torch.empty(0, 0))

    @classmethod
    def fill_options(cls, options: dict[str, Any], bits: int) -> dict[str, Any]:
        """Fill in beta and lambda; the exact solver has one form, and no start."""
        if options["solver"] == "exact" and options["form"] == "per_center":
            raise ConfigError("form=per_center has no exact solver: choose solver=pgd or solver=printed.")
        if options["solver"] == "exact" and options["keep"]:
            raise ConfigError("keep=true needs solver=pgd or solver=printed: the exact solver has no start.")
        return super().fill_options(options, bits)

    def prepare(self, labels: NDArray[np.bool_]) -> None:
        """Set w = 1/c for every training image if weights are kept (first line of Algorithm 1)."""
        if self.keep:
            mask = label_slots(torch.from_numpy(labels)).mask
            self.kept = equal_weights(mask).to(self.centers)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute Algorithm 1 for one batch: J1 of Eq. (7) or (8) with fixed weights, and gamma J_q of Eq. (12).

        lambda R does not depend on the network and is omitted.
        """
        slots = label_slots(batch.labels)
        distances = self.slot_distances(batch, slots, self.targets())
        rows = batch.indices if self.keep else None
        start = None if rows is None else self.kept[rows, : slots.mask.shape[1]].to(batch.logits.dtype)
        weights = self.solve(distances.detach(), slots, start)
        if rows is not None:
            self.kept[rows, : weights.shape[1]] = weights.to(self.kept.dtype)
        loss = central_loss(weights, distances, slots.mask, self.beta, self.form, self.normalized)
        return {"center": loss, "quantization": self.gamma * self.scale * quantization_loss(batch.logits)}

    def slot_distances(self, batch: Batch, slots: LabelSlots, centers: Tensor) -> Tensor:
        """Compute distances (B, L) to the centers of an image's labels."""
        return self.scale * center_distances(batch.logits, centers).gather(1, slots.classes)

    def slot_weights(self, batch: Batch, slots: LabelSlots) -> Tensor:
        """Compute weights (B, L) for these outputs of the network."""
        return self.solve(self.slot_distances(batch, slots, self.centers), slots)

    def solve(self, distances: Tensor, slots: LabelSlots, start: Tensor | None = None) -> Tensor:
        """Solve the weights (B, L) for distances (B, L)."""
        mask, beta, entropy = slots.mask, self.beta, self.entropy
        if self.solver == "exact":
            return exact_weights(distances, mask, beta, entropy)
        if self.solver == "printed":
            return printed_weights(distances, mask, entropy, self.rate, self.steps, start)
        return pgd_weights(distances, mask, beta, entropy, self.rate, self.steps, self.form, start)
