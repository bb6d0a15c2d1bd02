"""Shards: parquet files that others can read, and errors with the name of a damaged or missing one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from centerhash import __version__
from centerhash.core.errors import DataError
from centerhash.core.files import write_json
from centerhash.encoding.shards import (
    MANIFEST,
    Manifest,
    Shard,
    read_broken,
    read_shard,
    read_shards,
    shard_path,
    write_shard,
)

ABOUT = Manifest(bits=20, model="m", inputs="i", count=3, shard_size=2, labels="given")
SHARD = Shard(
    ["a", "ü/b.jpg"], np.array([[1, 2, 48], [255, 0, 16]], np.uint8), [("dog", "cat"), ()], {"c": "gone"}
)
NOTHING = Shard([], np.zeros((0, 3), np.uint8), [], {"a": "gone"})


@pytest.mark.parametrize("shard", [SHARD, NOTHING])
def test_write_and_read_shard(shard: Shard, tmp_path: Path) -> None:
    write_shard(tmp_path, 7, shard, ABOUT)
    stored = read_shard(tmp_path / "shard-00007.parquet")
    assert (stored.ids, stored.packed.tolist()) == (shard.ids, shard.packed.tolist())
    assert (stored.labels, stored.broken) == (shard.labels, shard.broken)
    assert read_broken(tmp_path / "shard-00007.parquet") == shard.broken


def test_parquet_columns(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, SHARD, ABOUT)
    table = parquet.read_table(tmp_path / "shard-00000.parquet")
    assert table.schema.types == [pa.string(), pa.binary(3), pa.list_(pa.string())]
    assert table.to_pylist()[0] == {"id": "a", "code": b"\x01\x02\x30", "labels": ["dog", "cat"]}
    metadata = table.schema.metadata
    assert (metadata[b"bits"], metadata[b"model"]) == (b"20", b"m")
    assert metadata[b"centerhash"] == __version__.encode()


def test_cut_and_foreign_shards(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, SHARD, ABOUT)
    path = shard_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-40])
    parquet.write_table(pa.table({"id": ["a"]}), tmp_path / "foreign.parquet")
    for file in (path, tmp_path / "foreign.parquet", tmp_path / "gone.parquet"):
        assert read_broken(file) is None
        with pytest.raises(DataError, match=file.name):
            read_shard(file)


def test_flipped_bits_in_codes(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (500, 3), dtype=np.uint8)
    write_shard(tmp_path, 0, Shard([f"{row}.jpg" for row in range(500)], codes, [()] * 500, {}), ABOUT)
    path = shard_path(tmp_path, 0)
    whole = path.read_bytes()
    start = whole.index(codes[200:204].tobytes())
    for byte in range(start, start + 300, 7):
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 4]) + whole[byte + 1 :])
        with pytest.raises(DataError):
            read_shard(path)


def test_incomplete_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=MANIFEST):
        list(read_shards(tmp_path))
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(DataError, match=MANIFEST):
        list(read_shards(tmp_path))
    write_json(tmp_path / MANIFEST, ABOUT.model_dump())
    write_shard(tmp_path, 0, SHARD, ABOUT)
    with pytest.raises(DataError, match=r"1 of 2 shards, first shard-00001.parquet"):
        list(read_shards(tmp_path))
