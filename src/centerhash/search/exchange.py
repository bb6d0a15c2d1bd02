"""Import and export: codes without images into an index, and all items of an index for other programs.

    npz         one code file, for `import_codes` and `centerhash evaluate`, with visual codes, probabilities, shares,
                taught labels, and the files of removed images
    npy         a folder: codes.npy (N, ceil(K/8)) uint8, and items.jsonl with id, labels and path of every row
    parquet     one file: id, code (ceil(K/8) bytes), labels (list of text), path
    faiss       a folder: codes.faiss, whose ids are rows, and ids.json, the id of every row
    pgvector    a folder: items.copy for COPY, with create.sql and query.sql

Items are in the order in which they were added. The most significant bit comes first, +1 is 1 and -1 is 0; in bytes,
bits past K are 0. A path that is not valid Unicode has its other bytes as \\udc... Labels are those that an item carries,
also taught ones. An index of the same model learns the taught labels of an npz; in others they become plain labels.
Files of removed images are remembered if they are on this machine.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from centerhash.codes import Packed, check_packed, packed_width
from centerhash.core.errors import ConfigError, DataError, InputError, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import atomic, atomic_folder, parse_json, write_text
from centerhash.core.progress import Progress
from centerhash.core.version import __version__
from centerhash.search.items import VISUAL_BITS, File, Item, LabelScores, is_id
from centerhash.search.results import Added, as_result, taught_probabilities
from centerhash.search.taught import TaughtLabels
from centerhash.search.teaching import PRESENT, Taught

if TYPE_CHECKING:
    from centerhash.encoding.code_files import CodeFile
    from centerhash.search.index import Index

Coded: TypeAlias = tuple[Any, ...]  # what `Index.add_codes` takes

FAISS, IDS = "codes.faiss", "ids.json"  # of a folder that was exported for Faiss
_MAGIC = b"IB"  # the first bytes of all binary Faiss files
_PAGE = 1 << 16  # codes that are added at a time


def import_codes(index: Index, path: Path) -> Added:
    """Add the codes of a file, or of a folder of shards, that `centerhash encode` or `export_items` wrote, or of Faiss.

    Names become ids; known ones are skipped. Codes without names, of a features .npy, are named by the file and their
    row: codes-0, codes-1 ... A crash loses at most the commit in progress, and the same call resumes.
    """
    if (path / FAISS).is_file():  # a folder that was exported for Faiss
        path /= FAISS
    if _is_faiss(path):
        return index.add_codes(*_read_faiss(path, index.model_info.bits))
    coded = _of_shards(index, path) if path.is_dir() else iter([_of_file(index, path)])
    added, known, ended = 0, 0, False
    while not ended:
        # a commit writes much of the database's index over ids again, so commits grow with the index
        least, ended = added + max(_PAGE, len(index) // 4), True
        with index.store.transaction():
            for columns in coded:
                done = index.add_codes(*columns)
                added, known = added + done.added, known + done.known
                if added >= least:
                    ended = False
                    break
    return Added(added, known, {})


def _of_shards(index: Index, folder: Path) -> Iterator[Coded]:
    from centerhash.encoding.shards import read_manifest, read_shards

    if read_manifest(folder).model != index.model.digest:
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
    """Return several batches of codes as one."""
    packed, ids, labels = zip(*parts, strict=True)
    return np.concatenate(packed), list(chain(*ids)), list(chain(*labels))


def _of_file(index: Index, path: Path) -> Coded:
    from centerhash.encoding.code_files import read_codes

    codes = read_codes(path, index.model_info.bits)
    rows = range(len(codes.packed))
    names = [f"{path.stem}-{row}" for row in rows] if codes.names is None else codes.names
    try:
        labels = codes.label_names(index.model_info.classes)
        scores = _scores(codes, codes.classes or index.model_info.classes)
    except DataError as error:
        raise DataError(f"'{path}': {error}") from None
    if codes.taught is not None and labels is not None:
        taught = TaughtLabels(index).adopt(codes.taught, path)
        labels = [tuple(name for name in row if name not in taught) for row in labels]
    if codes.removed is not None:
        _adopt_removed(index, codes.removed, path)
    paths = None if codes.paths is None else [name or None for name in codes.paths]
    visual = None if codes.visual is None else [code if code.any() else None for code in codes.visual]
    return codes.packed, names, labels, paths, visual, scores


def _adopt_removed(index: Index, content: bytes, path: Path) -> None:
    """Remember the files of removed images of another index that are unchanged on this machine, and of no item here."""
    try:
        files = [(id, File(name, size, modified)) for id, name, size, modified in json.loads(content)]
        if not all(_is_sound(id, file) for id, file in files):
            raise ValueError("an id, path, size or time makes no sense")
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"cannot import the removed images in '{path}': {error!s:.200}.") from None
    with index.writing() as store:
        here = [
            (id, file)
            for id, file in files
            if File.at(file.path) == file
            and id not in store
            and os.path.basename(file.path) not in store.files(os.path.dirname(file.path))  # noqa: PTH119, PTH120
        ]
        if here:
            store.note_removed(here)


def _is_sound(id: object, file: File) -> bool:
    """Return whether the values of a json list can be an id and a file."""
    named = isinstance(id, str) and is_id(id) and isinstance(file.path, str) and Path(file.path).is_absolute()
    return named and type(file.size) is int and type(file.modified) is float and math.isfinite(file.modified)


def _scores(codes: CodeFile, classes: Sequence[str]) -> list[LabelScores] | None:
    """Return probabilities and shares of every item of a code file."""
    if codes.probabilities is None or codes.shares is None:
        return None
    expected = (len(codes.packed), len(classes))
    if not codes.probabilities.shape == codes.shares.shape == expected:
        raise DataError(f"probabilities and shares must be of shape {expected}.")
    both = np.stack([codes.probabilities, codes.shares], axis=2)
    return [
        {classes[j]: (int(row[j, 0]), int(row[j, 1])) for j in np.flatnonzero(row.any(axis=1)).tolist()}
        for row in both
    ]


def _write_npz(index: Index, path: Path, items: Sequence[Item]) -> None:
    """Write these items as one .npz.

    `import_codes` and `centerhash evaluate` read it. The columns of `labels` (N, C) are named by `classes`: the
    model's, then others that items carry or have scores of.
    """
    from centerhash.encoding.code_files import CodeFile, write_codes

    info, taught = index.model_info, index.store.taught()
    carried = _carried(items, taught)
    used = {name for item, names in zip(items, carried, strict=True) for name in (*names, *item.scores)}
    classes = (*info.classes, *sorted(used.difference(info.classes)))
    column = {name: place for place, name in enumerate(classes)}
    labels = np.zeros((len(items), len(classes)), dtype=np.bool_)
    packed = np.zeros((len(items), packed_width(info.bits)), dtype=np.uint8)
    visual = np.zeros((len(items), packed_width(VISUAL_BITS)), dtype=np.uint8)
    scores = np.zeros((2, len(items), len(classes)), dtype=np.uint8)
    for row, item in enumerate(items):
        packed[row] = item.code
        labels[row, [column[name] for name in carried[row]]] = True
        visual[row] = 0 if item.visual is None else item.visual
        for name, pair in item.scores.items():
            scores[:, row, column[name]] = pair
    write_codes(
        path,
        CodeFile(
            info.bits,
            packed,
            names=[item.id for item in items],
            paths=[as_result(item, 0, index.uploads).path or "" for item in items],
            labels=labels,
            classes=classes,
            visual=visual if visual.any() else None,
            probabilities=scores[0] if scores.any() else None,
            shares=scores[1] if scores.any() else None,
            taught=TaughtLabels(index).content() if taught else None,
            removed=_removed_content(index),
        ),
    )


def _removed_content(index: Index) -> bytes | None:
    """Return the files of removed images as json: lists of id, path, size and time."""
    files = [
        (id, file.path, file.size, file.modified)
        for id, file in index.store.removed().values()
        if file.size is not None and file.modified is not None
    ]
    return json.dumps(files).encode() if files else None


# --- Faiss: binary indexes that keep codes in their order, alone or under ids of their own


def _is_faiss(path: Path) -> bool:
    """Return whether a file is a Faiss index, by its name or its first bytes."""
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
        raise DataError(f"'{path}' is no binary Faiss index, or it is damaged: {reason}") from None
    mapped = isinstance(stored, faiss.IndexBinaryIDMap)
    inner = faiss.downcast_IndexBinary(stored.index) if mapped else stored
    if isinstance(inner, faiss.IndexBinaryHNSW):
        inner = faiss.downcast_IndexBinary(inner.storage)
    if not isinstance(inner, faiss.IndexBinaryFlat):
        raise DataError(
            f"'{path}' holds an {type(inner).__name__}, which does not keep the order of codes. Write the codes as an "
            "IndexBinaryFlat, alone or inside an IndexBinaryIDMap or IndexBinaryHNSW."
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
    """Return a name for each code."""
    beside = path.with_name(IDS)
    if path.name == FAISS and beside.is_file():
        try:
            named: Any = parse_json(beside.read_text(encoding="utf-8"))
        except ValueError:
            named = None
        rows = range(count) if ids is None else ids
        if not isinstance(named, list) or any(not 0 <= row < len(named) for row in rows):
            raise DataError(f"'{beside}' does not name the {count:,} codes of '{path}': export them again.")
        return [str(named[row]) for row in rows]
    return [f"{path.stem}-{row}" for row in range(count)] if ids is None else list(map(str, ids))


# --- export


_FILES = ("npz", "parquet")  # all others are folders
_ROWS = 10_000  # items between two steps of the bar, and of a row group
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})  # of COPY's text format


class Row(NamedTuple):
    """What other programs get of an item."""

    id: str
    code: bytes
    labels: tuple[str, ...]
    path: str | None


Writer: TypeAlias = Callable[[Iterator[Row], Path, int], None]  # rows, file or folder, bits


def export_items(index: Index, out: Path, to: str, report: Progress) -> int:
    """Write all items in the format `to`, whole or not at all, and return how many there are."""
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    if to not in _FILES and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"'{out}' is there already and is not empty: name a new folder for the export.")
    done = 0

    def items() -> Iterator[Item]:
        nonlocal done
        for done, item in enumerate(index.items(), 1):
            if done % _ROWS == 0:
                report("items", done, max(done, len(index)))
            yield item
        report("items", done, done)

    with index.lock:  # no item is removed while the rest is written
        if to == "npz":
            _write_npz(index, out, list(items()))
            return done
        with nullcontext(out) if to in _FILES else atomic_folder(out) as place:
            _WRITERS[to](_rows(items(), index), place, index.model_info.bits)
        return done


def _rows(items: Iterator[Item], index: Index) -> Iterator[Row]:
    taught = index.store.taught()
    while page := list(islice(items, _ROWS)):
        for item, labels in zip(page, _carried(page, taught), strict=True):
            place = None if item.path is None else index.uploads.path(item.path)
            path = None if place is None else str(place).encode(errors="backslashreplace").decode()
            yield Row(item.id, item.code.tobytes(), labels, path)


def _carried(items: Sequence[Item], taught: Mapping[str, Taught]) -> list[tuple[str, ...]]:
    """Return the labels that each item carries, then the taught ones."""
    likely = taught_probabilities(items, taught)
    return [
        (*item.labels, *(name for name, value in own.items() if value >= PRESENT))
        for item, own in zip(items, likely, strict=True)
    ]


def _packed(codes: bytes | bytearray, bits: int) -> Packed:
    """Packed codes (N, ceil(K/8)) that stand one after the other."""
    return np.frombuffer(codes, dtype=np.uint8).reshape(-1, packed_width(bits))


def write_npy(rows: Iterator[Row], folder: Path, bits: int) -> None:
    """Write codes.npy (N, ceil(K/8)) and items.jsonl."""
    codes = bytearray()
    with atomic(folder / "items.jsonl") as stream:
        for row in rows:
            codes += row.code
            stream.write((json.dumps({"id": row.id, "labels": row.labels, "path": row.path}) + "\n").encode())
    with atomic(folder / "codes.npy") as stream:
        np.save(stream, _packed(codes, bits))


def write_parquet(rows: Iterator[Row], file: Path, bits: int) -> None:
    """Write one parquet file with a row group per page of items."""
    from centerhash.encoding.shards import as_table

    parquet = require("pyarrow.parquet")

    def table(page: list[Row]) -> Any:
        codes = _packed(b"".join(row.code for row in page), bits)
        facts = {"bits": str(bits), "centerhash": __version__}
        ids, labels = [row.id for row in page], [row.labels for row in page]
        return as_table(ids, codes, labels, facts, [row.path for row in page])

    with atomic(file) as stream, parquet.ParquetWriter(stream, table([]).schema) as writer:
        while page := list(islice(rows, _ROWS)):
            writer.write_table(table(page))


def write_faiss(rows: Iterator[Row], folder: Path, bits: int) -> None:
    """Write codes.faiss, an IndexBinaryIDMap2 over an IndexBinaryFlat, and ids.json."""
    faiss, codes, ids = require("faiss"), bytearray(), []
    for row in rows:
        codes += row.code
        ids.append(row.id)
    packed = _packed(codes, bits)
    # faiss counts bits by eights; those past K are 0 in all codes
    made = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(8 * packed.shape[1]))
    made.add_with_ids(packed, np.arange(len(packed)))
    with atomic(folder / FAISS) as stream:  # faiss itself would not say that a disk is full
        stream.write(faiss.serialize_index_binary(made).tobytes())
    write_text(folder / IDS, json.dumps(ids) + "\n")


_CREATE = """\
-- psql -f create.sql, in this folder; pgvector 0.7 or later
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE items (id text PRIMARY KEY, code bit({bits}) NOT NULL, labels text[] NOT NULL, path text);
\\copy items FROM 'items.copy' WITH (ENCODING 'UTF8')
"""
_QUERY = """\
-- psql -v id=ID -f query.sql: the ten items nearest to the item ID
SELECT items.id, items.code <~> asked.code AS distance, items.labels, items.path
FROM items, items AS asked
WHERE asked.id = :'id' AND items.id <> asked.id
ORDER BY distance, items.id COLLATE "C"
LIMIT 10;
"""


def write_pgvector(rows: Iterator[Row], folder: Path, bits: int) -> None:
    """Write items.copy, a text file for COPY, and the SQL to create the table and to ask it."""
    with atomic(folder / "items.copy") as stream:
        for row in rows:
            stream.write(copy_line(row, bits).encode())
    write_text(folder / "create.sql", _CREATE.format(bits=bits))
    write_text(folder / "query.sql", _QUERY)


def copy_line(row: Row, bits: int) -> str:
    """An item as a line of COPY's text format: id, code as K digits, labels as an array, path or NULL."""
    digits = np.unpackbits(_packed(row.code, bits), count=bits) + ord("0")
    quoted = (label.replace("\\", "\\\\").replace('"', '\\"') for label in row.labels)
    labels = "{" + ",".join(f'"{label}"' for label in quoted) + "}"
    texts = (row.id, digits.tobytes().decode(), labels, *(() if row.path is None else (row.path,)))
    if any("\0" in text for text in texts):
        raise DataError(
            f"the item {row.id!r} has a zero character in its id, labels or path, which PostgreSQL cannot store: "
            "remove it, or export to parquet."
        )
    fields = [text.translate(_ESCAPES) for text in texts]
    return "\t".join([*fields, *(["\\N"] if row.path is None else [])]) + "\n"


_WRITERS: Mapping[str, Writer] = MappingProxyType(
    {"npy": write_npy, "parquet": write_parquet, "faiss": write_faiss, "pgvector": write_pgvector}
)
FORMATS = ("npz", *_WRITERS)
