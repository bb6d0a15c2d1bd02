"""The losses, public as `centerhash.losses`: one file per family, one small function per equation.

    loss = ICS(centers)(logits, labels)     # a scalar Tensor

Central: ICS, IcsSoftmax, CSQ, EWCS, OrthoHash, from hash centers (C, K). Pairs and triplets: DHN, HashNet, DCH, DNNH.
Learned proxies: HyP2. Codes found first: CNNH. A loss of one's own is a class on `Objective` or `CentralObjective`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from centerhash.core.options import MethodOptions
    from centerhash.methods.losses.base import Batch, LossTerms, Objective
    from centerhash.methods.losses.central import (
        CSQ,
        EWCS,
        ICS,
        CentralObjective,
        CSQOptions,
        EWCSOptions,
        ICSOptions,
    )
    from centerhash.methods.losses.orthohash import OrthoHash, OrthoHashOptions
    from centerhash.methods.losses.pairwise import DCH, DHN, DCHOptions, DHNOptions, HashNet, HashNetOptions
    from centerhash.methods.losses.proxy import HyP2, HyP2Options
    from centerhash.methods.losses.softmax import IcsSoftmax, IcsSoftmaxOptions
    from centerhash.methods.losses.triplet import DNNH, DNNHOptions
    from centerhash.methods.losses.two_stage import CNNH, CNNHOptions

# imported on first use: torch takes a second
_HOMES = {
    "base": ("Batch", "LossTerms", "MethodOptions", "Objective"),
    "central": ("CSQ", "EWCS", "ICS", "CentralObjective", "CSQOptions", "EWCSOptions", "ICSOptions"),
    "orthohash": ("OrthoHash", "OrthoHashOptions"),
    "pairwise": ("DCH", "DHN", "DCHOptions", "DHNOptions", "HashNet", "HashNetOptions"),
    "proxy": ("HyP2", "HyP2Options"),
    "softmax": ("IcsSoftmax", "IcsSoftmaxOptions"),
    "triplet": ("DNNH", "DNNHOptions"),
    "two_stage": ("CNNH", "CNNHOptions"),
}

__all__ = [
    "CNNH",
    "CSQ",
    "DCH",
    "DHN",
    "DNNH",
    "EWCS",
    "ICS",
    "Batch",
    "CNNHOptions",
    "CSQOptions",
    "CentralObjective",
    "DCHOptions",
    "DHNOptions",
    "DNNHOptions",
    "EWCSOptions",
    "HashNet",
    "HashNetOptions",
    "HyP2",
    "HyP2Options",
    "ICSOptions",
    "IcsSoftmax",
    "IcsSoftmaxOptions",
    "LossTerms",
    "MethodOptions",
    "Objective",
    "OrthoHash",
    "OrthoHashOptions",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
