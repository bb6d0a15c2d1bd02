"""The class `PhotoIndex`: search photos by image, words, examples, dates and folders."""

from __future__ import annotations

import datetime
import os
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import pack
from centerhash.core.checks import whole_number
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.progress import Progress, resolve_progress
from centerhash.data.images import ImageSource, check_source
from centerhash.data.listing import find_images
from centerhash.data.views import with_rotations
from centerhash.index import Index, Item, Result, is_index, verify_index
from centerhash.model.base import LabelMatch, Model
from centerhash.model.loading import load
from centerhash.networks.cache import default_cache
from centerhash.photos import files
from centerhash.photos.duplicates import Duplicates, find_duplicates
from centerhash.photos.files import FileState
from centerhash.photos.results import PhotoResult, PhotoResults
from centerhash.photos.sync import SyncResult, sync
from centerhash.photos.text_query import check_known, match, parse_query

# 2024, "2024-06", "2024-06-01", or an object of `datetime`.
Date: TypeAlias = str | int | datetime.date
Paths: TypeAlias = str | Path | Sequence[str | Path]
PhotoRows: TypeAlias = list[PhotoResult]


class PhotoFilter(TypedDict, total=False):
    """Select photos: with all labels of `having`, none of `without`, taken since `after` and before `before`.

    Both dates are a year, month or day, such as "2024-06"; `under` is a folder of a file of the photo.
    """

    having: str | Sequence[str]
    without: str | Sequence[str]
    after: Date | None
    before: Date | None
    under: str | Path | None


@dataclass(frozen=True)
class PhotoCounts:
    """Count photos that pass a filter: all of them, by label, and by the folder that they are directly in."""

    total: int
    labels: dict[str, int]
    folders: dict[str, int]


class PhotoIndex(AbstractContextManager["PhotoIndex"]):
    """Search the photos of folders; use `create`, `open` or `of`.

        with PhotoIndex.of("pictures") as photos:
            photos.add("pictures")
            photos.search("dog.jpg", k=20, under="pictures/2024")
            photos.search(labels="a cat without people", after="2024")

    The id of a photo is the first 16 hex digits of the SHA-256 of its bytes, so equal files are one photo. `index` is the
    `Index` of the codes, labels and attributes (`taken`, `width`, `height`). Threads may share a photo index.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self._folders_of = lru_cache(1)(self._read_folders)

    @classmethod
    def create(cls, folder: str | Path, model: Model | str | Path | None = None) -> Self:
        """Create an empty photo index for the codes of a model, by default the built-in one, and open it."""
        return cls(_with_tables(Index.create(folder, model, attributes=files.ATTRIBUTES)))

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False, **options: Any) -> Self:
        """Open a photo index; `options` are `device`, `engine` and `max_pixels` of `Index.open`."""
        return cls(_with_tables(Index.open(folder, read_only=read_only, **options)))

    @classmethod
    def of(cls, pictures: str | Path, model: str | Path | None = None, **options: Any) -> Self:
        """Open the default index of a folder of pictures; create it with `model` if it is missing."""
        if not Path(pictures).is_dir():
            raise DataError(f"no such index or folder of pictures: '{pictures}'.")
        folder = default_folder(pictures)
        if not is_index(folder):
            # No index is created for a folder without pictures.
            find_images([pictures])
            cls.create(folder, model).close()
        photos = cls.open(folder, **options)
        if model is not None and load(model).digest != photos.index.model.digest:
            photos.close()
            raise ConfigError(f"'{folder}' was made with another model than '{model}': leave the model out.")
        return photos

    # --- changes

    def add(
        self,
        paths_or_folders: Paths | None = None,
        *,
        labels: str | None = None,
        progress: bool | Progress = True,
        batch: int = 256,
        with_removed: bool = False,
    ) -> SyncResult:
        """Add photos: files, folders, patterns; without any, the folders that were added before.

        Files whose path, size and time are stored are not read again, and moved ones are recognized by content. Photos
        whose files are gone from the folders are hidden until they are back, and a changed file is a new photo. Every
        `batch` of files is one commit, so the same call resumes after a crash.

        Labels come from the labels.csv in a folder or above it, and are predicted by the model for all other photos;
        `labels` "given", "predicted" or "none" selects one source. Removed photos stay removed unless their file is
        named itself, has changed, or `with_removed` is set.
        """
        whole_number(batch, "batch", 1)
        entries = self.roots() if paths_or_folders is None else _listed(paths_or_folders)
        if not entries:
            raise ConfigError(
                f"no folder has been added to '{self.folder}' yet: name files or folders to add."
            )
        with resolve_progress(progress) as report:
            return sync(self.index, entries, labels, batch, report, with_removed=with_removed)

    def remove(self, ids_or_paths: Paths) -> int:
        """Remove photos by id, by path or by a folder, and return how many; no file is deleted.

        Later scans skip their files: see `add`. A folder that was added as a whole is forgotten when it is removed.
        """
        ids = list(dict.fromkeys(chain.from_iterable(self.find(ids_or_paths).values())))
        with self.index.transaction() as connection:
            keys = self.index.keys(ids).tolist()
            stored = list(chain.from_iterable(files.files_of(connection, keys).values()))
            present = [file for file in stored if file.state == FileState.PRESENT]
            files.delete_files(connection, stored)
            files.put_files(connection, [file._replace(state=FileState.REMOVED, key=-1) for file in present])
            self._forget_roots(connection, ids_or_paths)
            return self.index.remove(ids)

    def _forget_roots(self, connection: sqlite3.Connection, ids_or_paths: Paths) -> None:
        """Forget added folders that are removed as a whole, with their removed files."""
        removed = [os.path.realpath(entry) for entry in _listed(ids_or_paths)]
        roots = files.read_roots(connection)
        kept = [root for root in roots if not any(map(Path(root).is_relative_to, removed))]
        for root in set(roots) - set(kept):
            if not any(map(Path(root).is_relative_to, kept)):
                below = files.files_at(connection, root)
                files.delete_files(connection, [file for file in below if file.state == FileState.REMOVED])
        files.write_roots(connection, kept)

    # --- queries

    def search(
        self,
        image: ImageSource | None = None,
        *,
        id: str | None = None,
        labels: Mapping[str, float] | Sequence[str] | str | None = None,
        like: Paths | NDArray[Any] | None = None,
        unlike: Paths | NDArray[Any] = (),
        k: int = 10,
        by: str | None = None,
        within: int | None = None,
        rotations: bool = True,
        **filters: Unpack[PhotoFilter],
    ) -> PhotoResults:
        """Return the `k` photos nearest to an image, a photo by its `id`, `labels`, or examples `like` it.

        An image is a path, bytes, a PIL image or a uint8 array (height, width, 3). Copies of it come first, rotated and
        bordered ones included; `rotations=False` skips rotated ones in a quarter of the time. Labels are a text such as
        "a cat without people" or "dog:0.7, bicycle", names, or a mapping of names to weights. `like` and `unlike` are
        ids, paths of photos of the index, or an array of embeddings (n, D).

        `by`, `within` and the order of results are those of `Index.search`; filters are those of `PhotoFilter`.
        """
        queries = {"image": image, "id": id, "labels": labels, "like": like}
        names = [name for name, value in queries.items() if value is not None]
        if len(names) != 1:
            passed = " and ".join(names) or "none"
            raise InputError(f"search by exactly one of {', '.join(queries)}, got {passed}.")
        query: dict[str, Any] = {"k": k, "by": by, "within": within}
        image_labels: Sequence[LabelMatch] = ()
        if image is not None:
            codes, image_labels = self._encode(image, rotations)
            query |= {"code": codes, "copies": True}
        elif labels is not None:
            weights, filters = self._label_query(labels, filters)
            if not weights:
                # Without a label to rank by, the photos that pass the filter are the results.
                rows, _ = self.list(0, k, **filters)
                return PhotoResults(rows, (), None, len(self))
            query["labels"] = weights
        elif like is not None:
            query |= {"like": self._examples(like), "unlike": self._examples(unlike)}
        else:
            query |= {"id": id, "copies": True}
        results = self.index.search(**query, **self._filter(**filters))
        query_labels = results.labels if image is None else image_labels
        return PhotoResults(self._results(results), query_labels, results.code, results.size)

    def _encode(
        self, image: ImageSource, rotations: bool
    ) -> tuple[dict[str, NDArray[np.uint8]], Sequence[LabelMatch]]:
        """Return the semantic code (W,) of an image, the general codes (V, W2) of its views, and its labels."""
        check_source(image)
        model, encoder = self.index.model, self.index.encoder()
        views = encoder.views(image)
        if self.index.general_bits is None:
            views = views[:1]
        elif rotations:
            views = with_rotations(views)
        features = encoder.engine.features(views)
        codes = {"semantic": pack(model.encode_features(features[:1]))[0]}
        if self.index.general_bits is not None:
            codes["general"] = pack(model.general_codes(features))
        labels = model.explain_features(features[:1])[0] if model.has_centers else ()
        return codes, [label for label in labels if label.weight > 0]

    def _known_labels(self) -> list[str]:
        return [*dict.fromkeys((*self.index.classes, *self.labels()))]

    def _label_query(
        self, labels: Mapping[str, float] | Sequence[str] | str, filters: PhotoFilter
    ) -> tuple[dict[str, float], PhotoFilter]:
        """Return the weights of the model's classes, and the filters with the other labels of a text."""
        classes = self.index.classes
        if not isinstance(labels, str):
            pairs = labels.items() if isinstance(labels, Mapping) else [(name, 1.0) for name in labels]
            return {match(str(name), classes) or str(name): weight for name, weight in pairs}, filters
        known = self._known_labels()
        query = parse_query(labels, known)
        check_known(query, known)
        if not (query.weights or query.without):
            raise ConfigError(
                'no label was given: write for example "dog, bicycle" or "a cat without people".'
            )
        weights = {label: weight for label, weight in query.weights.items() if label in classes}
        other_labels = [label for label in query.weights if label not in weights]
        having = [*_names(filters.get("having", ())), *other_labels]
        without = [*_names(filters.get("without", ())), *query.without]
        return weights, {**filters, "having": having, "without": without}

    def _examples(self, examples: Paths | NDArray[Any]) -> list[str] | NDArray[Any]:
        """Return examples as ids, or as embeddings; paths stand for the photos of the index that they lead to."""
        if isinstance(examples, np.ndarray):
            return examples
        ids_of = self.find(examples)
        for example, ids in ids_of.items():
            if not ids:
                raise InputError(f"'{example}' is neither an id nor the path of a photo of this index.")
        return list(chain.from_iterable(ids_of.values()))

    def _filter(
        self,
        *,
        having: str | Sequence[str] = (),
        without: str | Sequence[str] = (),
        after: Date | None = None,
        before: Date | None = None,
        under: str | Path | None = None,
    ) -> dict[str, Any]:
        """Return the filter of the index for a `PhotoFilter`."""
        known = self._known_labels() if having or without else []
        index_filter: dict[str, Any] = {
            "having": [match(label, known) or label for label in _names(having)],
            "without": [match(label, known) or label for label in _names(without)],
        }
        if after is not None or before is not None:
            low = None if after is None else read_date(after)
            # Both ends of a range are inclusive, so it ends at the last moment before the date.
            high = None if before is None else float(np.nextafter(read_date(before), -np.inf))
            index_filter["where"] = {"taken": (low, high)}
        if under is not None:
            if not isinstance(under, str | Path) or not str(under):
                raise InputError(f"a folder of photos is needed, got {under!r:.80}.")
            with self.index.reading() as connection:
                index_filter["among"] = files.keys_below(connection, os.path.realpath(under))
        return index_filter

    def count(self, **filters: Unpack[PhotoFilter]) -> PhotoCounts:
        """Count the photos that pass a filter, by label and folder: as many as a further filter would leave."""
        counts = self.index.count(**self._filter(**filters))
        passing = set(counts.keys.tolist())
        folders = Counter(folder for folder, key in self._folders_of(self.index.version) if key in passing)
        return PhotoCounts(counts.total, dict(counts.labels), dict(folders))

    def _read_folders(self, version: int) -> list[tuple[str, int]]:
        with self.index.reading() as connection:
            return files.folders_of_keys(connection)

    def labels(self) -> dict[str, int]:
        """Return every label that a photo carries with the number of its photos, by name."""
        return self.index.labels()

    def roots(self) -> list[str | Path]:
        """Return the folders that were added as a whole."""
        with self.index.reading() as connection:
            return list(files.read_roots(connection))

    def get(self, id: str) -> PhotoResult:
        """Return one photo by its id; InputError if there is none."""
        return self._results([self.index.get(id)])[0]

    def image(self, id: str) -> Path:
        """Return an image file of a photo; InputError if all of them are gone."""
        paths = self.get(id).paths
        if not paths:
            raise InputError(f"the files of the photo '{id}' are gone: add the folder where they are now.")
        return Path(next((path for path in paths if os.path.lexists(path)), paths[0]))

    def find(self, ids_or_paths: Paths) -> dict[str, list[str]]:
        """Return the ids that each id, path of a photo, or folder refers to; the files may be gone."""
        ids_of: dict[str, list[str]] = {}
        with self.index.reading() as connection:
            for entry in map(str, _listed(ids_or_paths)):
                stored = files.files_at(connection, os.path.realpath(entry))
                keys = dict.fromkeys(file.key for file in stored if file.state != FileState.REMOVED)
                ids_of[entry] = [entry] if entry in self.index else self.index.ids(list(keys))
        return ids_of

    def _results(self, rows: Sequence[Result | Item]) -> list[PhotoResult]:
        """Return results or items of the index with their files."""
        with self.index.reading() as connection:
            stored = files.files_of(connection, [row.key for row in rows])
        return [
            PhotoResult.of(row, [file.path for file in stored[row.key] if file.state == FileState.PRESENT])
            for row in rows
        ]

    # --- the whole index

    def duplicates(self, *, kind: str | None = None, progress: bool | Progress = True) -> Duplicates:
        """Return groups of photos that are there more than once: "same", "near" or "similar", see `photos.duplicates`."""
        with resolve_progress(progress) as report:
            return find_duplicates(self.index, kind, report)

    def missing(self) -> list[str]:
        """Return the ids of photos without an existing file: `add` the folder where they are now, or `remove` them."""
        with self.index.reading() as connection:
            stored = files.all_files(connection)
        existing = {file.key for file in stored if os.path.lexists(file.path)}
        return self.index.ids(list(dict.fromkeys(file.key for file in stored if file.key not in existing)))

    def verify(self) -> list[str]:
        """Read everything and return one sentence for each damage."""
        return verify_photos(self.folder)

    def info(self) -> dict[str, Any]:
        """Return the facts of the index, its folders, and the number of photos whose files are missing."""
        return {**self.index.info(), "roots": self.roots(), "missing": len(self.missing())}

    @property
    def folder(self) -> Path:
        """Return the folder of the index."""
        return self.index.folder

    def close(self) -> None:
        """Release files and connections; a second call does nothing."""
        self.index.close()

    def __len__(self) -> int:
        return len(self.index)

    def __bool__(self) -> bool:
        # An empty index is true as well.
        return True

    def __repr__(self) -> str:
        return f"Photo{self.index!r}"

    def __exit__(self, *exception: object) -> None:
        self.close()

    # This is the last method, because below it `list` would not be the type.
    def list(
        self, offset: int = 0, limit: int = 100, **filters: Unpack[PhotoFilter]
    ) -> tuple[PhotoRows, int]:
        """Return a page of the photos that pass a filter, last taken first, and the number of all that pass."""
        items, total = self.index.list(offset, limit, order="taken", **self._filter(**filters))
        return self._results(items), total


def is_photo_index(folder: str | Path) -> bool:
    """Return whether a folder holds an index with photos."""
    if not is_index(Path(folder)):
        return False
    with Index.open(folder, read_only=True) as index:
        return _has_tables(index)


def verify_photos(folder: str | Path) -> list[str]:
    """Return the damages of an index with or without photos, also of one that cannot be opened."""
    problems = verify_index(folder)
    if not problems and is_photo_index(folder):
        with PhotoIndex.open(folder, read_only=True) as photos, photos.index.reading() as connection:
            problems = files.damaged_rows(connection)
    return problems


def default_folder(pictures: str | Path) -> Path:
    """Return the folder of the default index of a folder of pictures.

    It is `photos.index` next to `photos`, or in the cache if that path is not writable or holds something else.
    """
    folder = Path(pictures).resolve()
    name = f"{folder.name or 'images'}.index"
    adjacent = folder.parent / name
    cached = default_cache() / "indexes" / blake2b(os.fsencode(folder), digest_size=4).hexdigest() / name
    if adjacent.exists():
        is_usable = is_index(adjacent) and os.access(adjacent, os.W_OK)
    else:
        is_usable = os.access(folder.parent, os.W_OK) and not is_index(cached)
    return adjacent if is_usable else cached


def _has_tables(index: Index) -> bool:
    with index.reading() as connection:
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'files'").fetchone())


def _with_tables(index: Index) -> Index:
    """Return an index with the tables of photos, which an empty one gets; DataError for an index of other items."""
    if _has_tables(index):
        return index
    if index.read_only or len(index) or index.attributes != files.ATTRIBUTES:
        index.close()
        raise DataError(
            f"'{index.folder}' is an index without photos: use `centerhash index`, or name a photo index."
        )
    with index.transaction() as connection:
        for statement in files.SCHEMA:
            connection.execute(statement)
    return index


def read_date(date: Date) -> float:
    """Return when a year, month or day begins, in seconds since 1970 as if the date were in UTC."""
    if not isinstance(date, datetime.datetime):
        text = str(date).strip()
        try:
            date = datetime.datetime.fromisoformat(text + {4: "-01-01", 7: "-01"}.get(len(text), ""))
        except ValueError:
            raise InputError(
                f"a date is a year, month or day, as 2024, 2024-06 or 2024-06-01, got {date!r:.80}."
            ) from None
    return date.replace(tzinfo=datetime.UTC).timestamp()


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _listed(entries: Paths) -> list[str | Path]:
    """Return one entry or several as a list, or raise InputError for what is neither text nor path."""
    listed = [entries] if isinstance(entries, str | Path) else entries
    if not isinstance(listed, Sequence) or not all(isinstance(entry, str | Path) for entry in listed):
        raise InputError(f"an id or path, or a list of them, is needed, got {entries!r:.80}.")
    return list(listed)
