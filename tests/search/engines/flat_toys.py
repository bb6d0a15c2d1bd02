"""What the tests of the flat index share: items to add, and the answers by a loop over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import Packed
from centerhash.search.engines import flat
from centerhash.search.engines.base import Hits, Id, Item
from centerhash.search.engines.flat import FlatIndex

BITS = 16


def codes(count: int, seed: int = 0, bits: int = BITS, distinct: int = 256) -> Packed:
    """Random packed codes (n, K/8); few distinct byte values make many ties."""
    return np.random.default_rng(seed).integers(0, distinct, (count, bits // 8), dtype=np.uint8)


def small_segments(monkeypatch: pytest.MonkeyPatch, rows: int = 8) -> None:
    """Let a few items be enough for a segment."""
    monkeypatch.setattr(flat, "TAIL_ROWS", rows)


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder but the lock, and the file that notes the journal's length."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name not in ("lock", "lock.pid", "journal.length")
    }


def listed(hits: Hits) -> list[tuple[int, Id]]:
    return [(distance, id) for id, distance in hits]


@dataclass
class Model:
    """What an index should hold."""

    items: dict[Id, Item] = field(default_factory=dict)

    def add(self, index: FlatIndex, ids: Sequence[Any], seed: int, distinct: int = 3) -> None:
        """Add items to the index and here; labels and paths follow from the ids' places."""
        packed = codes(len(ids), seed, distinct=distinct)
        labels = [tuple("abc"[: (seed + place) % 4]) for place in range(len(ids))]
        paths = [None if place % 3 else f"images/{id}.jpg" for place, id in enumerate(ids)]
        index.add(packed, ids, labels, paths)
        self.items.update({id: Item(id, *rest) for id, *rest in zip(ids, packed, labels, paths, strict=True)})

    def remove(self, index: FlatIndex, ids: Sequence[Any]) -> None:
        assert index.remove(ids) == len([self.items.pop(id) for id in ids if id in self.items])

    def ranked(self, query: Packed, labels: Iterable[str] = ()) -> list[tuple[int, Id]]:
        """Distance and id of every item that carries the labels, in the order of an answer."""
        found: list[Any] = [
            (int(np.bitwise_count(item.code ^ query).sum()), item.id)
            for item in self.items.values()
            if set(labels) <= set(item.labels)
        ]
        return sorted(found)

    def check(self, index: FlatIndex) -> None:
        """Compare everything that an index can be asked."""
        assert len(index) == len(self.items)
        assert list(index.ids()) == sorted(self.items)  # type: ignore[type-var]
        for found in index.get(list(self.items)):
            item = self.items[found.id]
            assert (found.labels, found.path) == (item.labels, item.path)
            assert found.code.tolist() == item.code.tolist()
        names = sorted({label for item in self.items.values() for label in item.labels})
        counts = {name: sum(name in item.labels for item in self.items.values()) for name in names}
        assert index.labels() == counts
        assert list(index.labels()) == names
        queries = codes(3, seed=99, distinct=3)
        for labels in ((), ("a",), ("a", "b"), ("c", "z")):
            for query, near, all_near in zip(
                queries, index.search(queries, 5, labels), index.within(queries, 3, labels), strict=True
            ):
                ranked = self.ranked(query, labels)
                assert listed(near) == ranked[:5]
                assert listed(all_near) == [pair for pair in ranked if pair[0] <= 3]
