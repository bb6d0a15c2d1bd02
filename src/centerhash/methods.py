"""METHODS: one frozen row per method, from which the command line, the docs and the contract tests follow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from centerhash.errors import unknown_name
from centerhash.options import MethodOptions, read_options

if TYPE_CHECKING:
    from torch import Tensor

    from centerhash.losses.base import Objective
    from centerhash.shallow.base import ShallowHash

Family: TypeAlias = Literal["central", "pairwise", "triplet", "two-stage", "shallow"]


@dataclass(frozen=True)
class Method:
    """One method: what it is, where it comes from, and where its class and its options are."""

    name: str
    title: str
    family: Family
    paper: str
    year: int
    uses_labels: bool
    multi_label: str  # how it treats an image with several labels
    home: str  # "module:Class" below centerhash; its options are the class of the same name with "Options"
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # where they differ

    def options_class(self) -> type[MethodOptions]:
        """The class of this method's options."""
        options: type[MethodOptions] = self._load("Options")
        return options

    def options(self, values: Mapping[str, Any], bits: int) -> MethodOptions:
        """Options of this method from loose values, checked and filled in for the number of bits."""
        kind = self.options_class()
        shown = {name: item.alias or name for name, item in kind.model_fields.items()}
        given = {shown.get(key, key): value for key, value in {**self.defaults, **values}.items()}
        return read_options(kind, given, f"method '{self.name}'").for_bits(bits)

    def objective(
        self, classes: int, bits: int, centers: Tensor | None, options: MethodOptions, seed: int
    ) -> Objective:
        """The loss of a deep method; central ones are given their centers (C, K)."""
        kind: Callable[..., Objective] = self._load()
        return (
            kind(centers, options, seed) if self.family == "central" else kind(classes, bits, options, seed)
        )

    def shallow_class(self) -> type[ShallowHash]:
        """The class of a shallow method."""
        kind: type[ShallowHash] = self._load()
        return kind

    def _load(self, suffix: str = "") -> Any:
        """Import the class only when it is used: listing methods must not load torch."""
        module, name = self.home.split(":")
        return getattr(importlib.import_module(f"centerhash.{module}"), name + suffix)


_ICS_PAPER = "Instance-weighted Central Similarity for Multi-label Image Retrieval (Zhang and Peng)"

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        row.name: row
        for row in (
            Method(
                name="csq",
                title="CSQ",
                family="central",
                paper="Central Similarity Quantization for Efficient Image and Video Retrieval (Yuan et al.)",
                year=2020,
                uses_labels=True,
                multi_label="one centroid: majority of the labels' centers, ties from one random vector",
                home="losses.central:Csq",
            ),
            Method(
                name="ewcs",
                title="E-WCS",
                family="central",
                paper=_ICS_PAPER + ", the equal-weight ablation",
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, each with weight 1/c",
                home="losses.central:Ewcs",
            ),
            Method(
                name="ics",
                title="ICS",
                family="central",
                paper=_ICS_PAPER,
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, weights solved per image (exact minimiser)",
                home="losses.central:Ics",
            ),
            Method(
                name="ics-printed",
                title="ICS as printed",
                family="central",
                paper=_ICS_PAPER + ", every equation as printed",
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, weights by ten steps of the printed gradient",
                home="losses.central:Ics",
                defaults=MappingProxyType(
                    {
                        "solver": "printed",
                        "form": "per_center",
                        "normalised": False,
                        "per_bit": False,
                        "lambda": 0.01,
                        "gamma": 0.05,
                    }
                ),
            ),
            Method(
                name="ics-softmax",
                title="ICS-softmax (ours)",
                family="central",
                paper="this project: ICS with a softmax likelihood over all centers",
                year=2026,
                uses_labels=True,
                multi_label="all centers of the labels against all others, weights solved per image",
                home="losses.central:IcsSoftmax",
            ),
        )
    }
)


def get_method(name: str) -> Method:
    """Return the row of `name`, or raise ConfigError with the nearest valid name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, "See `centerhash methods`.")
    return METHODS[name]
