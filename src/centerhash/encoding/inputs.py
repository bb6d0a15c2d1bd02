"""What is to be encoded, in a fixed order: images by their paths, data sets and features in their own order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.core.rendering import is_text
from centerhash.data import list_images, open_dataset
from centerhash.data.dataset import find_layout, is_described
from centerhash.data.layouts.contents import LABEL_COLUMNS, read_header
from centerhash.data.layouts.parquet import SUFFIX, find_parquet, open_parquet
from centerhash.encoding.parts import Labels


class RowNames(Sequence[str]):
    """The names of rows without names, their numbers: made when they are asked for."""

    def __init__(self, rows: range) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> RowNames: ...
    def __getitem__(self, place: int | slice) -> str | RowNames:
        return RowNames(self._rows[place]) if isinstance(place, slice) else str(self._rows[place])


@dataclass(frozen=True, eq=False)
class Inputs:
    """N things to encode: their ids, and either image files or the rows of a features file; labels where given.

    An image may lie in a parquet file: `photos.parquet/12` is the image of its row 12.
    """

    ids: Sequence[str]
    images: Sequence[Path] | None = None  # absolute
    features: Path | None = None  # absolute; its N rows are the things to encode
    labels: NDArray[np.bool_] | None = None  # (N, C)
    classes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    root: Path | None = None  # of a data set

    @property
    def named(self) -> bool:
        """Whether the ids are names, not the row numbers of a features file."""
        return self.images is not None or self.root is not None

    def numbers(self) -> NDArray[np.int64] | None:
        """A number (N,) per item of a data set that no item of another folder has: a query knows its own item by it."""
        if self.root is None:
            return None
        folder = str(self.root.resolve())
        digests = (hashlib.blake2b(f"{folder}/{name}".encode(), digest_size=8).digest() for name in self.ids)
        return np.array([int.from_bytes(digest, "big", signed=True) for digest in digests], dtype=np.int64)

    def __post_init__(self) -> None:
        if isinstance(self.ids, RowNames):
            return
        for text in (*self.ids, *map(str, self.images or ())):
            if not is_text(text):
                raise DataError(
                    f"the name {text!a} is not UTF-8 and cannot be stored: rename the file, or the folder."
                )
        if len(set(self.ids)) < len(self.ids):
            twice = Counter(self.ids).most_common(1)[0][0]
            raise DataError(f"'{twice}' stands twice among the images: give each a name of its own.")

    def labels_of(self, rows: slice) -> list[Labels] | None:
        """The given labels of some of the N; None where none are given."""
        if self.labels is None:
            return None
        return [
            tuple(self.classes[column] for column in np.flatnonzero(row).tolist())
            for row in self.labels[rows]
        ]

    def fingerprint(self) -> str:
        """A digest of the ids, where the images are, and the labels; of files with many rows also size and time.

        The bytes of single images do not count, so that one that was broken may be repaired in between.
        """
        digest = hashlib.sha256()
        for row in self._described():
            digest.update(repr(row).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _described(self) -> Iterator[tuple[object, ...]]:
        for row, name in enumerate(self.ids):
            yield name, None if self.images is None else str(self.images[row])
        if self.labels is not None:
            yield "labels", self.classes, hashlib.sha256(np.packbits(self.labels).tobytes()).hexdigest()
        tables = {image.parent for image in self.images or () if image.parent.suffix == SUFFIX}
        for file in sorted(table for table in tables | {self.features} if table is not None):
            if file.is_file():
                status = file.stat()
                yield str(file), status.st_size, status.st_mtime_ns


def list_inputs(entries: Sequence[str], *, ordered: bool = False) -> Inputs:
    """Find what `entries` stand for: images, folders and globs, one labelled data set, or one features .npy.

    `ordered` images are sorted by their paths, so that the same images named in another order are the same inputs.
    """
    single = Path(entries[0]) if len(entries) == 1 else None
    if single is not None and single.suffix == ".npy":
        return _features_file(single)
    if single is not None and is_described(single):
        return _bare_parquet(single) or _data_set(single)
    paths = list_images(entries)
    if ordered:
        paths = sorted(paths, key=str)
    return Inputs([str(path) for path in paths], images=_absolute(paths))


def _features_file(path: Path) -> Inputs:
    shape = read_header(path).shape
    if len(shape) != 2:
        raise DataError(f"'{path}' must be of shape (N, D), one row per image, got {shape}.")
    return Inputs(RowNames(range(shape[0])), features=path.absolute())


def _data_set(root: Path) -> Inputs:
    found = open_dataset(root)
    images = None if found.features is not None else _absolute(found.image_paths or ())
    features = None if found.features is None else (root / "features.npy").absolute()
    return Inputs(found.names, images, features, found.labels, found.classes, found.warnings, found.root)


def _bare_parquet(root: Path) -> Inputs | None:
    """The images of parquet files without any column of labels, which are no data set to train on; else None."""
    layout = find_layout(root)
    if layout is None or layout.name != "parquet":
        return None
    images: list[Path] = []
    for file in find_parquet(root):
        opened = open_parquet(file)
        schema = opened.schema_arrow
        described = (schema.metadata or {}).get(b"huggingface", b"")
        if set(LABEL_COLUMNS) & set(schema.names) or b"ClassLabel" in described:
            return None
        images += [file / str(row) for row in range(opened.metadata.num_rows)]
    base = root if root.is_dir() else root.parent
    return Inputs([image.relative_to(base).as_posix() for image in images], images=_absolute(images))


def _absolute(paths: Iterable[Path]) -> list[Path]:
    return [path.absolute() for path in paths]
