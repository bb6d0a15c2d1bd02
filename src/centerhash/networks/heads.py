"""The head of a hashing network: features (B, D) to logits (B, K), whose signs are the bits of the code.

A head may have two more outputs for C classes. The softmax of the class logits (B, C) over the labels of an image gives
their weights; the sigmoid of the log-odds (B, C) is the probability of each label. Options and tensors name these two
outputs `evidence` and `presence`.
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

# Float32 rounding varies with the batch and may flip the sign of a small logit. Rows with a logit below this share of
# their largest one (or of 1) are computed again in float64. The largest error seen was about a hundredth of the share.
_UNSAFE_SHARE = 1e-4


class Rotation(nn.Module):
    """A rotation of logits (B, K) by an orthogonal matrix (K, K), which is the identity until the end of training.

    A good rotation reduces the error of replacing the logits by their signs.
    """

    matrix: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(bits))

    def forward(self, logits: Tensor) -> Tensor:
        """Return the rotated logits (B, K)."""
        return logits @ self.matrix


class DivideAndEncode(nn.Module):
    """A linear layer from features (B, D) to logits (B, K), in which each logit depends only on its slice of features.

    The K slices have D/K features; if K does not divide D, the first D mod K slices have one more.
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
        # nn.Linear draws its weights from the same range.
        bound = 1 / math.sqrt(int(sizes.max()))
        self.weight = nn.Parameter(torch.empty(self.positions.shape).uniform_(-bound, bound) * self.used)
        self.bias = nn.Parameter(torch.empty(bits).uniform_(-bound, bound))

    def forward(self, features: Tensor) -> Tensor:
        """Compute an inner product per slice; the padding of shorter slices has no weight and no gradient."""
        slices = features.index_select(1, self.positions.flatten()).view(
            features.shape[0], *self.positions.shape
        )
        return (slices * (self.weight * self.used)).sum(dim=2) + self.bias


class Dropout(nn.Dropout):
    """Dropout with faster masks on a CPU, where drawing torch's masks takes half as long as the matrix products."""

    def forward(self, units: Tensor) -> Tensor:
        """Return units (B, U), some of which are 0 in train mode."""
        return units * self.mask(units.shape, units) if self.training and self.p else units

    def mask(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Draw a mask of a shape, of the type and device of `like`: 0 with probability p, else 1 / (1 - p).

        If p is a multiple of 1/256, each byte of a random word decides an entry; numpy compares bytes seven times as
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
    """Dropout that restores the state of torch's random generator, so that other layers draw the same masks."""

    def mask(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Draw the mask of `Dropout`."""
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            return super().mask(shape, like)


class Outputs(nn.Module):
    """The last layers of a head with more outputs than the logits (B, K), all of which become a `HeadOutput`.

    The class logits (B, C) are a linear layer on the last hidden layer. The log-odds (B, C) are a network with one hidden
    layer on the features. Their gradients do not reach other layers, so that codes are the same with and without them.
    """

    def __init__(
        self, code: nn.Module, features: int, width: int, classes: int, options: HeadOptions
    ) -> None:
        super().__init__()
        self.code = code
        self.evidence = nn.Linear(width, classes) if options.evidence else None
        self.presence: nn.Sequential | None = None
        if options.presence:
            units = options.presence_hidden or LABEL_UNITS
            hidden = (nn.Linear(features, units, bias=False), nn.BatchNorm1d(units), nn.ReLU())
            dropout = IsolatedDropout(options.dropout)
            self.presence = nn.Sequential(*hidden, dropout, nn.Linear(units, classes))

    def forward(self, hidden: Tensor, features: Tensor) -> HeadOutput:
        """Compute all outputs from the last hidden layer (B, H) and from standardized features (B, D)."""
        return HeadOutput(
            self.code(hidden),
            None if self.evidence is None else self.evidence(hidden.detach()),
            None if self.presence is None else self.presence(features),
        )


class Head(nn.Sequential):
    """The layers from features (B, D) to a `HeadOutput`; stored tensors are named by the position of their layer."""

    @property
    def rotation(self) -> Rotation | None:
        """The layer that rotates the logits; None if there is none."""
        return next((layer for layer in self.modules() if isinstance(layer, Rotation)), None)

    @torch.no_grad()
    def add_to_evidence(self, offsets: Tensor) -> None:
        """Add offsets (C,) to the class logits of all images, in place."""
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
            # The first dropout returns the standardized features.
            if inputs is None and isinstance(layer, nn.Dropout):
                inputs = hidden
        return HeadOutput(hidden)


def build_head(features: int, bits: int, options: HeadOptions, classes: int = 0) -> Head:
    """Build a head: batch norm, dropout, then (linear, batch norm, ReLU, dropout) per hidden layer, then linear to K.

    If `options.evidence` or `options.presence` is set, it also has these outputs for C classes.
    """
    layers: list[nn.Module] = [nn.BatchNorm1d(features, affine=False)] if options.standardise else []
    layers.append(Dropout(options.input_dropout))
    width = features
    for hidden in options.hidden:
        # The bias of a batch norm replaces that of the layer before it.
        layers.append(nn.Linear(width, hidden, bias=not options.hidden_norm))
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
    """Return rows of features (N, D) as float32; torch converts from float16 ten times as fast as numpy.

    Rows of a slice may share memory with the features, so do not change them.
    """
    return torch.from_numpy(np.require(features[rows], requirements=["C", "W"])).float()


class BatchInvariantHead:
    """A trained head whose codes do not depend on which rows are computed together."""

    def __init__(self, head: Head) -> None:
        self._head = head.eval()
        self._precise = copy.deepcopy(head).double()

    def outputs(self, features: NDArray[Any]) -> HeadOutput:
        """Compute the outputs of the head for features (N, D), as float64."""
        with torch.inference_mode():
            rows = float_rows(features)
            output: HeadOutput = self._head(rows).each(Tensor.double)
            sizes = output.logits.abs()
            unsafe = (sizes < _UNSAFE_SHARE * sizes.amax(dim=1, keepdim=True).clamp_min(1)).any(dim=1)
            if bool(unsafe.any()):
                for values, precise in zip(output, self._precise(rows[unsafe].double()), strict=True):
                    if values is not None:
                        values[unsafe] = precise
            return output
