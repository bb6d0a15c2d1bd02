"""Folders of images with a `labels.csv`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from centerhash.data.labels_csv import LabelTable, read_label_table
from centerhash.data.splits import SPLIT_NAMES, Indices, splits_from_column, splits_from_files
from centerhash.data.textfiles import duplicates, first_few, normal_name, read_classes
from centerhash.errors import DataError


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """The checked contents of an image folder: labels (N, C), areas (N, C) or None, the splits it names."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    classes: tuple[str, ...]
    labels: NDArray[np.bool_]
    areas: NDArray[np.float32] | None
    splits: dict[str, Indices]
    source: str
    warnings: tuple[str, ...]


def read_image_folder(root: Path) -> ImageFolder:
    """Read `labels.csv`, `classes.txt` and the splits of a folder, and check that every image is there.

    The images themselves are opened later, one by one.
    """
    classes_file = root / "classes.txt"
    classes = read_classes(classes_file) if classes_file.is_file() else None
    table = read_label_table(root / "labels.csv", classes)
    names = _checked_names(table)
    paths = tuple(root / name for name in names)
    _check_present(root, names, paths)
    splits, source = _named_splits(root, table, names)
    return ImageFolder(names, paths, table.classes, table.labels, table.areas, splits, source, table.warnings)


def _checked_names(table: LabelTable) -> tuple[str, ...]:
    """Return the file names, spelt one way, all inside the folder and each one once."""
    for name, where in zip(table.file_names, table.where, strict=True):
        if not name:
            raise DataError(f"{where}: the file name is empty.")
        if _escapes(name):
            raise DataError(
                f"{where}: the file name '{name}' leads out of the folder. "
                "Give it relative to the folder of labels.csv, without '..'."
            )
    names = tuple(normal_name(name) for name in table.file_names)
    repeated = duplicates(names)
    if repeated:
        first = [where for name, where in zip(names, table.where, strict=True) if name == repeated[0]]
        lines = " and ".join(place.rpartition("line ")[2] for place in first[:2])
        raise DataError(
            f"labels.csv has more than one row for {len(repeated):,} file(s): {first_few(repeated)}. "
            f"'{repeated[0]}' stands in lines {lines}: keep one row per file, with all its labels."
        )
    return names


def _escapes(name: str) -> bool:
    """Whether a file name leaves its folder, as Linux or Windows would read it."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = windows.root != ""  # "/x", "\\x", "C:/x"; but "12:30.jpg" is a plain name here
    return rooted or "\0" in name or ".." in posix.parts or ".." in windows.parts


def _check_present(root: Path, names: Sequence[str], paths: Sequence[Path]) -> None:
    missing = [name for name, path in zip(names, paths, strict=True) if not _is_file(path)]
    if missing:
        hint = (
            " Separate folders by '/', not by a backslash." if any("\\" in name for name in missing) else ""
        )
        raise DataError(
            f"{len(missing):,} of {len(names):,} images of labels.csv are not in '{root}': "
            f"{first_few(missing)}. Add the files or remove their rows.{hint}"
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, a folder without permission: as good as missing
        return False


def _named_splits(root: Path, table: LabelTable, names: Sequence[str]) -> tuple[dict[str, Indices], str]:
    """Return the splits that the column or the files name, and which of the two it was."""
    from_column = splits_from_column(table.split, table.where) if table.split is not None else {}
    from_files = splits_from_files(root, names)
    if from_column and from_files:
        files = ", ".join(f"{name}.*" for name in SPLIT_NAMES if name in from_files)
        raise DataError(
            f"'{root}' names its splits twice, in the column 'split' of labels.csv and in {files}: "
            "remove one of the two."
        )
    return (from_column, "column") if from_column else (from_files, "files")
