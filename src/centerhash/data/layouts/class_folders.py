"""Read images whose labels are the names of their folders, and bare folders of images without labels.

A folder per class, `photos/dog/1.jpg`, or per split and class, `photos/train/dog/1.jpg`, defines one label per image. A
bare folder of images, at any depth, is for indexes and for methods without labels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from centerhash.core.errors import DataError
from centerhash.data.images import is_picture_name
from centerhash.data.layouts import common
from centerhash.data.layouts.common import Contents, first_few
from centerhash.data.layouts.label_cells import label_matrix
from centerhash.data.listing import list_images
from centerhash.data.splits import SPLIT_FOLDERS, folder_split, splits_from_words


def find_class_folders(root: Path) -> list[Path]:
    """Return the first two folders that hold pictures.

    A single folder defines no classes, unless it is that of a split or there is a classes.txt.
    """
    filled = (folder for folder in common.subfolders(root) if any(_pictures_below(folder)))
    folders = list(islice(filled, 2))
    single = len(folders) == 1 and not folder_split(folders[0].name) and not (root / "classes.txt").is_file()
    return [] if single else folders


def read_class_folders(root: Path) -> Contents:
    """Read the labels and splits of images from the names of their folders; `classes.txt` may fix the order.

    Folders below a class belong to it.
    """
    names = tuple(sorted(name for folder in common.subfolders(root) for name in _pictures_below(folder)))
    parts = [name.split("/") for name in names]
    has_splits = all(folder_split(first) for first in {steps[0] for steps in parts})
    depth = 1 if has_splits else 0
    loose = [name for name, steps in zip(names, parts, strict=True) if len(steps) < depth + 2]
    if loose:
        raise DataError(
            f"'{root}': {len(loose):,} images lie in a split's folder but in no folder of a class: {first_few(loose)}. "
            "Move them to one, as in train/dog/1.jpg, describe them in a labels.csv, or open them without labels "
            "(labels=False)."
        )
    cells = [(steps[depth],) for steps in parts]
    classes = common.read_classes(root) or tuple(sorted({name for (name,) in cells}))
    if len(classes) < 2 and not (root / "classes.txt").is_file():
        raise DataError(
            f"'{root}' holds images in {len(classes)} folder(s) of a class. Sort them into a folder per class (split "
            f"folders are {SPLIT_FOLDERS}), or describe them in a labels.csv."
        )
    classes, labels, _ = label_matrix(cells, classes, [f"'{root / name}'" for name in names])
    words = [folder_split(steps[0]) if has_splits else None for steps in parts]
    splits, source = common.read_splits(root, names, splits_from_words(words), "folders")
    outside = sorted(file.name for file in root.iterdir() if is_picture_name(file.name) and file.is_file())
    skipped = f"{len(outside):,} images lie in no class's folder and are skipped: {first_few(outside)}."
    paths, warnings = tuple(root / name for name in names), (skipped,) if outside else ()
    return Contents(names, classes, labels, splits, source, paths, warnings=warnings)


def _pictures_below(folder: Path) -> Iterator[str]:
    """Yield the pictures in a folder and all below it, without hidden ones, as names such as `dog/puppies/1.jpg`."""
    for path, below, files in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        prefix = Path(path).relative_to(folder.parent).as_posix()
        yield from (f"{prefix}/{name}" for name in files if is_picture_name(name))


def find_bare(root: Path) -> list[Path]:
    """Return the first picture below a folder."""
    return [root.parent / name for name in islice(_pictures_below(root), 1)]


def read_bare(root: Path) -> Contents:
    """Read all images in a folder and below it, with labels (N, 0)."""
    paths = tuple(list_images([root]))
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    splits, source = common.read_splits(root, names)
    return Contents(names, *common.no_labels(len(names)), splits, source, paths)
