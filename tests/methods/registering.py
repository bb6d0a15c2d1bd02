"""What tests that register methods share: the table as it was before, when they are done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from centerhash.methods import registry


@contextmanager
def forgotten() -> Iterator[None]:
    """Forget the methods and the modules that the block brings in."""
    rows, modules = dict(registry._REGISTERED), len(sys.modules)
    try:
        yield
    finally:
        for name in registry._REGISTERED.keys() - rows.keys() - registry._BUILT_IN.keys():
            del registry._REGISTERED[name]
        registry._REGISTERED.update(rows)
        # the newest stand last; to look through all of the thousands would cost more than most tests do
        for name in list(islice(reversed(sys.modules), max(0, len(sys.modules) - modules))):
            if name.endswith(".py"):
                del sys.modules[name]
