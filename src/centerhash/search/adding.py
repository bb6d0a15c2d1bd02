"""Adding images to a collection: a stream from files to stored items, of which a kill loses at most one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import pack
from centerhash.model import HashModel
from centerhash.search.encoder import ImageEncoder, Progress, Step
from centerhash.search.engines.base import HammingIndex
from centerhash.search.uploads import Uploads

Labels: TypeAlias = tuple[str, ...]
LabelsOf: TypeAlias = Callable[[Sequence[Path], NDArray[np.float32]], list[Labels]]


@dataclass(frozen=True)
class Added:
    """What became of the images of one `add`: how many are new, how many were there, why others cannot be read.

    `moved` counts those that were there by a path at which there is no file any more: they now have the new path.
    """

    added: int
    known: int
    broken: dict[str, str]
    moved: int = 0


@dataclass
class Adding:
    """One call of `add`: what waits to be stored, and what has become of the images so far."""

    index: HammingIndex
    model: HashModel
    uploads: Uploads
    lock: RLock  # held while the index changes
    labels_of: LabelsOf
    waiting: dict[str, tuple[Path, NDArray[np.float32]]] = field(default_factory=dict)
    added: int = 0
    known: int = 0
    moved: int = 0
    broken: dict[str, str] = field(default_factory=dict)

    def run(
        self, files: Sequence[Path], encoder: ImageEncoder, batch: int, progress: Progress | None
    ) -> Added:
        """Encode and store `files`; every `batch` of new ones is stored for good before the next."""
        self.broken = {str(file): _not_text(file) for file in files if not _is_text(file)}
        done = len(self.broken)
        with closing(encoder.stream([file for file in files if _is_text(file)], self.is_known)) as steps:
            for step in steps:
                self.take(step, batch)
                done += step.seen
                if progress is not None:
                    progress(done, len(files))
        self.store(self.waiting)
        return Added(self.added, self.known, self.broken, self.moved)

    def take(self, step: Step, batch: int) -> None:
        """Count what became of a few files, and store what has come together to a batch."""
        self.known += step.known
        self.broken |= step.broken
        for id, path, features in zip(step.ids, step.paths, step.features, strict=True):
            self.known += id in self.waiting
            self.waiting.setdefault(id, (path.resolve(), features))
        while len(self.waiting) >= batch:
            self.store({id: self.waiting.pop(id) for id in list(islice(self.waiting, batch))})

    def is_known(self, id: str) -> bool:
        """Whether an image is there, and its file as well."""
        return holds_with_file(self.index, self.uploads, id)

    def store(self, images: Mapping[str, tuple[Path, NDArray[np.float32]]]) -> None:
        """Index images by id; they are stored for good on return."""
        if not images:
            return
        ids, paths = list(images), [path for path, _ in images.values()]
        features = np.stack([features for _, features in images.values()])
        packed, labels = pack(self.model.encode_features(features)), self.labels_of(paths, features)
        with self.lock:
            # another thread may have been quicker
            rows = [row for row, id in enumerate(ids) if not self.is_known(id)]
            moved = self.index.remove([ids[row] for row in rows])
            self.index.add(
                packed[rows],
                [ids[row] for row in rows],
                [labels[row] for row in rows],
                [str(paths[row]) for row in rows],
            )
        self.added += len(rows) - moved
        self.moved += moved
        self.known += len(ids) - len(rows)


def holds_with_file(index: HammingIndex, uploads: Uploads, id: str) -> bool:
    """Whether an item is in the index and its file, if it has one, still where its path says."""
    if id not in index:
        return False
    path = index.get([id])[0].path
    return path is None or uploads.path(path).exists()


def given_or_predicted(model: HashModel, given: Mapping[Path, Sequence[str]], predict: bool) -> LabelsOf:
    """Labels by path where they are given; else the predicted ones, or none."""
    known = {path.resolve(): tuple(names) for path, names in given.items()}

    def labels_of(paths: Sequence[Path], features: NDArray[np.float32]) -> list[Labels]:
        others = model.label_names(features) if predict else [()] * len(paths)
        return [known.get(path, other) for path, other in zip(paths, others, strict=True)]

    return labels_of


def _is_text(path: Path) -> bool:
    """Whether the name of a file can be stored; Linux allows bytes that are no UTF-8."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_text(path: Path) -> str:
    return f"cannot store {str(path)!a}: its name is not UTF-8. Rename it."
