"""Answers of a collection: hits of the index with their labels and the paths of their images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from centerhash.codes import Packed
from centerhash.core.errors import InputError
from centerhash.search.engines.base import HammingIndex, Id, Item
from centerhash.search.uploads import Uploads

if TYPE_CHECKING:
    from centerhash.model import Explained


@dataclass(frozen=True)
class Found:
    """One item of an answer; `path` is absolute, or None for an item without an image."""

    id: str
    distance: int
    labels: tuple[str, ...]
    path: str | None


@dataclass(frozen=True)
class Answer:
    """What a search found, nearest first; the labels of the query, if the method has centers; its code (ceil(K/8),)."""

    found: list[Found]
    labels: list[Explained]
    code: Packed


def nearest(
    index: HammingIndex,
    packed: Packed,
    k: int,
    labels: Sequence[str],
    within: int | None,
    without: str | None = None,
) -> list[tuple[Item, int]]:
    """The `k` items nearest to one code (1, ceil(K/8)), with their distances; the id `without` is left out."""
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}.")
    if within is not None and not 0 <= within <= index.bits:
        raise InputError(f"within must be 0 to {index.bits}, the number of bits, got {within}.")
    hits = index.search(packed, k if without is None else k + 1, labels)[0]
    near = [hit for hit in hits if hit[0] != without and (within is None or hit[1] <= within)]
    return _looked_up(index, near[:k])


def _looked_up(index: HammingIndex, near: Sequence[tuple[Id, int]]) -> list[tuple[Item, int]]:
    """The items of hits, without those that another thread has removed since the search."""
    while True:
        try:
            items = index.get([id for id, _ in near])
        except InputError:
            left = [hit for hit in near if hit[0] in index]
            if len(left) == len(near):
                raise
            near = left
            continue
        return [(item, distance) for item, (_, distance) in zip(items, near, strict=True)]


def as_found(item: Item, distance: int, uploads: Uploads) -> Found:
    """An item as users see it."""
    path = None if item.path is None else str(uploads.path(item.path))
    return Found(str(item.id), distance, tuple(item.labels), path)
