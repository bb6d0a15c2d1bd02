"""The head: features (B, D) to logits (B, K)."""

from __future__ import annotations

from pydantic import Field
from torch import nn

from centerhash.options import Options


class HeadOptions(Options):
    """Layers between the features and the bits."""

    hidden: tuple[int, ...] = Field(
        (1024,), description="widths of the hidden layers; none for a linear head"
    )
    input_dropout: float = Field(0.3, ge=0, lt=1, description="dropout on the features")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout after each hidden layer")
    batch_norm: bool = Field(True, description="batch norm on the logits: centres and balances every bit")


def build_head(features: int, bits: int, options: HeadOptions) -> nn.Sequential:
    """Dropout, then (linear, ReLU, dropout) per hidden width, then linear to K bits and batch norm."""
    layers: list[nn.Module] = [nn.Dropout(options.input_dropout)]
    width = features
    for hidden in options.hidden:
        layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(options.dropout)]
        width = hidden
    # batch norm has a bias of its own
    layers.append(nn.Linear(width, bits, bias=not options.batch_norm))
    if options.batch_norm:
        layers.append(nn.BatchNorm1d(bits))
    return nn.Sequential(*layers)
