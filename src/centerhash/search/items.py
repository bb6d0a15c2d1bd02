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
MAX_TEXT = 1 << 15  # characters of a label or of a path; Windows allows a path one less
VISUAL_BITS = 128
LEVELS = 255  # a probability or share is stored in one byte
MAX_SIDE = (1 << 31) - 1  # pixels of a photo
MAX_NAME = 255  # characters of the name of an upload or of a camera
TIMES = (-62_135_596_800, 253_402_300_800)  # seconds from the year 1 to before the year 10000
_NOT_TAUGHT = "labels cannot be taught in an index in Milvus: create one with `store=sqlite`."


@dataclass(frozen=True)
class File:
    """A path at which an image lies: its size in bytes and modification time when it was read, if known."""

    path: str
    size: int | None = None
    modified: float | None = None  # seconds since 1970
    gone: bool = False  # it was not there when its folder was last scanned

    def __lt__(self, other: File) -> bool:
        return (self.gone, self.path) < (other.gone, other.path)

    @classmethod
    def at(cls, path: str) -> Self:
        """Return the file at a path; without size and time if there is none."""
        try:
            status = os.stat(path)  # noqa: PTH116 - quicker for many files
        except (OSError, ValueError):
            from centerhash.data.layouts.parquet import is_stored_image  # which imports Pillow

            if not is_stored_image(Path(path)):  # a row of a parquet file
                return cls(path)
            status = Path(path).parent.stat()
        return cls(path, status.st_size, status.st_mtime)


@dataclass(frozen=True)
class PhotoInfo:
    """When a photo was taken and with which camera, its size in pixels, and its name if it was uploaded.

    `taken` counts seconds since 1970 by the clock of the camera, as if that showed UTC. It comes from EXIF, otherwise
    from the modification time of the file.
    """

    taken: float | None = None
    camera: str | None = None
    width: int | None = None  # of the upright image
    height: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Item:
    """One stored image: its id, packed code (ceil(K/8),), labels, files, visual code (16,) and label scores.

    `files` are all paths with this content, sorted, those that are gone last. `scores` also holds labels that the item
    does not carry; it is empty for an item without scores.
    """

    id: str
    code: Packed
    labels: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    visual: Packed | None = None
    scores: LabelScores = field(default_factory=dict)
    photo: PhotoInfo = field(default_factory=PhotoInfo)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the image, sorted; those of files that are gone only if all are."""
        return tuple(file.path for file in self.files if self.hidden or not file.gone)

    @property
    def path(self) -> str | None:
        """Return the first path; None for an item without an image."""
        return self.files[0].path if self.files else None

    @property
    def hidden(self) -> bool:
        """Return whether all its files are gone."""
        return bool(self.files) and self.files[0].gone

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
    files: Sequence[Sequence[File]]
    visual: Sequence[Packed | None]
    scores: Sequence[LabelScores]
    photos: Sequence[PhotoInfo]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Filter:
    """Restrict results to items with all labels of `having`, none of `without`, and a file below one of the folders.

    A folder is the beginning of a stored path, including its last separator. Photos were taken from the time `after`
    on, earlier than `before`, as `PhotoInfo.taken` counts, and with one of the `cameras`. Every word of `named` begins
    a part of the name of a file or of one of its folders: see `names.names_part`.
    """

    having: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    under: tuple[str, ...] | None = None
    after: float | None = None
    before: float | None = None
    cameras: tuple[str, ...] | None = None
    named: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Filter()


@dataclass(frozen=True)
class Counts:
    """How many items a further filter by each label, camera or folder would leave; those without any are left out."""

    labels: dict[str, int]
    cameras: dict[str, int]
    folders: dict[str, int]  # images directly in each


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
    def items(self, *, hidden: bool = False) -> Iterator[Item]:
        """Iterate over all items, with `hidden` also those whose files are gone."""

    @abstractmethod
    def files(self, folder: str) -> dict[str, tuple[str, File]]:
        """Return the files directly in a folder by name, with the id of their item."""

    @abstractmethod
    def months(self, only: Filter) -> dict[str, int]:
        """Return the months in which photos that pass the filter were taken ("2024-06"), newest first, with counts."""

    @abstractmethod
    def counts(self, only: Filter) -> Counts:
        """Count the items that pass the filter by label, camera and folder."""

    @abstractmethod
    def cameras(self) -> dict[str, int]:
        """Return every camera with the number of its items, sorted by name."""

    @property
    @abstractmethod
    def hidden(self) -> int:
        """Return the number of items whose files are all gone."""

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
    def _change_files(self, found: Sequence[tuple[str, File]], gone: Sequence[str]) -> None: ...

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

    def snapshot(self) -> AbstractContextManager[None]:
        """Within the block, all that this thread reads is of one commit, if the store can."""
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

    def every_folder(self) -> list[str]:
        """Return all folders in which items have files, also files that are gone."""
        paths = (file.path for item in self.items(hidden=True) for file in item.files)
        return list(dict.fromkeys(map(os.path.dirname, paths)))

    def roots(self) -> list[str]:
        """Return the folders that were added as a whole, sorted, if the store keeps them."""
        return []

    def set_roots(self, added: Sequence[str], removed: Sequence[str] = ()) -> None:  # noqa: B027
        """Note folders that were added as a whole, and those that no longer count as such."""

    def removed(self) -> Mapping[str, tuple[str, File]]:
        """Return the files of removed images by path, with the ids of the images, if the store keeps them."""
        return {}

    def was_removed(self, id: str) -> bool:
        """Return whether an image was removed, and has not been added since, if the store keeps this."""
        return False

    def note_removed(self, files: Sequence[tuple[str, File]]) -> None:  # noqa: B027
        """Remember files of removed images by the ids of these, so that scans of their folders leave them out.

        Adding an image, or another one at the same path, forgets its removal.
        """

    def forget_removed(self, paths: Sequence[str]) -> None:  # noqa: B027
        """Forget that the images at these paths were removed."""

    def paths(self) -> Iterator[tuple[str, str]]:
        """Iterate over the id and each path of every item, also of hidden ones."""
        return ((item.id, path) for item in self.items(hidden=True) for path in item.paths)

    def folders(self) -> dict[str, int]:
        """Return the folders of all paths with the number of items directly in each."""
        places = ({os.path.dirname(path) for path in item.paths} for item in self.items())  # noqa: PTH120
        return dict(Counter(folder for own in places for folder in own))

    def has_name(self, word: str) -> bool:
        """Return whether a word begins a part of the name of a file or folder; a store without such a filter has none."""
        return False

    @abstractmethod
    def newest(self, offset: int, limit: int, only: Filter) -> tuple[list[Item], int]:
        """Return a page of the items with an image, last taken first, and the number of all that pass the filter."""

    def add(
        self,
        packed: Packed,
        ids: Sequence[str],
        labels: Sequence[Sequence[str]] | None = None,
        files: Sequence[str | Sequence[File] | None] | None = None,
        visual: Packed | Sequence[Packed | None] | None = None,
        scores: Sequence[LabelScores] | None = None,
        photos: Sequence[PhotoInfo] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Add codes (n, ceil(K/8)) under new ids atomically; on return they are stored durably.

        `files` are those of each item, or its path. A path that belonged to another item is now of the new one; an item
        that has lost its last path is removed. Visual codes are (n, 16), or a list with None for items without one. An
        id that is stored already is an error, unless `replace` removes its item first.
        """
        packed, count = check_packed(packed, self.bits), len(packed)
        batch = Batch(
            packed,
            check_ids(ids),
            [()] * count if labels is None else [check_labels(row) for row in labels],
            [()] * count if files is None else [_check_files(row) for row in files],
            [None] * count
            if visual is None
            else [
                None if code is None else check_packed(code[None], VISUAL_BITS, "visual codes")[0]
                for code in visual
            ],
            [{}] * count if scores is None else [_check_scores(row) for row in scores],
            [PhotoInfo()] * count if photos is None else [_check_photo(photo) for photo in photos],
        )
        for name in ("ids", "labels", "files", "visual", "scores", "photos"):
            if len(getattr(batch, name)) != count:
                raise InputError(f"{name} has {len(getattr(batch, name)):,} entries for {count:,} codes.")
        for what, given in (
            ("id", batch.ids),
            ("path", [file.path for own in batch.files for file in own]),
        ):
            if len(set(given)) != len(given):
                twice = Counter(given).most_common(1)[0][0]
                raise InputError(f"the {what} {twice!r} comes twice: give every item its own {what}.")
        with self.lock:
            for id in () if replace else self.present(batch.ids):
                raise InputError(f"the id {id!r} is in the index already: remove it first to replace it.")
            if count:
                self._add(batch, replace)

    def add_items(self, items: Sequence[Item], *, replace: bool = False) -> None:
        """Add items, at least one, as `add` does."""
        ids, codes, *rest = zip(*(vars(item).values() for item in items), strict=True)
        self.add(np.stack(codes), ids, *rest, replace=replace)

    def change_files(self, found: Sequence[tuple[str, File]], gone: Sequence[str] = ()) -> None:
        """Store files of items by their id, and which paths are gone, in one commit.

        A path that belonged to another item changes hands as in `add`. If an item is found at a path, its paths that
        are gone are forgotten: the file was moved. An item whose files are all gone is hidden from searches and counts
        until one is found again. Paths and ids that are not stored are ignored.
        """
        for _, file in found:
            _check_path(file.path)
        last = {file.path: (id, file) for id, file in found}  # a path has one content
        with self.lock:
            if found or gone:
                self._change_files(list(last.values()), gone)

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
        if len(label) > MAX_TEXT:
            raise TypeError
    except (TypeError, UnicodeEncodeError):
        raise InputError(
            f"a label is a string of valid Unicode of at most {MAX_TEXT:,} characters, got {label!r:.80}."
        ) from None


def _check_scores(scores: LabelScores) -> LabelScores:
    for label, pair in scores.items():
        _check_text(label)
        if len(pair) != 2 or not all(type(value) is int and 0 <= value <= LEVELS for value in pair):
            raise InputError(
                f"probability and share of '{label}' are two numbers of 0 to {LEVELS}, got {pair!r}."
            )
    return scores


def _check_files(files: str | Sequence[File] | None) -> tuple[File, ...]:
    """Return the files of one item, sorted, or raise InputError; a path becomes the file that is there now."""
    if files is None or isinstance(files, str):
        return () if files is None else (File.at(_check_path(files)),)
    if not isinstance(files, Sequence):
        raise InputError(f"the path of an item is a string or None, got {files!r:.80}.")
    own: list[File] = [file for file in files if isinstance(file, File)]
    if len(own) < len(files):
        raise InputError(f"the files of an item are a list of `File`, got {files!r:.80}.")
    for file in own:
        _check_path(file.path)
    return tuple(sorted(own))


def _check_path(path: str) -> str:
    if not 1 <= len(path) <= MAX_TEXT or "\0" in path:
        raise InputError(
            f"the path of an item is None or a string of 1 to {MAX_TEXT:,} characters, got {path!r:.80}."
        )
    return path  # names of files need not be valid Unicode


def _check_photo(photo: PhotoInfo) -> PhotoInfo:
    if photo.taken is not None and not TIMES[0] <= photo.taken < TIMES[1]:
        raise InputError(f"a photo is taken in the years 1 to 9999, got {photo.taken!r} seconds after 1970.")
    for side in (photo.width, photo.height):
        if side is not None and not (type(side) is int and 0 < side <= MAX_SIDE):
            raise InputError(f"width and height are whole numbers from 1 on, got {side!r}.")
    for text in (photo.camera, photo.name):
        if text is not None:
            _check_text(text)
            if not 0 < len(text) <= MAX_NAME:
                raise InputError(
                    f"the name of a camera or photo has 1 to {MAX_NAME} characters, got {text!r:.80}."
                )
    return photo
