"""A data set: labels, splits, and either images or precomputed features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, nearest
from centerhash.data.layouts.arrays import read_feature_folder
from centerhash.data.layouts.class_folders import read_class_folders, sign_of_class_folders
from centerhash.data.layouts.coco_json import read_coco_folder, sign_of_coco
from centerhash.data.layouts.folder import ImageFolder, read_image_folder
from centerhash.data.layouts.imagefolder import TABLES, read_imagefolder, sign_of_imagefolder
from centerhash.data.layouts.parquet import SUFFIX, read_parquet, sign_of_parquet
from centerhash.data.splits import Splits, check_splits, make_splits, splits_from_files
from centerhash.data.textfiles import first_few


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labels (N, C) of N images, their splits, and where the images or their features (N, D) are.

    `names` are the file names or, for features, the row numbers. `areas` (N, C) is the share of the frame
    that each label covers, where known. Arrays are read-only.
    """

    name: str
    root: Path
    classes: tuple[str, ...]
    labels: NDArray[np.bool_]
    splits: Splits
    features: NDArray[np.floating[Any]] | None = None
    image_paths: tuple[Path, ...] | None = None
    names: tuple[str, ...] = ()
    areas: NDArray[np.float32] | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.labels.ndim != 2 or self.labels.dtype != np.bool_:
            raise DataError(f"labels must be (N, C) bool, got {self.labels.dtype} {self.labels.shape}.")
        if self.labels.shape[1] != len(self.classes):
            raise DataError(f"{len(self.classes)} classes for {self.labels.shape[1]} label columns.")
        if self.features is None and self.image_paths is None:
            raise DataError("a data set needs features or image paths.")
        if not self.names:
            object.__setattr__(self, "names", tuple(map(str, range(self.size))))
        lengths = {"features": self.features, "image_paths": self.image_paths, "names": self.names}
        for field, values in lengths.items():
            if values is not None and len(values) != self.size:
                raise DataError(f"{field} has {len(values):,} entries for {self.size:,} rows of labels.")
        if self.areas is not None and self.areas.shape != self.labels.shape:
            raise DataError(f"areas has shape {self.areas.shape}, labels {self.labels.shape}.")
        object.__setattr__(self, "labels", _read_only(self.labels))
        if self.areas is not None:
            object.__setattr__(self, "areas", _read_only(self.areas))

    @property
    def size(self) -> int:
        """The number of rows N."""
        return len(self.labels)

    @property
    def kind(self) -> Literal["images", "features"]:
        """What the data set holds; features win where there are both."""
        return "images" if self.features is None else "features"

    def with_splits(self, splits: Splits) -> Dataset:
        """Return the same data with other splits, which must fit it."""
        check_splits(splits, self.size)
        return replace(self, splits=splits)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()  # the caller's own array stays writable
    view.setflags(write=False)
    return view


def open_dataset(path: str | Path, seed: int = 0) -> Dataset:
    """Open and check a data set of any layout; splits that it does not name are drawn with `seed`."""
    root = Path(path)
    if not root.exists():
        raise DataError(f"no such folder: '{root}'. Give {_all_layouts()}.")
    if root.is_file() and root.suffix != SUFFIX:
        raise DataError(f"'{root}' is a file, not a folder. Give {_all_layouts()}.")
    layout = find_layout(root)
    if layout is None:
        raise DataError(_unknown(root))
    return layout.open(root, seed)


def find_layout(root: Path) -> Layout | None:
    """Return the layout of a folder or parquet file, None where there is none; two at once are refused.

    Folders of pictures only count as classes where no file describes them.
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
    """Whether a file says what the images at `path` show; folders of pictures alone do not, whatever their names."""
    if not path.is_dir() and not (path.is_file() and path.suffix == SUFFIX):
        return False
    layout = find_layout(path)
    return layout is not None and layout.by_file


def _unknown(root: Path) -> str:
    """Say what is in a folder of no layout."""
    entries = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in root.iterdir())
    found = f"it holds {first_few(entries)}" if entries else "it is empty"
    for wanted in ("labels.csv", "features.npy", *TABLES):
        match = nearest(wanted, entries, cutoff=0.8)
        if match:
            found += f" (rename '{match}' to '{wanted}'?)"
            break
    return f"'{root}' is no data set: {found}. Give {_all_layouts()}."


def _all_layouts() -> str:
    return ",\n  or ".join(layout.description for layout in LAYOUTS)


def _open_images(read: Callable[[Path], ImageFolder], root: Path, seed: int) -> Dataset:
    folder = read(root)
    splits = make_splits(len(folder.labels), folder.splits, seed=seed, source=folder.source)
    name = root.resolve().name.removesuffix(SUFFIX)
    return image_dataset(name, root, folder, splits, _common_warnings(folder.labels, splits))


def image_dataset(
    name: str, root: Path, folder: ImageFolder, splits: Splits, warnings: Sequence[str]
) -> Dataset:
    """The data set of a folder's images with chosen splits; `warnings` are added to the folder's own."""
    return Dataset(
        name=name,
        root=root,
        classes=folder.classes,
        labels=folder.labels,
        splits=splits,
        image_paths=folder.paths,
        names=folder.names,
        areas=folder.areas,
        warnings=(*folder.warnings, *warnings),
    )


def _open_features(root: Path, seed: int) -> Dataset:
    folder = read_feature_folder(root)
    names = tuple(map(str, range(len(folder.labels))))
    given: Mapping[str, NDArray[np.int64]] = splits_from_files(root, names)
    splits = make_splits(len(folder.labels), given, seed=seed, source="files")
    return Dataset(
        name=root.resolve().name,
        root=root,
        classes=folder.classes,
        labels=folder.labels,
        splits=splits,
        features=folder.features,
        names=names,
        warnings=(*folder.warnings, *_common_warnings(folder.labels, splits)),
    )


def _common_warnings(labels: NDArray[np.bool_], splits: Splits) -> Sequence[str]:
    warnings = check_splits(splits, len(labels))
    bare = int((~labels.any(axis=1)).sum())
    if bare:
        warnings.append(
            f"{bare:,} of {len(labels):,} rows carry no label: "
            "they teach nothing and are relevant to no query."
        )
    return warnings


@dataclass(frozen=True)
class Layout:
    """One way to store a data set: `sign` names the file or folder that shows it, `open` takes (root, seed)."""

    name: str
    sign: Callable[[Path], str | None]
    open: Callable[[Path, int], Dataset]
    description: str  # completes "Give ..."
    by_file: bool = True  # whether a file describes the images


def _has(name: str) -> Callable[[Path], str | None]:
    """A sign: the file of that name is there."""
    return lambda root: name if (root / name).is_file() else None


LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "images",
        _has("labels.csv"),
        partial(_open_images, read_image_folder),
        "a folder of images with labels.csv (columns file_name and labels, names joined by '|'; "
        "or file_name and one column of 0/1 per class)",
    ),
    Layout(
        "features",
        _has("features.npy"),
        _open_features,
        "a folder of features with features.npy (N, D), labels.npy (N, C) and classes.txt",
    ),
    Layout(
        "coco",
        sign_of_coco,
        partial(_open_images, read_coco_folder),
        "a folder with COCO's json (annotations/instances_*.json, or one json file beside the images)",
    ),
    Layout(
        "imagefolder",
        sign_of_imagefolder,
        partial(_open_images, read_imagefolder),
        "a Hugging Face imagefolder (metadata.csv or metadata.jsonl with file_name and labels)",
    ),
    Layout(
        "parquet",
        sign_of_parquet,
        partial(_open_images, read_parquet),
        "a parquet file, or a folder of them, as the library datasets writes them (image, labels)",
    ),
    Layout(
        "classes",
        sign_of_class_folders,
        partial(_open_images, read_class_folders),
        "a folder per class (photos/dog/1.jpg; also photos/train/dog/1.jpg, photos/test/dog/2.jpg)",
        by_file=False,
    ),
)
