"""Folders of precomputed features: `features.npy`, `labels.npy`, `classes.txt`. Nothing is ever unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.data.textfiles import read_classes

_BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Header:
    """What the first bytes of a .npy file say about the rest."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class FeatureFolder:
    """The checked contents of a feature folder: features (N, D) memory-mapped, labels (N, C)."""

    features: NDArray[np.floating[Any]]
    labels: NDArray[np.bool_]
    classes: tuple[str, ...]
    warnings: tuple[str, ...]


def read_header(path: Path) -> Header:
    """Read the header of a .npy file and check that the file holds all the values it announces."""
    try:
        with path.open("rb") as stream:
            if np.lib.format.read_magic(stream) == (1, 0):
                shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
            else:  # version 3 differs from 2 only in the names of fields, which no array here has
                shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(stream)
            start = stream.tell()
            total = stream.seek(0, 2)
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error
    except (ValueError, EOFError) as error:
        raise DataError(f"'{path}' is not a whole .npy file ({error}): write it with numpy.save.") from error
    if dtype.hasobject:
        raise DataError(
            f"'{path}' holds Python objects, which are never unpickled: save an array of plain numbers."
        )
    if any(length < 0 for length in shape):
        raise DataError(f"'{path}' announces the impossible shape {shape}: write it with numpy.save.")
    expected = start + prod(shape) * dtype.itemsize
    if total < expected:
        raise DataError(f"'{path}' is truncated: {total:,} of {expected:,} bytes are there. Copy it again.")
    return Header(shape, fortran_order, dtype)


def load_array(path: Path) -> NDArray[Any]:
    """Load a small .npy file whole."""
    header = read_header(path)
    if prod(header.shape) == 0:
        return np.empty(header.shape, header.dtype)
    with path.open("rb") as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def open_features(path: Path) -> tuple[NDArray[np.floating[Any]], tuple[str, ...]]:
    """Map features (N, D) from disk, read-only, and return them with the warnings about them."""
    header = read_header(path)
    if len(header.shape) != 2:
        raise DataError(f"'{path}' must be of shape (N, D), one row per image, got {header.shape}.")
    if 0 in header.shape:
        raise DataError(f"'{path}' is empty: its shape is {header.shape}.")
    if header.dtype not in (np.dtype(np.float16), np.dtype(np.float32)):
        raise DataError(
            f"'{path}' must hold float16 or float32, got {header.dtype}: "
            "save features.astype(numpy.float32) instead."
        )
    features: NDArray[np.floating[Any]] = np.lib.format.open_memmap(path, mode="r")
    _check_finite(path, features)
    warnings: tuple[str, ...] = ()
    if header.fortran_order and min(header.shape) > 1:
        warnings = (
            f"'{path}' is stored column by column (Fortran order), so reading rows is slow: "
            "save numpy.ascontiguousarray(features) instead.",
        )
    return features, warnings


def _check_finite(path: Path, features: NDArray[np.floating[Any]]) -> None:
    """Refuse NaN and infinity in features (N, D), block by block: the file may exceed the memory."""
    count, width = features.shape
    step = max(1, _BLOCK_BYTES // (width * features.itemsize))
    for start in range(0, count, step):
        finite = np.isfinite(features[start : start + step])
        if not finite.all():
            row, column = (int(index) for index in np.argwhere(~finite)[0])
            raise DataError(
                f"'{path}' holds {features[start + row, column]} in row {start + row}, column {column}: "
                "features must be finite. Compute that image's features again or leave it out."
            )


def load_labels(path: Path) -> NDArray[np.bool_]:
    """Load labels (N, C) of True/False or 1/0."""
    labels = load_array(path)
    if labels.ndim != 2:
        hint = " From one class number per image: numpy.eye(C, dtype=bool)[numbers]." * (labels.ndim == 1)
        raise DataError(f"'{path}' must be of shape (N, C), one column per class, got {labels.shape}.{hint}")
    if 0 in labels.shape:
        raise DataError(f"'{path}' is empty: its shape is {labels.shape}.")
    if labels.dtype.kind not in "biu":
        raise DataError(f"'{path}' must hold bool or whole numbers 0 and 1, got {labels.dtype}.")
    truth = labels.astype(np.bool_)
    wrong = labels != truth
    if wrong.any():
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        raise DataError(
            f"'{path}' holds {labels[row, column]} in row {row}, column {column}: only 0 and 1 are allowed."
        )
    return truth


def read_feature_folder(root: Path) -> FeatureFolder:
    """Open and check `features.npy`, `labels.npy` and `classes.txt` of a folder."""
    for name in ("features.npy", "labels.npy", "classes.txt"):
        if not (root / name).is_file():
            raise DataError(
                f"'{root}' has no {name}: a feature folder holds features.npy (N, D), labels.npy (N, C) "
                "and classes.txt (C lines)."
            )
    classes = read_classes(root / "classes.txt")
    labels = load_labels(root / "labels.npy")
    if labels.shape[1] != len(classes):
        raise DataError(
            f"classes.txt names {len(classes)} classes, but labels.npy has {labels.shape[1]} columns "
            f"in '{root}': write one class name per column, in the same order."
        )
    features, warnings = open_features(root / "features.npy")
    if len(features) != len(labels):
        raise DataError(
            f"features.npy has {len(features):,} rows, but labels.npy has {len(labels):,} in '{root}': "
            "both must describe the same images in the same order."
        )
    return FeatureFolder(features, labels, classes, warnings)
