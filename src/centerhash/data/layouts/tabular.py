"""Read folders of images that a table describes: labels.csv, or Hugging Face's metadata.csv or metadata.jsonl.

A labels.csv has one of two forms. Form A has a column `labels` (names joined by `|`) and perhaps `areas` (shares of the
frame, in the same order), `boxes` (not read) and `split`. Form B has one column of 0/1 per class and perhaps `split`.
Lines are counted as an editor shows them: the header is line 1.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, did_you_mean, nearest
from centerhash.core.files import parse_json
from centerhash.data.layouts.contents import (
    LABEL_COLUMNS,
    Cell,
    Contents,
    checked_names,
    duplicates,
    first_few,
    given_classes,
    has_file,
    label_columns,
    label_matrix,
    missing_column,
    named_splits,
    one_hot,
    present,
    read_cell,
    read_lines,
    read_text,
    register_layout,
    subfolders,
)
from centerhash.data.splits import folder_split, splits_from_column, splits_from_words

# classes, labels (N, C), areas (N, C) and warnings
Parsed: TypeAlias = tuple[tuple[str, ...], NDArray[np.bool_], NDArray[np.float32] | None, tuple[str, ...]]

_KNOWN = ("file_name", "labels", "areas", "boxes", "split")
METADATA = ("metadata.csv", "metadata.jsonl")
_TYPO = 0.75  # likeness from which an unknown column counts as a misspelled known one
_TRUTH = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}


@dataclass(frozen=True)
class Rows:
    """Raw cells by column, all columns of equal length; `where` says where each row stands, for error texts."""

    path: Path
    columns: dict[str, list[Any]]  # of a csv file, all text
    where: list[str]

    def pairs(self, column: str) -> Iterator[tuple[str, Any]]:
        """Yield (where, cell) for each row of a column."""
        return zip(self.where, self.columns[column], strict=True)


@register_layout(
    "images",
    has_file("labels.csv"),
    "a folder of images with labels.csv (columns file_name and labels, names joined by '|'; "
    "or file_name and one column of 0/1 per class)",
)
def read_image_folder(root: Path) -> Contents:
    """Read `labels.csv`, `classes.txt` and the splits of a folder, and check that every image is there.

    The images themselves are opened later, one by one. `classes.txt` fixes the order of the classes, otherwise their
    names are sorted.
    """
    rows = read_rows(root / "labels.csv")
    if "file_name" not in rows.columns:
        raise DataError(missing_column(f"'{rows.path}'", "file_name", rows.columns))
    names = checked_names(rows.columns["file_name"], rows.where)
    read = _read_joined if "labels" in rows.columns else _read_columns
    classes, labels, areas, warnings = read(rows, given_classes(root))
    paths = present(root, names, rows.path)
    column = splits_from_column(rows.columns["split"], rows.where) if "split" in rows.columns else {}
    splits, source = named_splits(root, names, column, "column")
    return Contents(names, classes, labels, splits, source, paths, areas=areas, warnings=warnings)


def read_rows(path: Path) -> Rows:
    """Split the file into columns and check that every line has as many cells as the header."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    header: list[str] = []
    cells: list[list[str]] = []
    where: list[str] = []
    try:
        for row in reader:
            if not row or row == [""]:
                continue
            if not header:
                header = [name.strip() for name in row]
                continue
            place = f"'{path}', line {reader.line_num}"
            if len(row) != len(header):
                raise DataError(f"{place}: {len(row)} cells, but the header names {len(header)} columns.")
            cells.append(row)
            where.append(place)
    except csv.Error as error:
        raise DataError(f"'{path}', line {reader.line_num}: not valid csv ({error}).") from error
    if not header:
        raise DataError(f"'{path}' is empty: it needs a header and one line per image.")
    repeated = duplicates(header)
    if repeated:
        raise DataError(f"'{path}' has these columns more than once: {first_few(repeated)}.")
    for mark, spoken in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise DataError(f"'{path}' is separated by {spoken}: save it with commas.")
    if not cells:
        raise DataError(f"'{path}' has a header but no rows: write one line per image.")
    return Rows(path, {name: [row[i] for row in cells] for i, name in enumerate(header)}, where)


def _typo_of(column: str, rows: Rows) -> str | None:
    """Return the known column that `column` seems to misspell, unless that one is there already."""
    return nearest(column, [name for name in _KNOWN if name not in rows.columns], _TYPO)


def _ignored(rows: Rows, extra: Sequence[str]) -> tuple[str, ...]:
    """Refuse extra columns that look like misspelled known ones; warn about the others."""
    for column in extra:
        match = _typo_of(column, rows)
        if match:
            raise DataError(f"'{rows.path}' has an unknown column '{column}'. Did you mean '{match}'?")
    if not extra:
        return ()
    shown = first_few([column or "(no name)" for column in extra])
    return (f"'{rows.path}': ignored the columns {shown}.",)


def _read_joined(rows: Rows, given: tuple[str, ...] | None) -> Parsed:
    """Form A: names joined by `|` in the column `labels`."""
    warnings = _ignored(rows, [column for column in rows.columns if column not in _KNOWN])
    cells = [read_cell(cell, where) for where, cell in rows.pairs("labels")]
    classes, columns = label_columns(cells, given, rows.where.__getitem__, "classes.txt")
    labels = one_hot(columns, len(classes))
    if "areas" not in rows.columns:
        return classes, labels, None, warnings
    areas = np.zeros(labels.shape, dtype=np.float32)
    for members, shares, (where, cell) in zip(columns, areas, rows.pairs("areas"), strict=True):
        shares[members] = _read_areas(cell, where, len(members))
    return classes, labels, areas, warnings


def _read_areas(cell: str, where: str, count: int) -> list[float]:
    """Read `0.5|0.25` as `count` shares of the frame."""
    parts = cell.split("|") if cell.strip() else []
    if len(parts) != count:
        raise DataError(f"{where}: {len(parts)} areas for {count} labels. Give one per label, joined by '|'.")
    shares = []
    for part in parts:
        try:
            shares.append(float(part))
        except ValueError:
            shares.append(nan)
        if not 0 <= shares[-1] <= 1:
            raise DataError(f"{where}: the area '{part}' is not a share of the frame, a number from 0 to 1.")
    return shares


def _read_columns(rows: Rows, given: tuple[str, ...] | None) -> Parsed:
    """Form B: one column of 0/1 per class."""
    columns = [column for column in rows.columns if column not in ("file_name", "split")]
    if not columns:
        raise DataError(
            f"'{rows.path}' has no column of classes: add a column 'labels' with names joined by '|', "
            "or one column of 0/1 per class."
        )
    found, warnings = tuple(sorted(columns)), tuple[str, ...]()
    if given is not None:
        for name in given:
            if name not in rows.columns:
                raise DataError(
                    f"'{rows.path}' has no column for the class '{name}' of classes.txt."
                    f"{did_you_mean(name, columns)} Its class columns: {first_few(columns)}."
                )
        found, warnings = given, _ignored(rows, [column for column in columns if column not in given])
    elif "" in columns:
        raise DataError(
            f"'{rows.path}': column {list(rows.columns).index('') + 1} has no name. "
            "Name it after its class; if it is an index that pandas added, write with index=False."
        )
    labels = np.empty((len(rows.where), len(found)), dtype=np.bool_)
    for column, name in enumerate(found):
        for row, (where, cell) in enumerate(rows.pairs(name)):
            truth = _TRUTH.get(cell.strip().lower())
            if truth is None:
                raise DataError(f"{where}: column '{name}' holds '{cell}', not 0 or 1.{_meant(name, rows)}")
            labels[row, column] = truth
    return found, labels, None, warnings


def _meant(column: str, rows: Rows) -> str:
    """Say what a column of form B may be instead of a class."""
    match = column if column in _KNOWN else _typo_of(column, rows)
    if match in ("areas", "boxes"):
        return f" A column '{match}' needs a column 'labels' beside it."
    every = " Every column but file_name and split is a class."
    return f" Did you mean the column '{match}'?" if match else every


# ---------------------------------------------------------------- Hugging Face's imagefolder


def find_metadata(root: Path) -> list[Path]:
    """Return the metadata files of a folder and of its split folders."""
    places = [root, *(entry for entry in subfolders(root) if folder_split(entry.name))]
    return [place / name for place in places for name in METADATA if (place / name).is_file()]


@register_layout(
    "imagefolder",
    find_metadata,
    "a Hugging Face imagefolder (metadata.csv or metadata.jsonl with file_name and labels)",
)
def read_imagefolder(root: Path) -> Contents:
    """Read file names and labels of all metadata files, and check that every image is there.

    Labels are names, numbers (named by `classes.txt`), lists of them, or `objects` with a category each.
    """
    places: list[str] = []
    cells: list[Cell] = []
    paths: list[Path] = []
    tables = find_metadata(root)
    for first, second in pairwise(tables):
        if first.parent in (root, second.parent):
            raise DataError(
                f"'{root}' holds both {first.relative_to(root)} and {second.relative_to(root)}: keep one file "
                "for the whole folder, or one per split folder."
            )
    for table in tables:
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


def _read_jsonl(path: Path) -> Rows:
    """Read one object per line; each may call the column of its labels in its own way."""
    rows = Rows(path, {"file_name": [], "labels": []}, [])
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            where = f"'{path}', line {number}"
            try:
                entry = parse_json(line)
            except ValueError as error:
                raise DataError(f"{where}: not valid json ({error}). Write one object per line.") from error
            if not isinstance(entry, dict):
                raise DataError(f"{where}: not a json object such as {{'file_name': 'a.jpg', 'labels': []}}.")
            rows.columns["labels"].append(entry[_label_column(where, entry)])
            if not isinstance(entry["file_name"], str):
                raise DataError(f"{where}: file_name is {entry['file_name']!r}, which is no text.")
            rows.columns["file_name"].append(entry["file_name"])
            rows.where.append(where)
    if not rows.where:
        raise DataError(f"'{path}' is empty: write one json object per line and image.")
    return rows


def _label_column(where: str, columns: Iterable[str]) -> str:
    """Return the column of the labels, once the file name is there too."""
    there = list(columns)
    if "file_name" not in there:
        raise DataError(missing_column(where, "file_name", there))
    found = next((name for name in LABEL_COLUMNS if name in there), None)
    if found is None:
        raise DataError(missing_column(where, "labels", [name for name in there if name != "file_name"]))
    return found
