"""Exceptions: every message states the value received, the values allowed, and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_REASONS = 5
# Names are compared letter by letter, so a hint from a longer list would take minutes.
_MOST_NAMES = 5_000


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
    """Build the error for an unknown name of a `kind`, such as "method", with the nearest name first.

    `see` is a sentence that names the command or page with all of them.
    """
    names = sorted(allowed)
    text = f"unknown {kind} '{received}'.{did_you_mean(received, names)} Allowed: {', '.join(names)}. {see}"
    return ConfigError(text.rstrip())


def nearest_names(received: str, allowed: Iterable[str], most: int, cutoff: float) -> list[str]:
    """Return the allowed names that are similar to `received`, the nearest first; none from very long lists."""
    by_lower = {name.lower(): name for name in allowed}
    if len(by_lower) > _MOST_NAMES:
        return []
    matches = difflib.get_close_matches(received.lower(), by_lower, n=most, cutoff=cutoff)
    return [by_lower[match] for match in matches]


def did_you_mean(received: str, allowed: Iterable[str], cutoff: float = 0.5) -> str:
    """Return " Did you mean 'x'?" or nothing, to append to an error text."""
    names = nearest_names(received, allowed, 1, cutoff)
    return f" Did you mean '{names[0]}'?" if names else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text without its full stop, or its class if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")


def first_reasons(reasons: Iterable[object], see: str = "") -> str:
    """Return the first reasons, one per line, and the number of the rest; `see` names the list of all of them."""
    lines = [f"  {reason}" for reason in reasons]
    if len(lines) > _MOST_REASONS:
        lines[_MOST_REASONS:] = [f"  ... and {len(lines) - _MOST_REASONS:,} more{see}"]
    return "\n".join(lines)
