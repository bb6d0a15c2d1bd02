"""Own images in COCO's form: `annotations/instances_train.json` beside `train/`, or one json file per folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.data.layouts.folder import ImageFolder, named_splits, subfolders
from centerhash.data.layouts.split_words import file_split, folder_split, splits_from_words
from centerhash.data.published.coco import read_coco
from centerhash.data.textfiles import duplicates, first_few

Value = TypeVar("Value", np.bool_, np.float32)

_PREFIX = "instances_"
_BESIDE = "_annotations.coco.json"  # what annotation tools write into the folder of the images
_KEYS = (b'"images"', b'"annotations"', b'"categories"')


def find_instances(root: Path) -> list[Path]:
    """Return the annotation files of a folder: in `annotations/`, else beside the pictures, also in split folders."""
    official = sorted((root / "annotations").glob(f"{_PREFIX}*.json"))
    places = [root, *(entry for entry in subfolders(root) if folder_split(entry.name))]
    beside = [place / _BESIDE for place in places if (place / _BESIDE).is_file()]
    if official or beside:
        return [*official, *beside]
    return [file for place in places for file in sorted(place.glob("*.json")) if _is_instances(file)]


def _is_instances(file: Path) -> bool:
    """Whether a json file of any name speaks of images, annotations and categories."""
    try:
        data = file.read_bytes()
    except OSError:  # a folder, or no permission
        return False
    return all(key in data for key in _KEYS)


def sign_of_coco(root: Path) -> str | None:
    """Return the name of the first annotation file, or None."""
    return next((file.relative_to(root).as_posix() for file in find_instances(root)), None)


def read_coco_folder(root: Path) -> ImageFolder:
    """Read and join all annotation files; splits are told by the names of the files or their folders.

    The joined set has the classes of all parts.
    """
    files = find_instances(root)
    parts = [read_coco(file, _images_of(root, file)) for file in files]
    paths = tuple(path for part in parts for path in part.paths)
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    repeated = duplicates(names)
    if repeated:
        raise DataError(
            f"'{root}': {len(repeated):,} image(s) are described by more than one of the files "
            f"{first_few([file.relative_to(root).as_posix() for file in files])}: {first_few(repeated)}. Keep one."
        )
    classes = tuple(dict.fromkeys(name for part in parts for name in part.classes))
    areas = [_spread(part.areas, part.classes, classes) for part in parts if part.areas is not None]
    words = [_split_of(file) for file, part in zip(files, parts, strict=True) for _ in part.names]
    splits, source = named_splits(root, names, splits_from_words(words), "files", "the annotation files")
    return ImageFolder(
        names=names,
        paths=paths,
        classes=classes,
        labels=np.concatenate([_spread(part.labels, part.classes, classes) for part in parts]),
        areas=np.concatenate(areas) if len(areas) == len(parts) else None,
        splits=splits,
        source=source,
        warnings=tuple(warning for part in parts for warning in part.warnings),
    )


def _images_of(root: Path, file: Path) -> Path:
    """Return the folder of an annotation file's images: its own, or that of the part which it is called after."""
    if file.parent != root / "annotations":
        beside = file.parent / "images"
        return beside if beside.is_dir() and file.name != _BESIDE else file.parent
    part = file.stem.removeprefix(_PREFIX)
    places = (root / part, root / "images" / part, root / "images")
    return next((place for place in places if place.is_dir()), root)


def _split_of(file: Path) -> str | None:
    """Return the split that `instances_train2017.json` or `train/_annotations.coco.json` is about."""
    return folder_split(file.parent.name) or file_split(file.stem.removeprefix(_PREFIX))


def _spread(values: NDArray[Value], own: Sequence[str], classes: Sequence[str]) -> NDArray[Value]:
    """Lay values (n, c) of a part's own classes into the columns (n, C) of all classes."""
    spread = np.zeros((len(values), len(classes)), dtype=values.dtype)
    spread[:, [classes.index(name) for name in own]] = values
    return spread
