"""Base classes of the losses: a module from logits and labels to a scalar, usable alone and by the training loop.

    loss = ICS(centers)(logits, labels)     # a scalar Tensor: loss.backward()

The base class reads the options and checks the shapes; a method writes only its mathematics, in `terms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from centerhash.core.errors import ConfigError, InputError
from centerhash.core.options import MethodOptions, options_beside, read_options
from centerhash.methods.weights import LabelSlots, equal_weights, label_slots, scatter_weights


class HeadOutput(NamedTuple):
    """The outputs of a head for a batch; None for those that it does not have."""

    logits: Tensor  # (B, K): their signs are the code
    class_logits: Tensor | None = None  # (B, C): their softmax over the labels gives the weights
    label_log_odds: Tensor | None = None  # (B, C): their sigmoid is the probability of each label

    def each(self, change: Callable[[Tensor], Tensor]) -> HeadOutput:
        """The same with every output changed in the same way."""
        return HeadOutput._make(None if part is None else change(part) for part in self)


class LossTerms(NamedTuple):
    """The loss of a batch and its parts by name, for the log."""

    total: Tensor
    parts: dict[str, Tensor]


class Batch(NamedTuple):
    """The checked inputs of a loss."""

    output: HeadOutput
    labels: Tensor  # (B, C) bool
    places: Tensor | None = None  # (B,) among the training images that `prepare` saw
    progress: float = 0.0  # share of the training that is done, in [0, 1), for losses that change on the way

    @property
    def logits(self) -> Tensor:
        """Logits (B, K)."""
        return self.output.logits

    def rows(self, chosen: Tensor) -> Batch:
        """The images of the mask `chosen` (B,)."""
        places = None if self.places is None else self.places[chosen]
        return Batch(self.output.each(lambda part: part[chosen]), self.labels[chosen], places, self.progress)


def label_loss(log_odds: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy () of the labels' log-odds (B, C) with labels (B, C): summed over C, mean over B."""
    losses = binary_cross_entropy_with_logits(log_odds, labels.to(log_odds.dtype), reduction="none")
    return losses.sum(1).mean()


class Objective(nn.Module, ABC):
    """A loss of logits (B, K) and labels (B, C).

    Options are given by name, `DHN(slope=0.5)`, or as a whole, `DHN(options=DHNOptions(slope=0.5))`; their class is
    the one named `<Class>Options` in the same module. A loss that needs `centers`, `classes`, `bits` or a `seed` has
    constructor parameters of these names. Its parameters, such as learned proxies, are trained with the head.
    """

    def __init__(self, *, options: MethodOptions | None = None, **values: Any) -> None:
        super().__init__()
        name, kind = type(self).__name__, options_beside(type(self))
        if options is None:
            options = read_options(kind, values, f"the loss {name}")
        elif values or not isinstance(options, kind):
            got = f"also {', '.join(values)}" if values else f"options of type {type(options).__name__}"
            raise ConfigError(
                f"{name} takes options={kind.__name__}(...), or single options by name; got {got}."
            )
        self.options = options
        self.sizes: tuple[int | None, int | None] = (None, None)  # (C, K), where the loss decides them

    def prepare(self, features: NDArray[Any], rows: NDArray[np.int64], labels: NDArray[np.bool_]) -> None:
        """Prepare for the training images `features[rows]` (n, D) and labels (n, C) before the first epoch.

        Must be deterministic: a resumed run calls it again.
        """

    def forward(
        self,
        output: Tensor | HeadOutput,
        labels: Tensor,
        places: Tensor | None = None,
        progress: float = 0.0,
    ) -> Tensor:
        """Compute the loss () of logits (B, K), or of a head's output, for labels (B, C) of bool or 0 and 1.

        `places` (B,) are the positions of the images in the training set, and `progress` in [0, 1) is the finished
        share of training. Few losses need them.
        """
        return self.loss_terms(output, labels, places, progress).total

    def loss_terms(
        self,
        output: Tensor | HeadOutput,
        labels: Tensor,
        places: Tensor | None = None,
        progress: float = 0.0,
    ) -> LossTerms:
        """Compute the loss of `forward`, and its terms by name."""
        batch = self.checked(output, labels)._replace(places=places, progress=progress)
        terms = self.terms(batch)
        _check_terms(terms, f"{type(self).__name__}.terms", "scalar tensors", 0)
        if batch.output.label_log_odds is not None:
            terms["presence"] = label_loss(batch.output.label_log_odds, batch.labels)
        if not terms:
            return LossTerms(batch.logits.sum() * 0, {})
        total = torch.stack(list(terms.values())).sum()
        return LossTerms(total, {name: value.detach() for name, value in terms.items()})

    @abstractmethod
    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute terms () by name, multiplied by their coefficients; their sum is the loss."""

    def checked(self, output: Tensor | HeadOutput, labels: Tensor) -> Batch:
        """Return the batch, or raise InputError if shapes do not fit."""
        output = output if isinstance(output, HeadOutput) else HeadOutput(output)
        logits, classes, bits = output.logits, *self.sizes
        if not (isinstance(logits, Tensor) and isinstance(labels, Tensor)):
            got = f"{type(logits).__name__} and {type(labels).__name__}"
            raise InputError(f"{type(self).__name__} takes torch tensors of logits and labels, got {got}.")
        fits = (
            logits.ndim == labels.ndim == 2
            and len(logits) == len(labels)
            and logits.is_floating_point()
            and bits in (None, logits.shape[1])
            and classes in (None, labels.shape[1])
            and all(part is None or part.shape == labels.shape for part in output[1:])
        )
        if not fits or not (labels.dtype == torch.bool or bool(((labels == 0) | (labels == 1)).all())):
            found = {**output._asdict(), "labels": labels}
            shown = [f"{name} {_shown(part)}" for name, part in found.items() if part is not None]
            raise InputError(
                f"{type(self).__name__} expects float logits (B, {bits or 'K'}) and labels (B, {classes or 'C'}) of bool "
                f"or 0 and 1. Other outputs of the head have the shape of the labels. Got {', '.join(shown)}."
            )
        return Batch(output, labels.bool())


def _check_terms(terms: Any, name: str, kind: str, ndim: int) -> None:
    """Raise InputError unless the terms of a loss, which may be a custom one, are tensors of `ndim` by name."""
    expected = f"{name} must return a dict of {kind} by name"
    if not isinstance(terms, dict):
        raise InputError(f"{expected}, got {type(terms).__name__}.")
    for key, value in terms.items():
        if not isinstance(value, Tensor) or value.ndim != ndim:
            got = _shown(value) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"{expected}, got {got} for '{key}': reduce it, for example by `.mean`.")


def _shown(part: Tensor) -> str:
    return f"{tuple(part.shape)} of {str(part.dtype).removeprefix('torch.')}"


def check_centers(centers: Tensor | NDArray[Any]) -> Tensor:
    """Centers (C, K) as float32; InputError unless each has the length sqrt(K), as -1 and +1 have, also rotated."""
    numbers = (
        torch.as_tensor(np.array(centers) if isinstance(centers, np.ndarray) else centers).detach().float()
    )
    if numbers.ndim != 2 or not numbers.numel():
        raise InputError(f"centers must be of shape (C, K), got {tuple(numbers.shape)}.")
    bits = numbers.shape[1]
    if not bool(((numbers**2).sum(dim=1) - bits).abs().max() <= 1e-3 * bits):
        raise InputError(
            f"centers must be of -1 and +1, one row of {bits} bits per class; got values from "
            f"{float(numbers.min()):g} to {float(numbers.max()):g}. hash_centers(classes, bits) makes them."
        )
    return numbers


class CentralObjective(Objective):
    """Base of the central methods: centers, labeled images of a batch, and weights over all classes.

    `centers` (C, K) of -1 and +1 are a tensor or an array, as returned by `hash_centers`.
    """

    moves_centers: ClassVar[bool] = False  # whether training changes the centers
    centers: Tensor

    def __init__(
        self, centers: Tensor | NDArray[Any], *, options: MethodOptions | None = None, **values: Any
    ) -> None:
        super().__init__(options=options, **values)
        self.register_buffer("centers", check_centers(centers), persistent=False)
        self.sizes = (self.centers.shape[0], self.centers.shape[1])
        self.options = self.options.for_bits(self.centers.shape[1])

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute means over the images that have a label; empty if none has."""
        labelled = batch.labels.any(dim=1)
        if not bool(labelled.any()):
            return {}
        terms = self.image_terms(batch.rows(labelled))
        _check_terms(terms, f"{type(self).__name__}.image_terms", "tensors (B,)", 1)
        return {name: value.mean() for name, value in terms.items()}

    @torch.no_grad()
    def weights(self, output: Tensor | HeadOutput, labels: Tensor) -> Tensor:
        """Compute the weight (B, C) of each label of each image; rows sum to 1, or to 0 without labels."""
        batch = self.checked(output, labels)
        slots = label_slots(batch.labels)
        return scatter_weights(self.slot_weights(batch, slots), slots, labels.shape[1])

    def trained_centers(self) -> Tensor:
        """Return the centers (C, K) of -1 and +1 that a model stores after training; few losses change theirs."""
        return torch.where(self.centers >= 0, 1, -1).to(torch.int8)

    @abstractmethod
    def image_terms(self, batch: Batch) -> dict[str, Tensor]:
        """Compute terms per image (B,) by name, multiplied by their coefficients; every image has a label."""

    def slot_weights(self, batch: Batch, slots: LabelSlots) -> Tensor:
        """Compute weights (B, L) of the labels in their slots; equal unless a method learns them."""
        return equal_weights(slots.mask, batch.logits.dtype)
