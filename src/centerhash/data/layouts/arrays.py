"""Read features (N, D) with labels (N, C): from memory, or from `features.npy`, `labels.npy` and `classes.txt`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import as_array, check_features
from centerhash.core.errors import DataError, InputError
from centerhash.data.layouts import common
from centerhash.data.layouts.common import Contents
from centerhash.data.layouts.label_cells import label_matrix, read_cell

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))
_COLLECTIONS = (list, tuple, set, frozenset)


def read_features(root: Path) -> Contents:
    """Open and check `features.npy`, which stays on disk, `labels.npy` and `classes.txt` of a folder."""
    classes = common.read_classes(root)
    if classes is None:
        raise DataError(f"'{root}' has no classes.txt, one class per line for each column of labels.npy.")
    path = root / "features.npy"
    labels = check_labels(common.load_array(root / "labels.npy"), f"'{root / 'labels.npy'}'", classes)
    features = common.open_array(path)
    if features.dtype not in _FLOATS:
        raise DataError(
            f"'{path}' must hold float16 or float32, got {features.dtype}: convert it with astype."
        )
    _check_rows(features, len(labels), f"'{path}'")
    names = row_names(len(labels))
    splits, source = common.read_splits(root, names)
    return Contents(names, classes, labels, splits, source, features=features)


def read_arrays(features: Any, labels: Any, classes: Iterable[str] | None = None) -> Contents:
    """Check features and labels in memory (see `Dataset.from_arrays`)."""
    numbers = as_array(features, "features")
    if numbers.dtype not in _FLOATS:
        numbers = numbers.astype(np.float32)
    columns, truth = common.no_labels(len(numbers)) if labels is None else read_labels(labels, classes)
    _check_rows(numbers, len(truth), "features")
    return Contents(row_names(len(truth)), columns, truth, features=numbers)


def row_names(count: int) -> tuple[str, ...]:
    """Return the names of unnamed rows: 0, 1, 2, ..."""
    return tuple(map(str, range(count)))


def _check_rows(features: NDArray[np.floating[Any]], rows: int, name: str) -> None:
    """Raise DataError unless features are finite and of shape (rows, D)."""
    if features.size == 0 or len(features) != rows:
        raise DataError(
            f"{name} has shape {features.shape}, but there are {rows:,} rows of labels: both describe the same images "
            "in the same order."
        )
    try:
        check_features(features)
    except InputError as error:
        raise DataError(f"{name}: {error}") from error


def read_labels(
    labels: Any, classes: Iterable[str] | None = None
) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return the classes and labels (N, C) from an array (N, C) of 0 and 1, or from a list of the names per image."""
    names = None if classes is None else common.check_classes(classes)
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "UO":
        labels = labels.tolist()
    if isinstance(labels, list | tuple) and any(map(_holds_names, labels)):
        locations = [f"labels, row {row}" for row in range(len(labels))]
        cells = [read_cell(entry, location) for entry, location in zip(labels, locations, strict=True)]
        return label_matrix(cells, names, locations)[:2]
    truth = check_labels(as_array(labels, "labels"), "labels", names)
    return names or row_names(truth.shape[1]), truth


def _holds_names(entry: Any) -> bool:
    return any(isinstance(label, str) for label in (entry if isinstance(entry, _COLLECTIONS) else [entry]))


def check_labels(labels: NDArray[Any], name: str, classes: tuple[str, ...] | None) -> NDArray[np.bool_]:
    """Return labels (N, C) of True/False or 1/0 as bool, and check that there is a column per class."""
    if labels.ndim != 2 or labels.size == 0:
        hint = " From one class number per image: numpy.eye(C, dtype=bool)[numbers]." * (labels.ndim == 1)
        raise DataError(
            f"{name} must be of shape (N, C), one column per class, not empty, got {labels.shape}.{hint}"
        )
    if classes is not None and len(classes) != labels.shape[1]:
        raise DataError(
            f"{name} must have one column per class, in the same order: {labels.shape[1]} columns for "
            f"{len(classes)} classes."
        )
    truth = labels.astype(np.bool_)
    wrong = np.argwhere(labels != truth)
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(
            f"{name}: {labels[row, column]} in row {row}, column {column}, but only 0 and 1 are valid."
        )
    return truth
