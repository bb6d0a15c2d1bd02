"""The losses, public as `centerhash.losses`: one small function per equation, one thin class per method.

    loss = ICS(centers)(logits, labels)     # a scalar Tensor

Central: ICS, IcsSoftmax, CSQ, DPN, EWCS, OrthoHash, MDSH, from hash centers (C, K); LSCSH, SHC and CRH, which change
them. Pairs and triplets: DPSH, DHN, HashNet, DCH, IDHN, DNNH. Learned vectors per class: HyP2, GreedyHash. Codes found
first: CNNH. A custom loss is a class on `Objective` or `CentralObjective`.
"""

from __future__ import annotations

from centerhash.core.options import MethodOptions
from centerhash.methods.losses.base import Batch, CentralObjective, LossTerms, Objective
from centerhash.methods.losses.central import (
    CSQ,
    DPN,
    EWCS,
    ICS,
    CSQOptions,
    DPNOptions,
    EWCSOptions,
    ICSOptions,
)
from centerhash.methods.losses.pairwise import (
    DCH,
    DHN,
    DNNH,
    DPSH,
    IDHN,
    DCHOptions,
    DHNOptions,
    DNNHOptions,
    DPSHOptions,
    HashNet,
    HashNetOptions,
    IDHNOptions,
)
from centerhash.methods.losses.proxy import GreedyHash, GreedyHashOptions, HyP2, HyP2Options
from centerhash.methods.losses.softmax import (
    MDSH,
    IcsSoftmax,
    IcsSoftmaxOptions,
    MDSHOptions,
    OrthoHash,
    OrthoHashOptions,
)
from centerhash.methods.losses.successors import (
    CRH,
    LSCSH,
    SHC,
    CRHOptions,
    LSCSHOptions,
    SHCOptions,
)
from centerhash.methods.losses.two_stage import CNNH, CNNHOptions

__all__ = [
    "CNNH",
    "CRH",
    "CSQ",
    "DCH",
    "DHN",
    "DNNH",
    "DPN",
    "DPSH",
    "EWCS",
    "ICS",
    "IDHN",
    "LSCSH",
    "MDSH",
    "SHC",
    "Batch",
    "CNNHOptions",
    "CRHOptions",
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
    "LSCSHOptions",
    "LossTerms",
    "MDSHOptions",
    "MethodOptions",
    "Objective",
    "OrthoHash",
    "OrthoHashOptions",
    "SHCOptions",
]


def __dir__() -> list[str]:
    return __all__
