"""MS COCO and everything written in its form: `instances_*.json` beside folders of images."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.data.layouts.folder import ImageFolder
from centerhash.data.published.masks import covered_share
from centerhash.data.published.readers import check_present, with_labels
from centerhash.data.textfiles import duplicates, first_few, leads_out, normal_name, read_text

Entry: TypeAlias = Mapping[str, Any]
Groups: TypeAlias = Mapping[tuple[int, int], Sequence[Entry]]  # the objects by row and class


def read_coco(instances_json: Path, images: Path) -> ImageFolder:
    """Read an instances file, whose file names are relative to the folder `images`.

    Classes stand in the order of their category ids. `areas` (N, C) is the share of the frame that the objects of
    a label cover together (see `masks.covered_share`), or None where the file does not say it for every object.
    Crowds are objects like any other. Images without objects are kept, with no label.
    """
    document = _parse(instances_json)
    pictures, objects, categories = (
        _entries(document, key, instances_json) for key in ("images", "annotations", "categories")
    )
    classes, columns = _classes(categories, instances_json)
    names, rows = _names(pictures, instances_json)
    groups = _grouped(objects, rows, columns, instances_json)
    labels = np.zeros((len(names), len(classes)), dtype=np.bool_)
    for row, column in groups:
        labels[row, column] = True
    areas = _areas(groups, pictures, labels.shape, instances_json)
    unknown = () if areas is not None else (f"'{instances_json}' does not say how large every object is.",)
    paths = tuple(images / name for name in names)
    check_present(names, paths, instances_json)
    return ImageFolder(names, paths, classes, labels, areas, {}, "", unknown)


def read_coco_parts(root: Path, parts: Sequence[str]) -> ImageFolder:
    """Read `annotations/instances_PART.json` with the images in `PART/`, and join all parts (train2014, val2014).

    Images without labels are left out, as all published figures do.
    """
    read = [read_coco(root / "annotations" / f"instances_{part}.json", root / part) for part in parts]
    for part, folder in zip(parts, read, strict=True):
        if folder.classes != read[0].classes:
            raise DataError(
                f"'{root}': {part} has other classes than {parts[0]}: unpack both from one source."
            )
    areas = [folder.areas for folder in read if folder.areas is not None]
    whole = ImageFolder(
        names=tuple(
            f"{part}/{name}" for part, folder in zip(parts, read, strict=True) for name in folder.names
        ),
        paths=tuple(path for folder in read for path in folder.paths),
        classes=read[0].classes,
        labels=np.concatenate([folder.labels for folder in read]),
        areas=np.concatenate(areas) if len(areas) == len(read) else None,
        splits={},
        source="",
        warnings=tuple(warning for folder in read for warning in folder.warnings),
    )
    return with_labels(whole)


def _parse(path: Path) -> Entry:
    try:
        document = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"'{path}' is not valid json ({error}): copy it again.") from error
    if not isinstance(document, dict):
        raise DataError(f"'{path}' holds no object of images, annotations and categories: not COCO's form.")
    return document


def _entries(document: Entry, key: str, path: Path) -> list[Entry]:
    """Return one of the lists of the file, of objects only."""
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        keys = ", ".join(sorted(document)) or "nothing"
        raise DataError(
            f"'{path}' has no list '{key}'; it has: {keys}. Give a file in the form of COCO's instances_*.json "
            "with images, annotations and categories."
        )
    return entries


def _value(entry: Entry, key: str, kind: type, where: str) -> Any:
    value = entry.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{where}: '{key}' is {value!r}, which is no {kind.__name__}.")
    return value


def _classes(categories: Sequence[Entry], path: Path) -> tuple[tuple[str, ...], dict[int, int]]:
    """Return the class names in the order of their ids, and the column of each id."""
    where = f"'{path}', categories"
    named = sorted(
        (_value(entry, "id", int, where), _value(entry, "name", str, where)) for entry in categories
    )
    classes = tuple(name for _, name in named)
    columns = {number: column for column, (number, _) in enumerate(named)}
    if not classes:
        raise DataError(f"{where}: there is none.")
    repeated = duplicates(classes)
    if repeated or len(columns) < len(named):
        raise DataError(
            f"{where}: more than one category has the name or id of {first_few(repeated or classes)}."
        )
    return classes, columns


def _names(pictures: Sequence[Entry], path: Path) -> tuple[tuple[str, ...], dict[int, int]]:
    """Return the file names, and the row of each image id."""
    where = f"'{path}', images"
    names = tuple(normal_name(_value(entry, "file_name", str, where)) for entry in pictures)
    rows = {_value(entry, "id", int, where): row for row, entry in enumerate(pictures)}
    if not names:
        raise DataError(f"{where}: there is none.")
    outside = [name for name in names if leads_out(name)]
    if outside:
        raise DataError(f"{where}: these file names lead out of the folder of images: {first_few(outside)}.")
    repeated = duplicates(names)
    if repeated or len(rows) < len(names):
        raise DataError(
            f"{where}: more than one entry has the same file name or id: {first_few(repeated or names)}."
        )
    return names, rows


def _grouped(
    objects: Sequence[Entry], rows: Mapping[int, int], columns: Mapping[int, int], path: Path
) -> dict[tuple[int, int], list[Entry]]:
    groups: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for position, entry in enumerate(objects):
        where = f"'{path}', annotation {position}"
        row = rows.get(_value(entry, "image_id", int, where))
        column = columns.get(_value(entry, "category_id", int, where))
        if row is None or column is None:
            key = "image_id" if row is None else "category_id"
            raise DataError(f"{where}: no entry has the {key} {entry[key]!r}.")
        groups[row, column].append(entry)
    return groups


def _areas(
    groups: Groups, pictures: Sequence[Entry], shape: tuple[int, int], path: Path
) -> NDArray[np.float32] | None:
    """The shares (N, C) of the frame, or None where one of them is unknown."""
    areas = np.zeros(shape, dtype=np.float32)
    for (row, column), entries in groups.items():
        width, height = pictures[row].get("width"), pictures[row].get("height")
        if not width or not height:
            return None
        try:
            share = covered_share(entries, float(width), float(height))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            name = pictures[row]["file_name"]
            raise DataError(f"'{path}': the masks of '{name}' cannot be read: {error}.") from error
        if share is None:
            return None
        areas[row, column] = share
    return areas
