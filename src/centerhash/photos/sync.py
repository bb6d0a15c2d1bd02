"""Keep a photo index in step with folders: what is new, changed, moved, gone, back or removed.

A file whose path, size and time are stored is not read. All other files are read and recognized by content: a known
content under a new path was moved or copied, and a new content is encoded. Every batch is one commit, with its items and
their files, so the same call resumes after a crash.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError, ImageError, unknown_name
from centerhash.core.locks import writer_lock
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, silent
from centerhash.data.images import content_key, read_header
from centerhash.data.listing import find_images
from centerhash.index import Index
from centerhash.photos import files
from centerhash.photos.files import File, FileState, file_at

LABELS = ("given", "predicted", "none")
ID_DIGITS = 16
_LOCK = "sync.lock"
_BUSY = "'{folder}' is being brought up to date by process {holder}: wait until it has finished."
_LEVELS_ABOVE = 3  # folders above the images in which a labels.csv is looked for


@dataclass
class SyncResult:
    """Count what one `add` did.

    `added` photos are new, `known` files are stored already, `moved` photos have a new path, `gone` files are no longer
    in their folder, and `removed` files belong to photos that were removed before. `broken` has the reason for each file
    that cannot be read. Of the new photos, `given` have labels of a labels.csv, and `predicted` those of the model.
    `skipped` counts files that are no images, by suffix, such as {".mp4": 3}.
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


def sync(
    index: Index,
    entries: Sequence[str | Path],
    labels: str | None,
    batch: int,
    progress: Progress,
    *,
    with_removed: bool = False,
) -> SyncResult:
    """Bring a photo index in step with files, folders and patterns: see `PhotoIndex.add`."""
    given, predict = read_labels(entries, labels)
    with writer_lock(index.folder / _LOCK, _BUSY):
        with index.reading() as connection:
            roots = set(files.read_roots(connection))
        names, skipped = _list_images(entries, roots, with_removed=with_removed)
        folders = {os.path.realpath(entry) for entry in entries if os.path.isdir(entry)}  # noqa: PTH112
        if folders - roots:
            with index.transaction() as connection:
                files.write_roots(connection, roots | folders)
        run = _Sync(index, given, predict, SyncResult(skipped=skipped))
        changed = run.compare(names)
        changed += run.compare(
            dict.fromkeys(sorted(given.keys() - run.seen), with_removed)
        )  # of a labels.csv alone
        known = run.done.known + run.done.removed
        progress("images", known, known + len(changed))
        for start in range(0, len(changed), batch):
            run.add(changed[start : start + batch])
            progress("images", known + min(start + batch, len(changed)), known + len(changed))
        run.hide_vanished(folders | (roots & set(map(os.path.realpath, entries))))
    return run.done


def _list_images(
    entries: Iterable[str | Path], roots: Collection[str], *, with_removed: bool
) -> tuple[dict[str, bool], dict[str, int]]:
    """Return the images of entries, each with whether it is added again if it was removed, and skipped files by kind.

    A folder that was added before may be empty or gone by now.
    """
    names, skipped = dict[str, bool](), Counter[str]()
    for entry in entries:
        again = with_removed or not os.path.isdir(entry)  # noqa: PTH112
        try:
            listed = find_images([entry])
            names |= {name: again or names.get(name, False) for name in listed.names}
            skipped.update(listed.skipped)
        except DataError:
            is_closed = os.path.isdir(entry) and not os.access(entry, os.R_OK | os.X_OK)  # noqa: PTH112
            if is_closed or os.path.realpath(entry) not in roots:
                raise
    return names, dict(skipped)


# --- the loop


class _Read(NamedTuple):
    """What is read of a file: its size and time before, the id of its content, and the attributes of its photo."""

    file: File
    id: str
    taken: float | None
    width: int
    height: int


def _read(path: str) -> _Read:
    file, header = file_at(os.path.realpath(path)), read_header(path)
    if file is None:
        raise _changed(path)
    return _Read(file, content_key(path)[:ID_DIGITS], header.taken, header.width, header.height)


def _changed(path: str) -> ImageError:
    return ImageError(f"'{path}' changed while it was read: add it again.")


@dataclass
class _Sync:
    """One sync: its settings and counts, and the real paths of the files that it has seen."""

    index: Index
    given: Mapping[str, Sequence[str]]  # labels by real path
    predict: bool
    done: SyncResult
    seen: set[str] = field(default_factory=set)

    def compare(self, paths: Mapping[str, bool]) -> list[str]:
        """Return the paths of files that are new or changed, count the others, and show photos that are back.

        Removed photos stay removed unless the path is mapped to True.
        """
        changed, returned = list[str](), list[File]()
        real_path = cache(os.path.realpath)
        with self.index.reading() as connection:
            stored_in = cache(lambda folder: files.files_in(connection, folder))
            for path, again in paths.items():
                folder, name = os.path.split(path)
                real = f"{real_path(folder).rstrip(os.sep)}{os.sep}{name}"
                file = file_at(real)  # elsewhere if it is a link
                before = None if file is None else stored_in(os.path.dirname(file.path)).get(file.path)  # noqa: PTH120
                self.seen.add(real if file is None else file.path)
                if file is None or before is None or not before.is_unchanged(file):
                    changed.append(path)
                elif before.state != FileState.REMOVED:
                    self.done.known += 1
                    if before.state == FileState.VANISHED:
                        returned.append(before)
                elif again:
                    changed.append(path)
                else:
                    self.done.removed += 1
        self._set_state(returned, FileState.PRESENT)
        return changed

    def _set_state(self, changed: Collection[File], state: str) -> None:
        if changed:
            with self.index.transaction() as connection:
                files.set_state(connection, changed, state)
                self._update_items(connection, {file.key for file in changed})

    def hide_vanished(self, roots: Iterable[str]) -> None:
        """Note stored files below folders that are gone; those in folders that cannot be read are left as they are."""
        with self.index.reading() as connection:
            stored = chain.from_iterable(files.files_at(connection, root) for root in roots)
            unseen = {
                file for file in stored if file.state == FileState.PRESENT and file.path not in self.seen
            }
        gone = [file for file in unseen if _is_gone(file.path)]
        self._set_state(gone, FileState.VANISHED)
        self.done.gone += len(gone)

    def add(self, paths: Sequence[str]) -> None:
        """Read some files and commit them: new photos, and further or changed files of known ones."""
        read, broken = read_all(_read, dict(enumerate(paths)), "contents", silent)
        known = self._keys(one.id for one in read.values())
        first = dict[str, int]()  # of each new content, the row of the file that is encoded
        for row, one in read.items():
            if one.id not in known:
                first.setdefault(one.id, row)
        features, unread = self._features({row: paths[row] for row in first.values()})
        broken |= {row: unread[first[one.id]] for row, one in read.items() if first.get(one.id) in unread}
        whole = {
            row: one
            for row, one in read.items()
            if row not in broken and file_at(os.path.realpath(paths[row])) == one.file
        }
        stored = self._commit(whole, {row: features[row] for row in first.values() if row in whole})
        broken |= {row: _changed(paths[row]) for row in read.keys() - stored - broken.keys()}
        self.done.broken |= {paths[row]: str(broken[row]) for row in sorted(broken)}

    def _keys(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the keys of those ids that are stored."""
        names = list(ids)
        return {id: key for id, key in zip(names, self.index.keys(names).tolist(), strict=True) if key >= 0}

    def _features(
        self, images: Mapping[int, str]
    ) -> tuple[dict[int, NDArray[np.float32]], dict[int, ImageError]]:
        """Return the features (D,) of images by row, and the errors of those that cannot be read."""
        features, broken, rows = dict[int, NDArray[np.float32]](), dict[int, ImageError](), list(images)
        if images:
            with closing(self.index.encoder().stream(list(images.values()))) as steps:
                for step in steps:
                    features |= {rows[at]: one for at, one in zip(step.positions, step.features, strict=True)}
                    broken |= {rows[at]: error for at, error in step.broken.items()}
        return features, broken

    def _commit(self, read: Mapping[int, _Read], features: Mapping[int, NDArray[np.float32]]) -> set[int]:
        """Write one batch: items of new photos by their features, and all files; return the rows that are stored.

        Not stored are files of photos that were removed meanwhile, or whose encoded file has changed.
        """
        with self.index.transaction() as connection:
            known = self._keys(one.id for one in read.values())
            new = [row for row in features if read[row].id not in known]
            if new:
                self._add_items([read[row] for row in new], np.stack([features[row] for row in new]))
            keys = self._keys(one.id for one in read.values())
            moved = self._delete_missing(connection, set(known.values()))
            stored = {row: one.file._replace(key=keys[one.id]) for row, one in read.items() if one.id in keys}
            replaced = [files.files_at(connection, file.path) for file in stored.values()]
            files.put_files(connection, stored.values())
            self._update_items(
                connection, {*known.values(), *(file.key for file in chain.from_iterable(replaced))}
            )
        self.done.moved += moved
        self.done.known += len(stored) - moved - len(new)
        return set(stored)

    def _add_items(self, photos: Sequence[_Read], features: NDArray[np.float32]) -> None:
        """Add the items of new photos by their features (n, D), with given labels or those of the model."""
        predicts = self.predict and self.index.model.has_centers
        labels = self.index.model.label_names(features) if predicts else [()] * len(photos)
        given = [self.given.get(photo.file.path) for photo in photos]
        self.index.add(
            features,
            ids=[photo.id for photo in photos],
            labels=[other if some is None else some for some, other in zip(given, labels, strict=True)],
            attributes={
                "taken": [
                    wall_clock(photo.file.modified) if photo.taken is None else photo.taken
                    for photo in photos
                ],
                "width": [photo.width for photo in photos],
                "height": [photo.height for photo in photos],
            },
        )
        count = sum(some is not None for some in given)
        self.done.added += len(photos)
        self.done.given += count
        self.done.predicted += len(photos) - count if predicts else 0

    def _delete_missing(self, connection: sqlite3.Connection, keys: Collection[int]) -> int:
        """Delete the rows of known items whose file is gone; return how many items had no other file: they moved."""
        moved = 0
        for stored in files.files_of(connection, sorted(keys)).values():
            missing = [file for file in stored if _is_gone(file.path)]
            files.delete_files(connection, missing)
            moved += bool(missing) and len(missing) == len(stored)
        return moved

    def _update_items(self, connection: sqlite3.Connection, keys: Collection[int]) -> None:
        """Show the items with a present file, hide those whose files are all gone, and remove those without a file."""
        shown, hidden, removed = list[int](), list[int](), list[int]()
        for key, stored in files.files_of(connection, sorted(keys)).items():
            present = any(file.state == FileState.PRESENT for file in stored)
            (shown if present else hidden if stored else removed).append(key)
        index = self.index
        for change, some in ((index.show, shown), (index.hide, hidden), (index.remove, removed)):
            if some:
                change(index.ids(some))


def _is_gone(path: str) -> bool:
    """Return whether nothing is at a path; what is in a folder that is closed to us counts as there."""
    try:
        os.lstat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def wall_clock(modified: int) -> float | None:
    """Return a time of a file, in nanoseconds, as the clock on the wall showed it: as the clock of a camera."""
    with suppress(ValueError, OverflowError, OSError):  # a time outside of the years that have a date
        return datetime.fromtimestamp(modified / 1e9).replace(tzinfo=UTC).timestamp()
    return None


# --- labels


def read_labels(entries: Sequence[str | Path], labels: str | None) -> tuple[dict[str, Sequence[str]], bool]:
    """Return the given labels by real path, and whether those of all other photos are predicted."""
    if labels is not None and labels not in LABELS:
        raise unknown_name("choice of labels", str(labels), LABELS)
    given = _labels_of_folders(entries) if labels in (None, "given") else {}
    if labels == "given" and not given:
        raise ConfigError(
            "no labels.csv in or above the folders lists any of the images: name such a folder, or choose labels "
            "'predicted' instead of 'given'."
        )
    return given, labels in (None, "predicted")


def _labels_of_folders(entries: Sequence[str | Path]) -> dict[str, Sequence[str]]:
    """Return the labels of the images in folders by their real path, by the labels.csv in or above each folder."""
    from centerhash.data.layouts.tabular import read_image_folder

    given: dict[str, Sequence[str]] = {}
    for entry in map(Path, entries):
        home = _labels_home(entry) if entry.is_dir() else None
        if home is not None:
            inside, dataset = entry.resolve(), read_image_folder(home)
            for path, row in zip(dataset.paths or (), dataset.labels, strict=True):
                real = os.path.realpath(path)
                if home == entry or Path(real).is_relative_to(inside):
                    given[real] = [dataset.classes[column] for column in np.flatnonzero(row).tolist()]
    return given


def _labels_home(folder: Path) -> Path | None:
    """Return the folder whose labels.csv may describe the images in `folder`: itself, or one of the next above it."""
    above = folder.resolve().parents[:_LEVELS_ABOVE]
    # Path.is_file would raise if a folder is closed to us
    return next((home for home in (folder, *above) if os.path.isfile(home / "labels.csv")), None)  # noqa: PTH113
