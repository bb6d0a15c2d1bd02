"""Search spaces: which values of which settings `centerhash tune` tries for a method, from spaces.toml."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias

from centerhash.core.options import option_names
from centerhash.methods.table import Method

# a setting by names of options and of training; texts such as "K*0.3" stand for what follows the number of bits
Point: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Space:
    """What is tried for one method."""

    values: Mapping[str, list[Any]]  # by name; their product are the points
    authors: Point  # the authors' own setting, as far as options reach it

    def points(self) -> list[Point]:
        """All points, the last name varying fastest."""
        return [
            dict(zip(self.values, chosen, strict=True)) for chosen in itertools.product(*self.values.values())
        ]


def search_space(row: Method) -> Space:
    """The space of a method; one of one's own has the learning rates alone, and none where it is shallow."""
    tables = tomllib.loads(files("centerhash.methods").joinpath("spaces.toml").read_text(encoding="utf-8"))
    own = dict(tables.get(row.name, {}))
    authors = own.pop("authors", {})
    rates = {} if row.family == "shallow" else {"learning_rate": tables["learning_rate"]}
    return Space({**rates, **own}, authors)


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

    A default is the one beside the point's other options: some follow each other.
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
