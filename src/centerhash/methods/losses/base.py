"""What every loss is: a module from logits and labels to a scalar, usable alone and by the training loop.

    loss = ICS(centers)(logits, labels)     # a scalar Tensor: loss.backward()

The base class reads the options and checks the shapes; a method writes only its mathematics, in `terms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from centerhash.core.errors import ConfigError, InputError
from centerhash.core.options import MethodOptions, options_beside, read_options
from centerhash.networks.heads import HeadOutput


class LossTerms(NamedTuple):
    """The loss of a batch and the parts that a log shows."""

    total: Tensor
    parts: dict[str, Tensor]


class Batch(NamedTuple):
    """What a loss sees of a batch, checked."""

    output: HeadOutput  # logits (B, K), and what else the head reads
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


def presence_loss(presence: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy () of log-odds (B, C) that a class is there with labels (B, C): summed over C, mean over B."""
    return (
        binary_cross_entropy_with_logits(presence, labels.to(presence.dtype), reduction="none").sum(1).mean()
    )


class Objective(nn.Module, ABC):
    """A loss of logits (B, K) and labels (B, C).

    Options are given by name, `DHN(slope=0.5)`, or as a whole, `DHN(options=DHNOptions(slope=0.5))`; their class is
    the one named `<Class>Options` beside the loss. A loss that needs `centers`, `classes`, `bits` or a `seed` asks for
    them in its constructor by these names. Its parameters (learned proxies, say) are trained beside the head's.
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
        """See the training images `features[rows]` (n, D) and labels (n, C) once before the first epoch.

        Must give the same result each time it is called: a run that is resumed calls it again.
        """

    def forward(
        self,
        output: Tensor | HeadOutput,
        labels: Tensor,
        places: Tensor | None = None,
        progress: float = 0.0,
    ) -> Tensor:
        """Loss () of logits (B, K), or of a head's output, for labels (B, C) of bool or 0 and 1.

        `places` (B,) are the images' places among the training images that `prepare` saw, `progress` in [0, 1) is the
        share of the training that is done; few losses need them.
        """
        return self.loss_terms(output, labels, places, progress).total

    def loss_terms(
        self,
        output: Tensor | HeadOutput,
        labels: Tensor,
        places: Tensor | None = None,
        progress: float = 0.0,
    ) -> LossTerms:
        """The loss as `forward` gives it, with its parts by name."""
        batch = self.checked(output, labels)._replace(places=places, progress=progress)
        terms = self.terms(batch)
        if batch.output.presence is not None:
            terms["presence"] = presence_loss(batch.output.presence, batch.labels)
        if not terms:
            return LossTerms(batch.logits.sum() * 0, {})
        total = torch.stack(list(terms.values())).sum()
        return LossTerms(total, {name: value.detach() for name, value in terms.items()})

    @abstractmethod
    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Terms () by name, already multiplied by their coefficients; their sum is the loss."""

    def checked(self, output: Tensor | HeadOutput, labels: Tensor) -> Batch:
        """The batch, or an InputError that says what does not fit."""
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
                f"{type(self).__name__} takes float logits (B, {bits or 'K'}) and labels (B, {classes or 'C'}) of bool "
                f"or 0 and 1, and what else a head reads in the labels' shape; got {', '.join(shown)}."
            )
        return Batch(output, labels.bool())


def _shown(part: Tensor) -> str:
    return f"{tuple(part.shape)} of {str(part.dtype).removeprefix('torch.')}"
