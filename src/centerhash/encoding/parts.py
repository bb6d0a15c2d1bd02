"""Parts: parquet files of id, packed code and labels, each for a fixed slice of the inputs, whole or not there.

The folder:

    manifest.json         what the parts are of: model, inputs, sizes
    inputs.parquet        the inputs, a row group per part
    part-00000.parquet    id (string), code (ceil(K/8) bytes), labels (list of string)
    broken.jsonl          images that could not be read, written at the end
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from centerhash.codes import Packed, packed_width
from centerhash.core.errors import DataError
from centerhash.core.extras import require
from centerhash.core.files import atomic
from centerhash.core.options import Options
from centerhash.core.version import __version__

MANIFEST, INPUTS, BROKEN = "manifest.json", "inputs.parquet", "broken.jsonl"

Labels: TypeAlias = tuple[str, ...]
LabelSource: TypeAlias = Literal["given", "predicted", "none"]


class Manifest(Options):
    """What the parts in a folder are of."""

    format: Literal[1] = 1
    centerhash: str = Field(__version__, description="the version that began")
    bits: int
    model: str = Field(description="digest of the model")
    inputs: str = Field(description="fingerprint of the inputs")
    count: int = Field(description="how many inputs there are")
    part_size: int
    labels: LabelSource = Field(description="given by the data set, predicted by the model, or none")
    features: str | None = Field(None, description="file of features; None: the inputs are images")

    @property
    def parts(self) -> int:
        """How many parts there are when all is done."""
        return -(-self.count // self.part_size)

    def rows(self, number: int) -> slice:
        """Which of the inputs belong to a part."""
        start = number * self.part_size
        return slice(start, min(start + self.part_size, self.count))


@dataclass(frozen=True)
class Part:
    """One part: ids, codes (n, ceil(K/8)) and labels of the images that could be read, reasons for the others."""

    ids: Sequence[str]
    packed: Packed
    labels: Sequence[Labels]
    broken: Mapping[str, str]  # by id


def part_path(folder: Path, number: int) -> Path:
    """The file of a part."""
    return folder / f"part-{number:05d}.parquet"


def as_table(
    ids: Sequence[str],
    packed: Packed,
    labels: Sequence[Labels],
    facts: Mapping[str, str],
    paths: Sequence[str | None] | None = None,
) -> Any:
    """A pyarrow table of id, code (n, ceil(K/8)), labels and, where they are given, path; `facts` go with it."""
    pyarrow = require("pyarrow")

    rows = np.ascontiguousarray(packed, dtype=np.uint8)
    code, names = pyarrow.binary(rows.shape[1]), pyarrow.list_(pyarrow.string())
    columns = {
        "id": pyarrow.array(list(ids), type=pyarrow.string()),
        "code": pyarrow.FixedSizeBinaryArray.from_buffers(code, len(rows), [None, pyarrow.py_buffer(rows)]),
        "labels": pyarrow.array([list(row) for row in labels], type=names),
    }
    if paths is not None:
        columns["path"] = pyarrow.array(list(paths), type=pyarrow.string())
    return pyarrow.table(columns, metadata=dict(facts))


def write_part(folder: Path, number: int, part: Part, manifest: Manifest) -> None:
    """Write a part, whole or not at all."""
    parquet = require("pyarrow.parquet")

    facts = {
        "bits": str(manifest.bits),
        "model": manifest.model,
        "centerhash": __version__,
        "labels": manifest.labels,
        "broken": json.dumps(dict(part.broken)),
    }
    table = as_table(part.ids, part.packed, part.labels, facts)
    with atomic(part_path(folder, number)) as stream:
        parquet.write_table(table, stream, write_page_checksum=True)


def read_part(path: Path) -> Part:
    """Read a part that `write_part` wrote."""
    pyarrow, parquet = require("pyarrow"), require("pyarrow.parquet")

    try:
        table = parquet.read_table(path, partitioning=None, page_checksum_verification=True)
        broken = json.loads(table.schema.metadata[b"broken"])
        codes = table.column("code").combine_chunks()
        width = codes.type.byte_width
        packed: NDArray[np.uint8] = np.frombuffer(b"".join(codes.to_pylist()), dtype=np.uint8)
        labels = [tuple(names) for names in table.column("labels").to_pylist()]
        return Part(table.column("id").to_pylist(), packed.reshape(-1, width), labels, broken)
    except FileNotFoundError:
        raise DataError(f"no such file: '{path}'.") from None
    except (pyarrow.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"'{path}' is damaged, or no part that `centerhash encode` wrote ({error}): delete it and run the "
            "same command again."
        ) from None


def broken_in(path: Path) -> dict[str, str] | None:
    """Why images of a part could not be read, by id; None where the part is not there or damaged."""
    pyarrow, parquet = require("pyarrow"), require("pyarrow.parquet")

    try:
        found: dict[str, str] = json.loads(parquet.read_schema(path).metadata[b"broken"])
    except (pyarrow.ArrowException, OSError, KeyError, ValueError, TypeError):
        return None
    return found


def read_manifest(folder: str | Path) -> Manifest:
    """What the parts in a folder are of; DataError where it is no such folder."""
    path = Path(folder) / MANIFEST
    try:
        return Manifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"'{folder}' holds no {MANIFEST}: give the folder that `centerhash encode` wrote."
        ) from None
    except (OSError, ValueError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"'{path}' is damaged or of another version: {reason}") from None


def read_parts(folder: str | Path) -> Iterator[tuple[list[str], Packed, list[Labels]]]:
    """Yield ids, codes (n, ceil(K/8)) and labels part by part; DataError where parts are missing."""
    manifest = read_manifest(folder)
    paths = [part_path(Path(folder), number) for number in range(manifest.parts)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise DataError(
            f"'{folder}' lacks {len(missing):,} of {len(paths):,} parts, first {missing[0]}: run the same "
            "`centerhash encode` again to finish them."
        )
    width = packed_width(manifest.bits)
    for path in paths:
        part = read_part(path)
        if part.packed.shape[1] != width:
            raise DataError(
                f"'{path}' holds codes of {part.packed.shape[1]} bytes, the manifest says {width}."
            )
        yield list(part.ids), part.packed, list(part.labels)
