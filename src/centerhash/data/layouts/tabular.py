"""Read folders of images that a table describes: labels.csv, or Hugging Face's metadata.csv or metadata.jsonl.

A labels.csv has one of two forms. Form A has a column `labels` (names joined by `|`) and perhaps `areas` (shares of the
frame, in the same order), `boxes` (not read) and `split`. Form B has one column of 0/1 per class and perhaps `split`.
Lines are counted as an editor shows them: the header is line 1.
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
from centerhash.data.layouts import contents, label_cells
from centerhash.data.layouts.contents import Contents, first_few
from centerhash.data.splits import folder_split, splits_from_column, splits_from_words

METADATA = ("metadata.csv", "metadata.jsonl")
_KNOWN = ("file_name", "labels", "areas", "boxes", "split")
_TRUTH = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}


class Row(NamedTuple):
    """One line of a table: its place for error texts, and its cells by column; in a csv file all are text."""

    where: str
    cells: dict[str, Any]


def read_image_folder(root: Path) -> Contents:
    """Read `labels.csv`, `classes.txt` and the splits of a folder, and check that every image is there.

    The images themselves are opened later, one by one. `classes.txt` fixes the order of the classes, otherwise their
    names are sorted.
    """
    path = root / "labels.csv"
    rows = read_csv(path)
    where, columns = [row.where for row in rows], list(rows[0].cells)
    names = _names(rows)
    classes, areas = contents.given_classes(root), None
    if "labels" in columns:
        warnings = _ignored(path, [column for column in columns if column not in _KNOWN])
        cells = [label_cells.read_cell(row.cells["labels"], row.where) for row in rows]
        classes, labels, members = label_cells.label_matrix(cells, classes, where)
        areas = _read_areas(rows, members, len(classes)) if "areas" in columns else None
    else:
        candidates = [column for column in columns if column not in ("file_name", "split")]
        warnings = _ignored(path, [name for name in candidates if classes and name not in classes])
        classes = classes or tuple(sorted(candidates))
        labels = _read_class_columns(rows, classes, path)
    paths = contents.present(root, names, path)
    split = [row.cells["split"] for row in rows] if "split" in columns else []
    splits, source = contents.named_splits(root, names, splits_from_column(split, where), "column")
    return Contents(names, classes, labels, splits, source, paths, areas=areas, warnings=warnings)


def read_csv(path: Path) -> list[Row]:
    """Read the rows of a csv file and check that every line has as many cells as the header."""
    reader = csv.reader(io.StringIO(contents.read_text(path), newline=""), strict=True)
    try:
        lines = [(reader.line_num, line) for line in reader if line and line != [""]]
    except csv.Error as error:
        raise DataError(f"'{path}', line {reader.line_num}: not valid csv ({error}).") from error
    if len(lines) < 2:
        raise DataError(f"'{path}' needs a header and one line per image; it has {len(lines)} lines.")
    header = [name.strip() for name in lines[0][1]]
    repeated = contents.duplicates(header)
    if repeated:
        raise DataError(f"'{path}' has these columns more than once: {first_few(repeated)}.")
    for number, line in lines[1:]:
        if len(line) != len(header):
            raise DataError(
                f"'{path}', line {number}: {len(line)} cells, but the header names {len(header)} columns."
            )
    return [
        Row(f"'{path}', line {number}", dict(zip(header, line, strict=True))) for number, line in lines[1:]
    ]


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    for where, cells in rows:
        if not isinstance(cells.get("file_name"), str):
            raise DataError(
                f"{where} has no text in a column file_name; it has the columns {', '.join(cells)}."
            )
    return contents.checked_names([row.cells["file_name"] for row in rows], [row.where for row in rows])


def _ignored(path: Path, columns: Sequence[str]) -> tuple[str, ...]:
    """Warn about columns that are not read."""
    names = first_few([column or "(no name)" for column in columns])
    return (f"'{path}': ignored the columns {names}; known are {', '.join(_KNOWN)}.",) if columns else ()


def _read_areas(rows: Sequence[Row], members: Sequence[Sequence[int]], classes: int) -> NDArray[np.float32]:
    """Read cells such as `0.5|0.25` as the shares (N, C) of the frame that the labels of each row cover."""
    areas = np.zeros((len(rows), classes), dtype=np.float32)
    for row, ((where, cells), columns) in enumerate(zip(rows, members, strict=True)):
        try:
            shares = [float(part) for part in cells["areas"].split("|")] if cells["areas"].strip() else []
        except ValueError:
            shares = []
        if len(shares) != len(columns) or not all(0 <= share <= 1 for share in shares):
            raise DataError(
                f"{where}: the areas '{cells['areas']}' are not a share of the frame from 0 to 1 for each of the "
                f"{len(columns)} labels, joined by '|'."
            )
        areas[row, columns] = shares
    return areas


def _read_class_columns(rows: Sequence[Row], classes: tuple[str, ...], path: Path) -> NDArray[np.bool_]:
    """Form B: one column of 0/1 per class."""
    missing = [name or "(no name)" for name in classes if not name or name not in rows[0].cells]
    if missing or not classes:
        raise DataError(
            f"'{path}' has no column for {first_few(missing) or 'any class'}: add a column 'labels' with names joined by "
            "'|', or one column of 0/1 per class, named after it. pandas writes no index column with index=False."
        )
    labels = np.empty((len(rows), len(classes)), dtype=np.bool_)
    for row, (where, cells) in enumerate(rows):
        for column, name in enumerate(classes):
            truth = _TRUTH.get(cells[name].strip().lower())
            if truth is None:
                raise DataError(
                    f"{where}: column '{name}' holds '{cells[name]}', not 0 or 1. Without a column 'labels', every "
                    f"column but file_name and split is a class.{did_you_mean(name, _KNOWN, 0.75)}"
                )
            labels[row, column] = truth
    return labels


# ---------------------------------------------------------------- Hugging Face's imagefolder


def find_metadata(root: Path) -> list[Path]:
    """Return the metadata file of a folder, else those of its split folders."""
    below = [folder for folder in contents.subfolders(root) if folder_split(folder.name)]
    for folders in ([root], below):
        files = [folder / name for folder in folders for name in METADATA if (folder / name).is_file()]
        if files:
            return files
    return []


def read_imagefolder(root: Path) -> Contents:
    """Read file names and labels of all metadata files, and check that every image is there.

    Labels are names, numbers (named by `classes.txt`), lists of them, or `objects` with a category each.
    """
    rows: list[Row] = []
    paths: list[Path] = []
    for table in find_metadata(root):
        read = read_csv(table) if table.suffix == ".csv" else _read_jsonl(table)
        paths += contents.present(table.parent, _names(read), table)
        rows += read
    where = [row.where for row in rows]
    names = contents.checked_names([path.relative_to(root).as_posix() for path in paths], where)
    cells = [label_cells.read_cell(_label_cell(row), row.where) for row in rows]
    classes, labels, _ = label_cells.label_matrix(cells, contents.given_classes(root), where)
    words = [folder_split(name.split("/")[0]) if "/" in name else None for name in names]
    splits, source = contents.named_splits(root, names, splits_from_words(words), "folders")
    return Contents(names, classes, labels, splits, source, tuple(paths))


def _read_jsonl(path: Path) -> list[Row]:
    """Read one object per line."""
    rows = []
    for number, line in enumerate(contents.read_lines(path), start=1):
        where = f"'{path}', line {number}"
        try:
            entry = parse_json(line or "{}")
        except ValueError as error:
            raise DataError(f"{where}: not valid JSON ({error}). Write one object per line.") from error
        if not isinstance(entry, dict):
            raise DataError(f"{where}: not a JSON object such as {{'file_name': 'a.jpg', 'labels': []}}.")
        rows += [Row(where, entry)] if line else []
    if not rows:
        raise DataError(f"'{path}' is empty: write one JSON object per line and image.")
    return rows


def _label_cell(row: Row) -> Any:
    """Return the labels of a row; each row of a jsonl file may call them in its own way."""
    for name in label_cells.LABEL_COLUMNS:
        if name in row.cells:
            return row.cells[name]
    raise DataError(
        f"{row.where} has no column 'labels'; it has: {', '.join(row.cells)}."
        f"{did_you_mean('labels', row.cells)}"
    )
