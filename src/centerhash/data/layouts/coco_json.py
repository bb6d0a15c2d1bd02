"""Read images described in COCO's form: `annotations/instances_train.json` next to `train/`, or one json file per folder.

The share of the frame that the objects of a label cover together comes from their areas, masks and boxes.
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
from centerhash.data.layouts import contents
from centerhash.data.layouts.contents import Contents, first_few
from centerhash.data.layouts.label_cells import check_matrix
from centerhash.data.layouts.masks import covered_share
from centerhash.data.splits import file_split, folder_split, splits_from_words

Entry: TypeAlias = Mapping[str, Any]

PREFIX = "instances_"
# Annotation tools write this file into the folder of the images.
EXPORTED = "_annotations.coco.json"
_KEYS = ("images", "annotations", "categories")


def find_instances(root: Path) -> list[Path]:
    """Return the annotation files of a folder: in `annotations/`, else next to the pictures, also in split folders."""
    official = sorted((root / "annotations").glob(f"{PREFIX}*.json"))
    folders = [root, *(entry for entry in contents.subfolders(root) if folder_split(entry.name))]
    exported = [folder / EXPORTED for folder in folders if (folder / EXPORTED).is_file()]
    if official or exported:
        return [*official, *exported]
    files = []
    for file in (file for folder in folders for file in sorted(folder.glob("*.json"))):
        with suppress(OSError):  # a folder, or no permission
            content = file.read_bytes()
            files += [file] if all(f'"{key}"'.encode() in content for key in _KEYS) else []
    return files


def read_coco_folder(root: Path, files: Sequence[Path] = ()) -> Contents:
    """Read annotation files of a folder (all unless `files` names some) and join them; the whole has the classes of all.

    The names of the files or their folders define the splits.
    """
    files = files or find_instances(root)
    parts = [read_coco(file, _images_of(root, file)) for file in files]
    paths = tuple(path for part in parts for path in part.paths or ())
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    repeated = contents.duplicates(names)
    if repeated:
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
    # Such as `instances_train2017.json` or `train/_annotations.coco.json`.
    named = [folder_split(file.parent.name) or file_split(file.stem.removeprefix(PREFIX)) for file in files]
    words = [word for word, part in zip(named, parts, strict=True) for _ in part.names]
    splits, source = contents.named_splits(root, names, splits_from_words(words), "file names")
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
    """Return the folder of an annotation file's images: that of the file, or of the part which it is named after."""
    part, images = file.stem.removeprefix(PREFIX), file.parent / "images"
    folders = [root / part, root / "images" / part, root / "images", root]
    if file.parent != root / "annotations":
        folders = [file.parent] if file.name == EXPORTED else [images, file.parent]
    return next(folder for folder in folders if folder.is_dir())


# ---------------------------------------------------------------- one annotation file


def read_coco(file: Path, images: Path) -> Contents:
    """Read an instances file, whose file names are relative to the folder `images`.

    Classes stand in the order of their category ids. `areas` (N, C) is the share of the frame that the objects of
    a label cover together (see `covered_share`), or None if the file does not state the size of every object.
    Crowds are objects like any other. Images without objects are kept, with no label.
    """
    text = contents.read_text(file)
    try:
        return _read_document(parse_json(text), file, images)
    except DataError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise DataError(f"'{file}' is not in COCO's form ({error!r}).") from error


def _read_document(document: Any, file: Path, images: Path) -> Contents:
    pictures, objects, categories = (document[key] for key in _KEYS)
    categories = sorted(categories, key=lambda entry: int(entry["id"]))
    classes = contents.check_classes([entry["name"] for entry in categories], f"'{file}', categories")
    places = [f"'{file}', image {number}" for number in range(len(pictures))]
    names = contents.checked_names([entry["file_name"] for entry in pictures], places)
    columns, rows = _positions(categories, file), _positions(pictures, file)
    check_matrix(len(names), len(classes), f"'{file}'", 4)
    labels = np.zeros((len(names), len(classes)), dtype=np.bool_)
    areas = np.zeros(labels.shape, dtype=np.float32)
    groups: dict[tuple[int, int], list[Entry]] = defaultdict(list)  # the objects by row and column
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
    paths = contents.present(images, names, file)
    if None in shares:
        unknown = (f"'{file}' does not state the size of every object.",)
        return Contents(names, classes, labels, paths=paths, warnings=unknown)
    return Contents(names, classes, labels, paths=paths, areas=areas)


def _positions(entries: Sequence[Entry], file: Path) -> dict[int, int]:
    positions = {entry["id"]: position for position, entry in enumerate(entries)}
    if len(positions) < len(entries):
        raise DataError(f"'{file}' has more than one entry of the same id.")
    return positions
