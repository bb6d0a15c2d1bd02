"""The tree of exceptions. Every message states the value received, the values allowed, and the next step.

CenterhashError
├── InputError (also a ValueError)     a caller's values: arrays, options, names
│   ├── ConfigError                    an unknown or impossible option or name
│   │   └── UnknownMethodError         a model of a method that is not registered here
│   └── DataError                      files that hold the data: csv, arrays, splits
│       └── ImageError                 one image that cannot be read
└── OutputError                        a result that could not be written
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_SHOWN = 5  # of several reasons
_MOST_COMPARED = 5_000  # every name is compared letter by letter: a hint is not worth minutes


class CenterhashError(Exception):
    """Base of all errors of centerhash; the command line prints them without a traceback."""


class InputError(CenterhashError, ValueError):
    """A value that a caller passed is not usable."""


class ConfigError(InputError):
    """An option or a name is unknown or impossible."""


class UnknownMethodError(ConfigError):
    """A stored model names a method that is neither built in nor registered."""


class DataError(InputError):
    """Files of a dataset are missing, malformed or contradict each other."""


class ImageError(DataError):
    """One image cannot be read; names the file and the reason."""


class OutputError(CenterhashError):
    """A result could not be written: full disk, read-only folder."""


def unknown_name(kind: str, received: str, allowed: Iterable[str], see: str = "") -> ConfigError:
    """Build the error for a name that does not exist, with the nearest valid name first.

    `kind` is what the name stands for ("method"), `see` the command or page that lists them all.
    """
    names = sorted(allowed)
    where = f" {see}" if see else ""
    hint = did_you_mean(received, names)
    return ConfigError(f"unknown {kind} '{received}'.{hint} Allowed: {', '.join(names)}.{where}")


def nearest(received: str, allowed: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the allowed name that `received` most likely stands for, or None (also for very long lists)."""
    return next(iter(nearest_names(received, allowed, 1, cutoff)), None)


def nearest_names(received: str, allowed: Iterable[str], most: int, cutoff: float) -> list[str]:
    """The allowed names that `received` may stand for, the nearest first; none for very long lists."""
    by_lower = {name.lower(): name for name in allowed}
    if len(by_lower) > _MOST_COMPARED:
        return []
    matches = difflib.get_close_matches(received.lower(), by_lower, n=most, cutoff=cutoff)
    return [by_lower[match] for match in matches]


def did_you_mean(received: str, allowed: Iterable[str], cutoff: float = 0.5) -> str:
    """Return " Did you mean 'x'?" or nothing, to append to an error text."""
    match = nearest(received, allowed, cutoff)
    return f" Did you mean '{match}'?" if match else ""


def first_line(error: BaseException) -> str:
    """The first line of an error's text without its full stop, or its class if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")


def first_reasons(reasons: Iterable[object], see: str = "") -> str:
    """The first of several reasons, one per line, and how many more there are; `see` is where all of them are listed."""
    lines = [f"  {reason}" for reason in reasons]
    if len(lines) > _MOST_SHOWN:
        lines[_MOST_SHOWN:] = [f"  ... and {len(lines) - _MOST_SHOWN:,} more{see}"]
    return "\n".join(lines)
