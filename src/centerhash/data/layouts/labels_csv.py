"""`labels.csv`: which classes each image shows, in one of two forms.

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

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, did_you_mean, nearest
from centerhash.data.layouts.label_cells import missing_column
from centerhash.data.textfiles import duplicates, first_few, read_text

_KNOWN = ("file_name", "labels", "areas", "boxes", "split")
_TYPO = 0.75  # likeness from which an unknown column counts as a misspelt known one
_TRUTH = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}


@dataclass(frozen=True, eq=False)
class LabelTable:
    """The contents of `labels.csv`: labels (N, C), areas (N, C) or None, cells of the split column or None.

    `where` says for each row where it stands in the file, for error texts.
    """

    file_names: tuple[str, ...]
    where: tuple[str, ...]
    classes: tuple[str, ...]
    labels: NDArray[np.bool_]
    areas: NDArray[np.float32] | None
    split: tuple[str, ...] | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Rows:
    """Raw cells by column, all columns of equal length."""

    path: Path
    columns: dict[str, list[str]]
    where: list[str]

    def pairs(self, column: str) -> Iterator[tuple[str, str]]:
        """Yield (where, cell) for each row of a column."""
        return zip(self.where, self.columns[column], strict=True)


def read_label_table(path: Path, classes: tuple[str, ...] | None = None) -> LabelTable:
    """Read `labels.csv` in either form; `classes` fixes the class order, otherwise names are sorted."""
    rows = read_rows(path)
    if "file_name" not in rows.columns:
        raise DataError(missing_column(f"'{path}'", "file_name", rows.columns))
    read = _read_joined if "labels" in rows.columns else _read_columns
    found, labels, areas, warnings = read(rows, classes)
    split = rows.columns.get("split")
    return LabelTable(
        file_names=tuple(cell.strip() for cell in rows.columns["file_name"]),
        where=tuple(rows.where),
        classes=found,
        labels=labels,
        areas=areas,
        split=None if split is None else tuple(split),
        warnings=warnings,
    )


def read_rows(path: Path) -> _Rows:
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
    return _Rows(path, {name: [row[i] for row in cells] for i, name in enumerate(header)}, where)


def _check_header(path: Path, header: Sequence[str]) -> None:
    repeated = duplicates(header)
    if repeated:
        raise DataError(f"'{path}' has these columns more than once: {first_few(repeated)}.")
    for mark, spoken in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise DataError(f"'{path}' is separated by {spoken}: save it with commas.")


def _typo_of(column: str, rows: _Rows) -> str | None:
    """Return the known column that `column` seems to misspell, unless that one is there already."""
    return nearest(column, [name for name in _KNOWN if name not in rows.columns], _TYPO)


def _ignored(rows: _Rows, extra: Sequence[str]) -> tuple[str, ...]:
    """Refuse extra columns that look like misspelt known ones; warn about the others."""
    for column in extra:
        match = _typo_of(column, rows)
        if match:
            raise DataError(f"'{rows.path}' has an unknown column '{column}'. Did you mean '{match}'?")
    if not extra:
        return ()
    shown = first_few([column or "(no name)" for column in extra])
    return (f"'{rows.path}': ignored the columns {shown}.",)


Parsed = tuple[tuple[str, ...], NDArray[np.bool_], NDArray[np.float32] | None, tuple[str, ...]]


def _read_joined(rows: _Rows, classes: tuple[str, ...] | None) -> Parsed:
    """Form A: names joined by `|` in the column `labels`."""
    warnings = _ignored(rows, [column for column in rows.columns if column not in _KNOWN])
    named = [_split_labels(cell, where) for where, cell in rows.pairs("labels")]
    found = classes or tuple(sorted({label for labels in named for label in labels}))
    if not found:
        raise DataError(f"'{rows.path}' names no label in any row: fill the column 'labels'.")
    position = {name: column for column, name in enumerate(found)}
    labels = np.zeros((len(named), len(found)), dtype=np.bool_)
    for row, names in enumerate(named):
        for name in names:
            if name not in position:
                raise DataError(
                    f"{rows.where[row]}: label '{name}' is not in classes.txt.{did_you_mean(name, found)} "
                    "Correct the label, or add it to classes.txt."
                )
            labels[row, position[name]] = True
    if "areas" not in rows.columns:
        return found, labels, None, warnings
    areas = np.zeros(labels.shape, dtype=np.float32)
    for row, (where, cell) in enumerate(rows.pairs("areas")):
        for name, share in zip(named[row], _split_areas(cell, where, len(named[row])), strict=True):
            areas[row, position[name]] = share
    return found, labels, areas, warnings


def _split_labels(cell: str, where: str) -> list[str]:
    """Split `dog|cat`; an entirely empty cell means no label."""
    if cell == "":
        return []
    names = [name.strip() for name in cell.split("|")]
    if "" in names:
        raise DataError(
            f"{where}: an empty label in '{cell}'. Write names joined by '|', or leave the cell quite empty "
            "for an image without labels."
        )
    repeated = duplicates(names)
    if repeated:
        raise DataError(f"{where}: the label '{repeated[0]}' stands twice in '{cell}'.")
    return names


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


def _read_columns(rows: _Rows, classes: tuple[str, ...] | None) -> Parsed:
    """Form B: one column of 0/1 per class."""
    columns = [column for column in rows.columns if column not in ("file_name", "split")]
    if not columns:
        raise DataError(
            f"'{rows.path}' says nothing about classes: add a column 'labels' with names joined by '|', "
            "or one column of 0/1 per class."
        )
    found, warnings = tuple(sorted(columns)), tuple[str, ...]()
    if classes is not None:
        for name in classes:
            if name not in rows.columns:
                raise DataError(
                    f"'{rows.path}' has no column for the class '{name}' of classes.txt."
                    f"{did_you_mean(name, columns)} Its class columns: {first_few(columns)}."
                )
        found, warnings = classes, _ignored(rows, [column for column in columns if column not in classes])
    elif "" in columns:
        raise DataError(
            f"'{rows.path}': column {list(rows.columns).index('') + 1} has no name. "
            "Name it after its class; if it is an index that pandas added, write with index=False."
        )
    labels = np.column_stack([_truth_column(rows, name) for name in found])
    return found, labels, None, warnings


def _truth_column(rows: _Rows, column: str) -> NDArray[np.bool_]:
    values = np.empty(len(rows.where), dtype=np.bool_)
    for row, (where, cell) in enumerate(rows.pairs(column)):
        truth = _TRUTH.get(cell.strip().lower())
        if truth is None:
            raise DataError(
                f"{where}: column '{column}' holds '{cell}', which is not 0 or 1.{_meant(column, rows)}"
            )
        values[row] = truth
    return values


def _meant(column: str, rows: _Rows) -> str:
    """Say what a column of form B may be instead of a class."""
    match = column if column in _KNOWN else _typo_of(column, rows)
    if match in ("areas", "boxes"):
        return f" A column '{match}' needs a column 'labels' beside it."
    return (
        f" Did you mean the column '{match}'?"
        if match
        else " Every column but file_name and split is a class."
    )
