"""Shards: parquet files of id, packed code and labels, each for a fixed slice of the inputs, written atomically.

    for ids, packed, labels in read_shards("codes"):
        ...

The folder:

    manifest.json         model, inputs and sizes of the shards
    shard-00000.parquet   id (string), code (ceil(K/8) bytes), labels (list of string)
    broken.jsonl          images that could not be read, written at the end
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from centerhash.codes import Packed
from centerhash.core.errors import DataError, first_line
from centerhash.core.extras import require
from centerhash.core.files import atomic, parse_json
from centerhash.core.options import Options
from centerhash.core.version import __version__

MANIFEST, BROKEN = "manifest.json", "broken.jsonl"


class Manifest(Options):
    """The model and the inputs of the shards in a folder."""

    format: Literal[1] = 1
    centerhash: str = Field(__version__, description="version that created the folder")
    bits: int
    model: str = Field(description="digest of the model")
    inputs: str = Field(description="fingerprint of the inputs")
    count: int = Field(description="number of inputs")
    shard_size: int = Field(ge=1)
    labels: Literal["given", "predicted", "none"] = Field(description="by the dataset, by the model, or none")

    @property
    def shards(self) -> int:
        """Number of shards when all are written."""
        return -(-self.count // self.shard_size)

    def rows(self, number: int) -> slice:
        """Return the rows of the inputs in a shard."""
        start = number * self.shard_size
        return slice(start, min(start + self.shard_size, self.count))


@dataclass(frozen=True)
class Shard:
    """Ids, codes (n, ceil(K/8)) and labels of readable images, and reasons of broken ones by id."""

    ids: Sequence[str]
    packed: Packed
    labels: Sequence[tuple[str, ...]]
    broken: Mapping[str, str]


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"shard-{number:05d}.parquet"


def as_table(
    ids: Sequence[str], packed: Packed, labels: Sequence[tuple[str, ...]], metadata: Mapping[str, str]
) -> Any:
    """Return a pyarrow table of id, code (n, ceil(K/8)) and labels."""
    pyarrow = require("pyarrow")
    rows = np.ascontiguousarray(packed, dtype=np.uint8)
    code, names = pyarrow.binary(rows.shape[1]), pyarrow.list_(pyarrow.string())
    columns = {
        "id": pyarrow.array(list(ids), type=pyarrow.string()),
        "code": pyarrow.FixedSizeBinaryArray.from_buffers(code, len(rows), [None, pyarrow.py_buffer(rows)]),
        "labels": pyarrow.array([list(row) for row in labels], type=names),
    }
    return pyarrow.table(columns, metadata=dict(metadata))


def write_shard(folder: Path, number: int, shard: Shard, manifest: Manifest) -> None:
    """Write a shard atomically."""
    metadata = {
        "bits": str(manifest.bits),
        "model": manifest.model,
        "centerhash": __version__,
        "labels": manifest.labels,
        "broken": json.dumps(dict(shard.broken)),
    }
    table = as_table(shard.ids, shard.packed, shard.labels, metadata)
    with atomic(shard_path(folder, number)) as stream:
        require("pyarrow.parquet").write_table(table, stream, write_page_checksum=True)


def read_shard(path: Path) -> Shard:
    """Read a shard."""
    pyarrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    try:
        table = parquet.read_table(path, partitioning=None, page_checksum_verification=True)
        broken = parse_json(table.schema.metadata[b"broken"].decode())
        codes = table.column("code").combine_chunks()
        packed: NDArray[np.uint8] = np.frombuffer(b"".join(codes.to_pylist()), dtype=np.uint8)
        labels = [tuple(names) for names in table.column("labels").to_pylist()]
        ids = table.column("id").to_pylist()
        return Shard(ids, packed.reshape(-1, codes.type.byte_width), labels, broken)
    except FileNotFoundError:
        raise DataError(f"no such file: '{path}'.") from None
    except (pyarrow.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"'{path}' is damaged, or no shard that `centerhash encode` wrote ({first_line(error)}): delete it and run "
            "the same command again."
        ) from None


def read_broken(path: Path) -> Mapping[str, str] | None:
    """Return the reasons of broken images in a shard by id; None if the shard is missing or damaged."""
    try:
        return read_shard(path).broken
    except DataError:
        return None


def read_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of a folder of shards."""
    path = Path(folder) / MANIFEST
    try:
        return Manifest.model_validate(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        reason = f"'{path}' is missing, damaged or of another version ({first_line(error)})"
        raise DataError(f"{reason}: pass the folder that `centerhash encode` wrote.") from None


def read_shards(folder: str | Path) -> Iterator[tuple[list[str], Packed, list[tuple[str, ...]]]]:
    """Yield ids, codes (n, ceil(K/8)) and labels shard by shard; DataError if shards are missing."""
    manifest = read_manifest(folder)
    paths = [shard_path(Path(folder), number) for number in range(manifest.shards)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise DataError(
            f"'{folder}' lacks {len(missing):,} of {len(paths):,} shards, first {missing[0]}: run the same "
            "`centerhash encode` again to finish them."
        )
    for shard in map(read_shard, paths):
        yield list(shard.ids), shard.packed, list(shard.labels)
