"""Import of code files and shards into an index, and export of all its items for other programs.

    npz         one code file, which `import_codes` and `centerhash evaluate` read, with general codes and label scores
    parquet     one file: id, code (ceil(K/8) bytes), labels (list of text), and a column per attribute

Items are in the order of adding, hidden ones included. The most significant bit of a byte comes first, +1 is 1 and -1 is
0; bits past K are 0. Labels are those that an item carries.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from centerhash.codes import packed_width
from centerhash.core.errors import DataError, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import atomic
from centerhash.core.progress import Progress
from centerhash.core.version import __version__
from centerhash.index.items import AddResult, Item
from centerhash.index.query import named_scores

if TYPE_CHECKING:
    from centerhash.index.index import Index

FORMATS = ("npz", "parquet")
_ITEMS_PER_PAGE = 10_000


def import_codes(index: Index, path: Path) -> AddResult:
    """Add the codes of a file or of a folder of shards that `centerhash encode` or `export_items` wrote.

    Names become ids; codes of stored ids are skipped. Without names, ids consist of file name and row: codes-0, codes-1
    ... A crash loses at most the commit in progress, and the same call resumes.
    """
    if not path.is_dir():
        return _add_file(index, path)
    from centerhash.encoding.shards import read_manifest, read_shards

    if read_manifest(path).model != index.model.digest:
        raise DataError(
            f"the shards in '{path}' are of another model than the index's: encode by the run that the index was made of."
        )
    added = known = 0
    for ids, packed, labels in read_shards(path):
        # Of equal ids, the last row is added.
        row_of = {id: row for row, id in enumerate(ids)}
        rows = list(row_of.values())
        result = index.add(codes=packed[rows], ids=list(row_of), labels=[labels[row] for row in rows])
        added, known = added + result.added, known + result.known
    return AddResult(added, known)


def _add_file(index: Index, path: Path) -> AddResult:
    from centerhash.encoding.code_files import read_codes

    codes = read_codes(path, index.bits)
    classes, scores = codes.classes or index.classes, None
    if codes.probabilities is not None and codes.shares is not None:
        expected = (len(codes.packed), len(classes))
        if not codes.probabilities.shape == codes.shares.shape == expected:
            raise DataError(f"'{path}': probabilities and shares must be of shape {expected}.")
        levels = np.stack([codes.probabilities, codes.shares], axis=2)
        scores = named_scores(classes, levels, np.asarray(levels.any(axis=2)))
    try:
        labels = codes.label_names(index.classes)
    except DataError as error:
        raise DataError(f"'{path}': {error}") from None
    ids = codes.names or [f"{path.stem}-{row}" for row in range(len(codes.packed))]
    general = None if index.general_bits is None else codes.general
    return index.add(codes=codes.packed, general=general, ids=ids, labels=labels, scores=scores)


def export_items(index: Index, out: Path, to: str, report: Progress) -> int:
    """Write all items of one commit in the format `to`, atomically, and return how many there are."""
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    with closing(_pages(index, report)) as pages:
        if to == "npz":
            return _write_npz(index, out, list(chain.from_iterable(pages)))
        return _write_parquet(index, out, pages)


def _pages(index: Index, report: Progress) -> Generator[list[Item], None, None]:
    """Yield all items of one commit, page by page."""
    done, items = 0, index.items()
    with index.reading():
        while page := list(islice(items, _ITEMS_PER_PAGE)):
            yield page
            done += len(page)
            report("items", done, max(done, len(index)))


def export_to_milvus(index: Index, address: str, report: Progress) -> int:
    """Write codes, labels and attributes of all items to a new collection, and return how many there are."""
    from centerhash.index.milvus import MilvusIndex

    model, count = None if index.facts.method is None else index.model, 0
    remote = MilvusIndex.create(address, model, bits=index.bits, attributes=index.attributes)
    with remote, closing(_pages(index, report)) as pages:
        for page in pages:
            attributes = {name: [item.attributes[name] for item in page] for name in index.attributes}
            columns: Any = {"ids": [item.id for item in page], "labels": [item.labels for item in page]}
            remote.add(codes=np.stack([item.code for item in page]), attributes=attributes, **columns)
            count += len(page)
    return count


def _write_npz(index: Index, path: Path, items: Sequence[Item]) -> int:
    """Write items as a code file, with labels by the classes of the model, then by other labels, sorted."""
    from centerhash.encoding.code_files import CodeFile, write_codes

    stored = {name for item in items for name in (*item.labels, *item.scores)}
    classes = (*index.classes, *sorted(stored.difference(index.classes)))
    column = {name: number for number, name in enumerate(classes)}
    labels = np.zeros((len(items), len(classes)), np.bool_)
    scores = np.zeros((2, len(items), len(classes)), np.uint8)
    general = np.zeros((len(items), packed_width(index.general_bits or 1)), np.uint8)
    packed = np.array([item.code for item in items], np.uint8).reshape(-1, packed_width(index.bits))
    for row, item in enumerate(items):
        labels[row, [column[name] for name in item.labels]] = True
        general[row] = 0 if item.general is None else item.general
        for name, pair in item.scores.items():
            scores[:, row, column[name]] = pair
    arrays = {"general": general, "probabilities": scores[0], "shares": scores[1]}
    optional: dict[str, Any] = {name: values for name, values in arrays.items() if values.any()}
    ids = [item.id for item in items]
    write_codes(path, CodeFile(index.bits, packed, names=ids, labels=labels, classes=classes, **optional))
    return len(items)


def _write_parquet(index: Index, file: Path, pages: Iterator[list[Item]]) -> int:
    """Write one parquet file with a row group per page of items."""
    from centerhash.encoding.shards import as_table

    parquet, pyarrow, count = require("pyarrow.parquet"), require("pyarrow"), 0
    types = {float: pyarrow.float64(), str: pyarrow.string()}

    def table(page: Sequence[Item]) -> Any:
        packed = np.frombuffer(b"".join(item.code.tobytes() for item in page), np.uint8)
        facts = {"bits": str(index.bits), "centerhash": __version__}
        ids, labels = [item.id for item in page], [item.labels for item in page]
        columns = as_table(ids, packed.reshape(-1, packed_width(index.bits)), labels, facts)
        for name, kind in index.attributes.items():
            values = [item.attributes[name] for item in page]
            columns = columns.append_column(name, pyarrow.array(values, types[kind]))
        return columns

    with atomic(file) as stream, parquet.ParquetWriter(stream, table([]).schema) as writer:
        for page in pages:
            writer.write_table(table(page))
            count += len(page)
    return count
