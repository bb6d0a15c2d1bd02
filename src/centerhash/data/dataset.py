"""The class `Dataset`: labels, splits, and either images or precomputed features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError, InputError, unknown_name
from centerhash.core.files import utf8_text
from centerhash.data.layouts.arrays import read_arrays, read_labels, row_names
from centerhash.data.layouts.common import Contents, no_labels
from centerhash.data.layouts.detection import read_layout
from centerhash.data.published import DATASETS, get_dataset
from centerhash.data.published.catalogue import read_published
from centerhash.data.published.list_files import read_lists
from centerhash.data.splits import SPLIT_NAMES, Splits, check_splits, make_splits

if TYPE_CHECKING:  # torch imports slowly
    from centerhash.data.torch_items import TorchItems, Transform

# Row numbers are an array, a tensor or a list.
Rows: TypeAlias = NDArray[Any] | Sequence[int] | Any | None


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labels (N, C) of N images, their splits, and the paths of the images or their features (N, D).

        data = open_dataset("photos")
        data = Dataset.from_arrays(features, labels)
        loader = torch.utils.data.DataLoader(data.to_torch("train"), batch_size=64)

    `names` are the file names or, for features, the row numbers. `areas` (N, C) is the share of the frame that each label
    covers, if known. Images without labels have C = 0. Arrays are read-only.
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
        if self.features is None and self.image_paths is None:
            raise DataError("a dataset needs features or image paths.")
        object.__setattr__(self, "names", self.names or row_names(self.size))
        rows, columns = self.labels.shape
        lengths = {"features": rows, "image_paths": rows, "names": rows, "classes": columns}
        for field, length in lengths.items():
            values = getattr(self, field)
            if values is not None and len(values) != length:
                raise DataError(f"{field} has {len(values):,} entries for labels {self.labels.shape}.")
        if self.areas is not None and self.areas.shape != self.labels.shape:
            raise DataError(f"areas has shape {self.areas.shape}, labels {self.labels.shape}.")
        for name in (*self.classes, *self.names):
            if utf8_text(name) != name:
                raise DataError(f"the name {name!a} is not UTF-8 text: rename its file or folder.")
        object.__setattr__(self, "labels", _read_only(self.labels))
        object.__setattr__(self, "areas", None if self.areas is None else _read_only(self.areas))

    @classmethod
    def from_arrays(
        cls,
        features: Any,
        labels: Any = None,
        classes: Iterable[str] | None = None,
        *,
        names: Iterable[str] | None = None,
        train: Rows = None,
        query: Rows = None,
        database: Rows = None,
        seed: int = 0,
        name: str = "arrays",
    ) -> Dataset:
        """Create a dataset of features in memory: numpy arrays, torch tensors or lists.

        Args:
            features: (N, D), finite; float16 and float32 are kept as they are, other numbers become float32.
            labels: (N, C) of bool or 0 and 1; or for each image its label names, such as [["dog"], ["cat", "dog"]];
                None without labels.
            classes: names of the C columns, by default "0", "1", ... or all names in `labels`, sorted.
            names: names of the N images, by default their row numbers.
            train, query, database: row numbers. Missing splits are drawn with `seed`, as by `open_dataset`.
            seed: seed of random splits.
            name: name of the dataset.

        """
        contents = read_arrays(features, labels, classes)
        rows = {"train": train, "query": query, "database": database}
        return _in_memory(contents, names=names, seed=seed, name=name, **rows)

    @classmethod
    def from_images(
        cls,
        paths: Iterable[str | Path],
        labels: Any = None,
        classes: Iterable[str] | None = None,
        **more: Any,
    ) -> Dataset:
        """Create a dataset of image files, whose default `names` are their paths; `more` as in `from_arrays`."""
        if isinstance(paths, str | Path):
            raise InputError(f"paths must be a list of files, got {paths!r}: use open_dataset for a folder.")
        files = tuple(map(Path, paths))
        columns, truth = no_labels(len(files)) if labels is None else read_labels(labels, classes)
        contents = Contents(tuple(map(str, files)), columns, truth, paths=files)
        return _in_memory(contents, **{"name": "images", **more})

    @classmethod
    def from_torch(cls, dataset: Any, classes: Iterable[str] | None = None, **more: Any) -> Dataset:
        """Create a dataset from a torch Dataset of pairs: features (D,) and labels (C,) of 0 and 1.

        The items are read once, one by one; `more` as in `from_arrays`. Images are rejected: `from_images` reads
        their files without keeping them in memory.
        """
        from centerhash.data.torch_items import read_items

        return cls.from_arrays(*read_items(dataset), classes, **{"name": "torch", **more})

    def to_torch(self, split: str | None = None, transform: Transform | None = None) -> TorchItems:
        """Return a torch Dataset of "train", "query", "database", or all rows, for a DataLoader and a custom loop.

        Items are pairs of features (D,) float32 and labels (C,) bool. Instead of features, datasets of images have the
        result of `transform` for the upright RGB image, by default uint8 (3, height, width), read on access.
        """
        from centerhash.data.torch_items import TorchItems, as_tensor

        if split is not None and split not in SPLIT_NAMES:
            raise unknown_name("split", split, SPLIT_NAMES)
        rows = np.arange(self.size) if split is None else getattr(self.splits, split)
        source = self.image_paths if self.features is None else self.features
        assert source is not None  # __post_init__ checks this
        return TorchItems(source, self.labels, rows, transform or as_tensor)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        kind = "images" if self.features is None else f"x {self.features.shape[1]:,} features"
        splits = " / ".join(f"{name} {len(rows):,}" for name, rows in self.splits.items())
        labels = f"{len(self.classes):,} classes" if self.has_labels else "no labels"
        return f"Dataset({self.name!r}, {self.size:,} {kind}, {labels}, {splits})"

    @property
    def size(self) -> int:
        """Return the number of rows N."""
        return len(self.labels)

    @property
    def kind(self) -> Literal["images", "features"]:
        """Return "features", or "images" if the dataset has no features."""
        return "images" if self.features is None else "features"

    @property
    def has_labels(self) -> bool:
        """Return whether the images have labels."""
        return bool(self.classes)

    def check_labels(self, purpose: str) -> None:
        """Raise DataError without labels for a `purpose` that needs them, such as "scoring"."""
        if not self.has_labels:
            raise DataError(
                f"{purpose} needs labels, and '{self.root}' has none: describe the images in a labels.csv "
                "(file_name,labels), or sort them into a folder per class."
            )

    def with_splits(self, splits: Splits) -> Dataset:
        """Return the same data with other splits, which are checked."""
        check_splits(splits, self.size)
        return replace(self, splits=splits)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()  # the caller's array stays writable
    view.setflags(write=False)
    return view


def _in_memory(
    contents: Contents, *, name: str, names: Iterable[str] | None = None, seed: int = 0, **rows: Rows
) -> Dataset:
    if names is not None:
        contents = replace(contents, names=tuple(map(str, names)))
    splits = {split: members for split, members in rows.items() if members is not None}
    return _build_dataset(contents, name, Path(), make_splits(len(contents.labels), splits, seed=seed))


def open_dataset(
    path: str | Path,
    seed: int = 0,
    *,
    root: str | Path | None = None,
    lists: str | Path | None = None,
    labels: bool = True,
) -> Dataset:
    """Open and check a dataset: a path in any layout, or a published dataset by its name.

    Args:
        path: a folder; with `root`, the name of a published dataset (see `centerhash datasets`).
        seed: seed of random splits, if the data defines none.
        root: folder that holds the published dataset, in a subfolder or directly.
        lists: folder of list files (train.txt, test.txt, database.txt, as HashNet ships them) that define images,
            labels and splits instead.
        labels: False ignores the labels; folders are then albums, not classes.

    """
    if not isinstance(path, str | Path):
        raise InputError(f"a dataset is named by its folder or its name, got {type(path).__name__}.")
    if not labels and (root is not None or lists is not None):
        raise ConfigError("`labels=False` is for a folder of images: omit `root=` and `lists=`.")
    folder, name = Path(path), Path(path).resolve().name
    if root is not None:
        row = get_dataset(str(path))
        if lists is None:
            folder, contents, splits = read_published(row, Path(root), seed)
            return _build_dataset(contents, row.name, folder, splits)
        name, folder = row.name, Path(root) / row.folder
        folder = folder if folder.is_dir() else Path(root)
    elif str(path) in DATASETS and not folder.exists():
        raise ConfigError(f"'{path}' is a published dataset: give the folder that holds it as `root=`.")
    contents = read_layout(folder, labels) if lists is None else read_lists(Path(lists), folder)
    splits = make_splits(len(contents.names), contents.splits, seed=seed, source=contents.source)
    return _build_dataset(contents, name, folder, splits)


def _build_dataset(contents: Contents, name: str, root: Path, splits: Splits) -> Dataset:
    warnings = check_splits(splits, len(contents.labels))
    unlabeled = int((~contents.labels.any(axis=1)).sum())
    if unlabeled and contents.classes:
        warnings.append(
            f"{unlabeled:,} of {len(contents.labels):,} rows carry no label: training learns nothing from them, and they "
            "are relevant to no query."
        )
    return Dataset(
        name=name,
        root=root,
        classes=contents.classes,
        labels=contents.labels,
        splits=splits,
        features=contents.features,
        image_paths=contents.paths,
        names=contents.names,
        areas=contents.areas,
        warnings=(*contents.warnings, *warnings),
    )
