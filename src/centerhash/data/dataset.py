"""Open a dataset: labels, splits, and either images or precomputed features."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError, InputError, nearest, unknown_name
from centerhash.core.rendering import is_text
from centerhash.data.images import is_picture_name
from centerhash.data.layouts import class_folders, coco_json  # noqa: F401  (they register themselves)
from centerhash.data.layouts.arrays import read_arrays, read_labels
from centerhash.data.layouts.contents import LAYOUTS, Contents, Layout, first_few, no_labels
from centerhash.data.layouts.parquet import SUFFIX
from centerhash.data.layouts.tabular import METADATA
from centerhash.data.published import DATASETS, get_dataset, read_lists, read_published
from centerhash.data.splits import SPLIT_NAMES, Splits, as_indices, check_splits, make_splits

if TYPE_CHECKING:  # torch takes long to import
    from centerhash.data.torch_items import TorchItems, Transform

# rows of one split, as a caller has them: an array, a tensor, a list
Rows: TypeAlias = NDArray[Any] | Sequence[int] | Any | None


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Hold labels (N, C) of N images, their splits, and the paths of the images or their features (N, D).

    `names` are the file names or, for features, the row numbers. `areas` (N, C) is the share of the frame
    that each label covers, if known. Images without labels have C = 0. Arrays are read-only.
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
            raise DataError("a dataset needs features or image paths.")
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
        """Create a dataset of features in memory: numpy arrays, torch tensors or lists.

        Args:
            features: (N, D), finite; float16 and float32 are kept as they are, other numbers become float32.
            labels: (N, C) of bool or 0 and 1; or for each image its label names, such as [["dog"], ["cat", "dog"]];
                None without labels.
            classes: names of the C columns; "0", "1", ... without them, or all names in `labels`, sorted.
            names: of the N images; their row numbers without them.
            train: row numbers to train on. Missing splits are drawn with `seed`, as by `open_dataset`.
            query: row numbers of the queries.
            database: row numbers of the database.
            seed: of the splits that are drawn.
            name: of the dataset.

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
        """Create a dataset of image files, named by their paths unless `names` are given; else as `from_arrays`."""
        if isinstance(paths, str | Path) or not isinstance(paths, Iterable):
            raise InputError(f"paths must be a list of files, got {paths!r}: use open_dataset for a folder.")
        files = tuple(map(_as_path, paths))
        found, truth = no_labels(len(files)) if labels is None else read_labels(labels, classes)
        if len(files) != len(truth):
            raise InputError(f"{len(files):,} paths, but {len(truth):,} rows of labels: give one per image.")
        contents = _named(Contents(tuple(map(str, files)), found, truth, paths=files), names)
        return _in_memory(contents, {"train": train, "query": query, "database": database}, seed, name)

    @classmethod
    def from_torch(cls, dataset: Any, classes: Iterable[str] | None = None, **more: Any) -> Dataset:
        """Create a dataset from a torch Dataset of pairs: features (D,) and labels (C,) of 0 and 1.

        The items are read once, one by one; `more` as in `from_arrays`. Images are rejected: `from_images` reads
        their files without keeping them in memory.
        """
        from centerhash.data.torch_items import read_items

        return cls.from_arrays(*read_items(dataset), classes, **{"name": "torch", **more})

    def to_torch(self, split: str | None = None, transform: Transform | None = None) -> TorchItems:
        """Return a torch Dataset of "train", "query", "database", or all rows, for a DataLoader and your own loop.

        Items are pairs of features (D,) float32 and labels (C,) bool. Instead of features, datasets of images have the
        result of `transform` for the upright RGB image, by default uint8 (3, height, width), read on access.
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
        """Whether the dataset holds features or images; features if it holds both."""
        return "images" if self.features is None else "features"

    @property
    def has_labels(self) -> bool:
        """Whether the images have labels."""
        return bool(self.classes)

    def check_labels(self, purpose: str) -> None:
        """Reject data without labels for a `purpose` that needs them, such as "scoring"."""
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
        raise InputError(f"names must be {len(contents.names):,}, one each, got {len(given) or repr(names)}.")
    return replace(contents, names=given)


def _in_memory(contents: Contents, rows: Mapping[str, Rows], seed: int, name: str) -> Dataset:
    given = {split: as_indices(members, split) for split, members in rows.items() if members is not None}
    return _assembled(contents, name, Path(), make_splits(len(contents.labels), given, seed=seed))


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
        path: a folder or parquet file; with `root`, the name of a published dataset (see `centerhash datasets`).
        seed: of random splits, if the data defines none.
        root: folder that holds the published dataset, in its own folder or directly.
        lists: folder of list files (train.txt, test.txt, database.txt, as HashNet ships them) that give images,
            labels and splits instead.
        labels: False ignores the labels; folders are then albums, not classes.

    """
    place = _as_path(path)
    if not labels and (root is not None or lists is not None):
        raise ConfigError("`labels=False` is for a folder of images: omit `root=` and `lists=`.")
    if root is not None:
        row = get_dataset(str(path))
        home = Path(root) / row.folder
        if lists is not None:
            return _from_lists(Path(lists), home if home.is_dir() else Path(root), row.name)
        home, contents, splits = read_published(row, Path(root), seed)
        return _assembled(contents, row.name, home, splits)
    if str(path) in DATASETS and not place.exists():
        raise ConfigError(f"'{path}' is a published dataset: give the folder that holds it as `root=`.")
    if lists is not None:
        return _from_lists(Path(lists), place, place.resolve().name)
    contents = read_layout(place, labels)
    splits = make_splits(len(contents.labels), contents.splits, seed=seed, source=contents.source)
    return _assembled(contents, place.resolve().name.removesuffix(SUFFIX), place, splits)


def _from_lists(lists: Path, root: Path, name: str) -> Dataset:
    contents = read_lists(lists, root)
    splits = make_splits(len(contents.names), contents.splits, source=contents.source)
    return _assembled(contents, name, root, splits)


def _assembled(contents: Contents, name: str, root: Path, splits: Splits) -> Dataset:
    warnings = check_splits(splits, len(contents.labels))
    bare = int((~contents.labels.any(axis=1)).sum())
    if bare and contents.classes:
        warnings.append(
            f"{bare:,} of {len(contents.labels):,} rows carry no label: "
            "they teach nothing and are relevant to no query."
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


# ---------------------------------------------------------------- which layout a folder has


def read_layout(root: Path, labels: bool = True) -> Contents:
    """Read the dataset at a path, of any layout; without `labels`, drop those that it has."""
    try:
        if not root.exists():
            raise DataError(
                f"no such folder: '{root}'. Check the path; see docs/reference/data-layouts.md for layouts."
            )
        if root.is_dir():
            os.scandir(root).close()
    except OSError as error:
        raise DataError(f"cannot read '{root}': {error.strerror or error}.") from None
    if root.is_file() and root.suffix != SUFFIX:
        raise DataError(f"'{root}' is a file, not a folder. Give {_all_layouts()}.")
    layout = find_layout(root)
    if labels and layout is not None and layout.name == "bare" and _misspelled(root):
        layout = None  # rather an error than a training run without the labels that somebody wrote
    if layout is None:
        entries = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in root.iterdir())
        found = f"it holds {first_few(entries)}" if entries else "it is empty"
        raise DataError(f"'{root}' is no dataset: {found}{_misspelled(root)}. Give {_all_layouts()}.")
    if labels:
        return layout.read(root)
    contents = (layout if layout.by_file else LAYOUTS["bare"]).read(root)
    classes, none = no_labels(len(contents.names))
    return replace(contents, classes=classes, labels=none, areas=None)


def find_layout(root: Path) -> Layout | None:
    """Return the layout of a folder or parquet file, None if there is none; two at once are an error.

    Folders of images count as classes only if no file describes them, and images that are neither described nor
    sorted have no labels.
    """
    if root.is_file():
        return LAYOUTS["parquet"]
    described = [(layout, found[0]) for layout, found in _detected(root, by_file=True)]
    if len(described) > 1:
        both = " and ".join(
            f"{file.relative_to(root).as_posix()} ({layout.name})" for layout, file in described[:2]
        )
        raise DataError(f"'{root}' holds both {both}: keep them in two folders.")
    return next((layout for layout, _ in described or _detected(root, by_file=False)), None)


def _detected(root: Path, *, by_file: bool) -> Iterator[tuple[Layout, Sequence[Path]]]:
    for layout in LAYOUTS.values():
        if layout.by_file == by_file and (found := layout.detect(root)):
            yield layout, found


def is_described(path: Path) -> bool:
    """Whether a file describes the images at `path`; the names of folders alone do not."""
    if not path.is_dir() and not (path.is_file() and path.suffix == SUFFIX):
        return False
    layout = find_layout(path)
    return layout is not None and layout.by_file


def _misspelled(root: Path) -> str:
    """Point to a file whose name is nearly that of a description, or return nothing."""
    files = [entry.name for entry in root.iterdir() if not is_picture_name(entry.name)]
    for wanted in ("labels.csv", "features.npy", *METADATA):
        match = nearest(wanted, files, cutoff=0.8)
        if match:
            return f" (rename '{match}' to '{wanted}'?)"
    return ""


def _all_layouts() -> str:
    ordered = sorted(LAYOUTS.values(), key=lambda layout: not layout.by_file)
    return ",\n  or ".join(layout.description for layout in ordered)
