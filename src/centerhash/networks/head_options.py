"""The options of the head; in a module without torch, since the command line builds options from them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from centerhash.core.options import Options, setting

# The hidden layer of the label probabilities has this many units by default.
LABEL_UNITS = 1024


class HeadOptions(Options):
    """Options of the layers from features to logits, with the best defaults on a validation split."""

    standardise: bool = Field(True, description="standardize every feature to mean 0 and variance 1")
    input_dropout: float = Field(0.5, ge=0, lt=1, description="dropout on the features")
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = setting(
        (1024,), "widths of the hidden layers, e.g. 1024 or 2048,512; 0 for none", "Head", shown="1024"
    )
    hidden_norm: bool = Field(True, description="batch norm before each ReLU")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout after each hidden layer")
    logit_norm: bool = Field(False, description="batch norm on the logits")
    divide: bool | None = Field(
        None, description="one slice of the last layer per bit; None: the default of the method"
    )
    rotate: bool | None = setting(
        None, "rotate the trained logits to reduce the quantization error", "Head", shown="the method's"
    )
    evidence: bool | None = setting(None, "add class logits, for label weights", "Head", shown="the method's")
    presence: bool | None = setting(
        None, "add label probabilities, for searches by labels", "Head", shown="the method's"
    )
    presence_hidden: int | None = Field(
        None, ge=1, description="units of the hidden layer of the label probabilities; None: 1024"
    )
