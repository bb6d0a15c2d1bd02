"""Hugging Face's imagefolder: pictures with a `metadata.csv` or `metadata.jsonl`, in one folder or one per split."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from centerhash.core.errors import DataError
from centerhash.core.files import parse_json
from centerhash.data.layouts.contents import (
    Contents,
    checked_names,
    given_classes,
    named_splits,
    present,
    subfolders,
)
from centerhash.data.layouts.label_cells import LABEL_COLUMNS, Cell, label_matrix, missing_column, read_cell
from centerhash.data.layouts.labels_csv import Rows, read_rows
from centerhash.data.splits import folder_split, splits_from_words
from centerhash.data.textfiles import read_lines

TABLES = ("metadata.csv", "metadata.jsonl")


def find_tables(root: Path) -> list[Path]:
    """Return the metadata files of a folder and of its split folders."""
    places = [root, *(entry for entry in subfolders(root) if folder_split(entry.name))]
    return [place / name for place in places for name in TABLES if (place / name).is_file()]


def read_imagefolder(root: Path) -> Contents:
    """Read file names and labels of all metadata files, and check that every image is there.

    Labels are names, numbers (named by `classes.txt`), lists of them, or `objects` with a category each.
    """
    places: list[str] = []
    cells: list[Cell] = []
    paths: list[Path] = []
    for table in _checked_tables(root):
        rows = read_rows(table) if table.suffix == ".csv" else _read_jsonl(table)
        column = _label_column(f"'{table}'", rows.columns)
        places += rows.where
        cells += [read_cell(cell, where) for where, cell in rows.pairs(column)]
        paths += present(table.parent, checked_names(rows.columns["file_name"], rows.where), table)
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    classes, labels = label_matrix(cells, given_classes(root), places.__getitem__, "classes.txt")
    words = [folder_split(name.split("/")[0]) if "/" in name else None for name in names]
    splits, source = named_splits(root, names, splits_from_words(words), "folders")
    return Contents(names, classes, labels, splits, source, tuple(paths))


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


def _read_jsonl(path: Path) -> Rows:
    """Read one object per line; each may call the column of its labels in its own way."""
    rows = Rows(path, {"file_name": [], "labels": []}, [])
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            where = f"'{path}', line {number}"
            entry = _json_object(line, where)
            rows.columns["labels"].append(entry[_label_column(where, entry)])
            if not isinstance(entry["file_name"], str):
                raise DataError(f"{where}: file_name is {entry['file_name']!r}, which is no text.")
            rows.columns["file_name"].append(entry["file_name"])
            rows.where.append(where)
    if not rows.where:
        raise DataError(f"'{path}' is empty: write one json object per line and image.")
    return rows


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: not valid json ({error}). Write one json object per line.") from error
    if not isinstance(entry, dict):
        raise DataError(f"{where}: not a json object such as {{'file_name': 'a.jpg', 'labels': ['dog']}}.")
    return entry


def _label_column(where: str, columns: Iterable[str]) -> str:
    """Return the column of the labels, once the file name is there too."""
    there = list(columns)
    if "file_name" not in there:
        raise DataError(missing_column(where, "file_name", there))
    found = next((name for name in LABEL_COLUMNS if name in there), None)
    if found is None:
        raise DataError(missing_column(where, "labels", [name for name in there if name != "file_name"]))
    return found
