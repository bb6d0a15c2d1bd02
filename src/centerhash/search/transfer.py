"""Codes without images into an index and out of it: code files (.npz) and folders of parquet parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from centerhash.codes import Packed, packed_width
from centerhash.core.errors import DataError
from centerhash.search.adding import Added, Labels
from centerhash.search.results import as_result

if TYPE_CHECKING:
    from centerhash.search.index import Index

Coded: TypeAlias = tuple[list[str], Packed, Sequence[Labels] | None]  # ids, codes (n, ceil(K/8)), labels


def import_codes(index: Index, path: str | Path) -> Added:
    """Add the codes of a file, or of a folder of parts, that `centerhash encode` wrote; known ids are skipped.

    Names become ids. Codes without names, of a features .npy, are called after the file and their row: codes-0,
    codes-1 ...
    """
    coded = _of_parts(index, Path(path)) if Path(path).is_dir() else iter([_of_file(index, Path(path))])
    done = [index.add_codes(packed, ids, labels) for ids, packed, labels in coded]
    return Added(sum(one.added for one in done), sum(one.known for one in done), {})


def _of_parts(index: Index, folder: Path) -> Iterator[Coded]:
    from centerhash.encoding.parts import read_manifest, read_parts
    from centerhash.encoding.work import model_digest

    if read_manifest(folder).model != model_digest(index.model):
        raise DataError(
            f"the parts in '{folder}' are of another model than the index's: encode by the run that the index was "
            "made of."
        )
    yield from read_parts(folder)


def _of_file(index: Index, path: Path) -> Coded:
    from centerhash.encoding.code_files import read_codes

    codes, bits = read_codes(path), index.model.bits
    if codes.bits != bits:
        raise DataError(
            f"'{path}' holds codes of {codes.bits} bits, the index of {bits}: encode by its model."
        )
    rows = range(len(codes.packed))
    names = [f"{path.stem}-{row}" for row in rows] if codes.names is None else codes.names.tolist()
    try:
        return names, codes.packed, codes.label_names(index.model.classes)
    except DataError as error:
        raise DataError(f"'{path}': {error}") from None


def export_codes(index: Index, path: str | Path) -> int:
    """Write all codes with their ids, paths and labels as one .npz, and return how many there are.

    `import_codes` and `centerhash evaluate` read it. The columns of `labels` (N, C) are named by `classes`: the
    model's, then other labels that items carry.
    """
    from centerhash.encoding.code_files import CodeFile, write_codes

    items, model = list(index.items()), index.model
    classes = (*model.classes, *(name for name in index.labels() if name not in model.classes))
    column = {name: place for place, name in enumerate(classes)}
    labels = np.zeros((len(items), len(classes)), dtype=np.bool_)
    packed = np.zeros((len(items), packed_width(model.bits)), dtype=np.uint8)
    for row, item in enumerate(items):
        packed[row] = item.code
        labels[row, [column[name] for name in item.labels]] = True
    write_codes(
        path,
        CodeFile(
            model.bits,
            packed,
            names=np.array([str(item.id) for item in items], dtype=str),
            paths=np.array([as_result(item, 0, index.uploads).path or "" for item in items], dtype=str),
            labels=labels,
            classes=classes,
        ),
    )
    return len(items)
