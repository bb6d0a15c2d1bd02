"""Items of an index, and the small interface of every store that holds them.

Codes are packed, (n, ceil(K/8)) uint8 as `codes.pack` returns them. Results have the same order from every exact store:
nearest first, and items at the same distance in the order in which they were added (in Milvus: of their ids).
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from centerhash.codes import Packed, check_packed
from centerhash.core.errors import InputError

if TYPE_CHECKING:
    from centerhash.search.rankings import Ranking
    from centerhash.search.teaching import PackedCodes, Taught

LabelScores: TypeAlias = Mapping[str, tuple[int, int]]  # probability and area share of labels, in 255ths
MAX_ID_BYTES = 512  # in UTF-8
VISUAL_BITS = 128
LEVELS = 255  # a probability or share is stored in one byte
_NOT_TAUGHT = "labels cannot be taught in an index in Milvus: create one with `store=sqlite`."


@dataclass(frozen=True)
class Item:
    """One stored image: its id, packed code (ceil(K/8),), labels, path, visual code (16,) and label scores.

    `scores` also holds labels that the item does not carry; it is empty for an item without scores.
    """

    id: str
    code: Packed
    labels: tuple[str, ...] = ()
    path: str | None = None
    visual: Packed | None = None
    scores: LabelScores = field(default_factory=dict)
    modified: float | None = None  # of its file, in seconds since 1970; 0: the file is gone

    def probabilities(self, labels: Iterable[str]) -> dict[str, float]:
        """Return the stored probabilities of these labels, 0 to 1."""
        return {label: self.scores[label][0] / LEVELS for label in labels if label in self.scores}

    def shares(self, labels: Iterable[str]) -> dict[str, float]:
        """Return the stored area shares of these labels, 0 to 1."""
        return {label: self.scores[label][1] / LEVELS for label in labels if label in self.scores}


@dataclass(frozen=True)
class Batch:
    """n items to be added, as columns."""

    packed: Packed  # (n, ceil(K/8))
    ids: Sequence[str]
    labels: Sequence[Sequence[str]]
    paths: Sequence[str | None]
    visual: Sequence[Packed | None]
    scores: Sequence[LabelScores]
    modified: Sequence[float | None]  # None: read it from the file

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Filter:
    """Restrict results to items with all labels of `having`, none of `without`, and a file below one of the folders.

    A folder is the beginning of a stored path, including its last separator.
    """

    having: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    under: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self.having or self.without or self.under is not None)


class ItemStore(ABC):
    """Items that can be searched by Hamming distance; public methods check their input, a store implements the rest."""

    def __init__(self, bits: int) -> None:
        self.bits = bits  # K
        self.lock = threading.RLock()  # one thread changes the store at a time

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @property
    @abstractmethod
    def version(self) -> Hashable:
        """Return a value that changes whenever the items change."""

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """Iterate over all items, except those that are removed meanwhile."""

    @abstractmethod
    def labels(self) -> dict[str, int]:
        """Return every label that an item carries with the number of its items, sorted by name."""

    @abstractmethod
    def present(self, ids: Sequence[str]) -> list[str]:
        """Return those of these ids that are stored, in the same order."""

    @abstractmethod
    def close(self) -> None:
        """Release files and connections; a second call does nothing."""

    @abstractmethod
    def _add(self, batch: Batch, replace: bool) -> None: ...

    @abstractmethod
    def _remove(self, ids: Sequence[str]) -> int: ...

    @abstractmethod
    def _get(self, ids: Sequence[str]) -> list[Item | None]: ...

    @abstractmethod
    def _search(self, ranking: Ranking, k: int, only: Filter) -> list[tuple[Item, int]]: ...

    # a database server looks after itself; a store with its own files does more

    def info(self) -> dict[str, Any]:
        """Return further facts about the store."""
        return {}

    def compact(self) -> None:  # noqa: B027
        """Reclaim the space of removed items."""

    def refresh(self) -> bool:
        """Load what another process has written; return whether there was anything."""
        return False

    def verify(self) -> list[str]:
        """Return one sentence for each damage found."""
        return []

    def transaction(self) -> AbstractContextManager[Any]:
        """Make all changes within the block one commit, if the store can."""
        return nullcontext()

    def taught(self) -> Mapping[str, Taught]:
        """Return the taught labels by name."""
        return {}

    def save_taught(self, labels: Mapping[str, Taught | None]) -> None:
        """Store taught labels, and remove those that are None, atomically."""
        raise InputError(_NOT_TAUGHT)

    def sample_codes(self, count: int, without: Sequence[str]) -> PackedCodes:
        """Return the codes of random items, always the same ones, except those of some ids."""
        raise InputError(_NOT_TAUGHT)

    def paths(self) -> Iterator[tuple[str, str]]:
        """Iterate over the id and path of every item that has a path."""
        return ((item.id, item.path) for item in self.items() if item.path is not None)

    def folders(self) -> dict[str, int]:
        """Return the folders of all paths with the number of items directly in each."""
        return dict(Counter(str(Path(path).parent) for _, path in self.paths()))

    @abstractmethod
    def newest(self, offset: int, limit: int, only: Filter) -> tuple[list[Item], int]:
        """Return a page of the items with an image, last modified first, and the number of all that pass the filter."""

    def add(
        self,
        packed: Packed,
        ids: Sequence[str],
        labels: Sequence[Sequence[str]] | None = None,
        paths: Sequence[str | None] | None = None,
        visual: Packed | Sequence[Packed | None] | None = None,
        scores: Sequence[LabelScores] | None = None,
        modified: Sequence[float | None] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Add codes (n, ceil(K/8)) under new ids atomically; on return they are stored durably.

        Visual codes are (n, 16), or a list with None for items without one. An id that is stored already is an
        error, unless `replace` removes its item first.
        """
        packed, count = check_packed(packed, self.bits), len(packed)
        batch = Batch(
            packed,
            check_ids(ids),
            [()] * count if labels is None else [check_labels(row) for row in labels],
            [None] * count if paths is None else [_check_path(path) for path in paths],
            [None] * count
            if visual is None
            else [
                None if code is None else check_packed(code[None], VISUAL_BITS, "visual codes")[0]
                for code in visual
            ],
            [{}] * count if scores is None else [_check_scores(row) for row in scores],
            [None] * count if modified is None else list(modified),
        )
        for name in ("ids", "labels", "paths", "visual", "scores", "modified"):
            if len(getattr(batch, name)) != count:
                raise InputError(f"{name} has {len(getattr(batch, name)):,} entries for {count:,} codes.")
        if len(set(batch.ids)) != count:
            twice = Counter(batch.ids).most_common(1)[0][0]
            raise InputError(f"the id {twice!r} comes twice: give every item its own id.")
        with self.lock:
            for id in () if replace else self.present(batch.ids):
                raise InputError(f"the id {id!r} is in the index already: remove it first to replace it.")
            if count:
                self._add(batch, replace)

    def add_items(self, items: Sequence[Item], *, replace: bool = False) -> None:
        """Add items, at least one, as `add` does."""
        ids, codes, *rest = zip(*(vars(item).values() for item in items), strict=True)
        self.add(np.stack(codes), ids, *rest, replace=replace)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove the items of these ids and return how many were stored."""
        ids = list(dict.fromkeys(check_ids(ids)))
        with self.lock:
            return self._remove(ids) if ids else 0

    def get(self, ids: Sequence[str]) -> list[Item]:
        """Return the items of these ids, or raise InputError naming the first that is not stored."""
        ids = check_ids(ids)
        items = self._get(ids) if ids else []
        for id, item in zip(ids, items, strict=True):
            if item is None:
                raise InputError(f"no item {id!r} in the index, which holds {len(self):,}.")
        return [item for item in items if item is not None]

    def search(self, ranking: Ranking, k: int, only: Filter | None = None) -> list[tuple[Item, int]]:
        """Return the `k` first items of a ranking that pass the filter, with their semantic distances."""
        return self._search(ranking, k, only or Filter())

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and is_id(id) and bool(self.present([id]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def is_id(id: str) -> bool:
    """Return whether a text can be an id: 1 to 512 bytes of UTF-8."""
    try:
        return 1 <= len(id.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


def check_ids(ids: Sequence[str]) -> list[str]:
    """Return the ids as a list, or raise InputError for what cannot be an id."""
    for id in ids:
        if not isinstance(id, str) or not is_id(id):
            raise InputError(f"an id is a string of 1 to {MAX_ID_BYTES} bytes of UTF-8, got {id!r:.80}.")
    return list(ids)


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of one item, each once, or raise InputError."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise InputError(f"the labels of an item are a list of strings, got {labels!r:.80}.")
    for label in labels:
        _check_text(label)
    different = dict.fromkeys(labels)
    if isinstance(labels, tuple) and len(different) == len(labels):
        return labels  # which items may share
    return tuple(different)


def _check_text(label: object) -> None:
    try:
        if not isinstance(label, str):
            raise TypeError
        label.encode()
    except (TypeError, UnicodeEncodeError):
        raise InputError(f"a label is a string of valid Unicode, got {label!r:.80}.") from None


def _check_scores(scores: LabelScores) -> LabelScores:
    for label, pair in scores.items():
        _check_text(label)
        if len(pair) != 2 or not all(type(value) is int and 0 <= value <= LEVELS for value in pair):
            raise InputError(
                f"probability and share of '{label}' are two numbers of 0 to {LEVELS}, got {pair!r}."
            )
    return scores


def _check_path(path: str | None) -> str | None:
    if path is not None and (not isinstance(path, str) or not path or "\0" in path):
        raise InputError(f"the path of an item is a string or None, got {path!r:.80}.")
    return path  # names of files need not be valid Unicode


def modified_time(path: str) -> float:
    """Return when a file was last modified, in seconds since 1970; 0 if it is gone."""
    try:
        return os.stat(path).st_mtime  # noqa: PTH116 - quicker for many files
    except (OSError, ValueError):
        from centerhash.data.layouts.parquet import is_stored_image  # which imports Pillow

        inside = is_stored_image(Path(path))  # a row of a parquet file
        return modified_time(str(Path(path).parent)) if inside else 0.0
