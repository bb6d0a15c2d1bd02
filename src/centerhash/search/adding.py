"""Adding images to an index: a stream from files to stored items, of which a kill loses at most one batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, InputError, unknown_name
from centerhash.core.progress import Progress
from centerhash.core.rendering import is_text
from centerhash.data.images import ImageSource, content_key
from centerhash.data.layouts.tabular import read_image_folder
from centerhash.data.listing import Found, Paths, find_images
from centerhash.search.engines.base import HammingIndex, check_labels
from centerhash.search.parts import seen_in, visual_of
from centerhash.search.results import Added
from centerhash.search.uploads import ID_LETTERS, Uploads, has_file

if TYPE_CHECKING:
    from centerhash.model.model import HashModel
    from centerhash.networks.encoder import Encoder, Step
    from centerhash.search.index import Index

Labels: TypeAlias = tuple[str, ...]
GivenLabels: TypeAlias = Mapping[Any, Sequence[str]] | str | None  # by path, or a word of LABELS

LABELS = ("given", "predicted", "none")
_LEVELS_ABOVE = 3  # folders above the images in which their labels.csv is looked for


@dataclass(frozen=True)
class Labelling:
    """Labels by path where they are given; else what the model predicts, or none."""

    model: HashModel
    given: Mapping[str, Labels]  # by the path as text, which takes a fraction of a Path's memory
    predict: bool = True

    def __call__(self, paths: Sequence[Path], features: NDArray[np.float32]) -> list[Labels]:
        """The labels of the images at `paths`, of which these are the features (N, D)."""
        others = self.model.label_names(features) if self.predict else [()] * len(paths)
        return [self.given.get(str(path), other) for path, other in zip(paths, others, strict=True)]


@dataclass
class Adding:
    """One call of `add`: what waits to be stored, and what has become of the images so far."""

    store: HammingIndex
    model: HashModel
    uploads: Uploads
    lock: RLock  # held while the index changes
    labelling: Labelling
    waiting: dict[str, tuple[Path, NDArray[np.float32]]] = field(default_factory=dict)
    elsewhere: dict[str, Path] = field(default_factory=dict)  # known images whose file is here now
    given: int = 0
    added: int = 0
    known: int = 0
    moved: int = 0
    broken: dict[str, str] = field(default_factory=dict)

    def run(self, files: Paths, encoder: Encoder, batch: int, progress: Progress) -> Added:
        """Encode and store `files`; every `batch` of new ones is stored durably before the next."""
        unnamed = [name for name in files.names if not is_text(str(Path(name).absolute()))]
        self.broken = {name: f"cannot store {name!a}: its name is not UTF-8. Rename it." for name in unnamed}
        named = Paths(name for name in files.names if name not in self.broken) if unnamed else files
        done = len(self.broken)
        with closing(encoder.stream(named, self.new_id)) as steps:
            for step in steps:
                self.take(step, named, batch)
                done += step.seen
                progress("images", done, len(files))
        self.write(self.waiting)
        self.move()
        predicted = self.added - self.given if self.labelling.predict and self.model.has_centers else 0
        return Added(self.added, self.known, self.broken, self.moved, self.given, predicted)

    def take(self, step: Step, files: Sequence[Path], batch: int) -> None:
        """Count what became of a few files, and store what has come together to a batch."""
        self.known += step.known
        self.broken |= {str(files[place]): str(error) for place, error in step.broken.items()}
        for id, place, features in zip(step.keys, step.places, step.features, strict=True):
            self.known += id in self.waiting
            self.waiting.setdefault(id, (files[place].resolve(), features))
        while len(self.waiting) >= batch:
            self.write({id: self.waiting.pop(id) for id in list(islice(self.waiting, batch))})
        if len(self.elsewhere) >= batch:
            self.move()

    def new_id(self, image: ImageSource) -> str | None:
        """The id of an image file that is not there yet; None for one that is, also if its file has moved."""
        if not isinstance(image, str | Path):
            raise InputError(f"only files are added, got {type(image).__name__}.")
        id = content_key(image)[:ID_LETTERS]
        if id not in self.store:
            return id
        if not holds_with_file(self.store, self.uploads, id):
            self.elsewhere.setdefault(id, Path(image).resolve())
        return None

    def move(self) -> None:
        """Give known images whose file is gone the path at which it was found again; nothing is encoded."""
        with self.lock:
            waiting = {id: self.elsewhere.pop(id) for id in list(self.elsewhere)}
            lost = [id for id in waiting if not holds_with_file(self.store, self.uploads, id)]
            items = self.store.get(lost)
            paths = [waiting[id] for id in lost]
            labels = [
                self.labelling.given.get(str(path), item.labels)
                for path, item in zip(paths, items, strict=True)
            ]
            self.store.remove(lost)
            if items:
                self.store.add(
                    np.stack([item.code for item in items]),
                    lost,
                    labels,
                    list(map(str, paths)),
                    [item.visual for item in items],
                    [item.seen for item in items],
                )
        self.moved += len(lost)
        self.known -= len(lost)

    def write(self, images: Mapping[str, tuple[Path, NDArray[np.float32]]]) -> None:
        """Store images by id; they are there durably on return."""
        if not images:
            return
        ids, paths = list(images), [path for path, _ in images.values()]
        features = np.stack([features for _, features in images.values()])
        packed, labels = pack(self.model.encode_features(features)), self.labelling(paths, features)
        looks, seen = visual_of(self.model, features), seen_in(self.model, features, labels)
        with self.lock:
            known = set(self.store.present(ids))  # another may have been quicker
            rows = [row for row, id in enumerate(ids) if id not in known]
            self.store.add(
                packed[rows],
                [ids[row] for row in rows],
                [labels[row] for row in rows],
                [str(paths[row]) for row in rows],
                None if looks is None else looks[rows],
                None if seen is None else [seen[row] for row in rows],
            )
        self.added += len(rows)
        self.given += sum(str(paths[row]) in self.labelling.given for row in rows)
        self.known += len(ids) - len(rows)


def holds_with_file(store: HammingIndex, uploads: Uploads, id: str) -> bool:
    """Whether an item is in the index and its file, if it has one, still where its path says."""
    if id not in store:
        return False
    return has_file(uploads, store.get([id])[0].path)


def images_and_labels(
    model: HashModel, entries: Sequence[str | Path], labels: GivenLabels
) -> tuple[Found, Labelling]:
    """The image files that `entries` mean, and what says their labels: see `Index.add`."""
    if isinstance(labels, Mapping):
        known = {str(Path(path).resolve()): check_labels(names) for path, names in labels.items()}
        return find_images(entries), Labelling(model, known)
    if labels is not None and labels not in LABELS:
        raise unknown_name("choice of labels", str(labels), LABELS)
    given = given_labels(entries) if labels in (None, "given") else {}
    if labels == "given" and not given:
        raise ConfigError(
            "labels are to be 'given', but no labels.csv in or above the folders among the images names any of them: "
            "name such a folder, or choose 'predicted'."
        )
    known = {str(path.resolve()): names for path, names in given.items()}
    files = find_images([*entries, *given])  # a labels.csv may name files whose suffix says nothing
    return files, Labelling(model, known, predict=labels in (None, "predicted"))


def given_labels(entries: Sequence[str | Path]) -> dict[Path, Labels]:
    """The labels of every image in those of the `entries` that are folders, by the labels.csv in or above them."""
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
    """The folder whose labels.csv may describe the images in `folder`: itself, or one of the next few above it."""
    above = folder.resolve().parents[:_LEVELS_ABOVE]
    # Path.is_file would raise where a folder is closed to us
    return next((home for home in (folder, *above) if os.path.isfile(home / "labels.csv")), None)  # noqa: PTH113


def find_items(index: Index, ids_or_paths: str | Path | Sequence[str | Path]) -> dict[str, list[str]]:
    """As `Index.find`."""
    entries = list(dict.fromkeys(map(str, listed(ids_or_paths, "ids or paths"))))
    found = {entry: [entry] if entry in index.store else [] for entry in entries}
    # unlike Path.resolve, realpath also takes links that lead to themselves
    places = {Path(os.path.realpath(entry)): entry for entry in entries if not found[entry]}
    for id, stored in index.store.paths() if places else ():
        path = index.uploads.path(stored)
        if path is not None:
            for place in (path, *path.parents):
                if place in places:
                    found[places[place]].append(str(id))
    return found


def listed(entries: str | Path | Sequence[str | Path], what: str) -> list[str | Path]:
    """One entry or several as a list, or InputError for what is neither text nor path."""
    found = [entries] if isinstance(entries, str | Path) else entries
    if not isinstance(found, Sequence) or not all(isinstance(entry, str | Path) for entry in found):
        raise InputError(f"{what} must be a path or a list of them, got {entries!r:.80}.")
    return list(found)
