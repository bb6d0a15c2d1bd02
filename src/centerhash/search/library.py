"""Keep an index in step with the folders of its images: what is new, changed, moved or gone, and adding it.

A file whose path, size and modification time are stored is not read again. A new file with the name, size and time of one
whose folder is gone was moved together with its folder. All other files are read, and recognized by content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, ImageError, InputError, unknown_name
from centerhash.core.progress import Progress
from centerhash.search.items import MAX_NAME, File, ItemStore, PhotoInfo, check_labels
from centerhash.search.results import Added
from centerhash.search.uploads import ID_DIGITS, has_file

if TYPE_CHECKING:  # what reads images takes long to import
    from centerhash.data.images import ImageSource
    from centerhash.data.listing import Found
    from centerhash.model.base import Model
    from centerhash.networks.encoder import Step
    from centerhash.search.index import Index

Labels: TypeAlias = tuple[str, ...]
GivenLabels: TypeAlias = Mapping[Any, Sequence[str]] | str | None  # by path, or a word of LABELS

LABELS = ("given", "predicted", "none")
_LEVELS_ABOVE = 3  # folders above the images in which their labels.csv is looked for
_AT_ONCE = 4096  # files that a commit changes


def add_images(
    index: Index,
    entries: Sequence[str | Path],
    labels: GivenLabels,
    batch: int,
    progress: Progress,
    *,
    with_removed: bool = False,
) -> Added:
    """Bring an index in step with files, folders and patterns: see `Index.add`."""
    files, labelling = images_and_labels(index.model, entries, labels)
    roots = [os.path.realpath(entry) for entry in entries if Path(entry).is_dir()]
    new = [root for root in roots if root not in index.store.roots()]
    if new:  # first: what a crash interrupts can be followed
        with index.writing() as store:
            store.set_roots(new)
    named = frozenset(str(Path(entry)) for entry in entries if not Path(entry).is_dir())
    scanned = Scanned(_beginnings(() if with_removed else roots), named)
    done = Adding(index, labelling, scanned).run(files.images.names, len(files.images), batch, progress)
    gone = list(vanished(index.store, roots))
    if gone:
        with index.writing() as store:
            store.change_files([], gone)
    return replace(done, skipped=files.skipped, gone=len(gone))


def add_changed(index: Index, paths: Iterable[str], batch: int, progress: Progress) -> Added:
    """Bring an index in step with paths that have changed, each of which may be an image or gone."""
    every = list(paths)
    there = [path for path in every if os.path.lexists(path)]
    everywhere = Scanned(("",))
    done = Adding(index, Labelling(index.model, {}), everywhere).run(there, len(there), batch, progress)
    missing = (path for path in every if not os.path.lexists(path))
    gone = [file for path in missing for file in known_below(index.store, path)]  # and was not moved
    if gone:
        with index.writing() as store:
            store.change_files([], gone)
    return replace(done, gone=len(gone))


# --- what has changed


@dataclass(frozen=True)
class Scanned:
    """Paths at which removed images stay removed: those below folders, unless they were named themselves."""

    below: tuple[str, ...]  # beginnings of real paths
    named: frozenset[str] = frozenset()

    def __contains__(self, path: str) -> bool:
        if not self.below or path in self.named:
            return False
        folder, name = os.path.split(path)
        return os.path.join(os.path.realpath(folder), name).startswith(self.below)  # noqa: PTH118


@dataclass
class Comparison:
    """Compares files with those that are stored: `here` are known ones that came back or moved with their folder."""

    store: ItemStore
    given: Mapping[str, Labels]  # by path; such files are read if they were moved
    scanned: Scanned
    known: int = 0  # files that have not changed
    removed: int = 0  # files of removed images that have not changed
    moved: int = 0
    here: list[tuple[str, File]] = field(default_factory=list)  # by the id of their item
    left: list[str] = field(default_factory=list)  # paths from which files were moved

    def fresh(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the paths of files that must be read: they are new, or their size or time has changed."""
        last, home, stored = None, "", dict[str, tuple[str, File]]()
        for path in paths:
            folder, name = os.path.split(path)
            if folder != last:
                last, home = folder, os.path.realpath(folder)
                stored = self.store.files(home)
            file = _file_at(os.path.join(home, name))  # noqa: PTH118 - of many files
            plain = file is not None and file.path.endswith(name)  # otherwise a link to another name
            known = plain and (
                self._is_stored(file, stored.get(name))
                or self._is_removed(file, path)
                or self._was_moved(file, name)
            )
            if not known:
                yield path

    def _is_stored(self, file: File | None, stored: tuple[str, File] | None) -> bool:
        """Return whether a file is as it is stored; note that it came back."""
        if file is None or stored is None or replace(stored[1], gone=False) != file:
            return False
        self.known += 1
        if stored[1].gone:
            self.here.append((stored[0], file))
        return True

    def _is_removed(self, file: File | None, path: str) -> bool:
        """Return whether a file is as it was when its image was removed from the index."""
        if file is None or self._removed.get(file.path, ("", None))[1] != file or path not in self.scanned:
            return False
        self.removed += 1
        return True

    @cached_property
    def _removed(self) -> Mapping[str, tuple[str, File]]:
        return self.store.removed()

    def _was_moved(self, file: File | None, name: str) -> bool:
        """Return whether a file was in a folder that no longer exists."""
        if file is None or file.path in self.given:
            return False
        before = self._lost.pop((name, file.size, file.modified), None)
        if before is None:
            return False
        id, path = before
        self.moved += 1
        self.here.append((id, file))
        self.left.append(path)
        return True

    @cached_property
    def _lost(self) -> dict[tuple[str, int | None, float | None], tuple[str, str]]:
        """The files of folders that no longer exist: ids and paths by name, size and time."""
        lost = dict[tuple[str, int | None, float | None], tuple[str, str]]()
        for folder in self.store.every_folder():
            if Path(folder).is_absolute() and not os.path.exists(folder):  # noqa: PTH110 - raises no error
                for name, (id, file) in self.store.files(folder).items():
                    if file.size is not None:
                        lost[name, file.size, file.modified] = id, file.path
        return lost


def _file_at(path: str) -> File | None:
    """Return the plain file at a path, with links followed; None if there is none."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            path = os.path.realpath(path)
            status = os.stat(path)  # noqa: PTH116 - of many files
    except OSError:
        return None
    return File(path, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None


def vanished(store: ItemStore, roots: Sequence[str]) -> Iterator[str]:
    """Yield stored paths below folders at which there is no file any more; folders that cannot be read are skipped."""
    for folder in store.every_folder():
        if is_below(folder, roots):
            try:
                names = set(os.listdir(folder))  # noqa: PTH208 - of many files
            except FileNotFoundError:
                names = set()
            except OSError:  # no permission, or a parquet file with images in it
                continue
            for name, (_, file) in store.files(folder).items():
                if name not in names and not file.gone:
                    yield file.path


def known_below(store: ItemStore, path: str) -> list[str]:
    """Return the stored paths that are this path, or below it if it was a folder, and are not known to be gone."""
    folder, name = os.path.split(path)
    found = [pair for own, pair in store.files(folder).items() if own == name]
    for place in store.every_folder():
        if is_below(place, [path]):
            found += store.files(place).values()
    return [file.path for _, file in found if not file.gone]


def is_below(folder: str, roots: str | Path | Sequence[str | Path]) -> bool:
    """Return whether a folder is one of the roots, or below one."""
    listed = [roots] if isinstance(roots, str | Path) else roots
    return f"{folder.rstrip(os.sep)}{os.sep}".startswith(_beginnings(listed))


def _beginnings(roots: Iterable[str | Path]) -> tuple[str, ...]:
    """Return what the real paths below some folders begin with."""
    return tuple(os.path.realpath(root).rstrip(os.sep) + os.sep for root in roots)


# --- labels


@dataclass(frozen=True)
class Labelling:
    """Labels of images: given ones by path, otherwise predicted ones or none."""

    model: Model
    given: Mapping[str, Labels]  # by the path as text, which takes a fraction of a Path's memory
    predict: bool = True

    def __call__(self, paths: Sequence[str], features: NDArray[np.float32]) -> list[Labels]:
        """Return the labels of the images at `paths`, of which these are the features (N, D)."""
        others = self.model.label_names(features) if self.predict else [()] * len(paths)
        return [self.given.get(path, other) for path, other in zip(paths, others, strict=True)]


def images_and_labels(
    model: Model, entries: Sequence[str | Path], labels: GivenLabels
) -> tuple[Found, Labelling]:
    """Return the image files of `entries`, and the source of their labels: see `Index.add`."""
    from centerhash.data.listing import find_images

    if isinstance(labels, Mapping):
        known = {str(Path(path).resolve()): check_labels(names) for path, names in labels.items()}
        return find_images(entries), Labelling(model, known)
    if labels is not None and labels not in LABELS:
        raise unknown_name("choice of labels", str(labels), LABELS)
    given = _given_labels(entries) if labels in (None, "given") else {}
    if labels == "given" and not given:
        raise ConfigError(
            "no labels.csv in or above the folders lists any of the images: name such a folder, or choose labels "
            "'predicted' instead of 'given'."
        )
    known = {str(path.resolve()): names for path, names in given.items()}
    files = find_images(
        [*entries, *given]
    )  # a labels.csv may list files whose suffix is not that of an image
    return files, Labelling(model, known, predict=labels in (None, "predicted"))


def _given_labels(entries: Sequence[str | Path]) -> dict[Path, Labels]:
    """Return the labels of every image in the `entries` that are folders, by the labels.csv in or above them."""
    from centerhash.data.layouts.tabular import read_image_folder

    found: dict[Path, Labels] = {}
    for entry in map(Path, entries):
        home = _labels_home(entry) if entry.is_dir() else None
        if home is not None:
            inside, folder = entry.resolve(), read_image_folder(home)
            for path, row in zip(folder.paths or (), folder.labels, strict=True):
                if home == entry or path.resolve().is_relative_to(inside):
                    # as the listing of the folder names it, or it would be read twice
                    named = entry / path.relative_to(inside) if path.is_relative_to(inside) else path
                    found[named] = tuple(folder.classes[column] for column in np.flatnonzero(row).tolist())
    return found


def _labels_home(folder: Path) -> Path | None:
    """Return the folder whose labels.csv may describe the images in `folder`: itself, or one of the next above it."""
    above = folder.resolve().parents[:_LEVELS_ABOVE]
    # Path.is_file would raise if a folder is closed to us
    return next((home for home in (folder, *above) if os.path.isfile(home / "labels.csv")), None)  # noqa: PTH113


# --- adding


class Read(NamedTuple):
    """A file whose content was looked at: `photo` is only of an image that is to be added."""

    id: str
    file: File
    photo: PhotoInfo | None
    removed: bool


@dataclass
class Waiting:
    """A new image: its files, and what is stored of it."""

    files: list[File]
    photo: PhotoInfo
    features: NDArray[np.float32]


@dataclass
class Adding:
    """One call of `add`: what waits to be stored, and the counts so far."""

    index: Index
    labelling: Labelling
    scanned: Scanned
    waiting: dict[str, Waiting] = field(default_factory=dict)
    read: dict[str, Read] = field(default_factory=dict)  # by path
    again: list[tuple[str, File]] = field(default_factory=list)  # files of known images, by their id
    removed: list[tuple[str, File]] = field(default_factory=list)  # files of removed images, by their id
    done: Added = field(default_factory=lambda: Added(0, 0, {}))

    def run(self, names: Iterable[str], total: int, batch: int, progress: Progress) -> Added:
        """Encode and store those of `total` files that are new; every `batch` is stored durably before the next."""
        from centerhash.data.listing import Paths

        compared = Comparison(self.index.store, self.labelling.given, self.scanned)
        files = Paths(compared.fresh(names))
        self._place(compared)
        before, seen = total - len(files), 0
        progress("images", before, total)
        with closing(self.index.encoder().stream(files, self._new_id)) as steps:
            for step in steps if files else ():
                self._collect(step, range(seen, seen + step.seen), files)
                seen += step.seen
                while len(self.waiting) >= batch:
                    self._write({id: self.waiting.pop(id) for id in list(islice(self.waiting, batch))})
                if len(self.again) + len(self.removed) >= batch:
                    self._note()
                progress("images", before + seen, total)
        self._write(self.waiting)
        self._note()
        predicts = self.labelling.predict and self.labelling.model.has_centers
        return replace(self.done, predicted=self.done.added - self.done.given if predicts else 0)

    def _count(self, **more: int) -> None:
        self.done = replace(
            self.done, **{name: getattr(self.done, name) + number for name, number in more.items()}
        )

    def _place(self, compared: Comparison) -> None:
        """Store where known files are that need not be read."""
        here, left = iter(compared.here), iter(compared.left)
        while some := list(islice(here, _AT_ONCE)):
            with self.index.writing() as store:
                store.change_files(some, list(islice(left, _AT_ONCE)))
        self._count(known=compared.known, moved=compared.moved, removed=compared.removed)

    def _collect(self, step: Step, places: Sequence[int], files: Sequence[Path]) -> None:
        """Count what became of the files at some places."""
        features = dict(zip(step.places, step.features, strict=True))
        for place in places:
            path = str(files[place])
            known = self.read.pop(path, None)
            if place in step.broken or known is None:
                self.done.broken[path] = str(step.broken[place])
                continue
            id, file, photo, removed = known
            if _file_at(file.path) not in (file, None):  # None: a row of a parquet file
                self.done.broken[path] = f"'{path}' was written to while it was read: add it again."
            elif removed:
                self.removed.append((id, file))
                self._count(removed=1)
            elif photo is None:
                self.again.append((id, file))
                self._count(known=1)
            elif id in self.waiting:
                self._count(known=1)
                if file not in self.waiting[id].files:
                    self.waiting[id].files.append(file)
            else:
                self.waiting[id] = Waiting([file], photo, features[place])

    def _new_id(self, image: ImageSource) -> str | None:
        """Return the id of an image file that is to be added, otherwise None."""
        from centerhash.data.images import content_key

        if not isinstance(image, str | Path):
            raise InputError(f"only files are added, got {type(image).__name__}.")
        file = File.at(os.path.realpath(image))
        id = content_key(image)[:ID_DIGITS]
        store = self.index.store
        new = id not in store
        removed = new and store.was_removed(id) and str(image) in self.scanned
        photo = photo_info(image, file) if new and not removed else None
        self.read[str(image)] = Read(id, file, photo, removed)
        return None if photo is None else id

    def _note(self) -> None:
        """Store where known and removed images are; nothing is encoded. If all other files are missing, it has moved."""
        found, self.again, removed, self.removed = self.again, [], self.removed, []
        if removed:
            with self.index.writing() as store:
                store.note_removed(removed)
        if not found:
            return
        given, moved, missing = dict[str, Labels](), 0, list[str]()
        for id, file in found:
            if file.path in self.labelling.given:
                given[id] = self.labelling.given[file.path]
        with self.index.writing() as store, store.transaction():
            for item in store.get(store.present(list(dict.fromkeys(id for id, _ in found)))):
                gone = [path for path in item.paths if not has_file(self.index.uploads, path)]
                missing += gone
                if gone and len(gone) == len(item.paths):
                    moved += 1
                    if given.get(item.id, item.labels) != item.labels:
                        store.add_items([replace(item, labels=given[item.id])], replace=True)
            store.change_files(found, missing)
        self._count(moved=moved, known=-moved)

    def _write(self, images: Mapping[str, Waiting]) -> None:
        """Store images by id; they are stored durably on return."""
        if not images:
            return
        waiting, ids = list(images.values()), list(images)
        paths = [one.files[0].path for one in waiting]
        features = np.stack([one.features for one in waiting])
        labels = self.labelling(paths, features)
        packed, visual, scores = self.index.codes_of(features, labels)
        columns = (labels, [one.files for one in waiting], visual, scores, [one.photo for one in waiting])
        with self.index.writing() as store:
            known = set(store.present(ids))  # another thread may have been quicker
            rows = [row for row, id in enumerate(ids) if id not in known]
            chosen: list[Any] = [None if one is None else [one[row] for row in rows] for one in columns]
            store.add(packed[rows], [ids[row] for row in rows], *chosen)
        given = sum(paths[row] in self.labelling.given for row in rows)
        self._count(added=len(rows), given=given, known=len(ids) - len(rows))


def photo_info(image: str | Path | bytes, file: File) -> PhotoInfo:
    """Read when a photo was taken, the camera and its size; without a date in EXIF, that of the file."""
    from centerhash.data.images import read_header

    header = read_header(image)
    taken = header.taken
    if taken is None and file.modified is not None:
        with suppress(ValueError, OverflowError, OSError):  # a time outside of the years that have a date
            # the clock on the wall, as that of a camera
            taken = datetime.fromtimestamp(file.modified).replace(tzinfo=UTC).timestamp()
    return PhotoInfo(taken, header.camera, header.width, header.height)


def stored_photo(path: str | None) -> PhotoInfo:
    """Return what the file at a path holds of a photo; nothing if it cannot be read."""
    if path is None:
        return PhotoInfo()
    try:
        return photo_info(path, File.at(path))
    except ImageError:
        return PhotoInfo()


def shown_name(name: str) -> str | None:
    """Return the name of an upload without folders and control characters; None if nothing is left."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(sign for sign in last if sign.isprintable()).strip()
    return shown[:MAX_NAME] or None
