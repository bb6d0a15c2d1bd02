"""Frozen options, also those of a constructor's signature: unknown keys fail and name the nearest valid one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from centerhash.core.errors import ConfigError, did_you_mean


class Options(BaseModel):
    """Base of every set of options: frozen, and no key is ever silently ignored."""

    # json has no infinity: a model stored with one would come back with another value
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explained(error, type(self), type(self).__name__) from None

    # pydantic then validates options within options without calling this __init__, and errors name the whole path
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


# Arguments of a loss or a shallow method that are no options: training passes them.
PASSED = ("centers", "classes", "bits", "seed")


def Option(help: str, *, alias: str | None = None, **bounds: Any) -> Any:
    """Describe a keyword argument of a loss: `gamma: Annotated[float, Option("coefficient", ge=0)] = 0.5`.

    `alias` is its name on the command line if it differs; the bounds ge, gt, le and lt are those of pydantic's `Field`.
    """
    return Field(alias=alias, description=help, **bounds)


def _arguments(cls: type) -> dict[str, tuple[Any, Any]]:
    """Annotation and default of each argument of a constructor.

    A constructor with `**options` has those of its base class too.
    """
    arguments: dict[str, tuple[Any, Any]] = {}
    for constructor in (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)):
        parameters = inspect.signature(constructor).parameters.values()
        hints = get_type_hints(constructor, include_extras=True)
        for one in parameters:
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                arguments.setdefault(one.name, (hints.get(one.name, Any), one.default))
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return arguments


@cache
def options_of(cls: type) -> type[Options]:
    """Return the options of a class, the arguments of its constructor with a default, as a model that checks them."""
    fields: dict[str, Any] = {
        name: (annotation, default)
        for name, (annotation, default) in _arguments(cls).items()
        if default is not inspect.Parameter.empty and name not in PASSED
    }
    return create_model(cls.__name__, __base__=Options, **fields)


def passed_arguments(cls: type) -> list[str]:
    """Return the names of the arguments in PASSED that the constructor of a class accepts."""
    return [name for name in _arguments(cls) if name in PASSED]


def check_options(cls: type, keywords: Mapping[str, Any]) -> None:
    """Raise ConfigError unless all keyword arguments of a constructor are known and within their bounds."""
    others = _arguments(cls).keys() - options_of(cls).model_fields.keys()
    options = {name: value for name, value in keywords.items() if name not in others}
    read_options(options_of(cls), options, cls.__name__)


def setting(
    default: Any, help: str, panel: str = "", *, shown: str = "", choices: Sequence[str] = (), **limits: Any
) -> Any:
    """A field that the command line offers as an option, in a panel of its help; `shown` describes the default."""
    if choices:
        limits["pattern"] = f"^({'|'.join(map(re.escape, choices))})$"
    extra: dict[str, Any] = {"panel": panel, "shown": shown, "choices": list(choices)}
    return Field(default, description=help, json_schema_extra=extra, **limits)


OptionsType = TypeVar("OptionsType", bound=Options)


def option_names(kind: type[BaseModel]) -> list[str]:
    """Names of the options of `kind`, as a user writes them."""
    return [field.alias or name for name, field in kind.model_fields.items()]


def read_options(kind: type[OptionsType], values: Mapping[str, Any], what: str) -> OptionsType:
    """Build `kind` from loose values as its constructor does; errors name `what` the options are of."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise _explained(error, kind, what) from None


def joined(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Join loose values, of which later ones override earlier ones, also within options such as `head`."""
    whole: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            before = whole.get(name)
            inner = before if isinstance(before, Mapping) and isinstance(value, Mapping) else None
            whole[name] = value if inner is None else {**inner, **value}
    return whole


def _explained(error: ValidationError, kind: type[Options], what: str) -> ConfigError:
    return ConfigError("\n".join(_sentence(item, kind, what) for item in error.errors()))


def _sentence(item: Any, kind: type[BaseModel], what: str) -> str:
    path = [str(part) for part in item["loc"]]
    if not path:  # of several options together
        return f"{what}: {item['msg'].removeprefix('Value error, ')}."
    if item["type"] != "extra_forbidden":
        return f"option '{'.'.join(path)}' of {what} cannot be {item['input']!r}: {item['msg']}."
    for name in path[:-1]:  # options within options
        field = kind.model_fields.get(name)
        kind = field.annotation if field and isinstance(field.annotation, type) else kind
    names = option_names(kind)
    hint = did_you_mean(path[-1], names)
    return f"unknown option '{'.'.join(path)}' of {what}.{hint} Allowed: {', '.join(names) or 'none'}."
