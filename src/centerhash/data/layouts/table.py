"""The layouts of data sets on disk, and how a folder's own is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from centerhash.core.errors import DataError, nearest
from centerhash.data.images import is_picture_name
from centerhash.data.layouts.arrays import read_feature_folder
from centerhash.data.layouts.class_folders import (
    read_bare,
    read_class_folders,
    sign_of_bare,
    sign_of_class_folders,
    unlabelled,
)
from centerhash.data.layouts.coco_json import find_instances, read_coco_folder
from centerhash.data.layouts.contents import Contents
from centerhash.data.layouts.imagefolder import TABLES, find_tables, read_imagefolder
from centerhash.data.layouts.labels_csv import read_image_folder
from centerhash.data.layouts.parquet import SUFFIX, find_parquet, read_parquet
from centerhash.data.textfiles import first_few


@dataclass(frozen=True)
class Layout:
    """One way to store a data set: `sign` names the file or folder that shows it."""

    name: str
    sign: Callable[[Path], str | None]
    read: Callable[[Path], Contents]
    description: str  # completes "Give ..."
    by_file: bool = True  # whether a file describes the images


def _has(name: str) -> Callable[[Path], str | None]:
    """A sign: the file of that name is there."""
    return lambda root: name if (root / name).is_file() else None


def _first(find: Callable[[Path], Sequence[Path]]) -> Callable[[Path], str | None]:
    """A sign: the first of the files that are found."""
    return lambda root: next((file.relative_to(root).as_posix() for file in find(root)), None)


LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "images",
        _has("labels.csv"),
        read_image_folder,
        "a folder of images with labels.csv (columns file_name and labels, names joined by '|'; "
        "or file_name and one column of 0/1 per class)",
    ),
    Layout(
        "features",
        _has("features.npy"),
        read_feature_folder,
        "a folder of features with features.npy (N, D), labels.npy (N, C) and classes.txt",
    ),
    Layout(
        "coco",
        _first(find_instances),
        read_coco_folder,
        "a folder with COCO's json (annotations/instances_*.json, or one json file beside the images)",
    ),
    Layout(
        "imagefolder",
        _first(find_tables),
        read_imagefolder,
        "a Hugging Face imagefolder (metadata.csv or metadata.jsonl with file_name and labels)",
    ),
    Layout(
        "parquet",
        _first(find_parquet),
        read_parquet,
        "a parquet file, or a folder of them, as the library datasets writes them (image, labels)",
    ),
    Layout(
        "classes",
        sign_of_class_folders,
        read_class_folders,
        "a folder per class (photos/dog/1.jpg; also photos/train/dog/1.jpg, photos/test/dog/2.jpg)",
        by_file=False,
    ),
    Layout(
        "bare",
        sign_of_bare,
        read_bare,
        "a folder of images without labels (for the methods that need none: lsh, sh, itq)",
        by_file=False,
    ),
)


def read_layout(root: Path, labels: bool = True) -> Contents:
    """Read the data set at a path, of any layout; without `labels`, those that it has are left out."""
    try:
        if not root.exists():
            raise DataError(
                f"no such folder: '{root}'. Check the path; docs/own-images.md shows what it may hold."
            )
        if root.is_dir():
            os.scandir(root).close()
    except OSError as error:
        raise DataError(f"cannot read '{root}': {error.strerror or error}.") from None
    if root.is_file() and root.suffix != SUFFIX:
        raise DataError(f"'{root}' is a file, not a folder. Give {_all_layouts()}.")
    layout = find_layout(root)
    if labels and layout is not None and layout.name == "bare" and _misspelt(root):
        layout = None  # rather a question than a training without the labels that somebody wrote
    if layout is None:
        raise DataError(_unknown(root))
    if labels:
        return layout.read(root)
    return unlabelled(layout.read(root)) if layout.by_file else read_bare(root)


def find_layout(root: Path) -> Layout | None:
    """Return the layout of a folder or parquet file, None where there is none; two at once are refused.

    Folders of images only count as classes where no file describes them, and images that are neither described nor
    sorted have no labels.
    """
    if root.is_file():
        return next(layout for layout in LAYOUTS if layout.name == "parquet")
    signs = {layout.name: layout.sign(root) for layout in LAYOUTS if layout.by_file}
    told = [layout for layout in LAYOUTS if signs.get(layout.name)]
    if len(told) > 1:
        both = " and ".join(f"{signs[layout.name]} ({layout.name})" for layout in told[:2])
        raise DataError(f"'{root}' holds both {both}: keep them in two folders.")
    implied = (layout for layout in LAYOUTS if not layout.by_file and layout.sign(root))
    return told[0] if told else next(implied, None)


def is_described(path: Path) -> bool:
    """Whether a file says what the images at `path` show; folders of images alone do not, whatever their names."""
    if not path.is_dir() and not (path.is_file() and path.suffix == SUFFIX):
        return False
    layout = find_layout(path)
    return layout is not None and layout.by_file


def _unknown(root: Path) -> str:
    """Say what is in a folder of no layout."""
    entries = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in root.iterdir())
    found = f"it holds {first_few(entries)}" if entries else "it is empty"
    return f"'{root}' is no data set: {found}{_misspelt(root)}. Give {_all_layouts()}."


def _misspelt(root: Path) -> str:
    """Point to a file whose name is nearly that of a description, or return nothing."""
    files = [entry.name for entry in root.iterdir() if not is_picture_name(entry.name)]
    for wanted in ("labels.csv", "features.npy", *TABLES):
        match = nearest(wanted, files, cutoff=0.8)
        if match:
            return f" (rename '{match}' to '{wanted}'?)"
    return ""


def _all_layouts() -> str:
    return ",\n  or ".join(layout.description for layout in LAYOUTS)
