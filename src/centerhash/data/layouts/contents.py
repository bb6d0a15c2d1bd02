"""What every layout gives, and what the layouts of images have in common: names, missing files, named splits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, InputError, did_you_mean
from centerhash.data.npy import load_array
from centerhash.data.splits import SPLIT_NAMES, Indices, as_indices, check_indices
from centerhash.data.textfiles import (
    duplicates,
    first_few,
    leads_out,
    normal_name,
    read_classes,
    read_lines,
)


@dataclass(frozen=True, eq=False)
class Contents:
    """The checked contents of a data set: labels (N, C), and the paths of the images or their features (N, D).

    `areas` (N, C) are shares of the frame, where known. `splits` are those that the data names, `source` is what
    names them: column, folders, file names or files.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    labels: NDArray[np.bool_]
    splits: Mapping[str, Indices] = field(default_factory=dict)
    source: str = ""
    paths: tuple[Path, ...] | None = None
    features: NDArray[np.floating[Any]] | None = None
    areas: NDArray[np.float32] | None = None
    warnings: tuple[str, ...] = ()

    def labelled(self) -> Contents:
        """Without the images that carry no label, as in all published figures."""
        rows = np.flatnonzero(self.labels.any(axis=1))
        if rows.size == 0:
            raise DataError("none of the images carries a label: nothing can be learned from them.")
        return self.keep(rows)

    def keep(self, rows: Indices) -> Contents:
        """These rows of images only; the splits follow and lose the rows that are gone."""
        moved = np.full(len(self.names), -1)
        moved[rows] = np.arange(len(rows))
        return replace(
            self,
            names=tuple(self.names[row] for row in rows),
            labels=self.labels[rows],
            splits={name: moved[old][moved[old] >= 0] for name, old in self.splits.items()},
            paths=None if self.paths is None else tuple(self.paths[row] for row in rows),
            areas=None if self.areas is None else self.areas[rows],
        )


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


def first_present(root: Path, candidates: Sequence[str]) -> Path:
    """Return the first of several places under `root` that is there."""
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    raise DataError(f"'{root}' has none of {first_few(candidates)}: unpack the data set there.")


def given_classes(root: Path) -> tuple[str, ...] | None:
    """Read `classes.txt` where the folder has one."""
    path = root / "classes.txt"
    return read_classes(path) if path.is_file() else None


def checked_names(file_names: Sequence[str], places: Sequence[str]) -> tuple[str, ...]:
    """Return file names spelt one way, all inside their folder and each one once; `places` say where each stands."""
    for name, where in zip(file_names, places, strict=True):
        if not name.strip():
            raise DataError(f"{where}: the file name is empty.")
        if leads_out(name):
            raise DataError(
                f"{where}: the file name '{name}' leads out of the folder: give it relative to the folder, without '..'."
            )
    names = tuple(normal_name(name.strip()) for name in file_names)
    repeated = duplicates(names)
    if repeated:
        first, second, *_ = (where for name, where in zip(names, places, strict=True) if name == repeated[0])
        raise DataError(
            f"{len(repeated):,} file(s) are described more than once: {first_few(repeated)}. '{repeated[0]}' stands in "
            f"{first} and in {second}: keep one entry per file, with all its labels."
        )
    return names


def present(folder: Path, names: Sequence[str], table: str | Path) -> tuple[Path, ...]:
    """Return the paths of the images that a `table` names, and refuse it where some are not in the folder."""
    paths = tuple(folder / name for name in names)
    # unlike Path.is_file, os.path.isfile also takes names too long and folders without permission
    missing = [name for name, path in zip(names, paths, strict=True) if not os.path.isfile(path)]  # noqa: PTH113
    if missing:
        hint = " Separate folders by '/', not by a backslash." * any("\\" in name for name in missing)
        raise DataError(
            f"{len(missing):,} of {len(names):,} images of '{table}' are not in '{folder}': "
            f"{first_few(missing)}. Add the files or remove their rows.{hint}"
        )
    return paths


def named_splits(
    root: Path, names: Sequence[str], inherent: Mapping[str, Indices] | None = None, source: str = ""
) -> tuple[Mapping[str, Indices], str]:
    """Return the splits that the data itself (`inherent`) or files such as train.txt name, and which of the two.

    `source` is a word for what names the inherent splits.
    """
    listed = _splits_from_files(root, names)
    if inherent and listed:
        files = ", ".join(f"{name}.*" for name in listed)
        raise DataError(
            f"'{root}' names its splits twice, by its {source} and in {files}: remove one of the two."
        )
    return (inherent, source) if inherent else (listed, "files")


def _splits_from_files(root: Path, names: Sequence[str]) -> dict[str, Indices]:
    """Read `train.txt` (one name per line) or `train.npy` (row numbers); the same for query and database."""
    found: dict[str, Indices] = {}
    rows: dict[str, int] = {}
    for split in SPLIT_NAMES:
        listed, numbered = root / f"{split}.txt", root / f"{split}.npy"
        if listed.is_file() and numbered.is_file():
            raise DataError(f"both {listed.name} and {numbered.name} are in '{root}': remove one of them.")
        if listed.is_file():
            rows = rows or {name: row for row, name in enumerate(names)}
            found[split] = _read_list(listed, rows)
        elif numbered.is_file():
            found[split] = _read_numbers(numbered, len(names))
    return found


def _read_numbers(path: Path, size: int) -> Indices:
    values = load_array(path)
    try:
        indices = as_indices(values, path.stem)
        check_indices(indices, size, path.stem)
    except InputError as error:
        raise DataError(f"'{path}': {error}") from error
    return indices


def _read_list(path: Path, rows: Mapping[str, int]) -> Indices:
    listed = [normal_name(line) for line in read_lines(path) if line]
    if not listed:
        raise DataError(f"'{path}' is empty: write one file name per line, or remove it.")
    unknown = [name for name in listed if name not in rows]
    if unknown:
        raise DataError(
            f"'{path}' lists {len(unknown):,} file(s) that the data does not have: {first_few(unknown)}."
            f"{did_you_mean(unknown[0], rows, cutoff=0.8)}"
        )
    repeated = duplicates(listed)
    if repeated:
        raise DataError(f"'{path}' lists {len(repeated):,} file(s) more than once: {first_few(repeated)}.")
    return np.array([rows[name] for name in listed], dtype=np.int64)
