"""Labels as other tools write them: names, class numbers, lists of either, or objects with a category each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from centerhash.core.errors import DataError, did_you_mean, nearest
from centerhash.core.files import parse_json

Cell: TypeAlias = tuple[str | int, ...]  # the labels of one image: names or class numbers

LABEL_COLUMNS = ("labels", "label", "objects")  # the first that is there counts
CATEGORY_KEYS = ("category", "categories", "label", "labels")  # of an object
_UNLABELLED = -1  # what `datasets` writes for a class that is not known
MATRIX = 4 * 2**30  # bytes of labels (N, C), or of shares: 1.7 million images of 600 classes take 1


def read_cell(value: Any, where: str) -> Cell:
    """Read the labels of one image: `"dog"`, `"dog|cat"`, `3`, a list of these, None, or objects."""
    if value is None:
        return ()
    if isinstance(value, str):
        return _read_text(value, where)
    if isinstance(value, int) and not isinstance(value, bool):
        return () if value == _UNLABELLED else (value,)
    if isinstance(value, Mapping):
        return read_cell(_category(value, where), where)
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(dict.fromkeys(label for entry in value for label in read_cell(entry, where)))
    raise DataError(
        f"{where}: the label {value!r} is no name and no class number. Give names, whole numbers, or lists of them."
    )


def _read_text(text: str, where: str) -> Cell:
    """Read names joined by `|`, or a json list, the two ways to put several labels into one cell of a csv."""
    stripped = text.strip()
    if stripped in ("", str(_UNLABELLED)):
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


def _category(entry: Mapping[str, Any], where: str) -> Any:
    for key in CATEGORY_KEYS:
        if key in entry:
            return entry[key]
    raise DataError(
        f"{where}: objects need a 'category' each, got {', '.join(map(str, entry)) or 'nothing'}."
        f"{did_you_mean(next(iter(entry), ''), CATEGORY_KEYS)}"
    )


def label_matrix(
    cells: Sequence[Cell], classes: tuple[str, ...] | None, where: Callable[[int], str], names_from: str
) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return the classes and labels (N, C); arguments as for `label_columns`."""
    found, columns = label_columns(cells, classes, where, names_from)
    return found, filled(columns, len(found))


def check_matrix(rows: int, classes: int, where: str, bytes_each: int = 1) -> None:
    """Refuse a table (rows, classes) that is larger than MATRIX before it is made."""
    needed = rows * classes * bytes_each
    if needed > MATRIX:
        raise DataError(
            f"{where}: {rows:,} images x {classes:,} classes would take {decimal(needed)} of memory, more than the "
            f"limit of {decimal(MATRIX)}. Leave out rare classes, or name fewer images."
        )


def filled(columns: Sequence[Sequence[int]], width: int) -> NDArray[np.bool_]:
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
    `where` says where a row stands, and `names_from` where the names came from, for error texts.
    """
    found = classes or _sorted_names(label for cell in cells for label in cell)
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
                raise DataError(f"{where(row)}: {_unknown(label, found, names_from)}")
            members[-1].append(column)
    return found, members


def _sorted_names(labels: Iterable[str | int]) -> tuple[str, ...]:
    """Sort names by letters, and numbers by size."""
    names = {str(label) for label in labels}
    numeric = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=int) if numeric else sorted(names))


def _column(label: str | int, columns: Mapping[str, int], *, named: bool) -> int | None:
    """The column of a name, or else of a class number where numbers stand for names."""
    if str(label) in columns and (isinstance(label, str) or not named):
        return columns[str(label)]
    if named and (isinstance(label, int) or label.isdecimal()):
        return int(label) if 0 <= int(label) < len(columns) else None
    return None


def _unknown(label: str | int, classes: Sequence[str], names_from: str) -> str:
    if isinstance(label, int) or label.isdecimal():
        return (
            f"class number {label}, but {names_from} names {len(classes)} classes, 0 to {len(classes) - 1}. "
            "Correct the number or add the name."
        )
    return f"label '{label}' is not in {names_from}.{did_you_mean(label, classes)} Correct the label or add the name."


def missing_column(where: str, wanted: str, there: Iterable[str]) -> str:
    """Say that a column is missing, what there is, and which of these may have been meant."""
    names = list(there)
    match = nearest(wanted, names)
    hint = f" Did you mean '{match}'? Rename it to '{wanted}'." if match else ""
    return f"{where} has no column '{wanted}'; it has: {', '.join(names) or 'no other'}.{hint}"
