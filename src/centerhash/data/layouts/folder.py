"""Folders of images with a `labels.csv`, and what all layouts of images have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.data.layouts.labels_csv import read_label_table
from centerhash.data.splits import SPLIT_NAMES, Indices, splits_from_column, splits_from_files
from centerhash.data.textfiles import duplicates, first_few, leads_out, normal_name, read_classes


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """The checked contents of an image folder: labels (N, C), areas (N, C) or None, the splits it names.

    `source` says what names the splits: column, folders or files.
    """

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
    table = read_label_table(root / "labels.csv", given_classes(root))
    names = checked_names(table.file_names, table.where, "labels.csv")
    paths = tuple(root / name for name in names)
    check_present(root, names, paths, "labels.csv")
    from_column = splits_from_column(table.split, table.where) if table.split is not None else {}
    splits, source = named_splits(root, names, from_column, "column", "the column 'split' of labels.csv")
    return ImageFolder(names, paths, table.classes, table.labels, table.areas, splits, source, table.warnings)


def subfolders(root: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones; quick also beside a million images."""
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]
    return [root / name for name in sorted(names)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself: as good as missing
        return False


def given_classes(root: Path) -> tuple[str, ...] | None:
    """Read `classes.txt` where the folder has one."""
    path = root / "classes.txt"
    return read_classes(path) if path.is_file() else None


def checked_names(file_names: Sequence[str], places: Sequence[str], table: str) -> tuple[str, ...]:
    """Return the file names of a `table`, spelt one way, all inside the folder and each one once.

    `places` say where each name stands, for error texts.
    """
    for name, where in zip(file_names, places, strict=True):
        if not name:
            raise DataError(f"{where}: the file name is empty.")
        if leads_out(name):
            raise DataError(
                f"{where}: the file name '{name}' leads out of the folder. "
                f"Give it relative to the folder of {table}, without '..'."
            )
    names = tuple(normal_name(name) for name in file_names)
    repeated = duplicates(names)
    if repeated:
        first = [where for name, where in zip(names, places, strict=True) if name == repeated[0]]
        lines = " and ".join(place.rpartition("line ")[2] for place in first[:2])
        raise DataError(
            f"{table} has more than one row for {len(repeated):,} file(s): {first_few(repeated)}. "
            f"'{repeated[0]}' stands in lines {lines}: keep one row per file, with all its labels."
        )
    return names


def check_present(root: Path, names: Sequence[str], paths: Sequence[Path], table: str) -> None:
    """Refuse a `table` that names images which are not in the folder."""
    missing = [name for name, path in zip(names, paths, strict=True) if not _is_file(path)]
    if missing:
        hint = (
            " Separate folders by '/', not by a backslash." if any("\\" in name for name in missing) else ""
        )
        raise DataError(
            f"{len(missing):,} of {len(names):,} images of {table} are not in '{root}': "
            f"{first_few(missing)}. Add the files or remove their rows.{hint}"
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, a folder without permission: as good as missing
        return False


def named_splits(
    root: Path, names: Sequence[str], inherent: Mapping[str, Indices], source: str, spoken: str
) -> tuple[dict[str, Indices], str]:
    """Return the splits that the data itself (`inherent`) or files such as train.txt name, and which of the two.

    `source` and `spoken` are a word and a phrase for what names the inherent splits.
    """
    from_files = splits_from_files(root, names)
    if inherent and from_files:
        files = ", ".join(f"{name}.*" for name in SPLIT_NAMES if name in from_files)
        raise DataError(
            f"'{root}' names its splits twice, in {spoken} and in {files}: remove one of the two."
        )
    return (dict(inherent), source) if inherent else (from_files, "files")
