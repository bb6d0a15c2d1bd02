"""Hugging Face's imagefolder: pictures with a `metadata.csv` or `metadata.jsonl`, in one folder or one per split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
from centerhash.data.layouts.labels_csv import read_rows
from centerhash.data.splits import folder_split, splits_from_words
from centerhash.data.textfiles import read_lines

TABLES = ("metadata.csv", "metadata.jsonl")


@dataclass(frozen=True)
class _Entry:
    """What a metadata file says of one image: its name relative to the file's folder, and its labels."""

    where: str
    file_name: str
    cell: Cell


def find_tables(root: Path) -> list[Path]:
    """Return the metadata files of a folder and of its split folders."""
    places = [root, *(entry for entry in subfolders(root) if folder_split(entry.name))]
    return [place / name for place in places for name in TABLES if (place / name).is_file()]


def read_imagefolder(root: Path) -> Contents:
    """Read file names and labels of all metadata files, and check that every image is there.

    Labels are names, numbers (named by `classes.txt`), lists of them, or `objects` with a category each.
    """
    entries: list[_Entry] = []
    paths: list[Path] = []
    for table in _checked_tables(root):
        read = _read_csv(table) if table.suffix == ".csv" else _read_jsonl(table)
        names = checked_names([entry.file_name for entry in read], [entry.where for entry in read])
        paths += present(table.parent, names, table)
        entries += read
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    classes, labels = label_matrix(
        [entry.cell for entry in entries], given_classes(root), lambda row: entries[row].where, "classes.txt"
    )
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


def _read_csv(path: Path) -> list[_Entry]:
    rows = read_rows(path)
    column = _label_column(f"'{path}'", rows.columns)
    pairs = zip(rows.column("file_name"), rows.pairs(column), strict=True)
    return [_Entry(where, name, read_cell(cell, where)) for name, (where, cell) in pairs]


def _read_jsonl(path: Path) -> list[_Entry]:
    entries = []
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            where = f"'{path}', line {number}"
            entry = _json_object(line, where)
            cell = read_cell(entry[_label_column(where, entry)], where)
            if not isinstance(entry["file_name"], str):
                raise DataError(f"{where}: file_name is {entry['file_name']!r}, which is no text.")
            entries.append(_Entry(where, entry["file_name"], cell))
    if not entries:
        raise DataError(f"'{path}' is empty: write one json object per line and image.")
    return entries


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
