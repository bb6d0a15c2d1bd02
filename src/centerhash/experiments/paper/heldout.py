"""Images that a model was not trained on, with the area of every label."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, did_you_mean
from centerhash.data import Dataset, open_dataset
from centerhash.data.layouts.contents import normal_name, read_lines
from centerhash.experiments.bench import Bench, Source
from centerhash.experiments.paper.common import Settings


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Features (N, D), labels (N, C) and areas (N, C), the C classes being those of the training data."""

    features: NDArray[Any]
    labels: NDArray[np.bool_]
    areas: NDArray[np.float32]


@dataclass(frozen=True)
class TestSource:
    """Where the images come from: the training data itself, or another data set with the same class names."""

    __test__ = False  # it is no test of ours, whatever its name begins with

    source: Source  # of the training data, for cache and device
    path: Path | None = None
    exclude: frozenset[str] = frozenset()  # names or ids of images to leave out

    def rows(self, dataset: Dataset) -> NDArray[np.int64]:
        """Which images of the data set (the other one where there is one) may be measured on."""
        splits = dataset.splits
        if self.path is None:
            pool = np.setdiff1d(np.union1d(splits.query, splits.database), splits.train)
        else:
            pool = np.arange(dataset.size)
        kept = [row for row in pool.tolist() if not self.exclude & _names(dataset.names[row])]
        return np.array(kept, dtype=np.int64)

    def open(self, bench: Bench) -> HeldOut:
        """The images with their features; DataError where areas are not known, or classes do not fit."""
        if self.path is None:
            dataset, features = bench.dataset, bench.features
            rows = self.rows(dataset)
            return HeldOut(features[rows], dataset.labels[rows], areas_of(dataset)[rows])
        dataset = open_dataset(self.path)
        columns, areas = class_columns(dataset, bench.dataset.classes), areas_of(dataset)
        features, splits = self.source.features(dataset)
        if features.shape[1] != bench.features.shape[1]:
            raise DataError(
                f"'{self.path}' gives {features.shape[1]} features per image, the training data "
                f"{bench.features.shape[1]}: both must come from the same backbone."
            )
        whole = np.concatenate([splits.train, splits.query, splits.database])  # without broken images
        rows = np.intersect1d(self.rows(dataset), whole)
        shape = (len(rows), len(bench.dataset.classes))
        labels, wide = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.float32)
        labels[:, columns], wide[:, columns] = dataset.labels[rows], areas[rows]
        return HeldOut(features[rows], labels, wide)

    def about(self, bench: Bench) -> dict[str, Any]:
        """What tells these images from others, ready for json."""
        dataset = bench.dataset if self.path is None else open_dataset(self.path)
        rows, areas = self.rows(dataset), areas_of(dataset)
        class_columns(dataset, bench.dataset.classes)
        digest = hashlib.blake2b("\n".join(dataset.names[row] for row in rows).encode(), digest_size=8)
        digest.update(areas[rows].tobytes())
        return {"data": dataset.name, "images": len(rows), "digest": digest.hexdigest()}


def source_of_test(settings: Settings) -> TestSource:
    """The images that the settings ask for."""
    listed = () if settings.exclude is None else read_lines(settings.exclude)
    exclude = frozenset(name for line in listed if line for name in _names(line))
    return TestSource(settings.source, settings.test_images, exclude)


def _names(name: str) -> set[str]:
    """All that an image may be called: its path, its file's name, that without ending, and as a number."""
    path = PurePosixPath(normal_name(name))
    return {str(path), path.name, path.stem, path.stem.lstrip("0") or "0"}


def areas_of(dataset: Dataset) -> NDArray[np.float32]:
    """The areas (N, C) of a data set, which must have some."""
    if dataset.areas is None:
        raise DataError(
            f"'{dataset.name}' does not say how large its objects are: use a data set with areas (the column 'areas' of "
            "labels.csv, or COCO's json), or name one for the test images."
        )
    return dataset.areas


def class_columns(dataset: Dataset, classes: tuple[str, ...]) -> list[int]:
    """The place of each class of a data set among `classes`, by name."""
    places = {name: place for place, name in enumerate(classes)}
    for name in dataset.classes:
        if name not in places:
            raise DataError(
                f"the class '{name}' of the test images '{dataset.name}' is not one of the training data."
                f"{did_you_mean(name, classes)} Every class must be there under the same name."
            )
    return [places[name] for name in dataset.classes]
