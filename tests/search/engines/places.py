"""Where the tests of all engines keep their indexes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from centerhash.core.errors import InputError
from centerhash.search.engines.base import HammingIndex
from centerhash.search.engines.table import create_store, open_store

KINDS = {  # of each engine
    "flat": ("flat-journal", "flat-segments", "flat-tables"),
    "milvus": ("milvus-lite", "milvus-server"),
}


def use_small_segments(monkeypatch: pytest.MonkeyPatch, rows: int = 32, *, tables: bool = False) -> None:
    """Let few items be enough for segments, and for tables over them, which are then always quicker."""
    monkeypatch.setattr("centerhash.search.engines.flat.TAIL_ROWS", rows)
    if tables:
        monkeypatch.setattr("centerhash.search.engines.storage.LARGE", rows // 2)
        monkeypatch.setattr(
            "centerhash.search.engines.multi_index.scan_looks", lambda codes, queries: 1 << 40
        )


@dataclass(frozen=True)
class Place:
    """Where one test keeps its index."""

    engine: str
    store: Callable[[int], str]  # from the bits
    folder: Path
    again: bool = False  # whether creating it again means to empty it

    def create(self, bits: int = 16) -> HammingIndex:
        """An empty index."""
        try:
            return create_store(self.store(bits), self.folder / str(bits), bits)
        except InputError:
            if not self.again:
                raise
        index = self.open(bits)  # of a server, where making one takes seconds and emptying it less
        index.remove(list(index.ids()))
        return index

    def open(self, bits: int = 16, *, read_only: bool = False) -> HammingIndex:
        """The index that `create` made."""
        return open_store(self.store(bits), self.folder / str(bits), read_only=read_only)
