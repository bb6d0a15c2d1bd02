"""Read what all layouts share: `Contents` and its registration, small files, file names, named splits, label cells."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from centerhash.core.errors import DataError, InputError, did_you_mean, nearest
from centerhash.core.files import array_header, parse_json
from centerhash.data.splits import SPLIT_NAMES, Indices, as_indices, check_indices

Cell: TypeAlias = tuple[str | int, ...]  # the labels of one image: names or class numbers
Name = TypeVar("Name", str, int)

LABEL_COLUMNS = ("labels", "label", "objects")  # the first that is there counts
CATEGORY_KEYS = ("category", "categories", "label", "labels")  # of an object
MATRIX = 4 * 2**30  # bytes of labels (N, C), or of shares: 1.7 million images of 600 classes take 1
_UNLABELED = -1  # what `datasets` writes for a class that is not known


@dataclass(frozen=True, eq=False)
class Contents:
    """The checked contents of a dataset: labels (N, C), and the paths of the images or their features (N, D).

    `areas` (N, C) are shares of the frame, if known. `splits` are those that the data names, and `source` is what
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

    def labeled(self) -> Contents:
        """Drop the images without a label, as all published results do."""
        rows = np.flatnonzero(self.labels.any(axis=1))
        if rows.size == 0:
            raise DataError("none of the images carries a label: nothing can be learned from them.")
        return self.keep(rows)

    def keep(self, rows: Indices) -> Contents:
        """Keep these rows of images only; the splits lose the others."""
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


@dataclass(frozen=True)
class Layout:
    """One way to store a dataset."""

    name: str
    detect: Callable[[Path], Sequence[Path]]  # the files or folders of a folder that show the layout
    read: Callable[[Path], Contents]
    description: str  # completes "Give ..."
    by_file: bool  # whether a file describes the images


Reader = TypeVar("Reader", bound=Callable[..., Contents])
LAYOUTS: dict[str, Layout] = {}  # filled by the modules of this package


def register_layout(
    name: str, detect: Callable[[Path], Sequence[Path]], description: str, *, by_file: bool = True
) -> Callable[[Reader], Reader]:
    """Register the decorated reader as a layout."""

    def register(read: Reader) -> Reader:
        LAYOUTS[name] = Layout(name, detect, read, description, by_file)
        return read

    return register


def has_file(name: str) -> Callable[[Path], Sequence[Path]]:
    """Detect a layout by a file of this name."""
    return lambda root: [root / name] if (root / name).is_file() else []


def no_labels(count: int) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return the classes, none, and labels (N, 0) of images without labels."""
    return (), np.zeros((count, 0), dtype=np.bool_)


# ---------------------------------------------------------------- small files


def read_bytes(path: Path, advice: str = "") -> bytes:
    """Read a whole file; DataError with `advice` if that fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.{advice}") from error


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
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n").rstrip()
    return [line.strip() for line in text.split("\n")] if text else []


def read_classes(path: Path) -> tuple[str, ...]:
    """Read `classes.txt`: one class name per line, in the order of the label columns."""
    return check_classes(read_lines(path), f"'{path}'")


def given_classes(root: Path) -> tuple[str, ...] | None:
    """Read the `classes.txt` of a folder, if there is one."""
    path = root / "classes.txt"
    return read_classes(path) if path.is_file() else None


def check_classes(names: Iterable[str], where: str = "classes") -> tuple[str, ...]:
    """Return class names, all different; `where` is what holds them, for error texts."""
    classes = () if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if not classes:
        raise DataError(f"{where} must hold one name per class, got {names!r}.")
    for number, name in enumerate(classes, 1):
        if not isinstance(name, str) or not name:
            raise DataError(f"{where}: name {number} is {name!r}, but every class needs a name.")
    repeated = duplicates(classes)
    if repeated:
        raise DataError(f"{where} names these classes more than once: {first_few(repeated)}.")
    return classes


@dataclass(frozen=True)
class Header:
    """The header of a .npy file."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


def read_header(path: Path) -> Header:
    """Read the header of a .npy file and check that the file holds all the values it announces."""
    try:
        with path.open("rb") as stream:
            shape, fortran_order, dtype = array_header(stream)
            start = stream.tell()
            total = stream.seek(0, 2)
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error
    except (ValueError, EOFError) as error:
        raise DataError(f"'{path}' is not a whole .npy file ({error}): write it with numpy.save.") from error
    if dtype.hasobject:
        raise DataError(f"'{path}' holds Python objects, which are never unpickled: save plain numbers.")
    if any(length < 0 for length in shape):
        raise DataError(f"'{path}' announces the impossible shape {shape}: write it with numpy.save.")
    expected = start + prod(shape) * dtype.itemsize
    if total < expected:
        raise DataError(f"'{path}' is truncated: {total:,} of {expected:,} bytes are there. Copy it again.")
    return Header(shape, fortran_order, dtype)


def load_array(path: Path) -> NDArray[Any]:
    """Load a small .npy file whole; nothing is ever unpickled."""
    header = read_header(path)
    if prod(header.shape) == 0:
        return np.empty(header.shape, header.dtype)
    with path.open("rb") as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


# ---------------------------------------------------------------- files and their names


def subfolders(root: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones; quick also next to a million images."""
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and is_folder(entry)]
    return [root / name for name in sorted(names)]


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one; a link to itself is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def first_present(root: Path, candidates: Sequence[str]) -> Path:
    """Return the first of several paths under `root` that exists."""
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    raise DataError(f"'{root}' has none of {first_few(candidates)}: unpack the dataset there.")


def normal_name(file_name: str) -> str:
    """Spell a file name one way: `./a.jpg` and `a.jpg` are the same file."""
    return str(PurePosixPath(file_name))


def leads_out(name: str) -> bool:
    """Whether a file name leaves its folder, as Linux or Windows would read it."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = windows.root != ""  # "/x", "\\x", "C:/x"; but "12:30.jpg" is a plain name here
    return rooted or "\0" in name or ".." in posix.parts or ".." in windows.parts


def duplicates(names: Iterable[Name]) -> list[Name]:
    """Return the names that occur more than once, in order of first appearance."""
    return [name for name, count in Counter(names).items() if count > 1]


def first_few(names: Sequence[str]) -> str:
    """Quote the first five names of a long list and count the others."""
    shown = ", ".join(f"'{name}'" for name in names[:5])
    more = len(names) - 5
    return f"{shown} and {more:,} more" if more > 0 else shown


def checked_names(file_names: Sequence[str], places: Sequence[str]) -> tuple[str, ...]:
    """Return file names spelled one way, all inside their folder and each once; `places` is where each stands."""
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
    """Return the paths of the images that a `table` names; DataError if some are not in the folder."""
    paths = tuple(folder / name for name in names)
    # unlike Path.is_file, os.path.isfile also accepts names too long and folders without permission
    missing = [name for name, path in zip(names, paths, strict=True) if not os.path.isfile(path)]  # noqa: PTH113
    if missing:
        hint = " Separate folders by '/', not by a backslash." * any("\\" in name for name in missing)
        raise DataError(
            f"{len(missing):,} of {len(names):,} images of '{table}' are not in '{folder}': "
            f"{first_few(missing)}. Add the files or remove their rows.{hint}"
        )
    return paths


# ---------------------------------------------------------------- splits that files name


def named_splits(
    root: Path, names: Sequence[str], inherent: Mapping[str, Indices] | None = None, source: str = ""
) -> tuple[Mapping[str, Indices], str]:
    """Return the splits that the data itself (`inherent`) or files such as train.txt name, and which of the two.

    `source` is a word for what names the inherent splits.
    """
    listed: dict[str, Indices] = {}
    for split in SPLIT_NAMES:
        lines, numbers = root / f"{split}.txt", root / f"{split}.npy"
        if lines.is_file() and numbers.is_file():
            raise DataError(f"both {lines.name} and {numbers.name} are in '{root}': remove one of them.")
        if lines.is_file():
            listed[split] = _read_list(lines, names)
        elif numbers.is_file():
            listed[split] = _read_numbers(numbers, len(names))
    if inherent and listed:
        files = ", ".join(f"{name}.*" for name in listed)
        raise DataError(f"'{root}' names its splits twice, by its {source} and in {files}: remove one.")
    return (inherent, source) if inherent else (listed, "files")


def _read_numbers(path: Path, size: int) -> Indices:
    """Read the row numbers of a file such as train.npy."""
    values = load_array(path)
    try:
        indices = as_indices(values, path.stem)
        check_indices(indices, size, path.stem)
    except InputError as error:
        raise DataError(f"'{path}': {error}") from error
    return indices


def _read_list(path: Path, names: Sequence[str]) -> Indices:
    """Read a file such as train.txt, one file name per line, as row numbers."""
    rows = {name: row for row, name in enumerate(names)}
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


# ---------------------------------------------------------------- labels as other tools write them


def read_cell(value: Any, where: str) -> Cell:
    """Read the labels of one image: `"dog"`, `"dog|cat"`, `3`, a list of these, None, or objects with a category."""
    if value is None:
        return ()
    if isinstance(value, str):
        return _read_cell_text(value, where)
    if isinstance(value, int) and not isinstance(value, bool):
        return () if value == _UNLABELED else (value,)
    if isinstance(value, Mapping):
        key = next((key for key in CATEGORY_KEYS if key in value), None)
        if key is None:
            raise DataError(
                f"{where}: objects need a 'category' each, got {', '.join(map(str, value)) or 'nothing'}."
                f"{did_you_mean(next(iter(value), ''), CATEGORY_KEYS)}"
            )
        return read_cell(value[key], where)
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(dict.fromkeys(label for entry in value for label in read_cell(entry, where)))
    raise DataError(
        f"{where}: the label {value!r} is no name and no class number. Give names, whole numbers, or lists of them."
    )


def _read_cell_text(text: str, where: str) -> Cell:
    """Read names joined by `|`, or a json list, the two ways to put several labels into one cell of a csv."""
    stripped = text.strip()
    if stripped in ("", str(_UNLABELED)):
        return ()
    if stripped.startswith("["):
        try:
            listed = parse_json(stripped)
        except ValueError as error:
            raise DataError(f"{where}: '{text:.80}' is not a json list of labels ({error}).") from error
        return read_cell(listed, where)
    names = tuple(name.strip() for name in stripped.split("|"))
    if "" in names:
        raise DataError(f"{where}: an empty label in '{text}'. Write names joined by '|'.")
    return tuple(dict.fromkeys(names))


def check_matrix(rows: int, classes: int, where: str, bytes_each: int = 1) -> None:
    """Reject a table (rows, classes) that is larger than MATRIX before it is allocated."""
    needed = rows * classes * bytes_each
    if needed > MATRIX:
        raise DataError(
            f"{where}: {rows:,} images x {classes:,} classes would take {decimal(needed)} of memory, more than the "
            f"limit of {decimal(MATRIX)}. Omit rare classes, or list fewer images."
        )


def label_matrix(
    cells: Sequence[Cell], classes: tuple[str, ...] | None, where: Callable[[int], str], names_from: str
) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return the classes and labels (N, C); arguments as for `label_columns`."""
    found, columns = label_columns(cells, classes, where, names_from)
    return found, one_hot(columns, len(found))


def one_hot(columns: Sequence[Sequence[int]], width: int) -> NDArray[np.bool_]:
    """Return labels (N, C) that are True in the `columns` of each row."""
    labels = np.zeros((len(columns), width), dtype=np.bool_)
    for row, members in enumerate(columns):
        labels[row, members] = True
    return labels


def label_columns(
    cells: Sequence[Cell], classes: tuple[str, ...] | None, where: Callable[[int], str], names_from: str
) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return the classes, and the columns of each image's labels.

    `classes` gives names to class numbers and fixes the order; without it every label is its own name, sorted.
    `where` returns where a row stands, and `names_from` where the names came from, for error texts.
    """
    names = {str(label) for cell in cells for label in cell}
    numeric = all(name.isdecimal() for name in names)
    found = classes or tuple(sorted(names, key=int) if numeric else sorted(names))
    if not found:
        raise DataError(f"{where(0)} and all others carry no label: nothing can be learned from them.")
    check_matrix(len(cells), len(found), where(0))
    columns = {name: column for column, name in enumerate(found)}
    members: list[list[int]] = []
    for row, cell in enumerate(cells):
        members.append([])
        for label in cell:
            column = _column(label, columns, named=classes is not None)
            if column is None:
                known = f"{names_from} names {len(found)} classes, 0 to {len(found) - 1}"
                problem = f"label '{label}' is not in {names_from}.{did_you_mean(str(label), found)}"
                if str(label).lstrip("-").isdecimal():
                    problem = f"class number {label}, but {known}."
                raise DataError(f"{where(row)}: {problem} Correct the label or add the name.")
            members[-1].append(column)
    return found, members


def _column(label: str | int, columns: Mapping[str, int], *, named: bool) -> int | None:
    """Return the column of a name, or else of a class number if numbers stand for names."""
    if str(label) in columns and (isinstance(label, str) or not named):
        return columns[str(label)]
    if named and (isinstance(label, int) or label.isdecimal()):
        return int(label) if 0 <= int(label) < len(columns) else None
    return None


def missing_column(where: str, wanted: str, there: Iterable[str]) -> str:
    """Return the error text for a missing column: what there is, and which of these may have been meant."""
    names = list(there)
    match = nearest(wanted, names)
    hint = f" Did you mean '{match}'? Rename it to '{wanted}'." if match else ""
    return f"{where} has no column '{wanted}'; it has: {', '.join(names) or 'no other'}.{hint}"
