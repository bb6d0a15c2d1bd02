"""Codes without images into an index and out of it: code files (.npz), folders of parquet parts, files of faiss."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from centerhash.codes import Packed, check_packed, packed_width
from centerhash.core.errors import DataError, InputError
from centerhash.core.extras import require
from centerhash.search.engines.base import VISUAL_BITS, Item, Seen
from centerhash.search.results import Added, as_result

if TYPE_CHECKING:
    from centerhash.encoding.code_files import CodeFile
    from centerhash.search.index import Index

Coded: TypeAlias = tuple[Any, ...]  # what `Index.add_codes` takes

FAISS, IDS = "codes.faiss", "ids.json"  # of a folder that was exported for faiss
_MAGIC = b"IB"  # that files of all binary indexes of faiss begin with
_PAGE = 1 << 16  # codes that are stored at a time: a kill loses at most these, and every change takes a while


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
            known = set(index.store.present(keys[start : page.stop]))
            new = [row for row in page if keys[row] not in known]
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
    if (path / FAISS).is_file():  # a folder that was exported for faiss
        path /= FAISS
    if _is_faiss(path):
        return index.add_codes(*_read_faiss(path, index.facts.bits))
    coded = _of_parts(index, path) if path.is_dir() else iter([_of_file(index, path)])
    done = [index.add_codes(*columns) for columns in coded]
    return Added(sum(one.added for one in done), sum(one.known for one in done), {})


def _of_parts(index: Index, folder: Path) -> Iterator[Coded]:
    from centerhash.encoding.bulk import model_digest
    from centerhash.encoding.shards import read_manifest, read_shards

    if read_manifest(folder).model != model_digest(index.model):
        raise DataError(
            f"the shards in '{folder}' are of another model than the index's: encode by the run that the index was "
            "made of."
        )
    page, there = list[Coded](), set[str]()
    shared = dict[tuple[str, ...], tuple[str, ...]]()  # items of the same labels need them once
    for ids, packed, labels in read_shards(folder):
        if page and (len(there) + len(ids) > _PAGE or not there.isdisjoint(ids)):  # these are known then
            yield _together(page)
            page, there, shared = [], set(), {}
        page.append((packed, ids, [shared.setdefault(row, row) for row in labels]))
        there.update(ids)
    yield _together(page)


def _together(parts: Sequence[Coded]) -> Coded:
    """Parts as one."""
    packed, ids, labels = zip(*parts, strict=True)
    return np.concatenate(packed), list(chain(*ids)), list(chain(*labels))


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
        {classes[j]: (int(row[j, 0]), int(row[j, 1])) for j in np.flatnonzero(row.any(axis=1)).tolist()}
        for row in both
    ]


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


# Binary indexes of faiss that keep codes whole, alone or under ids of their own


def _is_faiss(path: Path) -> bool:
    """Whether a file is one of faiss, by its name or its first bytes."""
    if path.suffix == ".faiss" or not path.is_file():
        return path.suffix == ".faiss"
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def _read_faiss(path: Path, bits: int) -> tuple[Packed, list[str]]:
    """The codes (N, ceil(K/8)) and names of an IndexBinaryFlat, of one under an IndexBinaryIDMap or an HNSW graph.

    Names are those in an ids.json beside it, else the ids of a map, else the file and the row: codes-0, codes-1 ...
    """
    faiss = require("faiss")
    try:
        stored = faiss.deserialize_index_binary(np.fromfile(path, np.uint8))
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from None
    except RuntimeError as error:
        reason = str(error).rpartition("Error: ")[2].splitlines()[0][:200]
        raise DataError(f"'{path}' is no binary index of faiss, or it is damaged: {reason}") from None
    mapped = isinstance(stored, faiss.IndexBinaryIDMap)
    inner = faiss.downcast_IndexBinary(stored.index) if mapped else stored
    if isinstance(inner, faiss.IndexBinaryHNSW):
        inner = faiss.downcast_IndexBinary(inner.storage)
    if not isinstance(inner, faiss.IndexBinaryFlat):
        raise DataError(
            f"'{path}' holds an {type(inner).__name__}, which does not keep codes in their order: what can be imported "
            "is an IndexBinaryFlat, alone or under an IndexBinaryIDMap or IndexBinaryHNSW. Write the codes as one."
        )
    if inner.d != 8 * packed_width(bits):
        raise DataError(f"'{path}' holds codes of {inner.d} bits, the index of {bits}: encode by its model.")
    packed = faiss.vector_to_array(inner.xb).reshape(inner.ntotal, -1)
    try:
        check_packed(packed, bits)
    except InputError as error:
        raise DataError(f"'{path}': {error}") from None
    ids = faiss.vector_to_array(stored.id_map).tolist() if mapped else None
    return packed, _faiss_names(path, len(packed), ids)


def _faiss_names(path: Path, count: int, ids: list[int] | None) -> list[str]:
    """A name for each code."""
    beside = path.with_name(IDS)
    if path.name == FAISS and beside.is_file():
        named: Any = json.loads(beside.read_text(encoding="utf-8"))
        rows = range(count) if ids is None else ids
        if not isinstance(named, list) or any(not 0 <= row < len(named) for row in rows):
            raise DataError(f"'{beside}' does not name the {count:,} codes of '{path}': export them again.")
        return [str(named[row]) for row in rows]
    return [f"{path.stem}-{row}" for row in range(count)] if ids is None else list(map(str, ids))
