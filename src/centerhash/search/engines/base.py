"""What every engine can do: one small protocol for the store of an index.

Codes come and go packed, (n, ceil(K/8)) uint8 as `codes.pack` makes them. An item is an id, a semantic code, the
labels it carries and the path of its image, and where its model reads them a visual code and, for the labels that
matter, a presence (is it there?) and a share (how much of the image is it?). Answers are the same from every exact
engine: nearest first, equal distances in the order of their ids.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed
from centerhash.core.errors import InputError

if TYPE_CHECKING:
    from centerhash.search.engines.rankings import Ranking

Id: TypeAlias = int | str  # an index holds ids of one kind
Seen: TypeAlias = Mapping[str, tuple[int, int]]  # presence and share of labels, in 255ths; empty: not known
MAX_ID_BYTES = 512  # of a string id in UTF-8
VISUAL_BITS = 128
_PAGE = 10_000  # items per look-up when all of them are gone through
LEVELS = 255  # a presence or share is stored in one byte


@dataclass(frozen=True)
class Item:
    """What is stored of one image: its id, its packed code (ceil(K/8),), its labels, the path of its file, its looks.

    `visual` (16,) is the packed visual code, None where there is none; `seen` says the presence and the share of
    labels, also of such that the item does not carry.
    """

    id: Id
    code: Packed
    labels: tuple[str, ...] = ()
    path: str | None = None
    visual: Packed | None = None
    seen: Seen = field(default_factory=dict)

    def presence(self, labels: Iterable[str]) -> dict[str, float]:
        """How surely each of these labels is there, 0 to 1, as far as it is stored."""
        return {label: self.seen[label][0] / LEVELS for label in labels if label in self.seen}

    def shares(self, labels: Iterable[str]) -> dict[str, float]:
        """How much of the image each of these labels is, 0 to 1, as far as it is stored."""
        return {label: self.seen[label][1] / LEVELS for label in labels if label in self.seen}


@dataclass(frozen=True)
class Batch:
    """n items that come together, column by column; `visual` and `seen` are None where no item has any."""

    packed: Packed  # (n, ceil(K/8))
    ids: Sequence[Id]
    labels: Sequence[Sequence[str]]
    paths: Sequence[str | None]
    visual: Sequence[bytes | None] | None = None
    seen: Sequence[Seen] | None = None

    @classmethod
    def of(cls, items: Sequence[Item]) -> Self:
        """These items, of which there is one at least."""
        ids, codes, labels, paths, visual, seen = zip(*(vars(item).values() for item in items), strict=True)
        looks = [None if code is None else code.tobytes() for code in visual]
        return cls(np.stack(codes), ids, labels, paths, looks, seen)


@dataclass(frozen=True)
class Filter:
    """Which items may be found: they carry all of `having`, none of `without`, and lie under one of the folders.

    A folder is the beginning of a stored path, its last separator included.
    """

    having: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    under: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self.having or self.without or self.under is not None)


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
    these. A label that no item carries matches nothing.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits  # K
        self.changes = 0  # adds and removals by this process: the same number, the same items
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
    def _add(self, batch: Batch) -> None: ...

    @abstractmethod
    def _remove(self, ids: Sequence[Id]) -> int: ...

    @abstractmethod
    def _get(self, ids: Sequence[Id]) -> list[Item | None]: ...

    @abstractmethod
    def _search(self, packed: Packed, k: int, only: Filter) -> list[Hits]: ...

    @abstractmethod
    def _within(self, packed: Packed, radius: int, only: Filter) -> list[Hits]: ...

    @abstractmethod
    def _rank(self, ranking: Ranking, k: int, only: Filter) -> Hits: ...

    def add(
        self,
        packed: Packed,
        ids: Sequence[Id],
        labels: Sequence[Sequence[str]] | None = None,
        paths: Sequence[str | None] | None = None,
        visual: Packed | Sequence[Packed | None] | None = None,
        seen: Sequence[Seen] | None = None,
    ) -> None:
        """Add codes (n, ceil(K/8)) under new ids, all or none of them; on return they are stored durably.

        Visual codes are (n, 16), or a list with None for items without. An id that is there already, or comes twice,
        is an error: remove it first to replace it.
        """
        packed = check_packed(packed, self.bits)
        ids = check_ids(ids)
        count = len(packed)
        labels = [()] * count if labels is None else [check_labels(row) for row in labels]
        paths = [None] * count if paths is None else [_check_path(path) for path in paths]
        looks = None if visual is None else [_check_visual(code) for code in visual]
        seen = None if seen is None else [_check_seen(row) for row in seen]
        columns: dict[str, Sequence[Any] | None] = {
            "ids": ids,
            "labels": labels,
            "paths": paths,
            "visual": looks,
            "seen": seen,
        }
        for name, values in columns.items():
            if values is not None and len(values) != count:
                raise InputError(f"{name} has {len(values):,} entries for {count:,} codes.")
        if len(set(ids)) != count:
            counts = Counter(ids)
            twice = next(id for id in ids if counts[id] > 1)
            raise InputError(f"the id {twice!r} comes twice: give every item its own id.")
        with self._changing:
            for id in self.present(ids):
                raise InputError(f"the id {id!r} is in the index already: remove it first to replace it.")
            if count:
                self._add(Batch(packed, ids, labels, paths, looks, seen))
                self.changes += 1

    def present(self, ids: Sequence[Id]) -> list[Id]:
        """Those of these ids, all of one kind, that are there; engines that can look up many at once do so."""
        return [id for id in ids if id in self]

    def paths(self) -> Iterator[tuple[Id, str]]:
        """The id and the path of every item that has one, in the order of the ids."""
        return ((item.id, item.path) for item in self.items() if item.path is not None)

    def items(self) -> Iterator[Item]:
        """All items, in the order of their ids, but for those that are removed meanwhile."""
        ids = self.ids()
        while page := list(islice(ids, _PAGE)):
            yield from (item for item in self._get(page) if item is not None)

    def remove(self, ids: Sequence[Id]) -> int:
        """Remove the items of these ids and return how many were there; ids that are not there are passed over."""
        ids = list(dict.fromkeys(check_ids(ids)))
        with self._changing:
            removed = self._remove(ids) if ids else 0
            self.changes += bool(removed)
            return removed

    def get(self, ids: Sequence[Id]) -> list[Item]:
        """Return the items of these ids, or raise InputError naming the first that is not there."""
        ids = check_ids(ids)
        items = self._get(ids) if ids else []
        for id, item in zip(ids, items, strict=True):
            if item is None:
                raise InputError(f"no item {id!r} in the index, which holds {len(self):,}.")
        return [item for item in items if item is not None]

    def search(
        self, packed: Packed, k: int = 10, labels: Sequence[str] = (), only: Filter | None = None
    ) -> list[Hits]:
        """Return the `k` nearest items, or all if there are fewer, of each code (Q, ceil(K/8)).

        Only items that carry all `labels` are found, or those that the filter `only` lets through.
        """
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}.")
        return self._search(check_packed(packed, self.bits), k, only or Filter(check_labels(labels)))

    def within(
        self, packed: Packed, radius: int, labels: Sequence[str] = (), only: Filter | None = None
    ) -> list[Hits]:
        """Return all items at Hamming distance `radius` or less of each code (Q, ceil(K/8))."""
        if not 0 <= radius <= self.bits:
            raise InputError(f"the radius must be 0 to {self.bits}, the number of bits, got {radius}.")
        return self._within(check_packed(packed, self.bits), radius, only or Filter(check_labels(labels)))

    def rank(self, ranking: Ranking, k: int = 10, only: Filter | None = None) -> Hits:
        """Return the `k` first items of a ranking by more than the semantic code; distances are those of the code."""
        return self._rank(ranking, k, only or Filter())

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


def plain_id(id: object) -> Id | None:
    """An id as it is stored; None for what no index can hold."""
    try:
        return check_ids([id])[0]  # type: ignore[list-item]
    except InputError:
        return None


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
    different = dict.fromkeys(labels)
    if isinstance(labels, tuple) and len(different) == len(labels):
        return labels  # which items may share
    return tuple(different)


def _check_visual(code: Packed | None) -> bytes | None:
    return None if code is None else check_packed(code[None], VISUAL_BITS, "visual codes").tobytes()


def _check_seen(seen: Seen) -> Seen:
    for label, pair in seen.items():
        _encoded(label, "label")
        if len(pair) != 2 or not all(type(value) is int and 0 <= value <= LEVELS for value in pair):
            raise InputError(
                f"presence and share of '{label}' are two numbers of 0 to {LEVELS}, got {pair!r}."
            )
    return seen


def _check_path(path: str | None) -> str | None:
    if path is not None and not isinstance(path, str):
        raise InputError(f"the path of an item is a string or None, got {path!r}.")
    return path  # names of files need not be valid Unicode


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} {text!r} is no valid Unicode text: give it another name.") from None
