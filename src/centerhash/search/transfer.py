"""Codes without images into an index and out of it: code files (.npz) and folders of parquet parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed, packed_width
from centerhash.core.errors import DataError, InputError
from centerhash.search.engines.base import VISUAL_BITS, Item, Seen
from centerhash.search.faiss_files import FILE, is_faiss, read_faiss
from centerhash.search.results import Added, as_result

if TYPE_CHECKING:
    from centerhash.encoding.code_files import CodeFile
    from centerhash.search.index import Index

Coded: TypeAlias = tuple[Any, ...]  # what `Index.add_codes` takes


_PAGE = 10_000  # codes that are stored at a time


def add_codes(
    index: Index,
    packed: Packed,
    ids: Sequence[object],
    labels: Sequence[Sequence[str]] | None,
    paths: Sequence[str | None] | None,
    visual: Sequence[Packed | None] | None,
    seen: Sequence[Seen] | None,
) -> Added:
    """As `Index.add_codes`."""
    packed, keys = check_packed(packed, index.facts.bits), list(map(str, ids))
    names = [()] * len(keys) if labels is None else list(labels)
    for path in paths or ():
        if path is not None and not Path(path).is_absolute():
            raise InputError(
                f"the path of an item is absolute, got '{path}': an index would not find it elsewhere."
            )
    if not len(packed) == len(keys) == len(names):
        raise InputError(f"{len(packed):,} codes, {len(keys):,} ids and {len(names):,} labels do not fit.")
    added = 0
    for start in range(0, len(keys), _PAGE):
        page = range(start, min(start + _PAGE, len(keys)))
        with index.lock:
            new = [row for row in page if keys[row] not in index.store]
            index.store.add(
                packed[new],
                [keys[row] for row in new],
                [names[row] for row in new],
                None if paths is None else [paths[row] for row in new],
                None if visual is None else [visual[row] for row in new],
                None if seen is None else [seen[row] for row in new],
            )
        added += len(new)
    return Added(added, len(keys) - added, {})


def import_codes(index: Index, path: str | Path) -> Added:
    """Add the codes of a file, or of a folder of parts, that `centerhash encode` or `export_codes` wrote, or of faiss.

    Names become ids; known ones are skipped. Codes without names, of a features .npy, are called after the file and
    their row: codes-0, codes-1 ...
    """
    path = Path(path)
    if (path / FILE).is_file():  # a folder that was exported for faiss
        path /= FILE
    if is_faiss(path):
        return index.add_codes(*read_faiss(path, index.facts.bits))
    coded = _of_parts(index, path) if path.is_dir() else iter([_of_file(index, path)])
    done = [index.add_codes(*columns) for columns in coded]
    return Added(sum(one.added for one in done), sum(one.known for one in done), {})


def _of_parts(index: Index, folder: Path) -> Iterator[Coded]:
    from centerhash.encoding.parts import read_manifest, read_parts
    from centerhash.encoding.work import model_digest

    if read_manifest(folder).model != model_digest(index.model):
        raise DataError(
            f"the parts in '{folder}' are of another model than the index's: encode by the run that the index was "
            "made of."
        )
    yield from ((packed, ids, labels) for ids, packed, labels in read_parts(folder))


def _of_file(index: Index, path: Path) -> Coded:
    from centerhash.encoding.code_files import read_codes

    codes, bits = read_codes(path), index.facts.bits
    if codes.bits != bits:
        raise DataError(
            f"'{path}' holds codes of {codes.bits} bits, the index of {bits}: encode by its model."
        )
    rows = range(len(codes.packed))
    names = [f"{path.stem}-{row}" for row in rows] if codes.names is None else codes.names.tolist()
    try:
        labels = codes.label_names(index.facts.classes)
        seen = _seen(codes, codes.classes or index.facts.classes)
    except DataError as error:
        raise DataError(f"'{path}': {error}") from None
    paths = None if codes.paths is None else [name or None for name in codes.paths.tolist()]
    looks = None if codes.visual is None else [code if code.any() else None for code in codes.visual]
    return codes.packed, names, labels, paths, looks, seen


def _seen(codes: CodeFile, classes: Sequence[str]) -> list[Seen] | None:
    """Presences and shares of every item of a code file."""
    if codes.presence is None or codes.shares is None:
        return None
    expected = (len(codes.packed), len(classes))
    if not codes.presence.shape == codes.shares.shape == expected:
        raise DataError(f"presence and shares must be of shape {expected}.")
    both = np.stack([codes.presence, codes.shares], axis=2)
    return [
        {classes[column]: (int(row[column, 0]), int(row[column, 1])) for column in _filled(row)}
        for row in both
    ]


def _filled(row: NDArray[np.uint8]) -> list[int]:
    """The classes of an item (C, 2) of which something is stored."""
    columns: list[int] = np.flatnonzero(row.any(axis=1)).tolist()
    return columns


def export_codes(index: Index, path: str | Path, items: Sequence[Item]) -> None:
    """Write all parts of these items as one .npz.

    `import_codes` and `centerhash evaluate` read it. The columns of `labels` (N, C) are named by `classes`: the
    model's, then other labels that items carry.
    """
    from centerhash.encoding.code_files import CodeFile, write_codes

    facts = index.facts
    classes = (*facts.classes, *(name for name in index.labels() if name not in facts.classes))
    column = {name: place for place, name in enumerate(classes)}
    labels = np.zeros((len(items), len(classes)), dtype=np.bool_)
    packed = np.zeros((len(items), packed_width(facts.bits)), dtype=np.uint8)
    visual = np.zeros((len(items), packed_width(VISUAL_BITS)), dtype=np.uint8)
    seen = np.zeros((2, len(items), len(classes)), dtype=np.uint8)
    for row, item in enumerate(items):
        packed[row] = item.code
        labels[row, [column[name] for name in item.labels]] = True
        visual[row] = 0 if item.visual is None else item.visual
        for name, pair in item.seen.items():
            seen[:, row, column[name]] = pair
    write_codes(
        path,
        CodeFile(
            facts.bits,
            packed,
            names=np.array([str(item.id) for item in items], dtype=str),
            paths=np.array([as_result(item, 0, index.uploads).path or "" for item in items], dtype=str),
            labels=labels,
            classes=classes,
            visual=visual if visual.any() else None,
            presence=seen[0] if seen.any() else None,
            shares=seen[1] if seen.any() else None,
        ),
    )
