"""What every engine can do: one small protocol for the store of an index.

Codes come and go packed, (n, ceil(K/8)) uint8 as `codes.pack` makes them. An item is an id, a code, the labels it
carries and the path of its image. Answers are the same from every exact engine: nearest first, equal distances in
the order of their ids.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed
from centerhash.core.errors import InputError

Id: TypeAlias = int | str  # an index holds ids of one kind
MAX_ID_BYTES = 512  # of a string id in UTF-8


@dataclass(frozen=True)
class Item:
    """What is stored of one image: its id, its packed code (ceil(K/8),), its labels and the path of its file."""

    id: Id
    code: Packed
    labels: tuple[str, ...] = ()
    path: str | None = None


@dataclass(frozen=True)
class Hits:
    """The answer to one query: ids and Hamming distances, nearest first, ties in the order of the ids."""

    ids: tuple[Id, ...]
    distances: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[Id, int]]:
        return iter(zip(self.ids, self.distances.tolist(), strict=True))


class HammingIndex(ABC):
    """Packed codes that can be searched by Hamming distance.

    Public methods check their input and then call the engine's own `_add`, `_search` ...; an engine writes only
    these. A label filter keeps the items that carry all the labels asked for; an unknown label matches nothing.
    """

    exact: bool = True  # approximate engines may miss neighbours

    def __init__(self, bits: int) -> None:
        self.bits = bits  # K
        self._changing = threading.RLock()  # one thread at a time adds or removes

    @abstractmethod
    def __len__(self) -> int:
        """The number of items."""

    @abstractmethod
    def __contains__(self, id: object) -> bool:
        """Whether an item of this id is there."""

    @abstractmethod
    def ids(self) -> Iterator[Id]:
        """All ids, in ascending order."""

    @abstractmethod
    def labels(self) -> dict[str, int]:
        """Every label that some item carries, with the number of items, in the order of the names."""

    @abstractmethod
    def close(self) -> None:
        """Give back files and connections; a second call does nothing."""

    def info(self) -> dict[str, Any]:
        """What there is to say beyond the number of items."""
        return {}

    # a database looks after itself; an engine with files of its own does more

    def compact(self) -> None:  # noqa: B027
        """Give back the space of removed items."""

    def refresh(self) -> bool:
        """Let a reader see what the writer has done since; say whether there was something."""
        return False

    def verify(self) -> list[str]:
        """What is damaged, one sentence each; an empty list when all is well."""
        return []

    @abstractmethod
    def _add(
        self,
        packed: Packed,
        ids: Sequence[Id],
        labels: Sequence[Sequence[str]],
        paths: Sequence[str | None],
    ) -> None: ...

    @abstractmethod
    def _remove(self, ids: Sequence[Id]) -> int: ...

    @abstractmethod
    def _get(self, ids: Sequence[Id]) -> list[Item | None]: ...

    @abstractmethod
    def _search(self, packed: Packed, k: int, labels: Sequence[str]) -> list[Hits]: ...

    @abstractmethod
    def _within(self, packed: Packed, radius: int, labels: Sequence[str]) -> list[Hits]: ...

    def add(
        self,
        packed: Packed,
        ids: Sequence[Id],
        labels: Sequence[Sequence[str]] | None = None,
        paths: Sequence[str | None] | None = None,
    ) -> None:
        """Add codes (n, ceil(K/8)) under new ids, all or none of them; on return they are stored durably.

        An id that is there already, or comes twice, is an error: remove it first to replace it.
        """
        packed = check_packed(packed, self.bits)
        ids = check_ids(ids)
        count = len(packed)
        labels = [()] * count if labels is None else [check_labels(row) for row in labels]
        paths = [None] * count if paths is None else [_check_path(path) for path in paths]
        for name, values in (("ids", ids), ("labels", labels), ("paths", paths)):
            if len(values) != count:
                raise InputError(f"{name} has {len(values):,} entries for {count:,} codes.")
        if len(set(ids)) != count:
            seen: set[Id] = set()
            twice = next(id for id in ids if id in seen or seen.add(id))  # type: ignore[func-returns-value]
            raise InputError(f"the id {twice!r} comes twice: give every item its own id.")
        with self._changing:
            present = self._first_present(ids)
            if present is not None:
                raise InputError(
                    f"the id {present!r} is in the index already: remove it first to replace it."
                )
            if count:
                self._add(packed, ids, labels, paths)

    def _first_present(self, ids: Sequence[Id]) -> Id | None:
        """The first of these ids that is there; engines that can look up many at once do so."""
        return next((id for id in ids if id in self), None)

    def remove(self, ids: Sequence[Id]) -> int:
        """Remove the items of these ids and return how many were there; ids that are not there are passed over."""
        ids = list(dict.fromkeys(check_ids(ids)))
        with self._changing:
            return self._remove(ids) if ids else 0

    def get(self, ids: Sequence[Id]) -> list[Item]:
        """Return the items of these ids, or raise InputError naming the first that is not there."""
        ids = check_ids(ids)
        items = self._get(ids) if ids else []
        for id, item in zip(ids, items, strict=True):
            if item is None:
                raise InputError(f"no item {id!r} in the index, which holds {len(self):,}.")
        return [item for item in items if item is not None]

    def search(self, packed: Packed, k: int = 10, labels: Sequence[str] = ()) -> list[Hits]:
        """Return the `k` nearest items, or all if there are fewer, of each code (Q, ceil(K/8))."""
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}.")
        return self._search(check_packed(packed, self.bits), k, check_labels(labels))

    def within(self, packed: Packed, radius: int, labels: Sequence[str] = ()) -> list[Hits]:
        """Return all items at Hamming distance `radius` or less of each code (Q, ceil(K/8))."""
        if not 0 <= radius <= self.bits:
            raise InputError(f"the radius must be 0 to {self.bits}, the number of bits, got {radius}.")
        return self._within(check_packed(packed, self.bits), radius, check_labels(labels))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_ids(ids: Sequence[Id]) -> list[Id]:
    """Return the ids as plain int or str, or raise InputError: 64-bit integers, or strings of 1 to 512 bytes."""
    checked: list[Id] = [int(id) if isinstance(id, np.integer) else id for id in ids]
    for id in checked:
        if isinstance(id, bool) or not isinstance(id, int | str):
            raise InputError(f"an id is an integer or a string, got {id!r} ({type(id).__name__}).")
        if isinstance(id, int) and not -(2**63) <= id < 2**63:
            raise InputError(f"an integer id has 64 bits, got {id}.")
        if isinstance(id, str) and not 1 <= len(_encoded(id, "id")) <= MAX_ID_BYTES:
            raise InputError(f"a string id has 1 to {MAX_ID_BYTES} bytes, got {len(id.encode())}.")
    if len({type(id) for id in checked}) > 1:
        raise InputError("ids are all integers or all strings: an index holds one kind.")
    return checked


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of one item, each once, or raise InputError."""
    if (
        isinstance(labels, str)
        or not isinstance(labels, Iterable)
        or not all(isinstance(label, str) for label in labels)
    ):
        raise InputError(f"the labels of an item are a list of strings, got {labels!r}.")
    for label in labels:
        _encoded(label, "label")
    return tuple(dict.fromkeys(labels))


def _check_path(path: str | None) -> str | None:
    if path is not None and not isinstance(path, str):
        raise InputError(f"the path of an item is a string or None, got {path!r}.")
    return path  # names of files need not be valid Unicode


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} {text!r} is no valid Unicode text: give it another name.") from None
