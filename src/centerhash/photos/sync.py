"""Keep a photo index in step with folders: with files that are new, changed, moved, gone, back or removed.

A file whose path, size and time are stored is not read. All other files are read and recognized by content: a known
content under a new path was moved or copied, and a new content is encoded. Every batch is one commit of items and their
files, so the same call resumes after a crash.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
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
# A labels.csv is in the folder of the images, or at most this many folders above it.
_LABEL_PARENTS = 3


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
    file_labels = _read_labels(entries, labels)
    with writer_lock(index.folder / _LOCK, _BUSY):
        with index.reading() as connection:
            roots = set(files.read_roots(connection))
        paths, skipped = _list_images(entries, roots, with_removed=with_removed)
        folders = {os.path.realpath(entry) for entry in entries if os.path.isdir(entry)}  # noqa: PTH112
        if folders - roots:
            with index.transaction() as connection:
                files.write_roots(connection, roots | folders)
        run = _Sync(index, file_labels, labels in (None, "predicted"), SyncResult(skipped=skipped))
        changed = run.compare(paths)
        # A labels.csv may list images that are not in the folders.
        changed += run.compare(dict.fromkeys(sorted(file_labels.keys() - run.seen), with_removed))
        known = run.result.known + run.result.removed
        for start in range(0, len(changed), batch):
            progress("images", known + start, known + len(changed))
            run.add(changed[start : start + batch])
        progress("images", known + len(changed), known + len(changed))
        run.hide_vanished(folders | (roots & set(map(os.path.realpath, entries))))
    return run.result


def _list_images(
    entries: Iterable[str | Path], roots: Collection[str], *, with_removed: bool
) -> tuple[dict[str, bool], dict[str, int]]:
    """Return the images of entries, each with whether it is restored if it was removed, and skipped files by suffix.

    A folder that was added before may be empty or gone by now.
    """
    paths, skipped = dict[str, bool](), Counter[str]()
    for entry in entries:
        restores = with_removed or not os.path.isdir(entry)  # noqa: PTH112
        try:
            listed = find_images([entry])
            paths |= {path: restores or paths.get(path, False) for path in listed.names}
            skipped.update(listed.skipped)
        except DataError:
            is_closed = os.path.isdir(entry) and not os.access(entry, os.R_OK | os.X_OK)  # noqa: PTH112
            if is_closed or os.path.realpath(entry) not in roots:
                raise
    return paths, dict(skipped)


# --- one sync


class _Photo(NamedTuple):
    """A file that was read: its size and time before, the id of its content, and the attributes of its photo."""

    file: File
    id: str
    taken: float | None
    width: int
    height: int


def _read_photo(path: str) -> _Photo:
    file, header = file_at(os.path.realpath(path)), read_header(path)
    if file is None:
        raise _changed(path)
    id = content_key(path)[:ID_DIGITS]
    taken = _wall_clock(file.modified) if header.taken is None else header.taken
    return _Photo(file, id, taken, header.width, header.height)


def _changed(path: str) -> ImageError:
    return ImageError(f"'{path}' changed while it was read: add it again.")


@dataclass
class _Sync:
    """One sync: labels by real path, counts, and the real paths of all files that were compared."""

    index: Index
    labels: Mapping[str, Sequence[str]]
    predicts: bool
    result: SyncResult
    seen: set[str] = field(default_factory=set)

    def compare(self, paths: Mapping[str, bool]) -> list[str]:
        """Return the paths of files that are new or changed, count the others, and show photos that are back.

        Removed photos stay removed unless the path is mapped to True.
        """
        changed, returned = list[str](), list[File]()
        real_path = cache(os.path.realpath)
        with self.index.reading() as connection:
            stored_in = cache(lambda folder: files.files_in(connection, folder))
            for path, restores in paths.items():
                folder, name = os.path.split(path)
                real = f"{real_path(folder).rstrip(os.sep)}{os.sep}{name}"
                # The file of a link may be in another folder.
                file = file_at(real)
                before = None if file is None else stored_in(os.path.dirname(file.path)).get(file.path)  # noqa: PTH120
                self.seen.add(real if file is None else file.path)
                if file is None or before is None or not before.is_unchanged(file):
                    changed.append(path)
                elif before.state != FileState.REMOVED:
                    self.result.known += 1
                    if before.state == FileState.VANISHED:
                        returned.append(before)
                elif restores:
                    changed.append(path)
                else:
                    self.result.removed += 1
        self._set_state(returned, FileState.PRESENT)
        return changed

    def _set_state(self, changed: Collection[File], state: str) -> None:
        if changed:
            with self.index.transaction() as connection:
                files.put_files(connection, [file._replace(state=state) for file in changed])
                self._update_items(connection, {file.key for file in changed})

    def hide_vanished(self, roots: Iterable[str]) -> None:
        """Mark the stored files below folders that are gone; those in folders without permission keep their state."""
        with self.index.reading() as connection:
            stored = chain.from_iterable(files.files_at(connection, root) for root in roots)
            present = (file for file in stored if file.state == FileState.PRESENT)
            unseen = {file for file in present if file.path not in self.seen}
        gone = [file for file in unseen if _is_gone(file.path)]
        self._set_state(gone, FileState.VANISHED)
        self.result.gone += len(gone)

    def add(self, paths: Sequence[str]) -> None:
        """Read a batch of files and commit it: new photos, and further or changed files of known ones."""
        photos, broken = read_all(_read_photo, dict(enumerate(paths)), "contents", silent)
        known = self._keys(photos.values())
        # The row of the file that is encoded, by the id of its content.
        encoded = dict[str, int]()
        for row, photo in photos.items():
            if photo.id not in known:
                encoded.setdefault(photo.id, row)
        features, unread = self._features({row: paths[row] for row in encoded.values()})
        for row, photo in photos.items():
            if encoded.get(photo.id) in unread:
                broken[row] = unread[encoded[photo.id]]
        unchanged = {
            row: photo
            for row, photo in photos.items()
            if row not in broken and file_at(os.path.realpath(paths[row])) == photo.file
        }
        stored = self._commit(unchanged, {row: features[row] for row in encoded.values() if row in unchanged})
        broken |= {row: _changed(paths[row]) for row in photos.keys() - stored - broken.keys()}
        self.result.broken |= {paths[row]: str(broken[row]) for row in sorted(broken)}

    def _keys(self, photos: Iterable[_Photo]) -> dict[str, int]:
        """Return the keys of those photos that are stored, by id."""
        ids = [photo.id for photo in photos]
        return {id: key for id, key in zip(ids, self.index.keys(ids).tolist(), strict=True) if key >= 0}

    def _features(
        self, images: Mapping[int, str]
    ) -> tuple[dict[int, NDArray[np.float32]], dict[int, ImageError]]:
        """Return the features (D,) of images by row, and the errors of those that cannot be read."""
        features, broken, rows = dict[int, NDArray[np.float32]](), dict[int, ImageError](), list(images)
        # The encoder is loaded only if there are images.
        steps = self.index.encoder().stream(list(images.values())) if images else ()
        for step in steps:
            features.update(zip([rows[place] for place in step.positions], step.features, strict=True))
            broken |= {rows[place]: error for place, error in step.broken.items()}
        return features, broken

    def _commit(self, photos: Mapping[int, _Photo], features: Mapping[int, NDArray[np.float32]]) -> set[int]:
        """Write one batch: items of new photos by their features, and all files; return the rows that are stored.

        A file is not stored if its photo was removed meanwhile, or if the file that was encoded for it has changed.
        """
        with self.index.transaction() as connection:
            known = self._keys(photos.values())
            new = [row for row in features if photos[row].id not in known]
            if new:
                self._add_items([photos[row] for row in new], np.stack([features[row] for row in new]))
            keys = self._keys(photos.values())
            moved = self._delete_missing(connection, set(known.values()))
            existing = {row: photo for row, photo in photos.items() if photo.id in keys}
            stored = {row: photo.file._replace(key=keys[photo.id]) for row, photo in existing.items()}
            replaced = [old for file in stored.values() for old in files.files_at(connection, file.path)]
            files.put_files(connection, stored.values())
            self._update_items(connection, {*known.values(), *(file.key for file in replaced)})
        self.result.moved += moved
        self.result.known += len(stored) - moved - len(new)
        return set(stored)

    def _add_items(self, photos: Sequence[_Photo], features: NDArray[np.float32]) -> None:
        """Add the items of new photos by their features (n, D), with the labels of their files or of the model."""
        predicts = self.predicts and self.index.model.has_centers
        labels = self.index.model.label_names(features) if predicts else [()] * len(photos)
        is_labeled = [photo.file.path in self.labels for photo in photos]
        self.index.add(
            features,
            ids=[photo.id for photo in photos],
            labels=[self.labels.get(photo.file.path, row) for photo, row in zip(photos, labels, strict=True)],
            attributes={name: [getattr(photo, name) for photo in photos] for name in files.ATTRIBUTES},
        )
        self.result.added += len(photos)
        self.result.given += sum(is_labeled)
        self.result.predicted += len(photos) - sum(is_labeled) if predicts else 0

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
            is_present = any(file.state == FileState.PRESENT for file in stored)
            (shown if is_present else hidden if stored else removed).append(key)
        index = self.index
        for change, changed in ((index.show, shown), (index.hide, hidden), (index.remove, removed)):
            if changed:
                change(index.ids(changed))


def _is_gone(path: str) -> bool:
    """Return whether no file exists at a path; in a folder without permission, all files count as existing."""
    try:
        os.lstat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _wall_clock(modified: int) -> float | None:
    """Return the time of a file, in nanoseconds, as a camera would store it: local time, treated as UTC, in seconds."""
    # The time of a file may be outside of the years that `datetime` supports.
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(modified / 1e9).replace(tzinfo=UTC).timestamp()
    return None


# --- labels


def _read_labels(entries: Sequence[str | Path], labels: str | None) -> dict[str, Sequence[str]]:
    """Return the labels of the images in folders by real path, by the labels.csv in or above each folder."""
    from centerhash.data.layouts.tabular import read_image_folder

    if labels is not None and labels not in LABELS:
        raise unknown_name("choice of labels", str(labels), LABELS)
    file_labels: dict[str, Sequence[str]] = {}
    for folder in filter(Path.is_dir, map(Path, entries if labels in (None, "given") else ())):
        real_folder = folder.resolve()
        parents = (folder, *real_folder.parents[:_LABEL_PARENTS])
        # Path.is_file raises an error if a folder is closed to us.
        home = next((parent for parent in parents if os.path.isfile(parent / "labels.csv")), None)  # noqa: PTH113
        if home is not None:
            dataset = read_image_folder(home)
            for path, row in zip(dataset.paths or (), dataset.labels, strict=True):
                real = os.path.realpath(path)
                if home == folder or Path(real).is_relative_to(real_folder):
                    file_labels[real] = [dataset.classes[column] for column in np.flatnonzero(row).tolist()]
    if labels == "given" and not file_labels:
        raise ConfigError(
            "no labels.csv in or above the folders lists any of the images: name such a folder, or choose labels "
            "'predicted' instead of 'given'."
        )
    return file_labels
