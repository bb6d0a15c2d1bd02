"""The tree of exceptions. Every message says what came in, what is allowed, and what to do next.

CenterhashError
├── InputError (also a ValueError)     a caller's values: arrays, options, names
│   ├── ConfigError                    an unknown or impossible option or name
│   └── DataError                      files that hold the data: csv, arrays, splits
│       └── ImageError                 one image that cannot be read
├── NotFittedError                     a model asked for codes before it was trained
└── OutputError                        a result that could not be written
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CenterhashError(Exception):
    """Base of all errors raised on purpose; the command line shows them without traceback."""


class InputError(CenterhashError, ValueError):
    """A value that a caller passed is not usable."""


class ConfigError(InputError):
    """An option or a name is unknown or impossible."""


class DataError(InputError):
    """A data set's files are missing, malformed or contradict each other."""


class ImageError(DataError):
    """One image cannot be read; names the file and the reason."""


class NotFittedError(CenterhashError):
    """A model was asked for codes before it was trained."""


class OutputError(CenterhashError):
    """A result could not be written: full disk, read-only folder."""


def unknown_name(kind: str, received: str, allowed: Iterable[str], see: str = "") -> ConfigError:
    """Build the error for a name that does not exist, with the nearest valid name first.

    `kind` is what the name stands for ("method"), `see` the command or page that lists them all.
    """
    names = sorted(allowed)
    nearest = difflib.get_close_matches(received, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    where = f" {see}" if see else ""
    return ConfigError(f"unknown {kind} '{received}'.{hint} Allowed: {', '.join(names)}.{where}")
