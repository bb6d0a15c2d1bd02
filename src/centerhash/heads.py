"""The head: features (B, D) to logits (B, K)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from centerhash.losses.triplet import DivideAndEncode
from centerhash.options import Options


class HeadOptions(Options):
    """Layers between the features and the bits; the defaults are what a validation split preferred."""

    standardise: bool = Field(True, description="bring every feature to mean 0 and variance 1")
    input_dropout: float = Field(0.5, ge=0, lt=1, description="dropout on the features")
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1024,), description="widths of the hidden layers; none for a linear head"
    )
    hidden_norm: bool = Field(True, description="batch norm before each ReLU")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout after each hidden layer")
    logit_norm: bool = Field(False, description="batch norm on the logits: centres and balances every bit")
    divide: bool | None = Field(
        None, description="one slice of the last layer per bit; None: as the method has it"
    )


def build_head(features: int, bits: int, options: HeadOptions) -> nn.Sequential:
    """Standardise, dropout, then (linear, norm, ReLU, dropout) per hidden width, then linear to K bits."""
    layers: list[nn.Module] = []
    if options.standardise:
        layers.append(nn.BatchNorm1d(features, affine=False))
    layers.append(nn.Dropout(options.input_dropout))
    width = features
    for hidden in options.hidden:
        layers.append(nn.Linear(width, hidden, bias=not options.hidden_norm))  # a norm has a bias of its own
        if options.hidden_norm:
            layers.append(nn.BatchNorm1d(hidden))
        layers += [nn.ReLU(), nn.Dropout(options.dropout)]
        width = hidden
    last = (
        DivideAndEncode(width, bits)
        if options.divide
        else nn.Linear(width, bits, bias=not options.logit_norm)
    )
    layers.append(last)
    if options.logit_norm:
        layers.append(nn.BatchNorm1d(bits))
    return nn.Sequential(*layers)
