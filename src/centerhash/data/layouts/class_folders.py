"""Images that only their folders describe, or nothing does.

A folder per class, `photos/dog/1.jpg`, or per split and class, `photos/train/dog/1.jpg`, gives one label per image. A
bare folder of images, at any depth, gives none: for methods that need none, and for indexes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from centerhash.core.errors import DataError
from centerhash.data.images import is_picture_name
from centerhash.data.layouts import contents
from centerhash.data.layouts.contents import Contents, first_few
from centerhash.data.layouts.label_cells import label_matrix
from centerhash.data.listing import list_images
from centerhash.data.splits import SPLIT_FOLDERS, folder_split, splits_from_words


def detect_class_folders(root: Path) -> list[Path]:
    """Return the first two folders that hold pictures.

    A single folder tells no classes apart, unless it is that of a split or classes.txt names them.
    """
    folders = list(
        islice((folder for folder in contents.subfolders(root) if any(_pictures_below(folder))), 2)
    )
    alone = len(folders) == 1 and not folder_split(folders[0].name) and not (root / "classes.txt").is_file()
    return [] if alone else folders


def read_class_folders(root: Path) -> Contents:
    """Read the labels and splits of images from the folders that they lie in; `classes.txt` may fix the order.

    Folders below a class belong to it.
    """
    folders = contents.subfolders(root)
    names = tuple(sorted(name for folder in folders for name in _pictures_below(folder)))
    parts = [name.split("/") for name in names]
    split = all(folder_split(first) for first in {steps[0] for steps in parts})
    depth = 1 if split else 0
    loose = [name for name, steps in zip(names, parts, strict=True) if len(steps) < depth + 2]
    if loose:
        raise DataError(
            f"'{root}': {len(loose):,} images lie in a split's folder but in no folder of a class: {first_few(loose)}. "
            "Move them to one, as in train/dog/1.jpg, describe them in a labels.csv, or open them without labels "
            "(labels=False)."
        )
    cells = [(steps[depth],) for steps in parts]
    classes = contents.given_classes(root) or tuple(sorted({name for (name,) in cells}))
    if len(classes) < 2 and not (root / "classes.txt").is_file():
        raise DataError(
            f"'{root}' holds images in {len(classes)} folder(s) of a class. Sort them into a folder per class (split "
            f"folders are {SPLIT_FOLDERS}), or describe them in a labels.csv."
        )
    classes, labels, _ = label_matrix(cells, classes, [f"'{root / name}'" for name in names])
    words = [folder_split(steps[0]) if split else None for steps in parts]
    splits, source = contents.named_splits(root, names, splits_from_words(words), "folders")
    outside = sorted(file.name for file in root.iterdir() if is_picture_name(file.name) and file.is_file())
    skipped = f"{len(outside):,} images lie in no class's folder and are skipped: {first_few(outside)}."
    paths, warnings = tuple(root / name for name in names), (skipped,) if outside else ()
    return Contents(names, classes, labels, splits, source, paths, warnings=warnings)


def _pictures_below(folder: Path) -> Iterator[str]:
    """Yield the pictures in a folder and all below it, without hidden ones, as names such as `dog/puppies/1.jpg`."""
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        inside = Path(place).relative_to(folder.parent).as_posix()
        yield from (f"{inside}/{name}" for name in files if is_picture_name(name))


def detect_bare(root: Path) -> list[Path]:
    """Return the first picture below a folder."""
    return [root / name for name in islice(_pictures_below(root), 1)]


def read_bare(root: Path) -> Contents:
    """All images in a folder and below it, without labels: (N, 0)."""
    paths = tuple(list_images([root]))
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    splits, source = contents.named_splits(root, names)
    return Contents(names, *contents.no_labels(len(names)), splits, source, paths)
