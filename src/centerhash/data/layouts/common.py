"""Code that all layouts share: `Contents`, small files, file names, and splits in files."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, InputError, did_you_mean
from centerhash.data.splits import SPLIT_NAMES, Indices, as_indices, check_indices


@dataclass(frozen=True, eq=False)
class Contents:
    """The checked contents of a dataset: labels (N, C), and the paths of the images or their features (N, D).

    `areas` (N, C) are shares of the frame, if known. `splits` are those that the data defines, and `source` is the
    kind of their definition: column, folders, file names or files.
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

    def labeled(self) -> Contents:
        """Drop the images without a label, as all published results do, and the splits."""
        rows = np.flatnonzero(self.labels.any(axis=1))
        if rows.size == 0:
            raise DataError("none of the images carries a label: nothing can be learned from them.")
        return replace(
            self,
            names=tuple(self.names[row] for row in rows),
            labels=self.labels[rows],
            splits={},
            paths=None if self.paths is None else tuple(self.paths[row] for row in rows),
            areas=None if self.areas is None else self.areas[rows],
        )


def no_labels(count: int) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return no classes, and labels (N, 0), for images without labels."""
    return (), np.zeros((count, 0), dtype=np.bool_)


# ---------------------------------------------------------------- small files


def read_bytes(path: Path) -> bytes:
    """Read a whole file; DataError if that fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file, with or without the byte order mark that spreadsheets add."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"'{path}' is not UTF-8 text (byte 0x{error.object[error.start]:02x} "
            f"at position {error.start:,}): save it with the encoding UTF-8."
        ) from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, stripped, without empty lines at the end."""
    return [line.strip() for line in io.StringIO(read_text(path).rstrip(), newline=None)]


def read_classes(root: Path) -> tuple[str, ...] | None:
    """Read the `classes.txt` of a folder, one class per line in the order of the columns; None without that file."""
    path = root / "classes.txt"
    return check_classes(read_lines(path), f"'{path}'") if path.is_file() else None


def check_classes(names: Iterable[str], location: str = "classes") -> tuple[str, ...]:
    """Return class names, all different; errors cite their `location`."""
    classes = () if isinstance(names, str) else tuple(names)
    if not classes or not all(isinstance(name, str) and name for name in classes):
        raise DataError(f"{location} must hold one name per class, got {names!r:.200}.")
    if repeated := repeated_names(classes):
        raise DataError(f"{location} names these classes more than once: {first_few(repeated)}.")
    return classes


def open_array(path: Path) -> NDArray[Any]:
    """Map a .npy file read-only; nothing is ever unpickled."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, TypeError, OverflowError, EOFError) as error:
        raise DataError(
            f"'{path}' is not a whole .npy file of numbers ({error}): write it with numpy.save."
        ) from error


def load_array(path: Path) -> NDArray[Any]:
    """Load a small .npy file whole."""
    return np.array(open_array(path))


# ---------------------------------------------------------------- files and their names


def subfolders(root: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones; fast even next to a million images."""
    _, folders, _ = next(os.walk(root), (root, [], []))
    return [root / name for name in sorted(folders) if not name.startswith(".")]


def repeated_names(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, in order of first appearance."""
    return [name for name, count in Counter(names).items() if count > 1]


def first_few(names: Sequence[str]) -> str:
    """Quote the first five names of a long list and count the rest."""
    quoted = ", ".join(f"'{name}'" for name in names[:5])
    more = len(names) - 5
    return f"{quoted} and {more:,} more" if more > 0 else quoted


def check_names(file_names: Sequence[str], locations: Sequence[str]) -> tuple[str, ...]:
    """Return normalized file names, all inside their folder and each once; errors cite their `locations`."""
    # `./a.jpg` and `a.jpg` are the same file.
    names = tuple(str(PurePosixPath(name.strip())) for name in file_names)
    seen: dict[str, str] = {}
    for name, location in zip(names, locations, strict=True):
        path = PurePath(name)
        if name == "." or path.is_absolute() or ".." in path.parts:
            raise DataError(
                f"{location}: '{name}' is no file inside the folder: give its name relative to it."
            )
        if seen.setdefault(name, location) != location:
            raise DataError(
                f"'{name}' stands in {seen[name]} and in {location}: keep one entry per file, with all its labels."
            )
    return names


def existing_paths(folder: Path, names: Sequence[str], table: str | Path) -> tuple[Path, ...]:
    """Return the paths of the images that a `table` lists; DataError if some are not in the folder."""
    paths = tuple(folder / name for name in names)
    # Unlike Path.is_file, os.path.isfile returns False for names too long and folders without permission.
    missing = [name for name, path in zip(names, paths, strict=True) if not os.path.isfile(path)]  # noqa: PTH113
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(names):,} images of '{table}' are not in '{folder}': "
            f"{first_few(missing)}. Add the files or remove their rows; folders are separated by '/'."
        )
    return paths


# ---------------------------------------------------------------- splits in files


def read_splits(
    root: Path, names: Sequence[str], inherent: Mapping[str, Indices] | None = None, source: str = ""
) -> tuple[Mapping[str, Indices], str]:
    """Return the splits that the layout itself (`inherent`) or files such as train.txt define, and their source.

    `source` is that of the inherent splits.
    """
    listed: dict[str, Indices] = {}
    for split in SPLIT_NAMES:
        files = [file for ending in ("txt", "npy") if (file := root / f"{split}.{ending}").is_file()]
        if files and (inherent or len(files) > 1):
            sources = [file.name for file in files] + [source] * bool(inherent)
            raise DataError(f"'{root}' names its splits twice, by {first_few(sources)}: remove one.")
        for file in files:
            listed[split] = (_read_file_names if file.suffix == ".txt" else _read_row_numbers)(file, names)
    return (inherent, source) if inherent else (listed, "files")


def _read_row_numbers(path: Path, names: Sequence[str]) -> Indices:
    """Read the row numbers of a file such as train.npy."""
    try:
        rows = as_indices(open_array(path), path.stem)
        check_indices(rows, len(names), path.stem)
    except InputError as error:
        raise DataError(f"'{path}': {error}") from error
    return rows


def _read_file_names(path: Path, names: Sequence[str]) -> Indices:
    """Read a file such as train.txt, one file name per line, as row numbers."""
    rows = {name: row for row, name in enumerate(names)}
    listed = [str(PurePosixPath(line)) for line in read_lines(path) if line]
    unknown, repeated = [name for name in listed if name not in rows], repeated_names(listed)
    if unknown:
        hint = did_you_mean(unknown[0], rows, cutoff=0.8)
        raise DataError(f"'{path}' lists {len(unknown):,} file(s) without data: {first_few(unknown)}.{hint}")
    if repeated or not listed:
        problem = f"lists files more than once: {first_few(repeated)}" if repeated else "is empty"
        raise DataError(f"'{path}' {problem}. Write one file name per line.")
    return np.array([rows[name] for name in listed], dtype=np.int64)
