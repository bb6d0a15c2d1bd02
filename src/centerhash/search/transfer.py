"""Into a collection and out of it without a picture: labels of data sets, codes of .npz files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, packed_width
from centerhash.core.errors import DataError
from centerhash.core.files import read_npz, write_npz
from centerhash.data.layouts.labels_csv import read_image_folder
from centerhash.encoding.code_files import _whole_number as whole
from centerhash.search.answers import as_found

if TYPE_CHECKING:
    from centerhash.search import Added, Collection


def given_labels(entries: Sequence[str | Path]) -> dict[Path, tuple[str, ...]]:
    """The labels of every image in those of the `entries` that are folders with a labels.csv."""
    found: dict[Path, tuple[str, ...]] = {}
    for entry in map(Path, entries):
        if (entry / "labels.csv").is_file():
            folder = read_image_folder(entry)
            for path, row in zip(folder.paths or (), folder.labels, strict=True):
                found[path] = _names(row, folder.classes)
    return found


def import_codes(collection: Collection, path: str | Path) -> Added:
    """Add the codes of a file or folder that `centerhash encode` wrote; their names are their ids, without images.

    Codes without names, of a features .npy, are called after the file and their row: codes-0, codes-1 ...
    """
    if Path(path).is_dir():
        from centerhash.search.importing import import_parts

        return import_parts(collection, path)
    arrays = read_npz(path)
    bits, classes = collection.model.bits, collection.model.classes
    if "packed" not in arrays or "bits" not in arrays:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(
            f"'{path}' holds {found}: it needs `packed` and `bits`, as `centerhash encode` writes."
        )
    stored = whole(arrays["bits"])
    if stored != bits:
        raise DataError(
            f"'{path}' holds codes of {stored} bits, the collection of {bits}: encode by its model."
        )
    packed: Packed = arrays["packed"]
    if packed.ndim != 2:
        raise DataError(f"'{path}': `packed` must be (N, {packed_width(bits)}), got shape {packed.shape}.")
    names = arrays.get(
        "names", np.array([f"{Path(path).stem}-{row}" for row in range(len(packed))], dtype=str)
    )
    if names.shape != (len(packed),):
        raise DataError(f"'{path}': names of shape {names.shape} do not fit codes of shape {packed.shape}.")
    return collection.add_codes(packed, list(map(str, names.tolist())), _stored_labels(path, arrays, classes))


def _stored_labels(
    path: str | Path, arrays: dict[str, NDArray[Any]], classes: tuple[str, ...]
) -> list[tuple[str, ...]] | None:
    if "labels" not in arrays:
        return None
    labels, named = arrays["labels"], tuple(map(str, arrays.get("classes", np.array(classes)).tolist()))
    if labels.shape != (len(arrays["packed"]), len(named)):
        raise DataError(
            f"'{path}': labels of shape {labels.shape} do not fit {len(arrays['packed']):,} codes and "
            f"{len(named)} classes."
        )
    return [_names(row, named) for row in labels]


def _names(row: NDArray[Any], classes: Sequence[str]) -> tuple[str, ...]:
    return tuple(classes[column] for column in np.flatnonzero(row).tolist())


def export_codes(collection: Collection, path: str | Path) -> int:
    """Write all codes with their ids, paths and labels as one .npz, and return how many there are.

    `import_codes` and `centerhash evaluate` read it. The columns of `labels` (N, C) are named by `classes`: the
    model's, then other labels that items carry.
    """
    items = list(collection.items())
    model = collection.model
    classes = (*model.classes, *(name for name in collection.index.labels() if name not in model.classes))
    column = {name: place for place, name in enumerate(classes)}
    labels = np.zeros((len(items), len(classes)), dtype=np.bool_)
    packed = np.zeros((len(items), packed_width(model.bits)), dtype=np.uint8)
    for row, item in enumerate(items):
        packed[row] = item.code
        labels[row, [column[name] for name in item.labels]] = True
    arrays = {
        "packed": packed,
        "bits": np.array(model.bits),
        "names": np.array([str(item.id) for item in items], dtype=str),
        "paths": np.array([as_found(item, 0, collection.uploads).path or "" for item in items], dtype=str),
        "labels": labels,
        "classes": np.array(classes, dtype=str),
    }
    write_npz(path, arrays)
    return len(items)
