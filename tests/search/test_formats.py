"""What other programs get of an index: the same codes, ids, labels and paths, whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import pack, unpack
from centerhash.core.errors import ConfigError, DataError
from centerhash.model.model import HashModel
from centerhash.search import Index, formats
from centerhash.search.formats import FORMATS, Row, copy_line
from centerhash.training.run import train
from tests.toys import feature_dataset, separable, toy_config

IDS = ["a", "b\tc", 'd"\\', "é,{}", "ø"]
LABELS: list[tuple[str, ...]] = [("cat",), (), ('a "b"', "c\\d,{e}"), ("two\nlines", "NULL"), ("dog", "cat")]
PATHS = ["/x/a.jpg", None, "/x/\\N", "/x/new\nline", "/x/\udcff.jpg"]
SHOWN = [*PATHS[:4], "/x/\\udcff.jpg"]  # no program but Python knows half a character


@pytest.fixture(scope="module")
def odd_model() -> HashModel:
    """A model whose 12 bits fill no whole number of bytes."""
    return train(feature_dataset(), config=toy_config(bits=12, epochs=1))


@pytest.fixture
def index(odd_model: HashModel, tmp_path: Path) -> Iterator[Index]:
    """Five items with everything that needs care in their texts."""
    with Index.create(tmp_path / "index", odd_model) as made:
        made.add_codes(pack(odd_model.encode_features(separable(5)[0])), IDS, LABELS, PATHS)
        yield made


def codes_of(index: Index) -> Any:
    return np.array([item.code for item in index])


def test_npy_has_a_row_of_each_file_per_item(index: Index, tmp_path: Path) -> None:
    assert index.export(tmp_path / "out", "npy") == 5
    assert np.array_equal(np.load(tmp_path / "out" / "codes.npy"), codes_of(index))
    rows = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert rows == [
        {"id": id, "labels": list(labels), "path": path}
        for id, labels, path in zip(IDS, LABELS, SHOWN, strict=True)
    ]


def test_parquet_has_what_parts_have_and_paths(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(formats, "_PAGE", 2)
    assert index.export(tmp_path / "out.parquet", "parquet") == 5
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "code", "labels", "path"]
    assert table.schema.metadata[b"bits"] == b"12"
    assert table["id"].to_pylist() == IDS
    assert table["code"].to_pylist() == [code.tobytes() for code in codes_of(index)]
    assert table["labels"].to_pylist() == list(map(list, LABELS))
    assert table["path"].to_pylist() == SHOWN
    assert parquet.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3


def test_faiss_opens_its_file_and_finds_the_same(index: Index, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    assert index.export(tmp_path / "out", "faiss") == 5
    opened = faiss.read_index_binary(str(tmp_path / "out" / "codes.faiss"))
    ids = json.loads((tmp_path / "out" / "ids.json").read_text())
    assert ids == IDS
    assert isinstance(opened, faiss.IndexBinaryIDMap2)
    distances, rows = opened.search(codes_of(index)[4:], 5)
    expected = index.store.search(codes_of(index)[4:], 5)[0]
    assert distances[0].tolist() == expected.distances.tolist()
    assert sorted(zip(distances[0], (ids[row] for row in rows[0]), strict=True)) == sorted(
        (far, id) for id, far in expected
    )


def test_pgvector_has_digits_most_significant_first(index: Index, tmp_path: Path) -> None:
    assert index.export(tmp_path / "out", "pgvector") == 5
    rows = [line.split("\t") for line in (tmp_path / "out" / "items.copy").read_text().splitlines()]
    codes = unpack(codes_of(index), 12)
    assert [row[1] for row in rows] == ["".join("1" if bit > 0 else "0" for bit in code) for code in codes]
    assert "code bit(12) NOT NULL" in (tmp_path / "out" / "create.sql").read_text()
    assert "<~>" in (tmp_path / "out" / "query.sql").read_text()


def test_lines_of_copy_are_escaped() -> None:
    row = Row("b\tc", bytes([0b10110000]), ('a "b"', "c\\d"), None)
    assert copy_line(row, 5) == 'b\\tc\t10110\t{"a \\\\"b\\\\"","c\\\\\\\\d"}\t\\N\n'
    assert copy_line(row._replace(labels=(), path="\\N\r\n"), 8) == "b\\tc\t10110000\t{}\t\\\\N\\r\\n\n"
    with pytest.raises(DataError, match=r"the item 'a\\x00' has a zero character"):
        copy_line(row._replace(id="a\0"), 5)


@pytest.mark.parametrize("to", FORMATS)
def test_an_empty_index_is_written_in_every_format(to: str, odd_model: HashModel, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", odd_model) as index:
        assert index.export(tmp_path / "out", to) == 0
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_that_fails_leaves_nothing(
    to: str, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Index) -> Iterator[Any]:
        yield next(items(self))
        raise RuntimeError("stop")

    items = Index.items
    monkeypatch.setattr(Index, "items", broken)
    with pytest.raises(RuntimeError):
        index.export(tmp_path / "out", to)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_what_is_there_is_not_overwritten_by_a_folder(index: Index, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    index.export(tmp_path / "out", "npy")  # an empty folder may be filled
    for to in ("npy", "faiss", "pgvector"):
        with pytest.raises(ConfigError):
            index.export(tmp_path / "out", to)
    with pytest.raises(ConfigError):
        index.export(tmp_path / "other", "parket")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("to", "library"), [("faiss", "faiss"), ("parquet", "pyarrow")])
def test_a_library_that_is_missing_is_one_sentence(
    to: str, library: str, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError):
        index.export(tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


def test_progress_ends_with_all_items(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_PAGE", 2)
    steps: list[tuple[int, int]] = []
    index.export(
        tmp_path / "out", "npy", progress=lambda stage, done, total, note="": steps.append((done, total))
    )
    assert steps == [(2, 5), (4, 5), (5, 5)]
