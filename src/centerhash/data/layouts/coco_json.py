"""Read images with COCO annotations: `annotations/instances_train.json` next to `train/`, or one json file per folder.

The share of the frame that the objects of a label cover together is computed from their areas, masks and boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from centerhash.core.errors import DataError
from centerhash.core.files import parse_json
from centerhash.data.layouts import common
from centerhash.data.layouts.common import Contents, first_few
from centerhash.data.layouts.label_cells import check_matrix
from centerhash.data.layouts.masks import covered_share
from centerhash.data.splits import file_split, folder_split, splits_from_words

Entry: TypeAlias = Mapping[str, Any]

PREFIX = "instances_"
# Annotation tools export this file into the folder of the images.
_EXPORT = "_annotations.coco.json"
_KEYS = ("images", "annotations", "categories")


def find_instances(root: Path) -> list[Path]:
    """Return the annotation files of a folder: in `annotations/`, else next to the pictures, also in split folders."""
    official = sorted((root / "annotations").glob(f"{PREFIX}*.json"))
    folders = [root, *(entry for entry in common.subfolders(root) if folder_split(entry.name))]
    exported = [folder / _EXPORT for folder in folders if (folder / _EXPORT).is_file()]
    if official or exported:
        return [*official, *exported]
    files = []
    for file in (file for folder in folders for file in sorted(folder.glob("*.json"))):
        with suppress(OSError):  # a folder, or no permission
            text = file.read_bytes()
            files += [file] if all(f'"{key}"'.encode() in text for key in _KEYS) else []
    return files


def read_coco_folder(root: Path, files: Sequence[Path] = ()) -> Contents:
    """Read annotation files of a folder, by default all, and join their images and classes.

    The names of the files or their folders define the splits.
    """
    files = files or find_instances(root)
    parts = [read_coco(file, _images_of(root, file)) for file in files]
    paths = tuple(path for part in parts for path in part.paths or ())
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    if repeated := common.repeated_names(names):
        raise DataError(
            f"'{root}': more than one annotation file describes {len(repeated):,} image(s): {first_few(repeated)}."
        )
    classes = tuple(dict.fromkeys(name for part in parts for name in part.classes))
    labels = np.zeros((len(names), len(classes)), dtype=np.bool_)
    areas = np.zeros(labels.shape, dtype=np.float32)
    start = 0
    for part in parts:
        block = np.ix_(range(start, start + len(part.names)), [classes.index(name) for name in part.classes])
        labels[block] = part.labels
        areas[block] = 0 if part.areas is None else part.areas
        start += len(part.names)
    # For example, a file is `instances_train2017.json` or `train/_annotations.coco.json`.
    kinds = [folder_split(file.parent.name) or file_split(file.stem.removeprefix(PREFIX)) for file in files]
    words = [kind for kind, part in zip(kinds, parts, strict=True) for _ in part.names]
    splits, source = common.read_splits(root, names, splits_from_words(words), "file names")
    return Contents(
        names,
        classes,
        labels,
        splits,
        source,
        paths,
        areas=None if any(part.areas is None for part in parts) else areas,
        warnings=tuple(warning for part in parts for warning in part.warnings),
    )


def _images_of(root: Path, file: Path) -> Path:
    """Return the folder of an annotation file's images: its own folder, or that of the part in its name."""
    part, images = file.stem.removeprefix(PREFIX), file.parent / "images"
    folders = [root / part, root / "images" / part, root / "images", root]
    if file.parent != root / "annotations":
        folders = [file.parent] if file.name == _EXPORT else [images, file.parent]
    return next(folder for folder in folders if folder.is_dir())


# ---------------------------------------------------------------- one annotation file


def read_coco(file: Path, images: Path) -> Contents:
    """Read an instances file, whose file names are relative to the folder `images`.

    Classes are in the order of their category ids. `areas` (N, C) is the share of the frame that the objects of
    a label cover together (see `covered_share`), or None if the file does not state the size of every object.
    Crowds are objects like any other. Images without objects are kept, with no label.
    """
    text = common.read_text(file)
    try:
        return _read_document(parse_json(text), file, images)
    except DataError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise DataError(f"'{file}' is not in COCO's form ({error!r}).") from error


def _read_document(document: Any, file: Path, images: Path) -> Contents:
    pictures, objects, categories = (document[key] for key in _KEYS)
    categories = sorted(categories, key=lambda entry: int(entry["id"]))
    classes = common.check_classes([entry["name"] for entry in categories], f"'{file}', categories")
    locations = [f"'{file}', image {number}" for number in range(len(pictures))]
    names = common.check_names([entry["file_name"] for entry in pictures], locations)
    columns, rows = _positions(categories, file), _positions(pictures, file)
    check_matrix(len(names), len(classes), f"'{file}'", 4)
    labels = np.zeros((len(names), len(classes)), dtype=np.bool_)
    areas = np.zeros(labels.shape, dtype=np.float32)
    groups: dict[tuple[int, int], list[Entry]] = defaultdict(list)  # by row and column
    for number, entry in enumerate(objects):
        if entry["image_id"] not in rows or entry["category_id"] not in columns:
            raise DataError(
                f"'{file}', annotation {number}: there is no image {entry['image_id']!r} or no category "
                f"{entry['category_id']!r}."
            )
        groups[rows[entry["image_id"]], columns[entry["category_id"]]].append(entry)
    shares: list[float | None] = []
    for (row, column), entries in groups.items():
        labels[row, column] = True
        width, height = pictures[row].get("width"), pictures[row].get("height")
        shares.append(covered_share(entries, float(width), float(height)) if width and height else None)
        areas[row, column] = shares[-1] or 0
    paths = common.existing_paths(images, names, file)
    unknown = (f"'{file}' does not state the size of every object.",) if None in shares else ()
    return Contents(names, classes, labels, paths=paths, areas=None if unknown else areas, warnings=unknown)


def _positions(entries: Sequence[Entry], file: Path) -> dict[int, int]:
    positions = {entry["id"]: position for position, entry in enumerate(entries)}
    if len(positions) < len(entries):
        raise DataError(f"'{file}' has more than one entry of the same id.")
    return positions
