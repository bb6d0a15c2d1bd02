"""The methods by name: their classes and defaults.

    METHODS["csq"].create(options, centers=centers, seed=0, ...)    # a loss
    register_method("hinge", HingeLoss)                            # a custom method

The command line, the comparison and the contract tests follow from METHODS. The search spaces of `centerhash tune` are in
`experiments.search_spaces`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, TypeAlias

from centerhash.core.errors import ConfigError, UnknownMethodError, unknown_name
from centerhash.core.options import options_of, passed_arguments, read_options

Family: TypeAlias = Literal["central", "pairwise", "triplet", "two-stage", "shallow", "other"]
Facts: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """A registered method.

        method = get_method("csq")
        options = method.options({"gamma": 0.1}, bits=64)
        loss = method.create(options, centers=hash_centers(80, 64), seed=0)

    The families "central" and "shallow" follow from the class; all others are "other" by default.
    """

    name: str
    cls: Any = field(repr=False)  # a `HashingLoss` or a `ShallowHash`
    title: str  # in tables
    family: Family
    uses_labels: bool
    head: Mapping[str, bool]  # defaults of `HeadOptions`
    training: Facts  # defaults of `TrainConfig`
    defaults: Facts  # options that replace the class's

    @property
    def built_in(self) -> bool:
        """Whether the method is part of the package."""
        return self.name in _BUILT_IN

    @property
    def summary(self) -> str:
        """The first line of the class's docstring: authors, year, and the idea."""
        return inspect.cleandoc(self.cls.__doc__ or "").partition("\n")[0]

    def option_names(self) -> list[str]:
        """Return the names of the options on the command line."""
        return list(self._aliases().values())

    def _aliases(self) -> dict[str, str]:
        """Return the names of the options on the command line, by the constructor's names."""
        return {name: item.alias or name for name, item in options_of(self.cls).model_fields.items()}

    def options(self, values: Mapping[str, Any], bits: int) -> dict[str, Any]:
        """Check values as options of this method, and fill in defaults; names are those of the command line."""
        aliases = self._aliases()
        renamed = {aliases.get(name, name): value for name, value in values.items()}
        if len(renamed) < len(values):
            raise ConfigError(f"an option of '{self.name}' is given twice: {', '.join(sorted(values))}.")
        model = read_options(options_of(self.cls), {**self.defaults, **renamed}, f"method '{self.name}'")
        options = model.model_dump()
        if self.family != "shallow":
            options = self.cls.fill_options(options, bits)
        return {alias: options[name] for name, alias in aliases.items()}

    def create(self, options: Mapping[str, Any], **passed: Any) -> Any:
        """Create the loss, or the shallow method, with those of `passed` that its constructor declares."""
        names = {alias: name for name, alias in self._aliases().items()}
        keywords = {names.get(name, name): value for name, value in options.items()}
        return self.cls(**{name: passed[name] for name in passed_arguments(self.cls)}, **keywords)


# Built-in methods in the order of the tables. The shell completes their names without importing a class, and so torch.
_BUILT_IN: Mapping[str, tuple[str, Facts]] = {
    "lsh": ("methods.shallow.projections:LSH", {"uses_labels": False}),
    "sh": ("methods.shallow.projections:SH", {"uses_labels": False}),
    "itq": ("methods.shallow.projections:ITQ", {"uses_labels": False}),
    "bre": ("methods.shallow.bre:BRE", {}),
    "ksh": ("methods.shallow.ksh:KSH", {}),
    "sdh": ("methods.shallow.sdh:SDH", {}),
    "cnnh": ("losses.cnnh:CNNHLoss", {"family": "two-stage", "training": {"learning_rate": 1e-3}}),
    "dnnh": ("losses.dnnh:DNNHLoss", {"family": "triplet", "head": {"divide": True}}),
    "dpsh": ("losses.dpsh:DPSHLoss", {"family": "pairwise", "training": {"learning_rate": 1e-3}}),
    "dhn": ("losses.dhn:DHNLoss", {"family": "pairwise", "training": {"learning_rate": 2e-3}}),
    "hashnet": ("losses.hashnet:HashNetLoss", {"family": "pairwise", "training": {"learning_rate": 1e-3}}),
    "dch": ("losses.dch:DCHLoss", {"family": "pairwise", "training": {"learning_rate": 2e-3}}),
    "greedyhash": ("losses.greedyhash:GreedyHashLoss", {"training": {"learning_rate": 1e-3}}),
    "idhn": ("losses.idhn:IDHNLoss", {"family": "pairwise", "training": {"learning_rate": 2e-3}}),
    "csq": ("losses.csq:CSQLoss", {}),
    "dpn": ("losses.dpn:DPNLoss", {}),
    "ewcs": ("losses.ics:EWCSLoss", {"title": "E-WCS", "training": {"centers": "random"}}),
    "ics": ("losses.ics:ICSLoss", {"training": {"learning_rate": 2e-3}}),
    "ics-printed": (
        "losses.ics:ICSLoss",
        {
            "title": "ICS as printed",
            "training": {"centers": "printed", "assignment": "random"},
            "defaults": {
                "solver": "printed",
                "form": "per_center",
                "normalized": False,
                "per_bit": False,
                "lambda": 0.1,
                "gamma": 0.05,
            },
        },
    ),
    "orthohash": ("losses.orthohash:OrthoHashLoss", {"training": {"learning_rate": 2e-3}}),
    "hyp2": ("losses.hyp2:HyP2Loss", {"family": "pairwise"}),
    "mdsh": ("losses.mdsh:MDSHLoss", {"training": {"centers": "mdsh"}}),
    "lscsh": ("losses.lscsh:LSCSHLoss", {}),
    "crh": ("losses.crh:CRHLoss", {"training": {"assignment": "random"}}),
    "ics-softmax": (
        "losses.ics_softmax:ICSSoftmaxLoss",
        {
            "title": "ICS-softmax (ours)",
            "head": {"rotate": True, "evidence": True, "presence": True},
            "training": {"learning_rate": 1e-3},
        },
    ),
}
_REGISTERED: dict[str, Method] = {}


class _Methods(Mapping[str, Method]):
    """The built-in methods, imported when they are looked up, then the custom ones."""

    def __getitem__(self, name: str) -> Method:
        if name not in _REGISTERED and name in _BUILT_IN:
            path, facts = _BUILT_IN[name]
            module, _, class_name = path.partition(":")
            cls = getattr(importlib.import_module(f"centerhash.{module}"), class_name)
            _REGISTERED[name] = _method(name, cls, facts)
        return _REGISTERED[name]

    def __contains__(self, name: object) -> bool:
        return name in _BUILT_IN or name in _REGISTERED

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_BUILT_IN, *_REGISTERED]))

    def __len__(self) -> int:
        return len({*_BUILT_IN, *_REGISTERED})


METHODS: Mapping[str, Method] = _Methods()


def register_method(name: str, cls: Any = None, **facts: Any) -> Any:
    """Register a loss (`losses.HashingLoss`, `losses.CentralLoss`) or a `ShallowHash` as method `name`.

    Also a decorator: `@register_method("hinge")`. `facts` are the other fields of `Method`. A name may be registered
    again, except that of a built-in method.
    """
    if cls is None:
        return lambda decorated: register_method(name, decorated, **facts)
    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"the name of a method is of letters, digits, '-', '_' and '.', got '{name}'.")
    if name in _BUILT_IN:
        raise ConfigError(f"'{name}' is a built-in method: register yours by another name.")
    _REGISTERED[name] = _method(name, cls, facts)
    return cls


def _method(name: str, cls: Any, facts: Facts) -> Method:
    family = _family(cls)
    if not family:
        raise ConfigError(
            f"{cls.__name__} is no class on losses.HashingLoss, losses.CentralLoss or ShallowHash."
        )
    read_options(options_of(cls), facts.get("defaults", {}), f"{cls.__name__} in defaults")
    fields = {"title": cls.__name__.removesuffix("Loss"), "uses_labels": True, "family": family, **facts}
    for key in ("head", "training", "defaults"):
        fields[key] = MappingProxyType(dict(facts.get(key, {})))
    return Method(name, cls, **fields)


def _family(cls: Any) -> Family | None:
    """Return the family that follows from the base class; None if the class is no method."""
    from centerhash.methods.shallow.base import ShallowHash

    if inspect.isabstract(cls):
        return None
    if issubclass(cls, ShallowHash):
        return "shallow"
    from centerhash.losses.base import CentralLoss, HashingLoss  # imports torch

    return "central" if issubclass(cls, CentralLoss) else "other" if issubclass(cls, HashingLoss) else None


def get_method(name: str) -> Method:
    """Look up a method by its name, or a custom class: "my_method.py:Hinge", "package.module:Hinge".

    A file is run to import its class, which is then registered by this text; `stored_method` never does this. If the file
    itself registers the class, these facts (title, head, ...) hold too.
    """
    if name in METHODS:
        return METHODS[name]
    source, colon, class_name = name.rpartition(":")
    if not colon:
        raise unknown_name("method", name, METHODS, "Or give a class of your own as 'my_method.py:Class'.")
    try:
        module = _from_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:
        raise ConfigError(f"'{source}' cannot be imported: {type(error).__name__}: {error}.") from error
    cls = getattr(module, class_name, None)
    if not inspect.isclass(cls):
        classes = [key for key, item in vars(module).items() if inspect.isclass(item) and _family(item)]
        raise unknown_name(f"class in '{source}'", class_name, classes)
    registered = [method for method in _REGISTERED.values() if method.cls is cls and not method.built_in]
    method = registered[0] if registered else _method(name, cls, {})
    _REGISTERED[name] = replace(method, name=name)
    return _REGISTERED[name]


def stored_method(name: str) -> Method:
    """Look up the method of a stored model without running code that an untrusted file names.

    A custom class must be registered, or be listed in the environment variable CENTERHASH_METHODS, as
    "my_method.py:Hinge,other.py:Other". The folder of its file does not count: models move.
    """
    if name in METHODS:
        return METHODS[name]
    for listed in filter(None, os.environ.get("CENTERHASH_METHODS", "").split(",")):
        get_method(listed.strip())
    for registered in METHODS:
        if ":" in name and re.split(r"[\\/]", registered)[-1] == re.split(r"[\\/]", name)[-1]:
            return METHODS[registered]
    raise UnknownMethodError(
        f"this model was trained by the method '{name}', which is not known here, and opening a model never runs code "
        "that it names. If it is yours, call get_method('my_method.py:Class') or register_method first, or set the "
        "environment variable CENTERHASH_METHODS=my_method.py:Class; else update centerhash."
    )


def _from_file(path: Path) -> ModuleType:
    """Import a file as a module whose name is its full path, once per process."""
    name = str(path.resolve(strict=True))
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, name)
        # Dataclasses look up their module while the file runs.
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except Exception:
            del sys.modules[name]
            raise
    return sys.modules[name]
