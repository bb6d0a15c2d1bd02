"""METHODS: one frozen row per method, from which the command line, the docs and the contract tests follow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from centerhash.core.errors import ConfigError, unknown_name
from centerhash.core.options import MethodOptions, read_options

if TYPE_CHECKING:
    from torch import Tensor

    from centerhash.methods.losses.base import Objective
    from centerhash.methods.shallow.base import ShallowHash

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
    head: Mapping[str, bool] = field(
        default_factory=lambda: MappingProxyType({})
    )  # what its head has beside the usual layers: divide, rotate, evidence
    training: Mapping[str, Any] = field(
        default_factory=lambda: MappingProxyType({})
    )  # where it wants another

    def options_class(self) -> type[MethodOptions]:
        """The class of this method's options."""
        options: type[MethodOptions] = self._load("Options")
        return options

    def options(self, values: Mapping[str, Any], bits: int) -> MethodOptions:
        """Options of this method from loose values, checked and filled in for the number of bits."""
        kind = self.options_class()
        shown = {name: item.alias or name for name, item in kind.model_fields.items()}
        if len({shown.get(key, key) for key in values}) < len(values):
            raise ConfigError(
                f"an option of method '{self.name}' is given twice: {', '.join(sorted(values))}."
            )
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
                name="lsh",
                title="LSH",
                family="shallow",
                paper="Similarity Search in High Dimensions via Hashing (Gionis et al.); random hyperplanes (Charikar)",
                year=1999,
                uses_labels=False,
                multi_label="labels are not used",
                home="methods.shallow.projections:Lsh",
            ),
            Method(
                name="sh",
                title="SH",
                family="shallow",
                paper="Spectral Hashing (Weiss, Torralba and Fergus)",
                year=2009,
                uses_labels=False,
                multi_label="labels are not used",
                home="methods.shallow.projections:Sh",
            ),
            Method(
                name="itq",
                title="ITQ",
                family="shallow",
                paper="Iterative Quantization (Gong and Lazebnik)",
                year=2013,
                uses_labels=False,
                multi_label="labels are not used",
                home="methods.shallow.projections:Itq",
            ),
            Method(
                name="bre",
                title="BRE",
                family="shallow",
                paper="Learning to Hash with Binary Reconstructive Embeddings (Kulis and Darrell)",
                year=2009,
                uses_labels=True,
                multi_label="two images are similar when they share a label",
                home="methods.shallow.bre:Bre",
            ),
            Method(
                name="ksh",
                title="KSH",
                family="shallow",
                paper="Supervised Hashing with Kernels (Liu et al.)",
                year=2012,
                uses_labels=True,
                multi_label="two images are similar when they share a label",
                home="methods.shallow.ksh:Ksh",
            ),
            Method(
                name="sdh",
                title="SDH",
                family="shallow",
                paper="Supervised Discrete Hashing (Shen et al.)",
                year=2015,
                uses_labels=True,
                multi_label="codes predict the row of labels by least squares",
                home="methods.shallow.sdh:Sdh",
            ),
            Method(
                name="cnnh",
                title="CNNH",
                family="two-stage",
                paper="Supervised Hashing for Image Retrieval via Image Representation Learning (Xia et al.)",
                year=2014,
                uses_labels=True,
                multi_label="two images are similar when they share a label",
                home="methods.losses.two_stage:Cnnh",
                training=MappingProxyType({"learning_rate": 1e-3}),
            ),
            Method(
                name="dnnh",
                title="DNNH",
                family="triplet",
                paper="Simultaneous Feature Learning and Hash Coding with Deep Neural Networks (Lai et al.)",
                year=2015,
                uses_labels=True,
                multi_label="an image is nearer to one that shares a label than to one that shares none",
                home="methods.losses.triplet:Dnnh",
                head=MappingProxyType({"divide": True}),
            ),
            Method(
                name="dhn",
                title="DHN",
                family="pairwise",
                paper="Deep Hashing Network for Efficient Similarity Retrieval (Zhu et al.)",
                year=2016,
                uses_labels=True,
                multi_label="two images are similar when they share a label",
                home="methods.losses.pairwise:Dhn",
            ),
            Method(
                name="hashnet",
                title="HashNet",
                family="pairwise",
                paper="HashNet: Deep Learning to Hash by Continuation (Cao et al.)",
                year=2017,
                uses_labels=True,
                multi_label="two images are similar when they share a label, weighted by how rare such pairs are",
                home="methods.losses.pairwise:HashNet",
            ),
            Method(
                name="dch",
                title="DCH",
                family="pairwise",
                paper="Deep Cauchy Hashing for Hamming Space Retrieval (Cao et al.)",
                year=2018,
                uses_labels=True,
                multi_label="two images are similar when they share a label, weighted by how rare such pairs are",
                home="methods.losses.pairwise:Dch",
            ),
            Method(
                name="csq",
                title="CSQ",
                family="central",
                paper="Central Similarity Quantization for Efficient Image and Video Retrieval (Yuan et al.)",
                year=2020,
                uses_labels=True,
                multi_label="one centroid: majority of the labels' centers, ties from one random vector",
                home="methods.losses.central:Csq",
            ),
            Method(
                name="ewcs",
                title="E-WCS",
                family="central",
                paper=_ICS_PAPER + ", the equal-weight ablation",
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, each with weight 1/c",
                home="methods.losses.central:Ewcs",
            ),
            Method(
                name="ics",
                title="ICS",
                family="central",
                paper=_ICS_PAPER,
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, weights solved per image (exact minimiser)",
                home="methods.losses.central:Ics",
            ),
            Method(
                name="ics-printed",
                title="ICS as printed",
                family="central",
                paper=_ICS_PAPER + ", every equation as printed",
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels, weights by ten steps of the printed gradient",
                home="methods.losses.central:Ics",
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
                name="orthohash",
                title="OrthoHash",
                family="central",
                paper="One Loss for All: Deep Hashing with a Single Cosine Similarity (Hoe et al.)",
                year=2021,
                uses_labels=True,
                multi_label="all centers of the labels against all others, each with weight 1/c",
                home="methods.losses.orthohash:OrthoHash",
            ),
            Method(
                name="hyp2",
                title="HyP2",
                family="pairwise",
                paper="HyP2 Loss: Beyond Hypersphere Metric Space for Multi-label Image Retrieval (Xu et al.)",
                year=2022,
                uses_labels=True,
                multi_label="near the learned proxy of every label; apart from images that share none",
                home="methods.losses.proxy:Hyp2",
                training=MappingProxyType({"learning_rate": 1e-3}),
            ),
            Method(
                name="ics-softmax",
                title="ICS-softmax (ours)",
                family="central",
                paper="this project: ICS with a softmax likelihood over all centers, weights of their own, turned codes",
                year=2026,
                uses_labels=True,
                multi_label="all centers of the labels against all others, weights solved per image",
                home="methods.losses.softmax:IcsSoftmax",
                head=MappingProxyType({"rotate": True, "evidence": True}),
            ),
        )
    }
)


def get_method(name: str) -> Method:
    """Return the row of `name`, or raise ConfigError with the nearest valid name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, "See `centerhash methods`.")
    return METHODS[name]
