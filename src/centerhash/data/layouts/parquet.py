"""Read parquet files with images and labels, as the library `datasets` writes them.

An image in a parquet file is addressed by a path through it: `photos.parquet/12` is the image of row 12. Such
paths work wherever paths of images do. Image bytes are read on demand, in small blocks.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

from centerhash.core.errors import DataError, ImageError
from centerhash.core.extras import require
from centerhash.core.files import check_budget, parse_json
from centerhash.data.layouts.contents import (
    CATEGORY_KEYS,
    LABEL_COLUMNS,
    Cell,
    Contents,
    given_classes,
    label_matrix,
    missing_column,
    named_splits,
    read_cell,
    register_layout,
    subfolders,
)
from centerhash.data.splits import file_split, folder_split, splits_from_words

SUFFIX = ".parquet"
_BLOCK = 16  # images that are read together: a few megabytes of photos
_KEPT_BLOCKS = 8  # per file, for threads that run a little ahead of each other
_OPEN_FILES = 4
_ROWS = 256  # rows whose labels are read together
_ROW_BYTES = 600  # that a row takes in memory, measured: its label, name and path


def find_parquet(root: Path) -> list[Path]:
    """Return the file itself, or the parquet files of a folder, its `data/` and its split folders."""
    if root.is_file():
        return [root] if root.suffix == SUFFIX else []
    inner = (place for place in subfolders(root) if place.name == "data" or folder_split(place.name))
    return sorted(file for place in (root, *inner) for file in place.glob(f"*{SUFFIX}") if file.is_file())


@register_layout(
    "parquet",
    find_parquet,
    "a parquet file, or a folder of them, as the library datasets writes them (image, labels)",
)
def read_parquet(root: Path) -> Contents:
    """Read the labels of a parquet file, or of all in a folder; the images stay where they are.

    Splits are told by names such as `train-00000-of-00002.parquet`. Class numbers get their names from the file's own
    description or from `classes.txt`.
    """
    parts = [_read_part(file) for file in find_parquet(root)]
    cells = [cell for part in parts for cell in part.cells]
    if not cells:
        raise DataError(f"'{root}' holds no rows: write one row per image.")
    paths = tuple(part.file / str(row) for part in parts for row in range(len(part.cells)))
    names = tuple(name or "" for part in parts for name in part.names)
    if not all(names) or len(set(names)) < len(names):  # not each has a name of its own: file and row
        base = root if root.is_dir() else root.parent
        names = tuple(path.relative_to(base).as_posix() for path in paths)
    described = [part for part in parts if part.classes]
    for part in described:
        if part.classes != described[0].classes:
            raise DataError(
                f"'{described[0].file}' and '{part.file}' name their classes differently: write both from one "
                "dataset, or keep them in two folders."
            )
    given = given_classes(root)
    classes, labels = label_matrix(
        cells,
        given or (described[0].classes if described else None),
        lambda row: f"'{paths[row]}'",
        "classes.txt" if given else "the file's own description",
    )
    words = [
        word
        for part in parts
        for word in [file_split(part.file.stem) or folder_split(part.file.parent.name)] * len(part.cells)
    ]
    splits, source = named_splits(root, names, splits_from_words(words), "file names")
    return Contents(names, classes, labels, splits, source, paths)


@dataclass(frozen=True)
class _Part:
    """The labels of one file's rows, the images' own names, and the classes if the file describes them."""

    file: Path
    cells: list[Cell]
    names: list[str | None]
    classes: tuple[str, ...] | None


def open_parquet(file: Path) -> Any:
    """Open a parquet file; its columns are read later."""
    pyarrow, parquet = require("pyarrow"), require("pyarrow.parquet")

    try:
        # without these two, a row group is read whole, however many images it holds
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"'{file}' is no parquet file, or a damaged one: {error}. Copy it again.") from error


def _read_part(file: Path) -> _Part:
    """Read everything of a file but the image bytes."""
    import pyarrow

    opened = open_parquet(file)
    schema, rows = opened.schema_arrow, opened.metadata.num_rows
    features = _described_features(schema)
    image = _image_column(file, schema, features)
    column = _label_column(file, schema.names, features, image)
    wanted = [column, f"{image}.path"] if _has_field(schema, image, "path") else [column]
    part = _Part(file, [], [], _class_names(features.get(column)))
    known: dict[str | int, str | int] = {}  # a label is kept once, however many rows carry it
    needed = _ROW_BYTES * rows
    what, advice = f"the labels of its {rows:,} rows", "Write it again in several files, or copy it again."
    check_budget(file, needed, what, advice)
    try:
        for batch in opened.iter_batches(batch_size=_ROWS, columns=wanted, use_threads=False):
            needed += 2 * batch.nbytes  # one long text, stored once, may be that of every row
            check_budget(file, needed, what, advice)
            values = batch.column(column).to_pylist()
            paths = batch.column(image).to_pylist() if len(wanted) > 1 else [None] * len(values)
            part.names.extend(entry and entry["path"] for entry in paths)
            for row, value in enumerate(values, len(part.cells)):
                cell = read_cell(value, f"'{file / str(row)}'")
                part.cells.append(tuple(known.setdefault(label, label) for label in cell))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"'{file}' cannot be read: {error}. Copy it again.") from error
    return part


def _described_features(schema: Any) -> Mapping[str, Any]:
    """Return what `datasets` wrote about the columns; anything else there is ignored."""
    try:
        described = parse_json((schema.metadata or {}).get(b"huggingface", b"{}").decode())
        features = described.get("info", {}).get("features", {})
    except (ValueError, AttributeError):
        return {}
    return features if isinstance(features, dict) else {}


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """Return the names of the ClassLabel inside a column's description, however deep in lists and objects."""
    if isinstance(feature, list):
        feature = feature[0] if feature else None
    if not isinstance(feature, dict):
        return None
    if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list):
        return tuple(map(str, feature["names"]))
    inner = [feature.get(key) for key in ("feature", *CATEGORY_KEYS)]
    return next((names for names in map(_class_names, inner) if names), None)


def _has_field(schema: Any, column: str, field: str) -> bool:
    from pyarrow import types

    kind = schema.field(column).type
    return bool(types.is_struct(kind) and kind.get_field_index(field) >= 0)


def _image_column(file: Path, schema: Any, features: Mapping[str, Any]) -> str:
    """Return the column that is described as images, or else is called `image`; it must hold bytes."""
    described = [
        name for name, kind in features.items() if isinstance(kind, dict) and kind.get("_type") == "Image"
    ]
    found = next((name for name in (*described, "image") if name in schema.names), None)
    if found is None:
        raise DataError(missing_column(f"'{file}'", "image", schema.names))
    kind = schema.field(found).type
    if str(kind) not in ("binary", "large_binary") and not _has_field(schema, found, "bytes"):
        raise DataError(
            f"'{file}': the column '{found}' holds {kind}, but must hold the bytes of image files, or "
            "{bytes, path} as `datasets` writes them."
        )
    return found


def _label_column(file: Path, columns: Sequence[str], features: Mapping[str, Any], image: str) -> str:
    """Return `labels`, `label` or `objects`, or else the only column that is described as classes."""
    found = next((name for name in LABEL_COLUMNS if name in columns), None)
    if found is not None:
        return found
    described = [name for name in columns if _class_names(features.get(name))]
    if len(described) == 1:
        return described[0]
    if described:
        raise DataError(
            f"'{file}' has several columns of classes, {', '.join(described)}: rename the one to learn to 'labels'."
        )
    raise DataError(missing_column(f"'{file}'", "labels", [name for name in columns if name != image]))


# ---------------------------------------------------------------- image bytes


def is_stored_image(path: Path) -> bool:
    """Whether a path leads through a parquet file to one of its rows."""
    return path.parent.suffix == SUFFIX and path.name.isdecimal() and os.path.isfile(path.parent)  # noqa: PTH113 - raises nothing


def stored_image(path: Path) -> bytes:
    """Return the bytes of the image at a path such as `photos.parquet/12`."""
    file = path.parent
    try:
        status = file.stat()
        opened = _stored_images(file, status.st_mtime_ns, status.st_size)
        data = opened.read(int(path.name))
    except (OSError, DataError, IndexError) as error:
        raise ImageError(f"cannot read '{path}': {error}") from error
    if not isinstance(data, bytes):
        raise ImageError(f"cannot read '{path}': the row holds no image bytes. Write them into the file.")
    return data


@lru_cache(maxsize=_OPEN_FILES)
def _stored_images(file: Path, changed: int, size: int) -> _StoredImages:
    """Open a file once; one that was changed is another file."""
    return _StoredImages(file)


class _StoredImages:
    """The images of one parquet file by row. Reading on from the last row is cheap; going back starts a row group."""

    def __init__(self, file: Path) -> None:
        self._file = open_parquet(file)
        schema = self._file.schema_arrow
        column = _image_column(file, schema, _described_features(schema))
        self._is_struct = _has_field(schema, column, "bytes")
        self._leaf = f"{column}.bytes" if self._is_struct else column
        groups = range(self._file.num_row_groups)
        self._ends = list(accumulate(self._file.metadata.row_group(group).num_rows for group in groups))
        self._blocks: OrderedDict[tuple[int, int], list[bytes | None]] = OrderedDict()
        self._ahead: Iterator[tuple[tuple[int, int], list[bytes | None]]] = iter(())
        self._next = (-1, 0)  # the block that `_ahead` yields next
        self._lock = Lock()

    def read(self, row: int) -> bytes | None:
        """Return the bytes of a row, or None if it holds none."""
        group = bisect_right(self._ends, row)
        if group == len(self._ends):
            raise IndexError(f"the file has {max(self._ends, default=0):,} rows.")
        row -= self._ends[group - 1] if group else 0
        block = (group, row // _BLOCK)
        with self._lock:
            if block not in self._blocks:
                self._read_block(block)
            self._blocks.move_to_end(block)
            return self._blocks[block][row % _BLOCK]

    def _read_block(self, block: tuple[int, int]) -> None:
        """Read on to a block, from the start of its row group if it lies behind."""
        import pyarrow

        if self._next[0] != block[0] or self._next > block:
            self._ahead, self._next = self._blocks_of(block[0]), (block[0], 0)
        try:
            for found, images in self._ahead:
                self._next = (found[0], found[1] + 1)
                if found == block:
                    self._blocks[found] = images
                    while len(self._blocks) > _KEPT_BLOCKS:
                        self._blocks.popitem(last=False)
                    return
        except (pyarrow.ArrowException, OSError) as error:
            self._next = (-1, 0)
            raise DataError(f"the parquet file is damaged ({error}). Copy it again.") from error
        raise IndexError("the row group ends early.")

    def _blocks_of(self, group: int) -> Iterator[tuple[tuple[int, int], list[bytes | None]]]:
        """Yield the blocks of one row group in order."""
        batches = self._file.iter_batches(
            batch_size=_BLOCK, row_groups=[group], columns=[self._leaf], use_threads=False
        )
        for number, batch in enumerate(batches):
            values = batch.column(0)
            yield (group, number), (values.field(0) if self._is_struct else values).to_pylist()
