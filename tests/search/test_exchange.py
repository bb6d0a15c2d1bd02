"""Codes from files into an index, and items of an index for other programs: the same, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import Packed, pack, unpack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.files import read_npz, write_npz
from centerhash.encoding.bulk import encode_shards, encode_to_file
from centerhash.encoding.code_files import evaluate_files, read_codes
from centerhash.encoding.shards import read_shards
from centerhash.model.model import HashModel
from centerhash.search import Added, Index, exchange
from centerhash.search.exchange import FORMATS, Row, copy_line
from centerhash.search.rankings import BySemantic
from centerhash.training.run import train
from tests.toys import CLASSES, feature_dataset, names, separable, toy_config

IDS = ["ø", "b\tc", 'd"\\', "é,{}", "a"]
LABELS: list[tuple[str, ...]] = [("cat",), (), ('a "b"', "c\\d,{e}"), ("two\nlines", "NULL"), ("dog", "cat")]
PATHS = ["/x/a.jpg", None, "/x/\\N", "/x/new\nline", "/x/\udcff.jpg"]
WRITTEN = [*PATHS[:4], "/x/\\udcff.jpg"]  # only Python has half a character
VISUAL = [np.arange(16, dtype=np.uint8), None, np.ones(16, np.uint8), None, None]
SCORES: list[dict[str, tuple[int, int]]] = [
    {"cat": (200, 255), "not a class": (9, 0)},
    {},
    {"dog": (3, 4)},
    {},
    {},
]


@pytest.fixture
def index(feature_run: Path, tmp_path: Path) -> Iterator[Index]:
    """An empty index of codes of 16 bits."""
    with Index.create(tmp_path / "index", feature_run) as made:
        yield made


@pytest.fixture(scope="module")
def odd_model() -> HashModel:
    """A model whose 12 bits fill no whole number of bytes."""
    return train(feature_dataset(), config=toy_config(bits=12, epochs=1))


@pytest.fixture
def odd(odd_model: HashModel, tmp_path: Path) -> Iterator[Index]:
    """Five items with everything that needs care in their texts."""
    with Index.create(tmp_path / "index", odd_model) as made:
        made.add_codes(pack(odd_model.encode_features(separable(5)[0])), IDS, LABELS, PATHS, VISUAL, SCORES)
        yield made


def codes_of(index: Index, count: int = 6) -> Packed:
    return pack(index.model.encode_features(separable(count)[0]))


def stored(index: Index) -> dict[str, list[int]]:
    return {item.id: item.code.tolist() for item in index}


# --- code files


def test_codes_with_labels(index: Index, feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    encode_to_file(HashModel.load(feature_run), [str(feature_folder)], tmp_path / "codes.npz")
    assert index.import_codes(tmp_path / "codes.npz") == Added(160, 0, {})
    assert index.import_codes(tmp_path / "codes.npz") == Added(0, 160, {})
    assert [item.id for item in index] == [str(row) for row in range(160)]
    for item, row in zip(index, separable(160)[1], strict=True):
        assert item.labels == tuple(CLASSES[j] for j in np.flatnonzero(row))


def test_codes_without_names_are_named_by_their_file(index: Index, tmp_path: Path) -> None:
    write_npz(tmp_path / "today.npz", {"packed": codes_of(index, 3), "bits": np.array(16)})
    assert index.import_codes(tmp_path / "today.npz").added == 3
    assert [(item.id, item.labels) for item in index] == [(f"today-{row}", ()) for row in range(3)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"packed": None}, "packed"),
        ({"packed": np.uint8(3)}, r"\(\)"),
        ({"packed": np.zeros((3, 4), np.uint8), "bits": np.array(32)}, "32 bits, .* 16"),
        ({"bits": np.array("many")}, "bits"),
        ({"names": np.array(["one"])}, r"names .*\(1,\)"),
        ({"labels": np.ones((3, 2), bool)}, r"labels .*\(3, 2\)"),
        ({"names": np.array(["a", "b", "a"])}, "'a'"),
        ({"probabilities": np.ones((3, 2), np.uint8), "shares": np.ones((3, 2), np.uint8)}, "probabilities"),
    ],
)
def test_rejected_code_files(index: Index, changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    arrays = {"packed": np.zeros((3, 2), np.uint8), "bits": np.array(16), **changes}
    write_npz(tmp_path / "codes.npz", {name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(InputError, match=named):
        index.import_codes(tmp_path / "codes.npz")
    with pytest.raises(InputError, match=r"none\.npz"):
        index.import_codes(tmp_path / "none.npz")
    assert len(index) == 0


def test_export_and_import(odd: Index, odd_model: HashModel, tmp_path: Path) -> None:
    file = tmp_path / "out.npz"
    assert odd.export(file) == 5
    arrays = read_npz(file)
    assert json.loads(arrays["names"].tobytes()) == IDS == list(read_codes(file).names or ())
    others = {"not a class", *(name for row in LABELS for name in row)} - set(CLASSES)
    assert arrays["classes"].tolist() == [*CLASSES, *sorted(others)]
    assert evaluate_files([file, file]).queries == 5
    with Index.create(tmp_path / "copy", odd_model) as copy:
        assert copy.import_codes(file) == Added(5, 0, {})
        for item, same in zip(odd, copy, strict=True):
            assert (item.id, item.path, item.scores) == (same.id, same.path, same.scores)
            assert (item.code.tolist(), set(item.labels)) == (same.code.tolist(), set(same.labels))
            assert np.array_equal(item.visual, same.visual)  # type: ignore[arg-type] # also of None


def test_taught_labels_are_exported_and_imported(odd: Index, odd_model: HashModel, tmp_path: Path) -> None:
    odd.teach("Bella", like=IDS[:2], unlike=IDS[3:])
    carried = odd.counts(having="Bella").labels["Bella"]
    odd.export(tmp_path / "out.npz")
    odd.export(tmp_path / "folder", to="npy")
    lines = [json.loads(line) for line in (tmp_path / "folder" / "items.jsonl").read_text().splitlines()]
    assert sum("Bella" in line["labels"] for line in lines) == carried >= 2
    with Index.create(tmp_path / "copy", odd_model) as copy:
        for _ in range(2):  # also if all is known
            copy.import_codes(tmp_path / "out.npz")
            assert copy.taught() == odd.taught()
            assert all("Bella" not in item.labels for item in copy)  # it is computed, not stored
            assert "Bella" in copy.get(IDS[0]).labels
            found = [row.id for row in copy.search(labels="Bella", k=5)]
            assert found == [row.id for row in odd.search(labels="Bella", k=5)]


def test_taught_labels_of_another_model_are_plain_labels(odd: Index, tmp_path: Path) -> None:
    odd.teach("Bella", like=IDS[:2])
    odd.export(tmp_path / "out.npz")
    with Index.create(tmp_path / "copy", bits=odd.model_info.bits) as other:
        other.import_codes(tmp_path / "out.npz")
        assert other.taught() == {}
        assert "Bella" in next(item for item in other if item.id == IDS[0]).labels


# --- shards


@pytest.fixture
def shards(feature_run: Path, feature_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """160 codes in shards of 30; an import commits 60 at a time."""
    encode_shards(feature_run, [str(feature_folder)], tmp_path / "shards", shard_size=30)
    monkeypatch.setattr(exchange, "_PAGE", 60)
    return tmp_path / "shards"


def test_shards_are_added_once(index: Index, shards: Path) -> None:
    before = index.store.version
    assert index.import_codes(shards) == Added(160, 0, {})
    assert index.store.version == before + 3  # type: ignore[operator] # 60, 60 and 40
    assert index.import_codes(shards) == Added(0, 160, {})
    items = iter(index)
    for ids, packed, labels in read_shards(shards):
        for id, code, row in zip(ids, packed, labels, strict=True):
            item = next(items)
            assert (item.id, item.code.tobytes(), set(item.labels)) == (id, code.tobytes(), set(row))
    assert next(items, None) is None


def test_an_import_that_was_stopped_resumes(index: Index, shards: Path) -> None:
    content = (shards / "shard-00004.parquet").read_bytes()
    (shards / "shard-00004.parquet").write_bytes(content[:-9])
    with pytest.raises(DataError, match=r"shard-00004\.parquet"):
        index.import_codes(shards)
    assert len(index) == 60  # whole commits
    (shards / "shard-00004.parquet").write_bytes(content)
    assert index.import_codes(shards) == Added(100, 60, {})


def test_an_id_again_in_a_later_shard_is_known(index: Index, shards: Path) -> None:
    first = (shards / "shard-00000.parquet").read_bytes()
    (shards / "shard-00001.parquet").write_bytes(first)
    assert index.import_codes(shards) == Added(130, 30, {})


def test_rejected_shards(index: Index, shards: Path, feature_folder: Path, tmp_path: Path) -> None:
    train(feature_dataset(), config=toy_config(seed=5, epochs=1)).save(tmp_path / "model")
    encode_shards(tmp_path / "model", [str(feature_folder)], tmp_path / "others")
    (shards / "shard-00001.parquet").unlink()
    for folder in ("others", "shards"):
        with pytest.raises(DataError, match=folder):
            index.import_codes(tmp_path / folder)
    assert len(index) == 0


# --- Faiss


def faiss_file(path: Path, packed: Packed, kind: str, first: int = 0) -> Path:
    """A Faiss file of codes of 16 bits."""
    faiss = pytest.importorskip("faiss")
    made = faiss.IndexBinaryHNSW(16, 4) if kind == "HNSW" else faiss.IndexBinaryFlat(16)
    if kind.startswith("IDMap"):
        made = getattr(faiss, f"IndexBinary{kind}")(made)
        made.add_with_ids(packed, np.arange(first, first + len(packed)))
    else:
        made.add(packed)
    faiss.write_index_binary(made, str(path))
    return path


@pytest.mark.parametrize("name", ["today.faiss", "today.bin"])
@pytest.mark.parametrize("kind", ["Flat", "HNSW", "IDMap", "IDMap2"])
def test_names_of_faiss_codes(index: Index, tmp_path: Path, name: str, kind: str) -> None:
    packed = codes_of(index)
    file = faiss_file(tmp_path / name, packed, kind, 70)
    assert index.import_codes(file) == Added(6, 0, {})
    ids = [str(70 + row) if kind.startswith("IDMap") else f"today-{row}" for row in range(6)]
    assert stored(index) == dict(zip(ids, packed.tolist(), strict=True))
    assert index.import_codes(file) == Added(0, 6, {})


def test_faiss_files_that_are_rejected(index: Index, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    hashes, cells = (
        faiss.IndexBinaryMultiHash(16, 2, 8),
        faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(16), 16, 2),
    )
    hashes.add(codes_of(index))
    cells.train(codes_of(index, 80))
    content = faiss_file(tmp_path / "sound.faiss", codes_of(index), "Flat").read_bytes()
    for named, damaged in {
        "IndexBinaryMultiHash": faiss.serialize_index_binary(hashes).tobytes(),
        "IndexBinaryIVF": faiss.serialize_index_binary(cells).tobytes(),
        "64 bits, .* 16": faiss.serialize_index_binary(faiss.IndexBinaryFlat(64)).tobytes(),
        r"other\.faiss": content[:-5],
        r"other\.faiss'": content[:3],
        r"other\.faiss' ": b"",
        r"other\.faiss' is": faiss.serialize_index(faiss.IndexFlatL2(16)).tobytes(),
    }.items():
        (tmp_path / "other.faiss").write_bytes(damaged)
        with pytest.raises(DataError, match=named):
            index.import_codes(tmp_path / "other.faiss")
    with pytest.raises(DataError, match=r"none\.faiss"):
        index.import_codes(tmp_path / "none.faiss")
    assert len(index) == 0


def test_an_export_for_faiss(odd: Index, odd_model: HashModel, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    assert odd.export(tmp_path / "out", "faiss") == 5
    opened = faiss.read_index_binary(str(tmp_path / "out" / "codes.faiss"))
    ids = json.loads((tmp_path / "out" / "ids.json").read_text())
    assert ids == IDS
    code = next(iter(odd)).code
    distances, rows = opened.search(code[None], 5)
    expected = [(item.id, distance) for item, distance in odd.store.search(BySemantic(code), 5)]
    assert distances[0].tolist() == [distance for _, distance in expected]
    assert {ids[row]: far for row, far in zip(rows[0], distances[0], strict=True)} == dict(expected)
    with Index.create(tmp_path / "other", odd_model) as other:
        assert other.import_codes(tmp_path / "out").added == 5
        assert stored(other) == stored(odd)
        for content in ('["a", "b"]', "{}", "["):
            (tmp_path / "out" / "ids.json").write_text(content)
            with pytest.raises(DataError, match=r"ids\.json"):
                other.import_codes(tmp_path / "out")


# --- other formats


def test_npy_has_a_row_of_each_file_per_item(odd: Index, tmp_path: Path) -> None:
    assert odd.export(tmp_path / "out", "npy") == 5
    assert np.load(tmp_path / "out" / "codes.npy").tolist() == list(stored(odd).values())
    rows = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert rows == [
        {"id": id, "labels": list(labels), "path": path}
        for id, labels, path in zip(IDS, LABELS, WRITTEN, strict=True)
    ]


def test_parquet(odd: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(exchange, "_ROWS", 2)
    assert odd.export(tmp_path / "out.parquet", "parquet") == 5
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.metadata[b"bits"] == b"12"
    assert table.to_pydict() == {
        "id": IDS,
        "code": [bytes(code) for code in stored(odd).values()],
        "labels": list(map(list, LABELS)),
        "path": WRITTEN,
    }
    assert parquet.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3


def test_pgvector_has_digits_most_significant_first(odd: Index, tmp_path: Path) -> None:
    assert odd.export(tmp_path / "out", "pgvector") == 5
    rows = [line.split("\t") for line in (tmp_path / "out" / "items.copy").read_text().splitlines()]
    codes = unpack(np.array([item.code for item in odd]), 12)
    assert [row[1] for row in rows] == ["".join("1" if bit > 0 else "0" for bit in code) for code in codes]
    assert "bit(12)" in (tmp_path / "out" / "create.sql").read_text()
    assert "<~>" in (tmp_path / "out" / "query.sql").read_text()
    row = Row("b\tc", bytes([0b10110000]), ('a "b"', "c\\d"), None)
    assert copy_line(row, 5) == 'b\\tc\t10110\t{"a \\\\"b\\\\"","c\\\\\\\\d"}\t\\N\n'
    assert copy_line(row._replace(labels=(), path="\\N\r\n"), 8) == "b\\tc\t10110000\t{}\t\\\\N\\r\\n\n"
    with pytest.raises(DataError, match=r"'a\\x00'"):
        copy_line(row._replace(id="a\0"), 5)


@pytest.mark.parametrize("to", FORMATS)
def test_half_exports(to: str, odd_model: HashModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Index) -> Iterator[Any]:
        yield next(items(self))
        raise RuntimeError("stop")

    items = Index.items
    with Index.create(tmp_path / "index", odd_model) as index:
        assert index.export(tmp_path / "nothing", to) == 0
        if to == "npz":
            assert index.import_codes(tmp_path / "nothing") == Added(0, 0, {})
        index.add_codes(np.zeros((2, 2), np.uint8), "ab", [["cat"], []])
        monkeypatch.setattr(Index, "items", broken)
        with pytest.raises(RuntimeError):
            index.export(tmp_path / "out", to)
    assert names(tmp_path) == ["index", "nothing"]


def test_a_folder_is_not_overwritten(odd: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_ROWS", 2)
    steps: list[tuple[int, int]] = []
    (tmp_path / "out").mkdir()  # an empty one may be filled
    odd.export(
        tmp_path / "out", "npy", progress=lambda stage, done, total, note="": steps.append((done, total))
    )
    assert steps == [(2, 5), (4, 5), (5, 5)]
    for to in ("npy", "faiss", "pgvector"):
        with pytest.raises(ConfigError, match="out"):
            odd.export(tmp_path / "out", to)
    with pytest.raises(ConfigError, match="'parket'"):
        odd.export(tmp_path / "other", "parket")
    assert not (tmp_path / "other").exists()
