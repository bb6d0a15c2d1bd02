"""What tests that register methods share: the table as it was before, when they are done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from centerhash.methods import table


@contextmanager
def forgotten() -> Iterator[None]:
    """Forget the methods and the modules that the block brings in."""
    rows, modules = dict(table._ROWS), set(sys.modules)
    try:
        yield
    finally:
        table._ROWS.clear()
        table._ROWS.update(rows)
        for name in set(sys.modules) - modules:
            if name.endswith(".py"):
                del sys.modules[name]
