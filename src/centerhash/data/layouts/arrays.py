"""Read features (N, D) with labels (N, C): from memory, or from `features.npy`, `labels.npy` and `classes.txt`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import as_array
from centerhash.core.errors import DataError
from centerhash.data.layouts.contents import (
    Contents,
    check_classes,
    has_file,
    label_matrix,
    load_array,
    named_splits,
    no_labels,
    read_cell,
    read_classes,
    read_header,
    register_layout,
)

_BLOCK_BYTES = 16 * 2**20
_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))


@register_layout(
    "features",
    has_file("features.npy"),
    "a folder of features with features.npy (N, D), labels.npy (N, C) and classes.txt",
)
def read_feature_folder(root: Path) -> Contents:
    """Open and check `features.npy`, which stays on disk, `labels.npy` and `classes.txt` of a folder."""
    for name in ("features.npy", "labels.npy", "classes.txt"):
        if not (root / name).is_file():
            raise DataError(
                f"'{root}' has no {name}: a feature folder holds features.npy (N, D), labels.npy (N, C) "
                "and classes.txt (C lines)."
            )
    classes = read_classes(root / "classes.txt")
    labels = check_labels(load_array(root / "labels.npy"), f"'{root / 'labels.npy'}'", classes)
    features, warnings = _map_features(root / "features.npy")
    names = row_names(len(labels))
    splits, source = named_splits(root, names)
    contents = Contents(names, classes, labels, splits, source, features=features, warnings=warnings)
    _check_rows(contents, f" in '{root}'")
    return contents


def read_arrays(features: Any, labels: Any, classes: Iterable[str] | None = None) -> Contents:
    """Check features and labels in memory (see `Dataset.from_arrays`)."""
    numbers = as_array(features, "features")
    if numbers.dtype not in _FLOATS:
        numbers = numbers.astype(np.float32)
    check_features(numbers, "features")
    found, truth = no_labels(len(numbers)) if labels is None else read_labels(labels, classes)
    contents = Contents(row_names(len(truth)), found, truth, features=numbers)
    _check_rows(contents, "")
    return contents


def row_names(count: int) -> tuple[str, ...]:
    """Names of rows that have none of their own: 0, 1, 2, ..."""
    return tuple(map(str, range(count)))


def _check_rows(contents: Contents, where: str) -> None:
    features, labels = contents.features, contents.labels
    if features is not None and len(features) != len(labels):
        raise DataError(
            f"features have {len(features):,} rows, but labels {len(labels):,}{where}: "
            "both must describe the same images in the same order."
        )


def _map_features(path: Path) -> tuple[NDArray[np.floating[Any]], tuple[str, ...]]:
    """Map features (N, D) from disk, read-only, and return them with the warnings about them."""
    header = read_header(path)
    if header.dtype not in _FLOATS:
        raise DataError(
            f"'{path}' must hold float16 or float32, got {header.dtype}: "
            "save features.astype(numpy.float32) instead."
        )
    empty = 0 in header.shape  # cannot be mapped
    features = np.empty(header.shape, header.dtype) if empty else np.lib.format.open_memmap(path, mode="r")
    check_features(features, f"'{path}'")
    if header.fortran_order and min(header.shape) > 1:
        return features, (
            f"'{path}' is stored column by column (Fortran order), so reading rows is slow: "
            "save numpy.ascontiguousarray(features) instead.",
        )
    return features, ()


def check_features(features: NDArray[np.floating[Any]], name: str) -> None:
    """Refuse all but finite features (N, D), looking block by block: they may exceed the memory."""
    if features.ndim != 2:
        raise DataError(f"{name} must be of shape (N, D), one row per image, got {features.shape}.")
    if features.size == 0:
        raise DataError(f"{name} must not be empty, got shape {features.shape}.")
    step = max(1, _BLOCK_BYTES // (features.shape[1] * features.itemsize))
    for start in range(0, len(features), step):
        finite = np.isfinite(features[start : start + step])
        if not finite.all():
            row, column = (int(index) for index in np.argwhere(~finite)[0])
            raise DataError(
                f"{name}: {features[start + row, column]} in row {start + row}, column {column}, but features must "
                "be finite. Compute that image's features again or leave it out."
            )


def read_labels(
    labels: Any, classes: Iterable[str] | None = None
) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return the classes and labels (N, C) of 0/1 (N, C), or of a list that names the labels of each image."""
    given = None if classes is None else check_classes(classes)
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "UO":
        labels = labels.tolist()
    collections = (list, tuple, set, frozenset)
    if isinstance(labels, list | tuple) and any(
        isinstance(label, str)
        for entry in labels
        for label in (entry if isinstance(entry, collections) else [entry])
    ):
        places = [f"labels, row {row}" for row in range(len(labels))]
        cells = [read_cell(entry, where) for entry, where in zip(labels, places, strict=True)]
        return label_matrix(cells, given, places.__getitem__, "classes")
    truth = check_labels(as_array(labels, "labels"), "labels", given)
    return given or row_names(truth.shape[1]), truth


def check_labels(labels: NDArray[Any], name: str, classes: tuple[str, ...] | None) -> NDArray[np.bool_]:
    """Return labels (N, C) of True/False or 1/0 as bool; there must be a column per class."""
    if labels.ndim != 2:
        hint = " From one class number per image: numpy.eye(C, dtype=bool)[numbers]." * (labels.ndim == 1)
        raise DataError(f"{name} must be of shape (N, C), one column per class, got {labels.shape}.{hint}")
    if labels.size == 0:
        raise DataError(f"{name} must not be empty, got shape {labels.shape}.")
    if classes is not None and len(classes) != labels.shape[1]:
        raise DataError(
            f"{name} must have one column per class, in the same order: {labels.shape[1]} columns for "
            f"{len(classes)} classes."
        )
    truth = labels.astype(np.bool_)
    wrong = labels != truth
    if wrong.any():
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        raise DataError(
            f"{name}: {labels[row, column]} in row {row}, column {column}, but only 0 and 1 are valid."
        )
    return truth
