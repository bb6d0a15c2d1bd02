"""Base classes of the losses: a module from logits and labels to a scalar, usable alone and by the training loop.

    loss = ICSLoss(centers)(logits, labels)     # a scalar Tensor: loss.backward()

The base class checks the options and the shapes; a method writes only its mathematics, in `terms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.core.errors import InputError
from centerhash.core.options import check_options
from centerhash.losses.functional import label_loss
from centerhash.weights import LabelSlots, equal_weights, label_slots, scatter_weights

# By the name of an option, its default as a function of all options and the number of bits.
Defaults: TypeAlias = Mapping[str, Callable[[Mapping[str, Any], int], float]]


class HeadOutput(NamedTuple):
    """The outputs of a head for a batch; None for those that it does not have.

        loss(HeadOutput(logits, class_logits), labels)

    The signs of `logits` are the codes. The softmax of `class_logits` over the labels of an image gives their weights.
    The sigmoid of `label_log_odds` is the probability of each label.
    """

    logits: Tensor  # (B, K)
    class_logits: Tensor | None = None  # (B, C)
    label_log_odds: Tensor | None = None  # (B, C)

    def each(self, change: Callable[[Tensor], Tensor]) -> HeadOutput:
        """Return the outputs with `change` applied to each."""
        return HeadOutput._make(None if part is None else change(part) for part in self)


class Batch(NamedTuple):
    """The checked inputs of a loss, which `terms` receives.

    `indices` are positions among the training images that `prepare` received. `progress` is the finished share of
    training, for losses that change during it.
    """

    output: HeadOutput
    labels: Tensor  # (B, C) bool
    indices: Tensor | None = None  # (B,)
    progress: float = 0.0  # in [0, 1)

    @property
    def logits(self) -> Tensor:
        """Logits (B, K)."""
        return self.output.logits

    def rows(self, mask: Tensor) -> Batch:
        """Return the images of a mask (B,)."""
        indices = None if self.indices is None else self.indices[mask]
        return Batch(self.output.each(lambda part: part[mask]), self.labels[mask], indices, self.progress)


class HashingLoss(nn.Module, ABC):
    """A loss of logits (B, K) and labels (B, C): the base class of all methods that train a network.

        >>> class Margin(HashingLoss):
        ...     def terms(self, batch):
        ...         return {"margin": torch.relu(1 - batch.logits.abs()).mean(dim=1)}
        >>> loss = Margin()(torch.randn(4, 64), torch.rand(4, 80) < 0.1)

    The options of a loss are the arguments of its constructor that have a default, with bounds and help in `Annotated`.
    A loss that needs `centers`, `classes`, `bits` or a `seed` has arguments of these names, which training passes. The
    parameters of the module, such as learned proxies, are trained with the head.
    """

    derived_defaults: ClassVar[Defaults] = {}
    sizes: tuple[int | None, int | None] = (None, None)  # (C, K), if fixed
    # Set by a loss whose weights are softmax(class logits / size_scale): class sizes can be added to these logits.
    size_scale: float | None = None

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Check the options: an unknown or impossible one is a ConfigError that names it."""
        check_options(cls, keywords)
        return super().__new__(cls)

    @classmethod
    def fill_options(cls, options: dict[str, Any], bits: int) -> dict[str, Any]:
        """Fill in derived defaults of options that are None; options that exclude each other raise ConfigError."""
        missing = [name for name in cls.derived_defaults if options[name] is None]
        return {**options, **{name: cls.derived_defaults[name](options, bits) for name in missing}}

    def prepare(self, labels: NDArray[np.bool_]) -> None:
        """Prepare for the labels (n, C) of the training images; a resumed run calls it again."""

    def forward(
        self,
        output: Tensor | HeadOutput,
        labels: Tensor,
        indices: Tensor | None = None,
        progress: float = 0.0,
    ) -> Tensor:
        """Compute the loss () of logits (B, K), or of a head's output, for labels (B, C) of bool or 0 and 1.

        `indices` (B,) are the positions of the images in the training set, and `progress` in [0, 1) is the finished
        share of training. Few losses need them.
        """
        output = output if isinstance(output, HeadOutput) else HeadOutput(output)
        return self.loss_terms(Batch(output, labels, indices, progress))["loss"]

    def loss_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the loss () of a batch as "loss", followed by its terms () by name, detached."""
        batch = self.check(batch)
        terms = self.mean_terms(batch)
        if batch.output.label_log_odds is not None:
            terms["presence"] = label_loss(batch.output.label_log_odds, batch.labels)
        total = torch.stack(list(terms.values())).sum() if terms else batch.logits.sum() * 0
        return {"loss": total, **{name: value.detach() for name, value in terms.items()}}

    def mean_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the mean () of each term; InputError if a custom loss returns anything else than terms."""
        terms, rule = self.terms(batch), f"{type(self).__name__}.terms must return tensors () or (B,) by name"
        if not isinstance(terms, dict):
            raise InputError(f"{rule}, got {type(terms).__name__}.")
        for name, value in terms.items():
            if getattr(value, "shape", None) not in ((), (len(batch.labels),)):
                raise InputError(f"{rule}, got {_type_and_shape(value)} for '{name}'.")
        return {name: value.mean() for name, value in terms.items()}

    @abstractmethod
    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute terms (B,) or () by name, multiplied by their coefficients; the sum of their means is the loss."""

    def check(self, batch: Batch) -> Batch:
        """Return the batch with labels of bool, or raise InputError if shapes do not fit."""
        logits, labels, (classes, bits) = batch.logits, batch.labels, self.sizes
        fits = (
            isinstance(logits, Tensor)
            and isinstance(labels, Tensor)
            and logits.ndim == labels.ndim == 2
            and len(logits) == len(labels)
            and logits.is_floating_point()
            and bits in (None, logits.shape[1])
            and classes in (None, labels.shape[1])
            and all(part is None or part.shape == labels.shape for part in batch.output[1:])
            and (labels.dtype == torch.bool or bool(((labels == 0) | (labels == 1)).all()))
        )
        if not fits:
            inputs = {**batch.output._asdict(), "labels": labels}
            received = ", ".join(f"{name} {_type_and_shape(value)}" for name, value in inputs.items())
            raise InputError(
                f"{type(self).__name__} expects float logits (B, {bits or 'K'}), labels (B, {classes or 'C'}) of "
                f"bool or 0 and 1, other outputs of the head as the labels. Got {received}."
            )
        return batch._replace(labels=labels.bool())


def _type_and_shape(value: Any) -> str:
    return f"{type(value).__name__} {tuple(getattr(value, 'shape', ()))}"


class CentralLoss(HashingLoss):
    """Base of the central methods: centers, labeled images of a batch, and weights over all classes.

        >>> class Distance(CentralLoss):
        ...     def terms(self, batch):
        ...         return {"center": (batch.logits @ self.centers.T * batch.labels).mean(dim=1).neg()}
        >>> loss = Distance(hash_centers(classes=80, bits=64))(torch.randn(4, 64), torch.rand(4, 80) < 0.1)

    Args: `centers` (C, K) of -1 and +1, a tensor or an array as returned by `hash_centers`.
    `terms` receives the images that have a label.
    """

    moves_centers: ClassVar[bool] = False  # whether training changes the centers
    centers: Tensor

    def __init__(self, centers: Tensor | NDArray[Any]) -> None:
        super().__init__()
        # Torch warns of arrays that are read-only, as cached centers are.
        centers = torch.as_tensor(np.array(centers) if isinstance(centers, np.ndarray) else centers)
        centers = centers.detach().float()
        # Rotated centers are accepted too: only the length sqrt(K) is checked.
        fits = centers.ndim == 2 and centers.numel() and ((centers**2).mean(dim=1) - 1).abs().max() <= 1e-3
        if not bool(fits):
            raise InputError(
                f"centers must be (C, K) of -1 and +1, got {tuple(centers.shape)}, for example "
                f"{centers.flatten()[:3].tolist()}. hash_centers(classes, bits) makes them."
            )
        self.register_buffer("centers", centers, persistent=False)
        self.sizes = (self.centers.shape[0], self.centers.shape[1])

    def mean_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute means over the images that have a label; empty if none has."""
        labeled = batch.labels.any(dim=1)
        return super().mean_terms(batch.rows(labeled)) if bool(labeled.any()) else {}

    @torch.no_grad()
    def weights(self, output: Tensor | HeadOutput, labels: Tensor) -> Tensor:
        """Compute the weight (B, C) of each label of each image; rows sum to 1, or to 0 without labels."""
        output = output if isinstance(output, HeadOutput) else HeadOutput(output)
        batch = self.check(Batch(output, labels))
        slots = label_slots(batch.labels)
        return scatter_weights(self.slot_weights(batch, slots), slots, labels.shape[1])

    def slot_weights(self, batch: Batch, slots: LabelSlots) -> Tensor:
        """Compute weights (B, L) of the labels in their slots; equal unless a method learns them."""
        return equal_weights(slots.mask, batch.logits.dtype)

    def targets(self) -> Tensor:
        """Return the centers (C, K) that the network is trained towards."""
        return self.centers

    def trained_centers(self) -> Tensor:
        """Return the centers (C, K) of -1 and +1 that a model stores after training; few losses change theirs."""
        return torch.where(self.targets().detach() >= 0, 1, -1).to(torch.int8)
