"""METHODS: one frozen row per method, from which the command line, the docs and the contract tests follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from centerhash.errors import unknown_name
from centerhash.options import MethodOptions, read_options

if TYPE_CHECKING:
    from centerhash.losses.central import CentralObjective

Family: TypeAlias = Literal["central"]


@dataclass(frozen=True)
class Method:
    """One method: what it is, where it comes from, and how to make it."""

    name: str
    title: str
    family: Family
    paper: str
    year: int
    uses_labels: bool
    multi_label: str  # how it treats an image with several labels
    load: Callable[[], tuple[type[CentralObjective], type[MethodOptions]]]
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # where they differ

    def options(self, values: Mapping[str, Any], bits: int) -> MethodOptions:
        """Options of this method from loose values, checked and filled in for the number of bits."""
        kind = self.load()[1]
        written = {name: item.alias or name for name, item in kind.model_fields.items()}
        given = {written.get(key, key): value for key, value in {**self.defaults, **values}.items()}
        return read_options(kind, given, f"method '{self.name}'").for_bits(bits)

    def objective(self, centers: Any, options: MethodOptions, seed: int) -> CentralObjective:
        """The loss with its weights, for centers (C, K)."""
        kind: Callable[..., CentralObjective] = self.load()[0]
        return kind(centers, options, seed)


def _central(name: str) -> Callable[[], tuple[type[CentralObjective], type[MethodOptions]]]:
    """Import the class only when it is used: listing methods must not load torch."""

    def load() -> tuple[type[CentralObjective], type[MethodOptions]]:
        from centerhash.losses import central

        return getattr(central, name), getattr(central, f"{name}Options")

    return load


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
                load=_central("Csq"),
            ),
            Method(
                name="ewcs",
                title="E-WCS",
                family="central",
                paper=_ICS_PAPER + ", the equal-weight ablation",
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, each with weight 1/c",
                load=_central("Ewcs"),
            ),
            Method(
                name="ics",
                title="ICS",
                family="central",
                paper=_ICS_PAPER,
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, weights solved per image (exact minimiser)",
                load=_central("Ics"),
            ),
            Method(
                name="ics-printed",
                title="ICS as printed",
                family="central",
                paper=_ICS_PAPER + ", every equation as printed",
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, weights by ten steps of the printed gradient",
                load=_central("Ics"),
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
                load=_central("IcsSoftmax"),
            ),
        )
    }
)


def get_method(name: str) -> Method:
    """Return the row of `name`, or raise ConfigError with the nearest valid name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, "See `centerhash methods`.")
    return METHODS[name]
