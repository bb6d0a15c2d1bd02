"""Read folders of images that a table describes: labels.csv, or Hugging Face's metadata.csv or metadata.jsonl.

A labels.csv has one of two forms. Form A has a column `labels` (names joined by `|`) and optionally `areas` (shares of
the frame, in the same order), `boxes` (ignored) and `split`. Form B has one column of 0/1 per class and optionally
`split`. Line numbers are those of an editor: the header is line 1.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, did_you_mean
from centerhash.core.files import parse_json
from centerhash.data.layouts import common, label_cells
from centerhash.data.layouts.common import Contents, first_few
from centerhash.data.splits import folder_split, splits_from_column, splits_from_words

METADATA = ("metadata.csv", "metadata.jsonl")
_KNOWN_COLUMNS = ("file_name", "labels", "areas", "boxes", "split")
_BOOLEANS = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}


class TableRow(NamedTuple):
    """One line of a table: its location for error texts, and its cells by column; those of a csv file are text."""

    location: str
    cells: dict[str, Any]


def read_image_folder(root: Path) -> Contents:
    """Read `labels.csv`, `classes.txt` and the splits of a folder, and check that every image exists.

    The images themselves are opened later, one by one. `classes.txt` fixes the order of the classes; without it, they
    are sorted by name.
    """
    path = root / "labels.csv"
    rows = read_csv(path)
    locations, columns = [row.location for row in rows], list(rows[0].cells)
    names = _check_names(rows)
    classes, areas = common.read_classes(root), None
    if "labels" in columns:
        warnings = _column_warnings(path, [column for column in columns if column not in _KNOWN_COLUMNS])
        cells = [label_cells.read_cell(row.cells["labels"], row.location) for row in rows]
        classes, labels, members = label_cells.label_matrix(cells, classes, locations)
        areas = _read_areas(rows, members, len(classes)) if "areas" in columns else None
    else:
        candidates = [column for column in columns if column not in ("file_name", "split")]
        warnings = _column_warnings(path, [name for name in candidates if classes and name not in classes])
        classes = classes or tuple(sorted(candidates))
        labels = _read_class_columns(rows, classes, path)
    paths = common.existing_paths(root, names, path)
    split = [row.cells["split"] for row in rows] if "split" in columns else []
    splits, source = common.read_splits(root, names, splits_from_column(split, locations), "column")
    return Contents(names, classes, labels, splits, source, paths, areas=areas, warnings=warnings)


def read_csv(path: Path) -> list[TableRow]:
    """Read the rows of a csv file and check that every line has as many cells as the header."""
    reader = csv.reader(io.StringIO(common.read_text(path), newline=""), strict=True)
    try:
        lines = [(reader.line_num, line) for line in reader if line and line != [""]]
    except csv.Error as error:
        raise DataError(f"'{path}', line {reader.line_num}: not valid csv ({error}).") from error
    if len(lines) < 2:
        raise DataError(f"'{path}' needs a header and one line per image; it has {len(lines)} lines.")
    header = [name.strip() for name in lines[0][1]]
    if repeated := common.repeated_names(header):
        raise DataError(f"'{path}' has these columns more than once: {first_few(repeated)}.")
    rows = []
    for number, line in lines[1:]:
        location = f"'{path}', line {number}"
        if len(line) != len(header):
            raise DataError(f"{location}: {len(line)} cells, but the header names {len(header)} columns.")
        rows.append(TableRow(location, dict(zip(header, line, strict=True))))
    return rows


def _check_names(rows: Sequence[TableRow]) -> tuple[str, ...]:
    for location, cells in rows:
        if not isinstance(cells.get("file_name"), str):
            columns = ", ".join(cells)
            raise DataError(f"{location} has no text in a column file_name; it has the columns {columns}.")
    return common.check_names([row.cells["file_name"] for row in rows], [row.location for row in rows])


def _column_warnings(path: Path, columns: Sequence[str]) -> tuple[str, ...]:
    """Return a warning about columns that are ignored, or none."""
    names = first_few([column or "(no name)" for column in columns])
    warning = f"'{path}': ignored the columns {names}; known are {', '.join(_KNOWN_COLUMNS)}."
    return (warning,) if columns else ()


def _read_areas(
    rows: Sequence[TableRow], members: Sequence[Sequence[int]], classes: int
) -> NDArray[np.float32]:
    """Read cells such as `0.5|0.25` as the shares (N, C) of the frame that the labels of each row cover."""
    areas = np.zeros((len(rows), classes), dtype=np.float32)
    for row, ((location, cells), columns) in enumerate(zip(rows, members, strict=True)):
        try:
            shares = [float(part) for part in cells["areas"].split("|")] if cells["areas"].strip() else []
        except ValueError:
            shares = []
        if len(shares) != len(columns) or not all(0 <= share <= 1 for share in shares):
            raise DataError(
                f"{location}: the areas '{cells['areas']}' are not a share of the frame from 0 to 1 for each of the "
                f"{len(columns)} labels, joined by '|'."
            )
        areas[row, columns] = shares
    return areas


def _read_class_columns(rows: Sequence[TableRow], classes: tuple[str, ...], path: Path) -> NDArray[np.bool_]:
    """Read form B: one column of 0/1 per class."""
    missing = [name or "(no name)" for name in classes if not name or name not in rows[0].cells]
    if missing or not classes:
        raise DataError(
            f"'{path}' has no column for {first_few(missing) or 'any class'}: add a column 'labels' with names joined by "
            "'|', or one column of 0/1 per class, named after it. pandas writes no index column with index=False."
        )
    labels = np.empty((len(rows), len(classes)), dtype=np.bool_)
    for row, (location, cells) in enumerate(rows):
        for column, name in enumerate(classes):
            truth = _BOOLEANS.get(cells[name].strip().lower())
            if truth is None:
                raise DataError(
                    f"{location}: column '{name}' holds '{cells[name]}', not 0 or 1. Without a column 'labels', every "
                    f"column but file_name and split is a class.{did_you_mean(name, _KNOWN_COLUMNS, 0.75)}"
                )
            labels[row, column] = truth
    return labels


# ---------------------------------------------------------------- Hugging Face's imagefolder


def find_metadata(root: Path) -> list[Path]:
    """Return the metadata file of a folder, else those of its split folders."""
    folders = [root, *(folder for folder in common.subfolders(root) if folder_split(folder.name))]
    files = [folder / name for folder in folders for name in METADATA if (folder / name).is_file()]
    return [file for file in files if file.parent == root] or files


def read_imagefolder(root: Path) -> Contents:
    """Read file names and labels of all metadata files, and check that every image exists.

    Labels are names, numbers of the classes in `classes.txt`, lists of them, or `objects` with a category each.
    """
    rows: list[TableRow] = []
    paths: list[Path] = []
    for table in find_metadata(root):
        lines = read_csv(table) if table.suffix == ".csv" else _read_jsonl(table)
        paths += common.existing_paths(table.parent, _check_names(lines), table)
        rows += lines
    locations = [row.location for row in rows]
    names = common.check_names([path.relative_to(root).as_posix() for path in paths], locations)
    cells = [label_cells.read_cell(_label_cell(row), row.location) for row in rows]
    classes, labels, _ = label_cells.label_matrix(cells, common.read_classes(root), locations)
    words = [folder_split(name.split("/")[0]) if "/" in name else None for name in names]
    splits, source = common.read_splits(root, names, splits_from_words(words), "folders")
    return Contents(names, classes, labels, splits, source, tuple(paths))


def _read_jsonl(path: Path) -> list[TableRow]:
    """Read one object per line."""
    rows = []
    for number, line in enumerate(common.read_lines(path), start=1):
        location = f"'{path}', line {number}"
        try:
            entry = parse_json(line or "{}")
        except ValueError as error:
            raise DataError(f"{location}: not valid JSON ({error}). Write one object per line.") from error
        if not isinstance(entry, dict):
            raise DataError(f"{location}: not a JSON object such as {{'file_name': 'a.jpg', 'labels': []}}.")
        rows += [TableRow(location, entry)] if line else []
    if not rows:
        raise DataError(f"'{path}' is empty: write one JSON object per line and image.")
    return rows


def _label_cell(row: TableRow) -> Any:
    """Return the labels of a row; the rows of a jsonl file may use different names of the column."""
    for name in label_cells.LABEL_COLUMNS:
        if name in row.cells:
            return row.cells[name]
    raise DataError(
        f"{row.location} has no column 'labels'; it has: {', '.join(row.cells)}."
        f"{did_you_mean('labels', row.cells)}"
    )
