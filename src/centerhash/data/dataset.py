"""A data set: labels, splits, and either images or precomputed features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from centerhash.data.arrays import read_feature_folder
from centerhash.data.folder import read_image_folder
from centerhash.data.splits import Splits, check_splits, make_splits, splits_from_files
from centerhash.data.textfiles import first_few, nearest
from centerhash.errors import DataError

LAYOUTS = (
    "a folder of images with labels.csv (columns file_name and labels, names joined by '|'; "
    "or file_name and one column of 0/1 per class), "
    "or a folder of features with features.npy (N, D), labels.npy (N, C) and classes.txt"
)


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
    """Open and check a folder of images or of features; splits that it does not name are drawn with `seed`."""
    root = Path(path)
    if not root.exists():
        raise DataError(f"no such folder: '{root}'. Give {LAYOUTS}.")
    if not root.is_dir():
        raise DataError(f"'{root}' is a file, not a folder. Give {LAYOUTS}.")
    has_csv, has_features = (root / "labels.csv").is_file(), (root / "features.npy").is_file()
    if has_csv and has_features:
        raise DataError(
            f"'{root}' holds both labels.csv (images) and features.npy (features): keep them in two folders."
        )
    if has_csv:
        return _open_images(root, seed)
    if has_features:
        return _open_features(root, seed)
    raise DataError(_neither(root))


def _neither(root: Path) -> str:
    """Say what is in a folder of neither layout."""
    entries = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in root.iterdir())
    found = f"it holds {first_few(entries)}" if entries else "it is empty"
    for wanted in ("labels.csv", "features.npy"):
        match = nearest(wanted, entries, cutoff=0.8)
        if match:
            found += f" (rename '{match}' to '{wanted}'?)"
    return f"'{root}' has neither labels.csv nor features.npy: {found}. Give {LAYOUTS}."


def _open_images(root: Path, seed: int) -> Dataset:
    folder = read_image_folder(root)
    splits = make_splits(len(folder.labels), folder.splits, seed=seed, source=folder.source)
    return Dataset(
        name=root.resolve().name,
        root=root,
        classes=folder.classes,
        labels=folder.labels,
        splits=splits,
        image_paths=folder.paths,
        names=folder.names,
        areas=folder.areas,
        warnings=(*folder.warnings, *_common_warnings(folder.labels, splits)),
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
