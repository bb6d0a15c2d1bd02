"""An index as a plain dictionary, searched by looking at every item: what all engines must answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from centerhash.search.engines.base import HammingIndex, Hits, Id, Item


def distance(first: bytes, second: bytes) -> int:
    return sum(bin(a ^ b).count("1") for a, b in zip(first, second, strict=True))


@dataclass
class Stored:
    code: bytes
    labels: tuple[str, ...]
    path: str | None


@dataclass
class ModelIndex:
    items: dict[Id, Stored] = field(default_factory=dict)

    def add(
        self,
        packed: NDArray[np.uint8],
        ids: Sequence[Id],
        labels: Sequence[Sequence[str]] | None = None,
        paths: Sequence[str | None] | None = None,
    ) -> None:
        for row, id in enumerate(ids):
            assert id not in self.items
            names = tuple(dict.fromkeys(labels[row])) if labels is not None else ()
            self.items[id] = Stored(packed[row].tobytes(), names, paths[row] if paths is not None else None)

    def remove(self, ids: Iterable[Id]) -> int:
        return sum(self.items.pop(id, None) is not None for id in set(ids))

    def ranking(self, code: bytes, labels: Sequence[str] = ()) -> list[tuple[int, Id]]:
        """Distances and ids of the items that carry all the labels, nearest first, ties by id."""
        fitting = [(id, item) for id, item in self.items.items() if set(labels) <= set(item.labels)]
        return sorted((distance(code, item.code), id) for id, item in fitting)

    def labels(self) -> dict[str, int]:
        names = sorted({label for item in self.items.values() for label in item.labels})
        return {name: sum(name in item.labels for item in self.items.values()) for name in names}


def pairs(hits: Hits) -> list[tuple[int, Id]]:
    """An answer in the form of the model's ranking."""
    assert hits.distances.dtype == np.int64
    assert len(hits) == len(hits.ids) == len(hits.distances)
    return [(far, id) for id, far in hits]


def check_search(
    index: HammingIndex, model: ModelIndex, queries: NDArray[np.uint8], k: int, labels: Sequence[str] = ()
) -> None:
    """Compare `search` with the model."""
    answers = index.search(queries, k, labels)
    assert len(answers) == len(queries)
    for code, hits in zip(queries, answers, strict=True):
        assert pairs(hits) == model.ranking(code.tobytes(), labels)[:k]


def check_within(
    index: HammingIndex,
    model: ModelIndex,
    queries: NDArray[np.uint8],
    radius: int,
    labels: Sequence[str] = (),
) -> None:
    """Compare `within` with the model."""
    answers = index.within(queries, radius, labels)
    assert len(answers) == len(queries)
    for code, hits in zip(queries, answers, strict=True):
        ranking = model.ranking(code.tobytes(), labels)
        assert pairs(hits) == [pair for pair in ranking if pair[0] <= radius]


def check_contents(index: HammingIndex, model: ModelIndex) -> None:
    """Compare everything that is not a search."""
    assert len(index) == len(model.items)
    ids = sorted(model.items)
    assert list(index.ids()) == ids
    assert index.labels() == model.labels()
    assert list(index.labels()) == sorted(index.labels())
    for id, item in zip(ids, index.get(ids), strict=True):
        check_item(item, id, model.items[id])
    assert all(id in index for id in ids[:5])


def check_item(item: Item, id: Id, stored: Stored) -> None:
    assert (item.id, type(item.id)) == (id, type(id))
    assert item.code.dtype == np.uint8
    assert item.code.tobytes() == stored.code
    assert (item.labels, item.path) == (stored.labels, stored.path)
