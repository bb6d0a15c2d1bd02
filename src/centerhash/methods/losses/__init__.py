"""The losses, public as `centerhash.losses`: one file per family, one small function per equation.

    loss = ICS(centers)(logits, labels)     # a scalar Tensor

Central: ICS, IcsSoftmax, CSQ, DPN, EWCS, OrthoHash, MDSH, from hash centers (C, K). Pairs and triplets: DPSH, DHN,
HashNet, DCH, IDHN, DNNH. Learned proxies: HyP2. A classifier on the codes: GreedyHash. Codes found first: CNNH. A loss
of one's own is a class on `Objective` or `CentralObjective`.
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
    from centerhash.methods.losses.dpn import DPN, DPNOptions
    from centerhash.methods.losses.greedyhash import GreedyHash, GreedyHashOptions
    from centerhash.methods.losses.mdsh import MDSH, MDSHOptions
    from centerhash.methods.losses.orthohash import OrthoHash, OrthoHashOptions
    from centerhash.methods.losses.pairwise import (
        DCH,
        DHN,
        DPSH,
        IDHN,
        DCHOptions,
        DHNOptions,
        DPSHOptions,
        HashNet,
        HashNetOptions,
        IDHNOptions,
    )
    from centerhash.methods.losses.proxy import HyP2, HyP2Options
    from centerhash.methods.losses.softmax import IcsSoftmax, IcsSoftmaxOptions
    from centerhash.methods.losses.triplet import DNNH, DNNHOptions
    from centerhash.methods.losses.two_stage import CNNH, CNNHOptions

# imported on first use: torch takes a second
_HOMES = {
    "base": ("Batch", "LossTerms", "MethodOptions", "Objective"),
    "central": ("CSQ", "EWCS", "ICS", "CentralObjective", "CSQOptions", "EWCSOptions", "ICSOptions"),
    "dpn": ("DPN", "DPNOptions"),
    "greedyhash": ("GreedyHash", "GreedyHashOptions"),
    "mdsh": ("MDSH", "MDSHOptions"),
    "orthohash": ("OrthoHash", "OrthoHashOptions"),
    "pairwise": (
        "DCH",
        "DHN",
        "DPSH",
        "IDHN",
        "DCHOptions",
        "DHNOptions",
        "DPSHOptions",
        "HashNet",
        "HashNetOptions",
        "IDHNOptions",
    ),
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
    "DPN",
    "DPSH",
    "EWCS",
    "ICS",
    "IDHN",
    "MDSH",
    "Batch",
    "CNNHOptions",
    "CSQOptions",
    "CentralObjective",
    "DCHOptions",
    "DHNOptions",
    "DNNHOptions",
    "DPNOptions",
    "DPSHOptions",
    "EWCSOptions",
    "GreedyHash",
    "GreedyHashOptions",
    "HashNet",
    "HashNetOptions",
    "HyP2",
    "HyP2Options",
    "ICSOptions",
    "IDHNOptions",
    "IcsSoftmax",
    "IcsSoftmaxOptions",
    "LossTerms",
    "MDSHOptions",
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
