"""A data set: labels, splits, and either images or precomputed features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, InputError, unknown_name
from centerhash.core.rendering import is_text
from centerhash.data.layouts.arrays import no_labels, read_arrays, read_labels
from centerhash.data.layouts.contents import Contents
from centerhash.data.layouts.parquet import SUFFIX
from centerhash.data.layouts.table import read_layout
from centerhash.data.splits import SPLIT_NAMES, Splits, as_indices, check_splits, make_splits

if TYPE_CHECKING:  # torch takes long to import
    from centerhash.data.torch_items import TorchItems, Transform

# rows of one split, as a caller has them: an array, a tensor, a list
Rows: TypeAlias = NDArray[Any] | Sequence[int] | Any | None


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labels (N, C) of N images, their splits, and where the images or their features (N, D) are.

    `names` are the file names or, for features, the row numbers. `areas` (N, C) is the share of the frame
    that each label covers, where known. Images without labels have C = 0. Arrays are read-only.
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
        for kind, texts in (("class", self.classes), ("name", self.names)):
            if not is_text("\n".join(texts)):  # nothing could be written about it
                wrong = next(text for text in texts if not is_text(text))
                raise DataError(f"the {kind} {wrong!a} is not UTF-8 text: rename its file or folder.")
        lengths = {"features": self.features, "image_paths": self.image_paths, "names": self.names}
        for field, values in lengths.items():
            if values is not None and len(values) != self.size:
                raise DataError(f"{field} has {len(values):,} entries for {self.size:,} rows of labels.")
        if self.areas is not None and self.areas.shape != self.labels.shape:
            raise DataError(f"areas has shape {self.areas.shape}, labels {self.labels.shape}.")
        object.__setattr__(self, "labels", _read_only(self.labels))
        if self.areas is not None:
            object.__setattr__(self, "areas", _read_only(self.areas))

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
        """A data set of features in memory: numpy arrays, torch tensors or lists.

        Args:
            features: (N, D), finite; float16 and float32 are kept as they are, other numbers become float32.
            labels: (N, C) of bool or 0 and 1; or for each image its label names, such as [["dog"], ["cat", "dog"]];
                None where nothing is known.
            classes: names of the C columns; "0", "1", ... without them, or all names in `labels`, sorted.
            names: of the N images; their row numbers without them.
            train: row numbers to train on. Splits that are not given are drawn with `seed`, as by `open_dataset`.
            query: row numbers of the queries.
            database: row numbers to search among.
            seed: of the splits that are drawn.
            name: of the data set.

        """
        contents = _named(read_arrays(features, labels, classes), names)
        return _in_memory(contents, {"train": train, "query": query, "database": database}, seed, name)

    @classmethod
    def from_images(
        cls,
        paths: Iterable[str | Path],
        labels: Any = None,
        classes: Iterable[str] | None = None,
        *,
        names: Iterable[str] | None = None,
        train: Rows = None,
        query: Rows = None,
        database: Rows = None,
        seed: int = 0,
        name: str = "images",
    ) -> Dataset:
        """A data set of image files, called by their paths unless `names` are given; the rest as in `from_arrays`."""
        if isinstance(paths, str | Path) or not isinstance(paths, Iterable):
            raise InputError(
                f"paths must be a list of image files, got {paths!r}: use open_dataset for a folder."
            )
        files = tuple(map(_as_path, paths))
        found, truth = no_labels(len(files)) if labels is None else read_labels(labels, classes)
        if len(files) != len(truth):
            raise InputError(
                f"{len(files):,} paths, but {len(truth):,} rows of labels: give one row per image."
            )
        contents = _named(Contents(tuple(map(str, files)), found, truth, paths=files), names)
        return _in_memory(contents, {"train": train, "query": query, "database": database}, seed, name)

    @classmethod
    def from_torch(cls, dataset: Any, classes: Iterable[str] | None = None, **more: Any) -> Dataset:
        """A data set of the items of a torch Dataset: pairs of features (D,) and labels (C,) of 0 and 1.

        The items are read once, one by one; `more` as in `from_arrays`. Images are refused: `from_images` reads
        their files, without keeping them all in memory.
        """
        from centerhash.data.torch_items import read_items

        return cls.from_arrays(*read_items(dataset), classes, **{"name": "torch", **more})

    def to_torch(self, split: str | None = None, transform: Transform | None = None) -> TorchItems:
        """A torch Dataset of "train", "query", "database", or all rows, for a DataLoader and a loop of one's own.

        Items are pairs: features (D,) float32, or what `transform` makes of the upright RGB image, uint8
        (3, height, width) without it; and labels (C,) bool. An image is read when it is asked for.
        """
        from centerhash.data.torch_items import TorchItems, as_tensor

        if split is not None and split not in SPLIT_NAMES:
            raise unknown_name("split", split, SPLIT_NAMES)
        rows = np.arange(self.size) if split is None else getattr(self.splits, split)
        source = self.image_paths if self.features is None else self.features
        assert source is not None  # checked when it was made
        return TorchItems(source, self.labels, rows, transform or as_tensor)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        held = "images" if self.features is None else f"x {self.features.shape[1]:,} features"
        splits = " / ".join(f"{name} {len(rows):,}" for name, rows in self.splits.items())
        labels = f"{len(self.classes):,} classes" if self.has_labels else "no labels"
        return f"Dataset({self.name!r}, {self.size:,} {held}, {labels}, {splits})"

    @property
    def size(self) -> int:
        """The number of rows N."""
        return len(self.labels)

    @property
    def kind(self) -> Literal["images", "features"]:
        """What the data set holds; features win where there are both."""
        return "images" if self.features is None else "features"

    @property
    def has_labels(self) -> bool:
        """Whether anything is known of what the images show."""
        return bool(self.classes)

    def check_labels(self, purpose: str) -> None:
        """Refuse data without labels for a `purpose` that needs some, such as "scoring"."""
        if not self.has_labels:
            raise DataError(
                f"{purpose} needs labels, and '{self.root}' has none: describe the images in a labels.csv "
                "(file_name,labels), or sort them into a folder per class."
            )

    def with_splits(self, splits: Splits) -> Dataset:
        """Return the same data with other splits, which must fit it."""
        check_splits(splits, self.size)
        return replace(self, splits=splits)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()  # the caller's own array stays writable
    view.setflags(write=False)
    return view


def _as_path(value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise InputError(f"a path must be a str or a Path, got {value!r}.")
    return Path(value)


def _named(contents: Contents, names: Iterable[str] | None) -> Contents:
    if names is None:
        return contents
    given = () if isinstance(names, str) or not isinstance(names, Iterable) else tuple(map(str, names))
    if len(given) != len(contents.names):
        raise InputError(
            f"names must be {len(contents.names):,}, one per image, got {len(given) or repr(names)}."
        )
    return replace(contents, names=given)


def _in_memory(contents: Contents, rows: Mapping[str, Rows], seed: int, name: str) -> Dataset:
    given = {split: as_indices(members, split) for split, members in rows.items() if members is not None}
    return complete(replace(contents, splits=given, source="given"), name, Path(), seed)


def open_dataset(path: str | Path, seed: int = 0, *, labels: bool = True) -> Dataset:
    """Open and check a data set of any layout; splits that it does not name are drawn with `seed`.

    A folder of images that nothing describes and that are not sorted into folders has no labels, and with
    `labels=False` no data set has any: folders are then albums, not classes.
    """
    root = _as_path(path)
    contents = read_layout(root, labels)
    return complete(contents, root.resolve().name.removesuffix(SUFFIX), root, seed)


def complete(contents: Contents, name: str, root: Path, seed: int) -> Dataset:
    """The data set of some contents; splits that they do not name are drawn."""
    splits = make_splits(len(contents.labels), contents.splits, seed=seed, source=contents.source)
    warnings = check_splits(splits, len(contents.labels))
    bare = int((~contents.labels.any(axis=1)).sum())
    if bare and contents.classes:
        warnings.append(
            f"{bare:,} of {len(contents.labels):,} rows carry no label: "
            "they teach nothing and are relevant to no query."
        )
    return assemble(contents, name, root, splits, warnings)


def assemble(contents: Contents, name: str, root: Path, splits: Splits, warnings: Sequence[str]) -> Dataset:
    """The data set of some contents with chosen splits; `warnings` are added to their own."""
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
