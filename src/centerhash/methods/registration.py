"""Methods of one's own: a class registered by name, or named by its file, without touching the package."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict, TypeVar, Unpack, overload

from centerhash.core.errors import ConfigError, unknown_name
from centerhash.core.options import option_names, options_beside
from centerhash.methods.table import _ROWS, Family, Method, frozen

Kind = TypeVar("Kind", bound=type)


class About(TypedDict, total=False):
    """What may be said of a method: all optional, and shown where methods are listed."""

    title: str  # the class's name unless given
    family: Family  # "central" and "shallow" follow from the class; else "other" unless given
    paper: str
    year: int  # the current one unless given
    uses_labels: bool
    multi_label: str  # how it treats an image with several labels
    head: Mapping[str, bool]  # what its head has beside the usual layers: divide, rotate, evidence
    training: Mapping[str, Any]  # settings of the training that it wants, such as learning_rate
    defaults: Mapping[str, Any]  # of its options, where they differ from the class's


@overload
def register_method(name: str, kind: Kind, **about: Unpack[About]) -> Kind: ...
@overload
def register_method(name: str, kind: None = None, **about: Unpack[About]) -> Callable[[Kind], Kind]: ...
def register_method(name: str, kind: Any = None, **about: Unpack[About]) -> Any:
    """Make a loss (`losses.Objective`, `losses.CentralObjective`) or a `ShallowHash` a method that `name` trains.

    Also a decorator: `@register_method("hinge")` above the class. Its options are the class `<Class>Options` beside it.
    `about` are the fields of `About`. A name may be registered again, but never one of a built-in method.
    """
    if kind is None:
        return lambda decorated: register_method(name, decorated, **about)
    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"the name of a method is of letters, digits, '-', '_' and '.', got '{name}'.")
    if name in _ROWS and _ROWS[name].registered is None:
        raise ConfigError(f"'{name}' is a built-in method: register yours by another name.")
    _ROWS[name] = _row(name, kind, about)
    return kind


def load_method(name: str) -> Method:
    """The row of the class that "my_method.py:Class" or "package.module:Class" names, registered as this text.

    What the file itself registers the class with (title, head, ...) holds here too.
    """
    where, _, wanted = name.rpartition(":")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_package(where)
    kind = getattr(module, wanted, None)
    if not inspect.isclass(kind):
        own = [found for found, item in vars(module).items() if inspect.isclass(item) and _family(item)]
        raise unknown_name(f"class in '{where}'", wanted, own)
    registered = [row for row in _ROWS.values() if row.registered is kind]
    row = registered[0] if registered else _row(name, kind, {})
    _ROWS[name] = dataclasses.replace(row, name=name)
    return _ROWS[name]


def _row(name: str, kind: type, about: About) -> Method:
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
    return Method(
        name=name,
        title=about.get("title", kind.__name__),
        family=given,
        paper=about.get("paper", ""),
        year=about.get("year", date.today().year),
        home=f"{kind.__module__}:{kind.__qualname__}",
        uses_labels=about.get("uses_labels", True),
        multi_label=about.get("multi_label", ""),
        defaults=frozen(dict(about.get("defaults", {}))),
        head=frozen(dict(about.get("head", {}))),
        training=frozen(dict(about.get("training", {}))),
        registered=kind,
    )


def _family(kind: type) -> Family | None:
    """By the class that it is based on; None where it is no method."""
    from centerhash.methods.losses.base import Objective
    from centerhash.methods.losses.central import CentralObjective
    from centerhash.methods.shallow.base import ShallowHash

    if inspect.isabstract(kind):
        return None
    if issubclass(kind, CentralObjective):
        return "central"
    if issubclass(kind, ShallowHash):
        return "shallow"
    return "other" if issubclass(kind, Objective) else None


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
