"""METHODS: one frozen row per method, from which the command line, the docs and the contract tests follow."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from centerhash.core.errors import ConfigError, UnknownMethodError, unknown_name
from centerhash.core.options import MethodOptions, options_beside, read_options

if TYPE_CHECKING:
    from torch import Tensor

    from centerhash.methods.losses.base import Objective
    from centerhash.methods.shallow.base import ShallowHash

Family: TypeAlias = Literal["central", "pairwise", "triplet", "two-stage", "shallow", "other"]

frozen = MappingProxyType


def _nothing() -> Mapping[str, Any]:
    return frozen({})


@dataclass(frozen=True)
class Method:
    """One method: what it is, where it comes from, and where its class is."""

    name: str
    title: str
    family: Family
    paper: str
    year: int
    home: str  # "module:Class"; of a built-in method below centerhash
    uses_labels: bool = True
    multi_label: str = "labels are not used"  # how it treats an image with several labels
    # of its options, where they differ from the class's
    defaults: Mapping[str, Any] = field(default_factory=_nothing)
    # what its head has beside the usual layers: divide, rotate, evidence, presence
    head: Mapping[str, bool] = field(default_factory=_nothing)
    # settings of the training, where it wants another
    training: Mapping[str, Any] = field(default_factory=_nothing)
    registered: type | None = field(default=None, repr=False)  # the class, of a method that is not built in

    def options_class(self) -> type[MethodOptions]:
        """The class of this method's options."""
        return options_beside(self.load())

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
        """The loss of a deep method, given what its constructor asks for by name."""
        kind = self.load()
        offered = {"centers": centers, "classes": classes, "bits": bits, "seed": seed}
        wanted = inspect.signature(kind).parameters
        loss: Objective = kind(
            **{name: value for name, value in offered.items() if name in wanted}, options=options
        )
        return loss

    def shallow_class(self) -> type[ShallowHash]:
        """The class of a shallow method."""
        kind: type[ShallowHash] = self.load()
        return kind

    def load(self) -> Any:
        """The method's class, imported only when it is used: listing methods must not load torch."""
        if self.registered is not None:
            return self.registered
        module, name = self.home.split(":")
        return getattr(importlib.import_module(f"centerhash.{module}"), name)


_ICS_PAPER = "Instance-weighted Central Similarity for Multi-label Image Retrieval (Zhang and Peng)"

_ROWS: dict[str, Method] = {
    row.name: row
    for row in (
        Method(
            name="lsh",
            title="LSH",
            family="shallow",
            paper="Similarity Search in High Dimensions via Hashing (Gionis et al.); random hyperplanes (Charikar)",
            year=1999,
            uses_labels=False,
            home="methods.shallow.projections:Lsh",
            defaults=frozen({"unit": False}),
        ),
        Method(
            name="sh",
            title="SH",
            family="shallow",
            paper="Spectral Hashing (Weiss, Torralba and Fergus)",
            year=2009,
            uses_labels=False,
            home="methods.shallow.projections:Sh",
        ),
        Method(
            name="itq",
            title="ITQ",
            family="shallow",
            paper="Iterative Quantization (Gong and Lazebnik)",
            year=2013,
            uses_labels=False,
            home="methods.shallow.projections:Itq",
        ),
        Method(
            name="bre",
            title="BRE",
            family="shallow",
            paper="Learning to Hash with Binary Reconstructive Embeddings (Kulis and Darrell)",
            year=2009,
            multi_label="two images are similar when they share a label",
            home="methods.shallow.bre:Bre",
        ),
        Method(
            name="ksh",
            title="KSH",
            family="shallow",
            paper="Supervised Hashing with Kernels (Liu et al.)",
            year=2012,
            multi_label="two images are similar when they share a label",
            home="methods.shallow.ksh:Ksh",
        ),
        Method(
            name="sdh",
            title="SDH",
            family="shallow",
            paper="Supervised Discrete Hashing (Shen et al.)",
            year=2015,
            multi_label="codes predict the row of labels by least squares",
            home="methods.shallow.sdh:Sdh",
        ),
        Method(
            name="cnnh",
            title="CNNH",
            family="two-stage",
            paper="Supervised Hashing for Image Retrieval via Image Representation Learning (Xia et al.)",
            year=2014,
            multi_label="two images are similar when they share a label",
            home="methods.losses.two_stage:CNNH",
            training=frozen({"learning_rate": 1e-3}),
        ),
        Method(
            name="dnnh",
            title="DNNH",
            family="triplet",
            paper="Simultaneous Feature Learning and Hash Coding with Deep Neural Networks (Lai et al.)",
            year=2015,
            multi_label="an image is nearer to one that shares a label than to one that shares none",
            home="methods.losses.triplet:DNNH",
            head=frozen({"divide": True}),
        ),
        Method(
            name="dpsh",
            title="DPSH",
            family="pairwise",
            paper="Feature Learning based Deep Supervised Hashing with Pairwise Labels (Li, Wang and Kang)",
            year=2016,
            multi_label="two images are similar when they share a label",
            home="methods.losses.pairwise:DPSH",
            training=frozen({"learning_rate": 1e-3}),
        ),
        Method(
            name="dhn",
            title="DHN",
            family="pairwise",
            paper="Deep Hashing Network for Efficient Similarity Retrieval (Zhu et al.)",
            year=2016,
            multi_label="two images are similar when they share a label",
            home="methods.losses.pairwise:DHN",
            training=frozen({"learning_rate": 2e-3}),
        ),
        Method(
            name="hashnet",
            title="HashNet",
            family="pairwise",
            paper="HashNet: Deep Learning to Hash by Continuation (Cao et al.)",
            year=2017,
            multi_label="two images are similar when they share a label, weighted by how rare such pairs are",
            home="methods.losses.pairwise:HashNet",
            training=frozen({"learning_rate": 1e-3}),
        ),
        Method(
            name="dch",
            title="DCH",
            family="pairwise",
            paper="Deep Cauchy Hashing for Hamming Space Retrieval (Cao et al.)",
            year=2018,
            multi_label="two images are similar when they share a label, weighted by how rare such pairs are",
            home="methods.losses.pairwise:DCH",
            training=frozen({"learning_rate": 2e-3}),
        ),
        Method(
            name="greedyhash",
            title="GreedyHash",
            family="other",
            paper="Greedy Hash: Towards Fast Optimization for Accurate Hash Coding in CNN (Su et al.)",
            year=2018,
            multi_label="a linear classifier on the code shares its choice among the labels",
            home="methods.losses.greedyhash:GreedyHash",
            training=frozen({"learning_rate": 1e-3}),
        ),
        Method(
            name="idhn",
            title="IDHN",
            family="pairwise",
            paper="Improved Deep Hashing with Soft Pairwise Similarity for Multi-label Image Retrieval (Zhang et al.)",
            year=2019,
            multi_label="two images are as similar as the cosine of their labels says",
            home="methods.losses.pairwise:IDHN",
            training=frozen({"learning_rate": 2e-3}),
        ),
        Method(
            name="csq",
            title="CSQ",
            family="central",
            paper="Central Similarity Quantization for Efficient Image and Video Retrieval (Yuan et al.)",
            year=2020,
            multi_label="one centroid: majority of the labels' centers, ties from one random vector",
            home="methods.losses.central:CSQ",
        ),
        Method(
            name="dpn",
            title="DPN",
            family="central",
            paper="Deep Polarized Network for Supervised Learning of Accurate Binary Hashing Codes (Fan et al.)",
            year=2020,
            multi_label="one centroid: majority of the labels' centers, ties from one random vector",
            home="methods.losses.dpn:DPN",
        ),
        Method(
            name="ewcs",
            title="E-WCS",
            family="central",
            paper=_ICS_PAPER + ", the equal-weight ablation",
            year=2021,
            multi_label="all centers of the labels, each with weight 1/c",
            home="methods.losses.central:EWCS",
            training=frozen({"centers": "random"}),
        ),
        Method(
            name="ics",
            title="ICS",
            family="central",
            paper=_ICS_PAPER,
            year=2021,
            multi_label="all centers of the labels, weights solved per image (exact minimiser)",
            home="methods.losses.central:ICS",
            training=frozen({"learning_rate": 2e-3}),
        ),
        Method(
            name="ics-printed",
            title="ICS as printed",
            family="central",
            paper=_ICS_PAPER + ", every equation as printed",
            year=2021,
            multi_label="all centers of the labels, weights by ten steps of the printed gradient",
            home="methods.losses.central:ICS",
            defaults=frozen(
                {
                    "solver": "printed",
                    "form": "per_center",
                    "normalised": False,
                    "per_bit": False,
                    "lambda": 0.1,
                    "gamma": 0.05,
                }
            ),
            training=frozen({"centers": "printed", "assignment": "random"}),
        ),
        Method(
            name="orthohash",
            title="OrthoHash",
            family="central",
            paper="One Loss for All: Deep Hashing with a Single Cosine Similarity (Hoe et al.)",
            year=2021,
            multi_label="all centers of the labels against all others, each with weight 1/c",
            home="methods.losses.orthohash:OrthoHash",
            training=frozen({"learning_rate": 2e-3}),
        ),
        Method(
            name="hyp2",
            title="HyP2",
            family="pairwise",
            paper="HyP2 Loss: Beyond Hypersphere Metric Space for Multi-label Image Retrieval (Xu et al.)",
            year=2022,
            multi_label="near the learned proxy of every label; apart from images that share none",
            home="methods.losses.proxy:HyP2",
        ),
        Method(
            name="mdsh",
            title="MDSH",
            family="central",
            paper="Deep Hashing with Minimal-Distance-Separated Hash Centers (Wang et al.)",
            year=2023,
            multi_label="a softmax over all centers says yes to each label's and no to all others",
            home="methods.losses.mdsh:MDSH",
            training=frozen({"centers": "mdsh"}),
        ),
        Method(
            name="ics-softmax",
            title="ICS-softmax (ours)",
            family="central",
            paper="this project: ICS with a softmax likelihood over all centers, weights of their own, rotated codes",
            year=2026,
            multi_label="all centers of the labels against all others, weights solved per image",
            home="methods.losses.softmax:IcsSoftmax",
            training=frozen({"learning_rate": 1e-3}),
            head=frozen({"rotate": True, "evidence": True, "presence": True}),
        ),
    )
}

# all methods by name, with those that were registered
METHODS: Mapping[str, Method] = MappingProxyType(_ROWS)


def get_method(name: str) -> Method:
    """The row of a method by its name, or of a class of one's own: "my_method.py:Hinge", "package.module:Hinge".

    Naming a class runs the file that holds it; `stored_method` never does.
    """
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        from centerhash.methods.registration import load_method

        return load_method(name)
    raise unknown_name("method", name, METHODS, "Or give a class of your own as 'my_method.py:Class'.")


def stored_method(name: str) -> Method:
    """The row of the method that a stored model names; runs no code on the word of a file that came from elsewhere.

    A class of one's own must be registered, or be listed in the environment variable CENTERHASH_METHODS, as
    "my_method.py:Hinge,other.py:Other". The folder of its file does not count: models move.
    """
    if name not in METHODS:
        for listed in filter(None, os.environ.get("CENTERHASH_METHODS", "").split(",")):
            get_method(listed.strip())
    own = re.split(r"[\\/]", name)[-1]
    for known, row in METHODS.items():
        if name == known or (":" in known and re.split(r"[\\/]", known)[-1] == own):
            return row
    first = f"get_method('{name}')" if ":" in name else f"register_method('{name}', ...)"
    raise UnknownMethodError(
        f"this model was trained by the method '{name}', which is not known here, and opening a model never runs code "
        f"that it names. If it is yours, call centerhash.{first} first, or set the environment variable "
        "CENTERHASH_METHODS=my_method.py:Class; else update centerhash."
    )
