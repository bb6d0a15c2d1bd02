"""Import and export of code files, shards and parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.codes import pack
from centerhash.core.errors import DataError, InputError
from centerhash.encoding.code_files import CodeFile, read_codes, write_codes
from centerhash.encoding.shards import MANIFEST, Manifest, Shard, write_shard
from centerhash.index import Index
from centerhash.model.model import HashModel
from tests.index.naive import BITS, ListIndex, add, create, random_rows, same_rows


def test_export_and_import_npz(tmp_path: Path) -> None:
    rows = [row for row in random_rows(60) if all(any(pair) for pair in row.scores.values())]
    with create(tmp_path / "one") as index, create(tmp_path / "two") as other:
        add(index, rows)
        index.hide(rows[3].id)
        assert index.export(tmp_path / "codes.npz", progress=False) == len(rows)
        result = other.import_codes(tmp_path / "codes.npz")
        assert (result.added, result.known) == (len(rows), 0)
        assert other.import_codes(tmp_path / "codes.npz").known == len(rows)
        assert [item.id for item in other] == [row.id for row in rows]
        for item, row in zip(other, rows, strict=True):
            assert (set(item.labels), dict(item.scores)) == (set(row.labels), dict(row.scores))
            assert (None if item.general is None else item.general.tobytes()) == row.general
    codes = read_codes(tmp_path / "codes.npz")
    assert codes.classes is not None
    assert codes.classes[:3] == ("cat", "dog", "emu")
    assert codes.packed.tobytes() == b"".join(row.code for row in rows)


def test_import_foreign_codes(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), (9, 20))
    np.save(tmp_path / "signs.npy", codes[:5])
    np.save(tmp_path / "packed.npy", pack(codes[5:]))
    write_codes(tmp_path / "named.npz", CodeFile(20, pack(codes[:2]), names=["a", "b"]))
    with Index.create(tmp_path / "index", bits=20) as index:
        for name in ("signs.npy", "packed.npy", "named.npz"):
            index.import_codes(tmp_path / name)
        assert [item.id for item in index][3:] == [
            "signs-3",
            "signs-4",
            *(f"packed-{row}" for row in range(4)),
            "a",
            "b",
        ]
        assert [row.id for row in index.search(code=codes[1], within=0)] == ["signs-1", "b"]
        assert index.verify() == []


def test_import_shards(tmp_path: Path, toy_model: HashModel) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for model in (toy_model.digest, "another"):
        facts = {"bits": 16, "model": model, "inputs": "", "count": 5, "shard_size": 3, "labels": "given"}
        manifest = Manifest.model_validate(facts)
        (folder / MANIFEST).write_text(manifest.model_dump_json())
        for number, size in enumerate((3, 2)):
            packed = np.full((size, 2), number, np.uint8)
            ids, labels = [f"{number}{row}" for row in range(size)], [(f"label {number}",)] * size
            write_shard(folder, number, Shard(ids, packed, labels, {}), manifest)
        with Index.create(tmp_path / model, toy_model) as index:
            if model == "another":
                with pytest.raises(DataError, match="another model"):
                    index.import_codes(folder)
                continue
            assert index.import_codes(folder).added == 5
            assert index.import_codes(folder).known == 5
            assert [(item.id, *item.labels) for item in index][2:4] == [("02", "label 0"), ("10", "label 1")]


def test_export_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = random_rows(30)
    with create(tmp_path / "index") as index:
        add(index, rows)
        same_rows(index, ListIndex(rows), rows)
        assert index.export(tmp_path / "items.parquet", "parquet", progress=False) == 30
    table = parquet.read_table(tmp_path / "items.parquet")
    assert table.column_names == ["id", "code", "labels", "price", "kind"]
    assert table.column("id").to_pylist() == [row.id for row in rows]
    assert table.column("code").to_pylist() == [row.code for row in rows]
    assert [set(names) for names in table.column("labels").to_pylist()] == [set(row.labels) for row in rows]
    assert table.column("price").to_pylist() == [row.price for row in rows]
    assert table.column("kind").to_pylist() == [row.kind for row in rows]
    assert table.schema.metadata[b"bits"] == str(BITS).encode()


@pytest.mark.parametrize("content", [None, b"", b"PK\3\4 no archive"])
def test_import_rejected_files(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "codes.npz").write_bytes(content)
    with Index.create(tmp_path / "index", bits=16) as index:
        with pytest.raises(DataError, match=r"codes\.npz"):
            index.import_codes(tmp_path / "codes.npz")
        write_codes(tmp_path / "codes.npz", CodeFile(20, np.zeros((2, 3), np.uint8)))
        with pytest.raises(InputError, match="20"):
            index.import_codes(tmp_path / "codes.npz")
        assert len(index) == 0
