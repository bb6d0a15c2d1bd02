"""Where the objects of an image are, as the column `boxes` of labels.csv tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from centerhash.core.errors import DataError
from centerhash.data.layouts.labels_csv import read_rows
from centerhash.data.textfiles import normal_name

Box: TypeAlias = tuple[float, float, float, float]  # x centre, y centre, width, height, in 0..1 of the frame
Boxes: TypeAlias = Mapping[str, list[Box]]  # by label


def read_boxes(root: Path) -> dict[str, Boxes]:
    """The boxes of a data set by file name; none where it has no labels.csv, or that no such column."""
    path = root / "labels.csv"
    if not path.is_file():
        return {}
    rows = read_rows(path)
    if not {"file_name", "boxes"} <= rows.columns.keys():
        return {}
    names = (normal_name(name.strip()) for name in rows.columns["file_name"])
    return {
        name: _parsed(cell, where)
        for name, (where, cell) in zip(names, rows.pairs("boxes"), strict=True)
        if cell.strip()
    }


def _parsed(cell: str, where: str) -> Boxes:
    try:
        return {str(label): [_box(box) for box in boxes] for label, boxes in json.loads(cell).items()}
    except (ValueError, TypeError, AttributeError):
        raise DataError(
            f"{where}: the cell 'boxes' is not json of label -> [[x centre, y centre, width, height], ...], "
            f"numbers from 0 to 1: {cell[:80]!r}."
        ) from None


def _box(values: Any) -> Box:
    x, y, width, height = map(float, values)
    if not all(isfinite(value) and 0 <= value <= 1 for value in (x, y, width, height)):
        raise ValueError("outside the frame")
    return x, y, width, height
