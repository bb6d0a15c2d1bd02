"""The head: features (B, D) to logits (B, K), and optionally to class logits and labels' log-odds (B, C).

The options and the stored tensors of these two outputs are named `evidence` and `presence`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.core.errors import InputError
from centerhash.losses.base import HeadOutput
from centerhash.networks.head_options import LABEL_UNITS, HeadOptions

# share of a row's largest |logit| (at least 1) below which float32 rounding, which varies with the batch, could flip a
# sign; about a hundred times what rounding was seen to change
_DOUBT = 1e-4


class Rotation(nn.Module):
    """Rotates logits (B, K); the identity while the head learns, set once after that."""

    matrix: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(bits))

    def forward(self, logits: Tensor) -> Tensor:
        """Return logits in the coordinates whose signs are the code."""
        return logits @ self.matrix


class DivideAndEncode(nn.Module):
    """Features (B, D) to logits (B, K): cut into K slices, each of which alone decides one bit.

    The first D mod K slices are one feature longer when K does not divide D.
    """

    positions: Tensor
    used: Tensor

    def __init__(self, features: int, bits: int) -> None:
        super().__init__()
        if features < bits:
            raise InputError(
                f"{features} features cannot be divided into {bits} slices: every bit needs its own feature. "
                f"Use a hidden layer of at least {bits} units, or fewer bits."
            )
        sizes = torch.full((bits,), features // bits) + (torch.arange(bits) < features % bits)
        offsets = torch.arange(int(sizes.max()))
        starts = (sizes.cumsum(dim=0) - sizes)[:, None]
        self.register_buffer("used", offsets < sizes[:, None], persistent=False)
        self.register_buffer("positions", (starts + offsets).clamp_max(features - 1), persistent=False)
        bound = 1 / math.sqrt(int(sizes.max()))  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(self.positions.shape).uniform_(-bound, bound) * self.used)
        self.bias = nn.Parameter(torch.empty(bits).uniform_(-bound, bound))

    def forward(self, features: Tensor) -> Tensor:
        """One inner product per slice; the padding of the shorter slices has no weight and no gradient."""
        slices = features.index_select(1, self.positions.flatten()).view(
            features.shape[0], *self.positions.shape
        )
        return (slices * (self.weight * self.used)).sum(dim=2) + self.bias


class Dropout(nn.Dropout):
    """Dropout whose masks are quick to draw on a CPU, where torch's own take half as long as the matrix products."""

    def forward(self, units: Tensor) -> Tensor:
        """Return units (B, U), some of them 0 while the head learns."""
        return units * self.mask(units.shape, units) if self.training and self.p else units

    def mask(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return what a batch of this shape is multiplied by: 0 with probability p, else 1 / (1 - p).

        If p is a multiple of 1/256, a random word stands for eight entries, and numpy compares them, seven times as
        fast as torch.
        """
        least = 256 * self.p
        if like.device.type != "cpu" or least != int(least):
            return nn.functional.dropout(torch.ones(*shape, dtype=like.dtype, device=like.device), self.p)
        count = math.prod(shape)
        words = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None)
        kept = words.view(torch.uint8)[:count].numpy() >= int(least)
        return torch.from_numpy(kept.astype(np.float32)).to(like.dtype).mul_(1 / (1 - self.p)).view(*shape)


class IsolatedDropout(Dropout):
    """Dropout that leaves the stream of random numbers as it found it, so that it does not change other layers."""

    def mask(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return the mask as of any dropout."""
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            return super().mask(shape, like)


class LabelLayers(nn.Sequential):
    """Standardized features (B, D) to the labels' log-odds (B, C), by a hidden layer (B, U) of its own."""

    def __init__(self, features: int, units: int, classes: int, dropout: float) -> None:
        hidden = (nn.Linear(features, units, bias=False), nn.BatchNorm1d(units), nn.ReLU())
        super().__init__(*hidden, IsolatedDropout(dropout), nn.Linear(units, classes))


class Outputs(nn.Module):
    """The last layers: logits (B, K) and class logits (B, C) of the last hidden layer, labels' log-odds (B, C).

    Class logits and log-odds learn without shaping that layer, so codes are the same with and without them.
    """

    def __init__(
        self, code: nn.Module, features: int, width: int, classes: int, options: HeadOptions
    ) -> None:
        super().__init__()
        self.code = code
        self.evidence = nn.Linear(width, classes) if options.evidence else None
        units = options.presence_hidden or LABEL_UNITS
        self.presence = LabelLayers(features, units, classes, options.dropout) if options.presence else None

    def forward(self, hidden: Tensor, features: Tensor) -> HeadOutput:
        """Compute all outputs for hidden (B, H), and for the standardized features (B, D) that it was made of."""
        return HeadOutput(
            self.code(hidden),
            None if self.evidence is None else self.evidence(hidden.detach()),
            None if self.presence is None else self.presence(features),
        )


class Head(nn.Sequential):
    """The layers from features (B, D) to a `HeadOutput`; models and checkpoints store them by their numbers."""

    @property
    def rotation(self) -> Rotation | None:
        """The layer that rotates the logits; None if there is none."""
        return next((layer for layer in self.modules() if isinstance(layer, Rotation)), None)

    @torch.no_grad()
    def add_to_evidence(self, offsets: Tensor) -> None:
        """Add offsets (C,) to the class logits of all images."""
        last = self[-1]
        assert isinstance(last, Outputs)
        assert last.evidence is not None
        last.evidence.bias.add_(offsets.to(last.evidence.bias.dtype))

    def forward(self, features: Tensor) -> HeadOutput:
        """Compute logits (B, K) of a batch, and the other outputs of the last layer."""
        hidden, inputs = features, None
        for layer in self:
            if isinstance(layer, Outputs):
                output: HeadOutput = layer(hidden, features if inputs is None else inputs)
                return output
            hidden = layer(hidden)
            # the first dropout is the one that standardized features go through
            if inputs is None and isinstance(layer, nn.Dropout):
                inputs = hidden
        return HeadOutput(hidden)


def build_head(features: int, bits: int, options: HeadOptions, classes: int = 0) -> Head:
    """Standardize, dropout, then (linear, norm, ReLU, dropout) per hidden width, then linear to K bits.

    With `options.evidence` or `options.presence` the last layer also has these outputs for C classes.
    """
    layers: list[nn.Module] = [nn.BatchNorm1d(features, affine=False)] if options.standardise else []
    layers.append(Dropout(options.input_dropout))
    width = features
    for hidden in options.hidden:
        layers.append(nn.Linear(width, hidden, bias=not options.hidden_norm))  # a norm has a bias of its own
        if options.hidden_norm:
            layers.append(nn.BatchNorm1d(hidden))
        layers += [nn.ReLU(), Dropout(options.dropout)]
        width = hidden
    code = DivideAndEncode(width, bits) if options.divide else nn.Linear(width, bits, not options.logit_norm)
    last: list[nn.Module] = [code]
    if options.logit_norm:
        last.append(nn.BatchNorm1d(bits))
    if options.rotate:
        last.append(Rotation(bits))
    if options.evidence or options.presence:
        last = [Outputs(nn.Sequential(*last), features, width, classes, options)]
    return Head(*layers, *last)


def float_rows(features: NDArray[Any], rows: NDArray[np.int64] | slice = slice(None)) -> Tensor:
    """Return some rows of features (N, D) as float32 for a head; torch widens halves ten times as fast as numpy.

    Rows of a slice may share memory with the features: they are for reading.
    """
    return torch.from_numpy(np.require(features[rows], requirements=["C", "W"])).float()


class BatchInvariantHead:
    """A trained head whose signs do not depend on the batch that they are computed in."""

    def __init__(self, head: Head) -> None:
        self._head = head.eval()
        self._precise = copy.deepcopy(head).double()

    def outputs(self, features: NDArray[Any]) -> HeadOutput:
        """Compute the outputs of the head for features (N, D), in float64."""
        with torch.inference_mode():
            rows = float_rows(features)
            output: HeadOutput = self._head(rows).each(Tensor.double)
            sizes = output.logits.abs()
            doubtful = (sizes < _DOUBT * sizes.amax(dim=1, keepdim=True).clamp_min(1)).any(dim=1)
            if bool(doubtful.any()):
                for part, better in zip(output, self._precise(rows[doubtful].double()), strict=True):
                    if part is not None:
                        part[doubtful] = better
            return output
