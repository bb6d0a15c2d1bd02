"""Names of labels as people write them: any case, singular or plural, and a few everyday synonyms."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files

from centerhash.core.errors import ConfigError, nearest_names

_SUGGESTED = 3  # names that an error text lists
_NEAR = 0.65  # how alike a name must be to be meant, as difflib counts it
# endings of plurals and what stands there in the singular; tried both ways
_ENDINGS = (("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"))


@cache
def synonyms() -> Mapping[str, str]:
    """The class that each everyday word stands for."""
    table = tomllib.loads((files("centerhash.search") / "synonyms.toml").read_text(encoding="utf-8"))
    return {word: label for label, words in table.items() for word in words}


def match(name: str, labels: Sequence[str]) -> str | None:
    """The label that a name means: itself, in another case or number, or the one that it is a synonym of."""
    if name in labels:
        return name
    by_name = {_plain(label): label for label in reversed(labels)}  # the first of equal ones stays
    for form in _forms(_plain(name)):
        if form in by_name:
            return by_name[form]
    meant = (synonyms().get(form) for form in _forms(_plain(name)))
    return next((by_name[word] for word in meant if word in by_name), None)


def label_named(name: str, labels: Sequence[str]) -> str:
    """As `match`, or ConfigError with the nearest names."""
    found = match(name, labels)
    if found is not None:
        return found
    near = nearest_names(name, labels, _SUGGESTED, _NEAR)
    if near:
        *first, last = map(repr, near)
        either = f"{', '.join(first)} or {last}" if first else last
        raise ConfigError(f"unknown label '{name}'. Did you mean {either}?")
    far = nearest_names(name, labels, _SUGGESTED, 0.0)
    hint = f", the nearest are {', '.join(map(repr, far))}" if far else ""
    raise ConfigError(f"unknown label '{name}': {len(labels):,} labels are known{hint}.")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip()).casefold()


def _forms(name: str) -> Iterator[str]:
    """A name, then what it may be in the singular and in the plural."""
    yield name
    for plural, singular in _ENDINGS:
        if name.endswith(plural) and len(name) > len(plural) + 1:
            yield name.removesuffix(plural) + singular
    for plural, singular in _ENDINGS:
        if name.endswith(singular):
            yield name.removesuffix(singular) + plural
