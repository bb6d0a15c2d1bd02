"""Hugging Face's imagefolder: pictures with a `metadata.csv` or `metadata.jsonl`, in one folder or one per split."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from centerhash.core.errors import DataError
from centerhash.data.layouts.folder import (
    ImageFolder,
    check_present,
    checked_names,
    given_classes,
    named_splits,
    subfolders,
)
from centerhash.data.layouts.label_cells import LABEL_COLUMNS, Cell, label_matrix, missing_column, read_cell
from centerhash.data.layouts.labels_csv import read_rows
from centerhash.data.layouts.split_words import folder_split, splits_from_words
from centerhash.data.textfiles import read_lines

TABLES = ("metadata.csv", "metadata.jsonl")


@dataclass(frozen=True)
class _Table:
    """One metadata file: file names relative to its folder, where each stands, and the labels."""

    path: Path
    file_names: list[str]
    places: list[str]
    cells: list[Cell]


def find_tables(root: Path) -> list[Path]:
    """Return the metadata files of a folder and of its split folders."""
    places = [root, *(entry for entry in subfolders(root) if folder_split(entry.name))]
    return [place / name for place in places for name in TABLES if (place / name).is_file()]


def sign_of_imagefolder(root: Path) -> str | None:
    """Return the name of the first metadata file, or None."""
    return next((path.relative_to(root).as_posix() for path in find_tables(root)), None)


def read_imagefolder(root: Path) -> ImageFolder:
    """Read file names and labels of all metadata files, and check that every image is there.

    Labels are names, numbers (named by `classes.txt`), lists of them, or `objects` with a category each.
    """
    names: list[str] = []
    places: list[str] = []
    cells: list[Cell] = []
    for path in _checked_tables(root):
        table = _read_csv(path) if path.suffix == ".csv" else _read_jsonl(path)
        checked = checked_names(table.file_names, table.places, path.name)
        files = [path.parent / name for name in checked]
        check_present(path.parent, checked, files, path.name)
        names += [file.relative_to(root).as_posix() for file in files]
        places += table.places
        cells += table.cells
    classes, labels = label_matrix(cells, given_classes(root), places.__getitem__, "classes.txt")
    words = [folder_split(name.split("/")[0]) if "/" in name else None for name in names]
    splits, source = named_splits(root, names, splits_from_words(words), "folders", "the folders")
    paths = tuple(root / name for name in names)
    return ImageFolder(tuple(names), paths, classes, labels, None, splits, source, ())


def _checked_tables(root: Path) -> list[Path]:
    """Return the metadata files, at most one per folder, and none beside that of the whole folder."""
    tables = find_tables(root)
    for first, second in pairwise(tables):
        if first.parent in (root, second.parent):
            raise DataError(
                f"'{root}' holds both {first.relative_to(root)} and {second.relative_to(root)}: keep one file "
                "for the whole folder, or one per split folder."
            )
    return tables


def _read_csv(path: Path) -> _Table:
    rows = read_rows(path)
    column = _label_column(path, rows.columns)
    cells = [read_cell(cell, where) for where, cell in rows.pairs(column)]
    return _Table(path, [name.strip() for name in rows.columns["file_name"]], rows.where, cells)


def _read_jsonl(path: Path) -> _Table:
    table = _Table(path, [], [], [])
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            where = f"'{path}', line {number}"
            entry = _json_object(line, where)
            column = _label_column(where, entry)
            name = entry["file_name"]
            if not isinstance(name, str):
                raise DataError(f"{where}: file_name is {name!r}, which is no text.")
            table.file_names.append(name)
            table.places.append(where)
            table.cells.append(read_cell(entry[column], where))
    if not table.cells:
        raise DataError(f"'{path}' is empty: write one json object per line and image.")
    return table


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where}: not valid json ({error}). Write one json object per line.") from error
    if not isinstance(entry, dict):
        raise DataError(f"{where}: not a json object such as {{'file_name': 'a.jpg', 'labels': ['dog']}}.")
    return entry


def _label_column(place: str | Path, columns: Iterable[str]) -> str:
    """Return the column of the labels, once the file name is there too."""
    where = f"'{place}'" if isinstance(place, Path) else place
    there = list(columns)
    if "file_name" not in there:
        raise DataError(missing_column(where, "file_name", there))
    found = next((name for name in LABEL_COLUMNS if name in there), None)
    if found is None:
        raise DataError(missing_column(where, "labels", [name for name in there if name != "file_name"]))
    return found
