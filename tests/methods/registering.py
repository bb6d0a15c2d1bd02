"""Restore the table of methods after tests that register some."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from centerhash.methods import registry


@contextmanager
def temporary_methods() -> Iterator[None]:
    """Remove the methods and the modules that the block adds."""
    rows, modules = dict(registry._REGISTERED), len(sys.modules)
    try:
        yield
    finally:
        for name in registry._REGISTERED.keys() - rows.keys() - registry._BUILT_IN.keys():
            del registry._REGISTERED[name]
        registry._REGISTERED.update(rows)
        # The newest modules are last; a search of all thousands would take longer than most tests.
        for name in list(islice(reversed(sys.modules), max(0, len(sys.modules) - modules))):
            if name.endswith(".py"):
                del sys.modules[name]
