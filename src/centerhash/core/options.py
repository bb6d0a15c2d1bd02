"""Frozen options: unknown keys fail and name the nearest valid one."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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


class MethodOptions(Options):
    """Base of the options of one method; `None` means "by the number of bits", resolved before training."""

    def for_bits(self, bits: int) -> MethodOptions:
        """Return a copy in which every value that depends on the number of bits is filled in."""
        return self


def options_beside(kind: type) -> type[MethodOptions]:
    """The class of a method's options: its attribute `options_class`, or `<Class>Options` in the same module.

    A class without either has the options of the class that it is based on.
    """
    for base in kind.__mro__:
        beside = getattr(sys.modules.get(base.__module__), f"{base.__name__}Options", None)
        found = vars(base).get("options_class", beside)
        if isinstance(found, type) and issubclass(found, MethodOptions):
            return found
    return MethodOptions


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
    """Names by which the options of `kind` may be given, as a user writes them."""
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
    """One sentence per problem."""
    return ConfigError("\n".join(_sentence(item, kind, what) for item in error.errors()))


def _sentence(item: Any, kind: type[Options], what: str) -> str:
    key = ".".join(str(part) for part in item["loc"]) or what
    if item["type"] == "extra_forbidden":
        names = option_names(_kind_at(kind, item["loc"][:-1]))
        hint = did_you_mean(str(item["loc"][-1]), names)
        return f"unknown option '{key}' of {what}.{hint} Allowed: {', '.join(names) or 'none'}."
    if not item["loc"]:  # of several options together
        return f"{what}: {item['msg'].removeprefix('Value error, ')}."
    return f"option '{key}' of {what} cannot be {item['input']!r}: {item['msg']}."


def _kind_at(kind: type[BaseModel], places: Sequence[int | str]) -> type[BaseModel]:
    """The options within options that a path leads to."""
    for name in places:
        inner = kind.model_fields[str(name)].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        kind = inner
    return kind
