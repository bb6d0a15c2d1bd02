"""Images that only their folders describe, or nothing does.

A folder per class, `photos/dog/1.jpg`, or per split and class, `photos/train/dog/1.jpg`, gives one label per image. A
bare folder of images, at any depth, gives none: for methods that need none, and for indexes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from centerhash.core.errors import DataError, did_you_mean
from centerhash.data.images import is_picture_name
from centerhash.data.layouts.contents import (
    Contents,
    check_matrix,
    first_few,
    given_classes,
    named_splits,
    no_labels,
    register_layout,
    subfolders,
)
from centerhash.data.listing import list_images
from centerhash.data.splits import SPLIT_FOLDERS, folder_split, splits_from_words


def detect_class_folders(root: Path) -> list[Path]:
    """Return the first two folders that hold pictures.

    A single folder tells no classes apart, unless it is that of a split or classes.txt names them.
    """
    found = list(islice((folder for folder in subfolders(root) if any(_pictures_below(folder))), 2))
    alone = len(found) == 1 and not folder_split(found[0].name) and not (root / "classes.txt").is_file()
    return [] if alone else found


@register_layout(
    "classes",
    detect_class_folders,
    "a folder per class (photos/dog/1.jpg; also photos/train/dog/1.jpg, photos/test/dog/2.jpg)",
    by_file=False,
)
def read_class_folders(root: Path) -> Contents:
    """Read the labels and splits of images from the folders that they lie in; `classes.txt` may fix the order.

    Folders below a class belong to it.
    """
    folders = subfolders(root)
    names = sorted(name for folder in folders for name in _pictures_below(folder))
    parts = [name.split("/") for name in names]
    split = all(folder_split(first) for first in {steps[0] for steps in parts})
    depth = 1 if split else 0  # the part of a name that is the class
    bare = [name for name, steps in zip(names, parts, strict=True) if len(steps) < depth + 2]
    if bare:
        raise DataError(
            f"'{root}': {len(bare):,} images lie in a split's folder but in no folder of a class: {first_few(bare)}. "
            "Move them to one, as in train/dog/1.jpg, describe them in a labels.csv, or open them without labels "
            "(labels=False)."
        )
    found = [steps[depth] for steps in parts]
    given, classes = given_classes(root) or (), tuple(sorted(set(found)))
    for name in classes if given else ():
        if name not in given:
            raise DataError(
                f"'{root}': the folder '{name}' is no class of classes.txt.{did_you_mean(name, given)} "
                "Rename the folder, or add the class."
            )
    if not given and len(classes) < 2:
        same = f"one folder of images only, '{'/'.join(classes)}', so all would carry the same label"
        raise DataError(
            f"'{root}' holds {same if classes else 'no image'}. Sort them into a folder per class (split folders are "
            f"{SPLIT_FOLDERS}), or describe them in a labels.csv."
        )
    classes = given or classes
    columns = {name: column for column, name in enumerate(classes)}
    check_matrix(len(names), len(classes), f"'{root}'")
    labels = np.zeros((len(names), len(classes)), dtype=np.bool_)
    labels[np.arange(len(names)), [columns[name] for name in found]] = True
    words = [folder_split(steps[0]) if split else None for steps in parts]
    splits, source = named_splits(root, names, splits_from_words(words), "folders")
    paths = tuple(root / name for name in names)
    warnings = []
    files = sorted(entry.name for entry in root.iterdir() if entry.is_file())
    loose = [name for name in files if is_picture_name(name)]
    if loose:
        warnings.append(
            f"{len(loose):,} images lie in no class's folder and are skipped: {first_few(loose)}."
        )
    empty = [folder.name for folder in folders if not any(_pictures_below(folder))]
    if empty:
        warnings.append(f"no image is in the folders {first_few(empty)}: they are no classes.")
    return Contents(tuple(names), classes, labels, splits, source, paths, warnings=tuple(warnings))


def _pictures_below(folder: Path) -> Iterator[str]:
    """Yield the pictures in a folder and all below it, without hidden ones, as names such as `dog/puppies/1.jpg`."""
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        inside = Path(place).relative_to(folder.parent).as_posix()
        yield from (f"{inside}/{name}" for name in files if is_picture_name(name))


@register_layout(
    "bare",
    lambda root: [root / name for name in islice(_pictures_below(root), 1)],
    "a folder of images without labels (for the methods that need none: lsh, sh, itq)",
    by_file=False,
)
def read_bare(root: Path) -> Contents:
    """All images in a folder and below it, without labels: (N, 0)."""
    paths = tuple(list_images([root]))
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    splits, source = named_splits(root, names)
    return Contents(names, *no_labels(len(names)), splits, source, paths)
