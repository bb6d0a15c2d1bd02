"""Read the labels of images as other tools write them, and turn them into a label matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from centerhash.core.errors import DataError, did_you_mean
from centerhash.core.files import parse_json

# The labels of an image are names or class numbers.
Cell: TypeAlias = tuple[str | int, ...]

# The first of these columns that exists holds the labels.
LABEL_COLUMNS = ("labels", "label", "objects")
# An object in a cell holds its label under one of these keys.
_CATEGORIES = ("category", "categories")
# A matrix of 1.7 million images and 600 classes takes one of these four GiB.
MAX_MATRIX_BYTES = 4 * 2**30
# The library `datasets` writes this number for an unknown class.
_UNLABELED = -1


def read_cell(value: Any, location: str) -> Cell:
    """Read the labels of one image: `"dog"`, `"dog|cat"`, `3`, a list of these, None, or objects with a category."""
    try:
        return _read_value(value, location)
    except RecursionError:
        raise DataError(f"{location}: lists or objects lie too deep inside each other.") from None


def _read_value(value: Any, location: str) -> Cell:
    if isinstance(value, str):
        return _read_text(value.strip(), location)
    if value is None or value == _UNLABELED:
        return ()
    if isinstance(value, Mapping):
        value = next((value[key] for key in _CATEGORIES if key in value), value)
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, list | tuple | set | frozenset | str):
        labels = [value] if isinstance(value, str) else value
        return tuple(dict.fromkeys(label for entry in labels for label in _read_value(entry, location)))
    raise DataError(f"{location}: {value!r} is no label: give names, whole numbers, or lists of them.")


def _read_text(text: str, location: str) -> Cell:
    """Read names joined by `|`, or a JSON list: the two ways to write several labels into one csv cell."""
    if text in ("", str(_UNLABELED)):
        return ()
    if text.startswith("["):
        try:
            return _read_value(parse_json(text), location)
        except ValueError as error:
            raise DataError(f"{location}: '{text:.80}' is no JSON list of labels ({error}).") from error
    names = tuple(name.strip() for name in text.split("|"))
    if "" in names:
        raise DataError(f"{location}: an empty label in '{text}'. Write names joined by '|'.")
    return tuple(dict.fromkeys(names))


def check_matrix(rows: int, classes: int, location: str, bytes_each: int = 1) -> None:
    """Reject a matrix (rows, classes) of more than MAX_MATRIX_BYTES before it is allocated."""
    needed = rows * classes * bytes_each
    if needed > MAX_MATRIX_BYTES:
        raise DataError(
            f"{location}: {rows:,} images x {classes:,} classes would take {decimal(needed)} of memory, more than the "
            f"limit of {decimal(MAX_MATRIX_BYTES)}. Omit rare classes, or list fewer images."
        )


def label_matrix(
    cells: Sequence[Cell], classes: tuple[str, ...] | None, locations: Sequence[str]
) -> tuple[tuple[str, ...], NDArray[np.bool_], list[list[int]]]:
    """Return the classes, the labels (N, C), and the columns of each image's labels in their order.

    `classes` defines the class numbers and the order. Without it every label is its own name, sorted. Errors cite the
    `locations` of the cells.
    """
    numbered = classes is not None
    if classes is None:
        names = sorted({str(label) for cell in cells for label in cell})
        classes = tuple(sorted(names, key=int) if all(map(_is_number, names)) else names)
    if not classes:
        raise DataError(f"{locations[0]} and all others carry no label: nothing can be learned from them.")
    check_matrix(len(cells), len(classes), locations[0])
    by_name = {name: column for column, name in enumerate(classes)}
    labels, columns = np.zeros((len(cells), len(classes)), dtype=np.bool_), []
    for row, (cell, location) in enumerate(zip(cells, locations, strict=True)):
        columns.append([_column(label, by_name, numbered, location) for label in cell])
        labels[row, columns[-1]] = True
    return classes, labels, columns


def _column(label: str | int, by_name: Mapping[str, int], numbered: bool, location: str) -> int:
    """Return the column of a name, or of a class number if classes are `numbered`."""
    if str(label) in by_name and (isinstance(label, str) or not numbered):
        return by_name[str(label)]
    if numbered and _is_number(str(label)) and int(label) < len(by_name):
        return int(label)
    raise DataError(
        f"{location}: label '{label}' is none of the {len(by_name)} classes.{did_you_mean(str(label), by_name)} "
        "Correct the label or add it to the classes."
    )


def _is_number(label: str) -> bool:
    # Python cannot convert thousands of digits.
    return label.isdecimal() and len(label) < 20
