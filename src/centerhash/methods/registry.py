"""The methods by name: `register_method` beside each class; command line, docs and contract tests follow from METHODS."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar, Unpack, overload

from centerhash.core.errors import ConfigError, UnknownMethodError, unknown_name
from centerhash.core.options import MethodOptions, option_names, options_beside, read_options

if TYPE_CHECKING:
    from torch import Tensor

    from centerhash.methods.losses.base import Objective
    from centerhash.methods.shallow.base import ShallowHash

Family: TypeAlias = Literal["central", "pairwise", "triplet", "two-stage", "shallow", "other"]
Kind = TypeVar("Kind", bound=type)
# settings by names of options and of training; texts such as "K*0.3" follow the number of bits, see `value_at`
Point: TypeAlias = Mapping[str, Any]

LEARNING_RATES = [5e-4, 1e-3, 2e-3, 4e-3]  # that `centerhash tune` tries for every deep method


class Scores(NamedTuple):
    """mAP of a method in the stored grid, on held-out training images at 32 bits; None if it was not tried."""

    default: float  # all epochs
    short: float | None  # the default with a third of the epochs; shallow methods have none
    authors: float | None  # the authors' setting, likewise


class Notes(NamedTuple):
    """Text of docs/reference/methods.md about a method, besides its other fields and the docstring of its class."""

    source: str  # code or text that the method was compared with
    equations: str
    differences: str  # from the source, and how to select its form
    scores: Scores | None  # None if the stored grid does not have the method


class About(TypedDict, total=False):
    """Describe a method; all fields are optional."""

    title: str  # the class's name unless given
    family: Family  # "central" and "shallow" follow from the class; else "other" unless given
    paper: str
    year: int  # the current one unless given
    uses_labels: bool
    multi_label: str  # how it treats an image with several labels
    head: Mapping[str, bool]  # defaults of its head: divide, rotate, evidence, presence
    training: Mapping[str, Any]  # defaults of training settings, such as learning_rate
    defaults: Mapping[str, Any]  # of its options, if they differ from the class's
    space: Mapping[str, list[Any]]  # values that `centerhash tune` tries, besides learning rates
    authors: Point  # the authors' own setting as far as options reach it; may hold more names than the space
    notes: Notes


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Method:
    """Describe a registered method; the fields are those of `About`."""

    name: str
    kind: type = field(repr=False)  # a loss on `Objective`, or a `ShallowHash`
    title: str
    family: Family
    year: int
    paper: str = ""
    uses_labels: bool = True
    multi_label: str = ""
    head: Mapping[str, bool] = field(default_factory=_nothing)
    training: Mapping[str, Any] = field(default_factory=_nothing)
    defaults: Mapping[str, Any] = field(default_factory=_nothing)
    space: Mapping[str, list[Any]] = field(default_factory=_nothing, repr=False)
    authors: Point = field(default_factory=_nothing, repr=False)
    notes: Notes | None = field(default=None, repr=False)

    @property
    def built_in(self) -> bool:
        """Whether the method is part of the package."""
        return self.name in _BUILT_IN

    def options_class(self) -> type[MethodOptions]:
        """Return the class of the options."""
        return options_beside(self.kind)

    def options(self, values: Mapping[str, Any], bits: int) -> MethodOptions:
        """Check values as options of this method, and fill in defaults that depend on the number of bits."""
        kind = self.options_class()
        aliases = {name: item.alias or name for name, item in kind.model_fields.items()}
        if len({aliases.get(key, key) for key in values}) < len(values):
            raise ConfigError(
                f"an option of method '{self.name}' is given twice: {', '.join(sorted(values))}."
            )
        given = {aliases.get(key, key): value for key, value in {**self.defaults, **values}.items()}
        return read_options(kind, given, f"method '{self.name}'").for_bits(bits)

    def objective(
        self, classes: int, bits: int, centers: Tensor | None, options: MethodOptions, seed: int
    ) -> Objective:
        """Create the loss of a deep method; its constructor receives the arguments it declares."""
        offered = {"centers": centers, "classes": classes, "bits": bits, "seed": seed}
        accepted = inspect.signature(self.kind).parameters
        loss: Objective = self.kind(
            **{name: value for name, value in offered.items() if name in accepted}, options=options
        )
        return loss

    def shallow_class(self) -> type[ShallowHash]:
        """Return the class of a shallow method."""
        return self.kind


# Built-in methods and the modules that register them, in the order of the tables. The names are known, and completed
# by the shell, before a module (and with it torch) is imported.
_BUILT_IN = {
    "lsh": "shallow.projections",
    "sh": "shallow.projections",
    "itq": "shallow.projections",
    "bre": "shallow.bre",
    "ksh": "shallow.ksh",
    "sdh": "shallow.sdh",
    "cnnh": "losses.two_stage",
    "dnnh": "losses.pairwise",
    "dpsh": "losses.pairwise",
    "dhn": "losses.pairwise",
    "hashnet": "losses.pairwise",
    "dch": "losses.pairwise",
    "greedyhash": "losses.proxy",
    "idhn": "losses.pairwise",
    "csq": "losses.central",
    "dpn": "losses.central",
    "ewcs": "losses.central",
    "ics": "losses.central",
    "ics-printed": "losses.central",
    "orthohash": "losses.softmax",
    "hyp2": "losses.proxy",
    "mdsh": "losses.softmax",
    "lscsh": "losses.successors",
    "shc": "losses.successors",
    "crh": "losses.successors",
    "ics-softmax": "losses.softmax",
}
_REGISTERED: dict[str, Method] = {}


class _Methods(Mapping[str, Method]):
    """The built-in methods, imported when they are looked up, then the user's."""

    def __getitem__(self, name: str) -> Method:
        if name not in _REGISTERED and name in _BUILT_IN:
            importlib.import_module(f"centerhash.methods.{_BUILT_IN[name]}")
        return _REGISTERED[name]

    def __contains__(self, name: object) -> bool:
        return name in _BUILT_IN or name in _REGISTERED

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_BUILT_IN, *_REGISTERED]))

    def __len__(self) -> int:
        return len({*_BUILT_IN, *_REGISTERED})


METHODS: Mapping[str, Method] = _Methods()


@overload
def register_method(name: str, kind: Kind, **about: Unpack[About]) -> Kind: ...
@overload
def register_method(name: str, kind: None = None, **about: Unpack[About]) -> Callable[[Kind], Kind]: ...
def register_method(name: str, kind: Any = None, **about: Unpack[About]) -> Any:
    """Register a loss (`losses.Objective`, `losses.CentralObjective`) or a `ShallowHash` as method `name`.

    Also a decorator: `@register_method("hinge")`. Its options are the class `<Class>Options` in the same module.
    `about` are the fields of `About`. A name may be registered again, except that of a built-in method.
    """
    if kind is None:
        return lambda decorated: register_method(name, decorated, **about)
    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"the name of a method is of letters, digits, '-', '_' and '.', got '{name}'.")
    if name in _BUILT_IN and kind.__module__ != f"centerhash.methods.{_BUILT_IN[name]}":
        raise ConfigError(f"'{name}' is a built-in method: register yours by another name.")
    _REGISTERED[name] = _method(name, kind, about)
    return kind


def _method(name: str, kind: type, about: About) -> Method:
    family = _family(kind)
    if not family:
        raise ConfigError(
            f"{kind.__name__} cannot be a method: it must be a class on losses.CentralObjective, losses.Objective or "
            "ShallowHash."
        )
    given = about.get("family", family)
    if given != family and (family != "other" or given in ("central", "shallow")):
        raise ConfigError(f"{kind.__name__} is of the family '{family}' by its class, not '{given}'.")
    options = option_names(options_beside(kind))
    for option in about.get("defaults", {}):
        if option not in options:
            raise unknown_name(f"option of {kind.__name__} in defaults", option, options)
    facts: dict[str, Any] = {"title": kind.__name__, "family": family, "year": date.today().year, **about}
    read_only = {
        key: MappingProxyType(dict(value)) for key, value in facts.items() if isinstance(value, Mapping)
    }
    return Method(name, kind, **{**facts, **read_only})


def _family(kind: type) -> Family | None:
    """By the class that it is based on; None if it is no method."""
    if inspect.isabstract(kind):
        return None
    from centerhash.methods.shallow.base import ShallowHash

    if issubclass(kind, ShallowHash):
        return "shallow"
    from centerhash.methods.losses.base import CentralObjective, Objective

    if issubclass(kind, CentralObjective):
        return "central"
    return "other" if issubclass(kind, Objective) else None


def get_method(name: str) -> Method:
    """Look up a method by its name, or a custom class: "my_method.py:Hinge", "package.module:Hinge".

    A file is run to import its class; `stored_method` never does this.
    """
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        return _load_method(name)
    raise unknown_name("method", name, METHODS, "Or give a class of your own as 'my_method.py:Class'.")


def stored_method(name: str) -> Method:
    """Look up the method of a stored model without running code that an untrusted file names.

    A custom class must be registered, or be listed in the environment variable CENTERHASH_METHODS, as
    "my_method.py:Hinge,other.py:Other". The folder of its file does not count: models move.
    """
    if name not in METHODS:
        for listed in filter(None, os.environ.get("CENTERHASH_METHODS", "").split(",")):
            get_method(listed.strip())
    own = re.split(r"[\\/]", name)[-1]
    for known in METHODS:
        if name == known or (":" in known and re.split(r"[\\/]", known)[-1] == own):
            return METHODS[known]
    first = f"get_method('{name}')" if ":" in name else f"register_method('{name}', ...)"
    raise UnknownMethodError(
        f"this model was trained by the method '{name}', which is not known here, and opening a model never runs code "
        f"that it names. If it is yours, call centerhash.{first} first, or set the environment variable "
        "CENTERHASH_METHODS=my_method.py:Class; else update centerhash."
    )


def _load_method(name: str) -> Method:
    """Register the class that "my_method.py:Class" or "package.module:Class" names, as this text.

    Facts with which the file itself registers the class (title, head, ...) hold here too.
    """
    where, _, wanted = name.rpartition(":")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_package(where)
    kind = getattr(module, wanted, None)
    if not inspect.isclass(kind):
        own = [found for found, item in vars(module).items() if inspect.isclass(item) and _family(item)]
        raise unknown_name(f"class in '{where}'", wanted, own)
    registered = [method for method in _REGISTERED.values() if method.kind is kind and not method.built_in]
    method = registered[0] if registered else _method(name, kind, {})
    _REGISTERED[name] = dataclasses.replace(method, name=name)
    return _REGISTERED[name]


def _from_file(path: Path) -> ModuleType:
    """A file as a module, run once per process; its full path is the module's name."""
    name = str(path.resolve())
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"there is no file '{path}' to read a method from.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and options look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"'{path}' cannot be run: {type(error).__name__}: {error}.") from error
    return module


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"'{name}' cannot be imported: {type(error).__name__}: {error}.") from error


# --- Search spaces of `centerhash tune`


@dataclass(frozen=True)
class Space:
    """Settings that are tried for one method."""

    values: Mapping[str, list[Any]]  # by name; their product are the points
    authors: Point

    def points(self) -> list[Point]:
        """All points, the last name varying fastest."""
        return [
            dict(zip(self.values, chosen, strict=True)) for chosen in itertools.product(*self.values.values())
        ]


def search_space(row: Method) -> Space:
    """The space of a method: its own values, after the learning rates of a deep one."""
    rates = {} if row.family == "shallow" else {"learning_rate": LEARNING_RATES}
    return Space({**rates, **row.space}, dict(row.authors))


def value_at(value: Any, bits: int, default: Any) -> Any:
    """A value of a point at a number of bits: "K", "K*0.3", "8/K", "default*4"; all else stands for itself."""
    if not isinstance(value, str):
        return value
    if value.endswith("/K"):
        return float(value.removesuffix("/K")) / bits
    base, _, factor = value.partition("*")
    bases = {"K": float(bits), "default": default}
    return bases[base] * float(factor or 1) if base in bases else value


def training_options(row: Method, point: Point, bits: int) -> dict[str, Any]:
    """A point as options of training, those of the method in `options`, all at a number of bits.

    A default is taken given the point's other options: some follow each other.
    """
    own = option_names(row.options_class())
    relative = {name for name, value in point.items() if str(value).startswith("default")}
    options = {
        name: value_at(value, bits, None)
        for name, value in point.items()
        if name in own and name not in relative
    }
    defaults = row.options(options, bits).model_dump(by_alias=True) if relative else {}
    options |= {name: value_at(point[name], bits, defaults[name]) for name in point if name in relative}
    training = {name: value for name, value in point.items() if name not in own}
    return {**training, "options": options} if options else training
