"""Folders of images with a `labels.csv`: which classes each image shows, in one of two forms.

Form A has a column `labels` (names joined by `|`) and perhaps `areas` (shares of the frame, in the same
order), `boxes` (not read here) and `split`. Form B has one column of 0/1 per class and perhaps `split`.
Lines are counted as an editor shows them: the header is line 1.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, did_you_mean, nearest
from centerhash.data.layouts.contents import Contents, checked_names, given_classes, named_splits, present
from centerhash.data.layouts.label_cells import filled, label_columns, missing_column, read_cell
from centerhash.data.splits import splits_from_column
from centerhash.data.textfiles import duplicates, first_few, read_text

Classes: TypeAlias = tuple[str, ...]
Parsed: TypeAlias = tuple[Classes, NDArray[np.bool_], NDArray[np.float32] | None, tuple[str, ...]]

_KNOWN = ("file_name", "labels", "areas", "boxes", "split")
_TYPO = 0.75  # likeness from which an unknown column counts as a misspelt known one
_TRUTH = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}


@dataclass(frozen=True)
class Rows:
    """Raw cells by column, all columns of equal length; `where` says where each row stands, for error texts."""

    path: Path
    columns: dict[str, list[Any]]  # of a csv file, all text
    where: list[str]

    def column(self, name: str) -> list[Any]:
        """The cells of a column that must be there."""
        if name not in self.columns:
            raise DataError(missing_column(f"'{self.path}'", name, self.columns))
        return self.columns[name]

    def pairs(self, column: str) -> Iterator[tuple[str, Any]]:
        """Yield (where, cell) for each row of a column."""
        return zip(self.where, self.columns[column], strict=True)


def read_image_folder(root: Path) -> Contents:
    """Read `labels.csv`, `classes.txt` and the splits of a folder, and check that every image is there.

    The images themselves are opened later, one by one. `classes.txt` fixes the order of the classes, otherwise their
    names are sorted.
    """
    rows = read_rows(root / "labels.csv")
    names = checked_names(rows.column("file_name"), rows.where)
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
    _check_header(path, header)
    if not cells:
        raise DataError(f"'{path}' has a header but no rows: write one line per image.")
    return Rows(path, {name: [row[i] for row in cells] for i, name in enumerate(header)}, where)


def _check_header(path: Path, header: Sequence[str]) -> None:
    repeated = duplicates(header)
    if repeated:
        raise DataError(f"'{path}' has these columns more than once: {first_few(repeated)}.")
    for mark, spoken in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise DataError(f"'{path}' is separated by {spoken}: save it with commas.")


def _typo_of(column: str, rows: Rows) -> str | None:
    """Return the known column that `column` seems to misspell, unless that one is there already."""
    return nearest(column, [name for name in _KNOWN if name not in rows.columns], _TYPO)


def _ignored(rows: Rows, extra: Sequence[str]) -> tuple[str, ...]:
    """Refuse extra columns that look like misspelt known ones; warn about the others."""
    for column in extra:
        match = _typo_of(column, rows)
        if match:
            raise DataError(f"'{rows.path}' has an unknown column '{column}'. Did you mean '{match}'?")
    if not extra:
        return ()
    shown = first_few([column or "(no name)" for column in extra])
    return (f"'{rows.path}': ignored the columns {shown}.",)


def _read_joined(rows: Rows, given: Classes | None) -> Parsed:
    """Form A: names joined by `|` in the column `labels`."""
    warnings = _ignored(rows, [column for column in rows.columns if column not in _KNOWN])
    cells = [read_cell(cell, where) for where, cell in rows.pairs("labels")]
    classes, columns = label_columns(cells, given, rows.where.__getitem__, "classes.txt")
    labels = filled(columns, len(classes))
    if "areas" not in rows.columns:
        return classes, labels, None, warnings
    areas = np.zeros(labels.shape, dtype=np.float32)
    for members, shares, (where, cell) in zip(columns, areas, rows.pairs("areas"), strict=True):
        shares[members] = _split_areas(cell, where, len(members))
    return classes, labels, areas, warnings


def _split_areas(cell: str, where: str, count: int) -> list[float]:
    """Split `0.5|0.25` into `count` shares of the frame."""
    parts = cell.split("|") if cell.strip() else []
    if len(parts) != count:
        raise DataError(
            f"{where}: {len(parts)} areas for {count} labels. Give one share per label, joined by '|'."
        )
    return [_share(part, where) for part in parts]


def _share(text: str, where: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = float("nan")
    if not isfinite(share) or not 0 <= share <= 1:
        raise DataError(f"{where}: the area '{text}' is not a share of the frame, a number from 0 to 1.")
    return share


def _read_columns(rows: Rows, given: Classes | None) -> Parsed:
    """Form B: one column of 0/1 per class."""
    columns = [column for column in rows.columns if column not in ("file_name", "split")]
    if not columns:
        raise DataError(
            f"'{rows.path}' says nothing about classes: add a column 'labels' with names joined by '|', "
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
    labels = np.column_stack([_truth_column(rows, name) for name in found])
    return found, labels, None, warnings


def _truth_column(rows: Rows, column: str) -> NDArray[np.bool_]:
    values = np.empty(len(rows.where), dtype=np.bool_)
    for row, (where, cell) in enumerate(rows.pairs(column)):
        truth = _TRUTH.get(cell.strip().lower())
        if truth is None:
            raise DataError(
                f"{where}: column '{column}' holds '{cell}', which is not 0 or 1.{_meant(column, rows)}"
            )
        values[row] = truth
    return values


def _meant(column: str, rows: Rows) -> str:
    """Say what a column of form B may be instead of a class."""
    match = column if column in _KNOWN else _typo_of(column, rows)
    if match in ("areas", "boxes"):
        return f" A column '{match}' needs a column 'labels' beside it."
    every = " Every column but file_name and split is a class."
    return f" Did you mean the column '{match}'?" if match else every
