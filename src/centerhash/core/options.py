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

    # json has no infinity, so a stored model would load with another value.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _config_error(error, type(self), type(self).__name__) from None

    # With this flag, pydantic validates nested options without calling this __init__, and errors name the whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


# Training passes these arguments of a loss or a shallow method, so they are no options.
_TRAINING_ARGUMENTS = ("centers", "classes", "bits", "seed")


def Option(help: str, *, alias: str | None = None, **bounds: Any) -> Any:
    """Describe a keyword argument of a loss: `gamma: Annotated[float, Option("coefficient", ge=0)] = 0.5`.

    `alias` is its name on the command line if it differs; the bounds ge, gt, le and lt are those of pydantic's `Field`.
    """
    return Field(alias=alias, description=help, **bounds)


def _arguments(cls: type) -> dict[str, tuple[Any, Any]]:
    """Return annotation and default of each argument of a constructor, with `**options` also of its base classes."""
    arguments: dict[str, tuple[Any, Any]] = {}
    for constructor in (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)):
        parameters = inspect.signature(constructor).parameters.values()
        hints = get_type_hints(constructor, include_extras=True)
        for item in parameters:
            if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY):
                arguments.setdefault(item.name, (hints.get(item.name, Any), item.default))
        if not any(item.kind is item.VAR_KEYWORD for item in parameters):
            break
    return arguments


@cache
def options_of(cls: type) -> type[Options]:
    """Return the options of a class, the arguments of its constructor with a default, as a model that checks them."""
    fields: dict[str, Any] = {
        name: (annotation, default)
        for name, (annotation, default) in _arguments(cls).items()
        if default is not inspect.Parameter.empty and name not in _TRAINING_ARGUMENTS
    }
    return create_model(cls.__name__, __base__=Options, **fields)


def passed_arguments(cls: type) -> list[str]:
    """Return the arguments of the constructor of a class that training passes."""
    return [name for name in _arguments(cls) if name in _TRAINING_ARGUMENTS]


def check_options(cls: type, keywords: Mapping[str, Any]) -> None:
    """Raise ConfigError unless all keyword arguments of a constructor are known and within their bounds."""
    required = _arguments(cls).keys() - options_of(cls).model_fields.keys()
    options = {name: value for name, value in keywords.items() if name not in required}
    options_of(cls)(**options)


def setting(
    default: Any, help: str, panel: str = "", *, shown: str = "", choices: Sequence[str] = (), **limits: Any
) -> Any:
    """Describe a field that is also a command-line option, in a panel of its help; `shown` is the text of its default."""
    if choices:
        limits["pattern"] = f"^({'|'.join(map(re.escape, choices))})$"
    extra: dict[str, Any] = {"panel": panel, "shown": shown, "choices": list(choices)}
    return Field(default, description=help, json_schema_extra=extra, **limits)


OptionsType = TypeVar("OptionsType", bound=Options)


def option_names(cls: type[BaseModel]) -> list[str]:
    """Return the names of the options of a class, as a user writes them."""
    return [field.alias or name for name, field in cls.model_fields.items()]


def read_options(cls: type[OptionsType], values: Mapping[str, Any], owner: str) -> OptionsType:
    """Build options of a class from loose values as its constructor does; errors cite their `owner`."""
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        raise _config_error(error, cls, owner) from None


def merge_options(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge loose values, of which later ones override earlier ones, also within options such as `head`."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            earlier: Any = merged.get(name)
            both = isinstance(earlier, Mapping) and isinstance(value, Mapping)
            merged[name] = {**earlier, **value} if both else value
    return merged


def _config_error(error: ValidationError, cls: type[BaseModel], owner: str) -> ConfigError:
    return ConfigError("\n".join(_sentence(item, cls, owner) for item in error.errors()))


def _sentence(item: Any, cls: type[BaseModel], owner: str) -> str:
    path = [str(part) for part in item["loc"]]
    # An error without a path is about several options together.
    if not path:
        return f"{owner}: {item['msg'].removeprefix('Value error, ')}."
    if item["type"] != "extra_forbidden":
        return f"option '{'.'.join(path)}' of {owner} cannot be {item['input']!r}: {item['msg']}."
    for name in path[:-1]:
        field = cls.model_fields.get(name)
        cls = field.annotation if field and isinstance(field.annotation, type) else cls
    names = option_names(cls)
    hint = did_you_mean(path[-1], names)
    return f"unknown option '{'.'.join(path)}' of {owner}.{hint} Allowed: {', '.join(names) or 'none'}."
