"""Keep a photo index in step with folders: what is new, changed, moved, gone, back or removed.

A file whose path, size and time are stored is not read. All other files are read and recognized by content: a known
content under a new path was moved or copied, and a new content is encoded. Every batch is one commit, with its items and
their files, so the same call resumes after a crash.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError, ImageError, InputError, unknown_name
from centerhash.core.locks import WriterLock
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, silent
from centerhash.data.images import content_key, read_header
from centerhash.data.listing import find_images
from centerhash.index import Index
from centerhash.photos import files
from centerhash.photos.files import PRESENT, REMOVED, VANISHED, File, file_at

PhotoLabels: TypeAlias = Mapping[str | Path, Sequence[str]] | str | None  # by path, or a word of LABELS

LABELS = ("given", "predicted", "none")
ID_DIGITS = 16
_LOCK = "sync.lock"
_BUSY = "'{folder}' is being brought up to date by process {holder}: wait until it has finished."
_LEVELS_ABOVE = 3  # folders above the images in which a labels.csv is looked for


@dataclass
class Added:
    """Count what one `add` did.

    `added` photos are new, `known` files are stored already, `moved` photos have a new path, `gone` files are no longer
    in their folder, and `removed` files belong to photos that were removed before. `broken` has the reason for each file
    that cannot be read. Of the new photos, `given` have labels of a labels.csv or of the caller, and `predicted` those
    of the model. `skipped` counts files that are no images, by suffix, such as {".mp4": 3}.
    """

    added: int = 0
    known: int = 0
    moved: int = 0
    gone: int = 0
    removed: int = 0
    given: int = 0
    predicted: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def has_changed(self) -> bool:
        """Return whether the index differs from before, or a file could not be read."""
        return bool(self.added or self.moved or self.gone or self.broken)


def sync(
    index: Index,
    entries: Sequence[str | Path],
    labels: PhotoLabels,
    batch: int,
    progress: Progress,
    *,
    with_removed: bool = False,
) -> Added:
    """Bring a photo index in step with files, folders and patterns: see `PhotoIndex.add`."""
    given, predict = read_labels(entries, labels)
    with _only_sync(index.folder):
        with index.reading() as connection:
            known = set(files.read_roots(connection))
        names, skipped = _list_images(entries, known)
        if given and not isinstance(labels, Mapping):  # files without the suffix of an image, too
            names |= dict.fromkeys(find_images(list(given)).names)
        folders = {os.path.realpath(entry) for entry in entries if Path(entry).is_dir()}
        if folders - known:
            with index.transaction() as connection:
                files.add_roots(connection, folders - known)
        run = _Sync(
            index,
            {os.path.realpath(path): tuple(some) for path, some in given.items()},
            predict,
            () if with_removed else tuple(map(_with_separator, folders)),
            frozenset(str(Path(entry)) for entry in entries if not Path(entry).is_dir()),
            Added(skipped=skipped),
        )
        paths = list(run.changed(names))
        run.show_returned()
        before = len(names) - len(paths)
        progress("images", before, len(names))
        for start in range(0, len(paths), batch):
            run.add(paths[start : start + batch])
            progress("images", before + min(start + batch, len(paths)), len(names))
        run.hide_vanished(sorted(folders | (known & set(map(os.path.realpath, entries)))))
    return run.done


def _list_images(
    entries: Iterable[str | Path], roots: Collection[str]
) -> tuple[dict[str, None], dict[str, int]]:
    """Return the images of entries, each once, and how many other files were skipped, by kind.

    A folder that was added before may be empty or gone by now.
    """
    names, skipped = dict[str, None](), Counter[str]()
    for entry in entries:
        try:
            listed = find_images([entry])
        except DataError:
            is_closed = os.path.isdir(entry) and not os.access(entry, os.R_OK | os.X_OK)  # noqa: PTH112
            if is_closed or os.path.realpath(entry) not in roots:
                raise
            continue
        names |= dict.fromkeys(listed.names)
        skipped.update(listed.skipped)
    return names, dict(skipped)


@contextmanager
def _only_sync(folder: Path) -> Iterator[None]:
    """Within the block, a second sync of the same index is an InputError."""
    lock = WriterLock.take(folder / _LOCK, _BUSY)
    try:
        yield
    finally:
        lock.release()


# --- the loop


class _Read(NamedTuple):
    """What is read of a file: the id of its content, and the attributes of its photo."""

    id: str
    taken: float | None
    width: int
    height: int


@dataclass
class _Sync:
    """One sync: its settings and counts, and the files that are back."""

    index: Index
    given: Mapping[str, tuple[str, ...]]  # labels by real path
    predict: bool
    scanned: tuple[str, ...]  # beginnings of the paths at which removed photos stay removed
    named: Collection[str]
    done: Added
    returned: list[File] = field(default_factory=list)

    def changed(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the paths of files that are new or whose size or time has changed; count the others."""
        last, home, stored = None, "", dict[str, File]()
        for path in paths:
            folder, name = os.path.split(path)
            if folder != last:
                last, home = folder, os.path.realpath(folder)
                with self.index.reading() as connection:
                    stored = files.files_in(connection, home)
            path_here = f"{home.rstrip(os.sep)}{os.sep}{name}"
            file = file_at(path_here)
            # a link leads to another path
            before = stored.get(name) if file is None or file.path == path_here else self._stored(file.path)
            if file is None or before is None or not before.is_unchanged(file):
                yield path
            elif before.state != REMOVED:
                self.done.known += 1
                if before.state == VANISHED:
                    self.returned.append(before)
            elif path not in self.named and file.path.startswith(self.scanned):
                self.done.removed += 1
            else:
                yield path

    def _stored(self, path: str) -> File | None:
        with self.index.reading() as connection:
            return files.file_with(connection, path)

    def show_returned(self) -> None:
        """Show the items whose files are back as they were."""
        if self.returned:
            with self.index.transaction() as connection:
                files.set_state(connection, self.returned, PRESENT)
                update_items(self.index, connection, [file.key for file in self.returned])

    def add(self, paths: Sequence[str]) -> None:
        """Read some files and commit them: new photos, and further or changed files of known ones."""
        before = [file_at(os.path.realpath(path)) for path in paths]
        read, broken = read_all(_read, dict(enumerate(paths)), "contents", silent)
        stored_ids = self._stored_ids({one.id for one in read.values()})
        new = {one.id: row for row, one in reversed(read.items()) if one.id not in stored_ids}
        features, unread = self._features([(row, paths[row]) for row in sorted(new.values())])
        self.done.broken |= {paths[row]: str(error) for row, error in (broken | unread).items()}
        rows = list[int]()
        for row, one in read.items():
            if new.get(one.id, row) in unread:
                self.done.broken.setdefault(paths[row], str(unread[new[one.id]]))
            elif before[row] is None or file_at(os.path.realpath(paths[row])) != before[row]:
                self.done.broken[paths[row]] = (
                    f"'{paths[row]}' was written to while it was read: add it again."
                )
            else:
                rows.append(row)
        stored = {row: file for row in rows if (file := before[row]) is not None}
        kept = [row for row in rows if new.get(read[row].id) == row]
        self._commit(stored, {row: read[row] for row in rows}, {row: features[row] for row in kept})

    def _stored_ids(self, ids: Collection[str]) -> set[str]:
        """Return those of some ids that are stored."""
        names = list(ids)
        return {id for id, key in zip(names, self.index.keys(names).tolist(), strict=True) if key >= 0}

    def _features(
        self, images: Sequence[tuple[int, str]]
    ) -> tuple[dict[int, NDArray[np.float32]], dict[int, ImageError]]:
        """Return the features (D,) of images by row, and the errors of those that cannot be read."""
        features, broken = dict[int, NDArray[np.float32]](), dict[int, ImageError]()
        if images:
            rows = [row for row, _ in images]
            with closing(self.index.encoder().stream([path for _, path in images])) as steps:
                for step in steps:
                    features |= {rows[at]: one for at, one in zip(step.places, step.features, strict=True)}
                    broken |= {rows[at]: error for at, error in step.broken.items()}
        return features, broken

    def _commit(
        self,
        stored: dict[int, File],
        read: Mapping[int, _Read],
        features: Mapping[int, NDArray[np.float32]],
    ) -> None:
        """Write one batch: items of new photos by their features, and the rows of all files."""
        if not stored:
            return
        ids = list(dict.fromkeys(one.id for one in read.values()))
        with self.index.transaction() as connection:
            known = self._stored_ids(ids)
            new = [row for row in features if read[row].id not in known]
            self._add_items(new, stored, read, features)
            keys = dict(zip(ids, self.index.keys(ids).tolist(), strict=True))
            # its item was removed meanwhile, or the file that it was to be read from has changed
            for row in [row for row, one in read.items() if keys[one.id] < 0]:
                self.done.broken[stored.pop(row).path] = "its photo changed while it was read: add it again."
            touched = {keys[id] for id in known}
            moved = self._delete_missing(connection, touched)
            for file in stored.values():
                before = files.file_with(connection, file.path)
                if before is not None and before.key is not None:
                    touched.add(before.key)
            files.put_files(
                connection, [replace(file, key=keys[read[row].id]) for row, file in stored.items()]
            )
            update_items(self.index, connection, touched)
        self.done.moved += moved
        self.done.known += len(stored) - moved - len(new)

    def _add_items(
        self,
        rows: Sequence[int],
        stored: Mapping[int, File],
        read: Mapping[int, _Read],
        features: Mapping[int, NDArray[np.float32]],
    ) -> None:
        """Add the items of new photos, with labels of the caller or of the model."""
        if not rows:
            return
        table, photos = np.stack([features[row] for row in rows]), [read[row] for row in rows]
        predicts = self.predict and self.index.model.has_centers
        labels = self.index.model.label_names(table) if predicts else [()] * len(rows)
        given = [self.given.get(stored[row].path) for row in rows]
        self.index.add(
            table,
            ids=[photo.id for photo in photos],
            labels=[some if some is not None else other for some, other in zip(given, labels, strict=True)],
            attributes={
                "taken": [
                    photo.taken if photo.taken is not None else wall_clock(stored[row].modified)
                    for row, photo in zip(rows, photos, strict=True)
                ],
                "width": [photo.width for photo in photos],
                "height": [photo.height for photo in photos],
            },
        )
        count = sum(some is not None for some in given)
        self.done.added += len(rows)
        self.done.given += count
        self.done.predicted += len(rows) - count if predicts else 0

    def _delete_missing(self, connection: sqlite3.Connection, keys: Collection[int]) -> int:
        """Delete the rows of known items whose file is gone; return how many items had no other file: they moved."""
        moved = 0
        for stored in files.files_of(connection, sorted(keys)).values():
            missing = [file for file in stored if not os.path.lexists(file.path)]
            files.delete_files(connection, missing)
            moved += bool(missing) and len(missing) == len(stored)
        return moved

    def hide_vanished(self, roots: Sequence[str]) -> None:
        """Note stored files below folders that are gone; folders that cannot be read are left as they are."""
        with self.index.reading() as connection:
            gone = [
                file
                for root in roots
                for folder in files.folders_below(connection, root)
                for file in _missing_in(folder, files.files_in(connection, folder))
            ]
        gone = list(dict.fromkeys(gone))
        if gone:
            with self.index.transaction() as connection:
                files.set_state(connection, gone, VANISHED)
                update_items(self.index, connection, [file.key for file in gone])
        self.done.gone += len(gone)


def _read(path: str) -> _Read:
    """Read the content of an image file: its id, and when and how large it was taken."""
    header = read_header(path)
    return _Read(content_key(path)[:ID_DIGITS], header.taken, header.width, header.height)


def _missing_in(folder: str, stored: Mapping[str, File]) -> list[File]:
    """Return the present files of a folder that are no longer in it."""
    try:
        names = set(os.listdir(folder))  # noqa: PTH208 - called for many folders
    except (FileNotFoundError, NotADirectoryError):
        names = set()
    except OSError:
        return []
    return [file for name, file in stored.items() if file.state == PRESENT and name not in names]


def update_items(index: Index, connection: sqlite3.Connection, keys: Iterable[int | None]) -> None:
    """Show the items with a present file, hide those whose files are all gone, and remove those without a file."""
    by_key = files.files_of(connection, sorted({key for key in keys if key is not None}))
    shown, hidden, removed = list[int](), list[int](), list[int]()
    for key, stored in by_key.items():
        present = any(file.state == PRESENT for file in stored)
        (shown if present else hidden if stored else removed).append(key)
    for change, some in ((index.show, shown), (index.hide, hidden), (index.remove, removed)):
        if some:
            change(index.ids(np.array(some, np.int64)))


def wall_clock(modified: int) -> float | None:
    """Return a time of a file, in nanoseconds, as the clock on the wall showed it: as the clock of a camera."""
    with suppress(ValueError, OverflowError, OSError):  # a time outside of the years that have a date
        return datetime.fromtimestamp(modified / 1e9).replace(tzinfo=UTC).timestamp()
    return None


def _with_separator(folder: str) -> str:
    return folder.rstrip(os.sep) + os.sep


# --- labels


def read_labels(
    entries: Sequence[str | Path], labels: PhotoLabels
) -> tuple[dict[str | Path, Sequence[str]], bool]:
    """Return the labels of the caller by path, and whether those of all other photos are predicted."""
    if isinstance(labels, Mapping):
        for path, names in labels.items():
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise InputError(f"the labels of '{path}' must be a list of names, got {names!r:.80}.")
        return dict(labels), True
    if labels is not None and labels not in LABELS:
        raise unknown_name("choice of labels", str(labels), LABELS)
    given = _labels_of_folders(entries) if labels in (None, "given") else {}
    if labels == "given" and not given:
        raise ConfigError(
            "no labels.csv in or above the folders lists any of the images: name such a folder, or choose labels "
            "'predicted' instead of 'given'."
        )
    return given, labels in (None, "predicted")


def _labels_of_folders(entries: Sequence[str | Path]) -> dict[str | Path, Sequence[str]]:
    """Return the labels of the images in folders by the labels.csv in or above each folder."""
    from centerhash.data.layouts.tabular import read_image_folder

    given: dict[str | Path, Sequence[str]] = {}
    for entry in map(Path, entries):
        home = _labels_home(entry) if entry.is_dir() else None
        if home is not None:
            inside, dataset = entry.resolve(), read_image_folder(home)
            for path, row in zip(dataset.paths or (), dataset.labels, strict=True):
                if home == entry or path.resolve().is_relative_to(inside):
                    # as the listing of the folder names it, or it would be read twice
                    named = entry / path.relative_to(inside) if path.is_relative_to(inside) else path
                    given[named] = [dataset.classes[column] for column in np.flatnonzero(row).tolist()]
    return given


def _labels_home(folder: Path) -> Path | None:
    """Return the folder whose labels.csv may describe the images in `folder`: itself, or one of the next above it."""
    above = folder.resolve().parents[:_LEVELS_ABOVE]
    # Path.is_file would raise if a folder is closed to us
    return next((home for home in (folder, *above) if os.path.isfile(home / "labels.csv")), None)  # noqa: PTH113
