"""The public class: creating, adding, reading, attributes, keys, transactions, and folders that are no index."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.index import Index, is_index, verify_index
from tests.index.naive import ATTRIBUTES, ListIndex, add, check, create, damages, random_rows

CODES = np.arange(12, dtype=np.uint8).reshape(6, 2)


@pytest.fixture
def index(tmp_path: Path) -> Any:
    with Index.create(tmp_path / "index", bits=16, general_bits=24, attributes=ATTRIBUTES) as created:
        yield created


def test_create_empty_index(index: Index) -> None:
    assert (index.bits, index.general_bits, index.classes) == (16, 24, ())
    assert (index.attributes, index.read_only, bool(index)) == (ATTRIBUTES, False, True)
    assert (len(index), list(index), index.labels(), index.list()) == (0, [], {}, ([], 0))
    assert len(index.search(code=CODES[0])) == 0
    assert index.verify() == []
    assert index.info()["size"] == 0
    index.compact()


def test_add_default_ids(index: Index) -> None:
    assert index.add(codes=CODES[:2]).added == 2
    assert index.add(codes=CODES[2:4], ids=[7, "x"]).added == 2
    index.remove("7")
    index.add(codes=CODES[4:])
    assert [item.id for item in index] == ["0", "1", "x", "8", "9"]
    assert index.ids(index.keys(["9", "x"])) == ["9", "x"]


def test_add_stored_ids(index: Index) -> None:
    index.add(codes=CODES[:2], ids=["a", "b"], labels=[["one"], ["two"]])
    before = index.keys(["a", "b"])
    result = index.add(codes=CODES[3:5], ids=["b", "c"], labels=[["three"], ["four"]])
    assert (result.added, result.known) == (1, 1)
    assert index.get("b").labels == ("two",)
    index.add(codes=CODES[5:], ids=["b"], replace=True)
    assert index.get("b").code.tolist() == CODES[5].tolist()
    after = index.keys(["a", "b"])
    assert after[0] == before[0]
    assert after[1] > before[1]
    with pytest.raises(InputError, match=str(before[1])):
        index.ids(before[1:])


def test_add_missing_attributes(index: Index) -> None:
    index.add(
        codes=CODES[:3],
        ids=["a", "b", "c"],
        attributes={"price": [1, None, float("nan")], "kind": ["x", None, ""]},
    )
    index.add(codes=CODES[3:4], ids=["d"])
    values = [item.attributes for item in index]
    assert [value["price"] for value in values] == [1.0, None, None, None]
    assert [value["kind"] for value in values] == ["x", None, "", None]
    conditions = {"price": (None, None), "kind": ""}
    for name, condition in conditions.items():
        ids = {row.id for row in index.search(code=CODES[0], where={name: condition})}
        assert ids == {"price": {"a"}, "kind": {"c"}}[name]


def test_search_results(index: Index) -> None:
    general = np.arange(18, dtype=np.uint8).reshape(6, 3)
    index.add(codes=CODES, general=general, attributes={"price": np.arange(6.0)}, labels=[["a"]] * 6)
    results = index.search(id="1", k=2)
    first = results[0]
    item = index.get(first.id)
    assert first.distance == int(np.unpackbits(item.code ^ CODES[1]).sum())
    assert first.general == int(np.unpackbits(general[int(first.id)] ^ general[1]).sum())
    assert (first.key, first.labels, first.attributes["price"]) == (item.key, ("a",), float(first.id))
    assert (results.size, results.to_dict()["bits"]) == (6, 16)
    assert list(results.to_pandas()["id"]) == [row.id for row in results]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"codes": CODES[:, :1]}, "16 bits"),
        ({"codes": CODES.astype(int)}, "uint8"),
        ({"codes": None}, "either"),
        ({"embeddings": np.zeros((6, 4), np.float32)}, "either"),
        ({"general": np.zeros((6, 2), np.uint8)}, "24 bits"),
        ({"general": np.zeros((5, 3), np.uint8)}, "general has 5"),
        ({"ids": ["a"]}, "ids has 1"),
        ({"ids": "abcdef"}, "list"),
        ({"ids": list("aabcde")}, "'a'"),
        ({"ids": ["", *"abcde"]}, "''"),
        ({"ids": ["\ud800", *"abcde"]}, "ud800"),
        ({"ids": [None, *"abcde"]}, "None"),
        ({"labels": ["cat"] * 6}, "'cat'"),
        ({"labels": [["a"]] * 5}, "labels has 5"),
        ({"labels": [[3]] * 6}, "3"),
        ({"scores": [{"a": (256, 0)}] * 6}, "'a'"),
        ({"scores": [{"a": (1.0, 0)}] * 6}, "'a'"),
        ({"scores": [{}]}, "scores has 1"),
        ({"attributes": {"size": [1] * 6}}, "'size'"),
        ({"attributes": {"price": [1]}}, "price has 1"),
        ({"attributes": {"price": ["much"] * 6}}, "'price'"),
        ({"attributes": {"kind": [3] * 6}}, "'kind'"),
        ({"attributes": {"price": [[1, 2]] * 6}}, "'price'"),
    ],
)
def test_add_rejected_items(index: Index, changes: dict[str, Any], named: str) -> None:
    arguments = {"codes": CODES, "ids": list("abcdef"), **changes}
    with pytest.raises(InputError, match=named):
        index.add(**arguments)
    assert len(index) == 0


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({}, "none"),
        ({"id": "0", "code": CODES[0]}, "code and id"),
        ({"id": "nobody"}, "nobody"),
        ({"id": "0", "k": 0}, "k"),
        ({"id": "0", "by": "color"}, "color"),
        ({"id": "0", "by": "general"}, "general"),
        ({"id": "0", "within": 17}, "17"),
        ({"code": "zz"}, "16 values"),
        ({"code": {"general": CODES}}, "semantic"),
        ({"code": {"semantic": CODES[0], "text": CODES}}, "text"),
        ({"code": {"semantic": CODES[0], "general": CODES}}, "24 bits"),
        ({"labels": "cat"}, "no model"),
        ({"query": np.zeros(3, np.float32)}, "no model"),
        ({"id": "0", "where": {"size": 3}}, "size"),
        ({"id": "0", "where": {"price": 3}}, "price"),
        ({"id": "0", "where": {"price": (1, 2, 3)}}, "price"),
        ({"id": "0", "where": {"price": ("a", None)}}, "price"),
        ({"id": "0", "where": {"kind": 3}}, "kind"),
        ({"id": "0", "having": 3}, "3"),
        ({"id": "0", "among": ["nobody"]}, "nobody"),
        ({"like": []}, "like"),
        ({"like": ["nobody"]}, "nobody"),
        ({"like": ["0"], "by": "semantic"}, "by"),
    ],
)
def test_search_rejected_queries(index: Index, query: dict[str, Any], named: str) -> None:
    index.add(codes=CODES)
    with pytest.raises(InputError, match=named):
        index.search(**query)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda index: index.list(-1), "offset"),
        (lambda index: index.list(0, -1), "limit"),
        (lambda index: index.list(order="kind"), "kind"),
        (lambda index: index.list(order="size"), "size"),
        (lambda index: index.get("nobody"), "nobody"),
        (lambda index: index.get(["0", "nobody"]), "nobody"),
        (lambda index: index.hide("nobody"), "nobody"),
        (lambda index: index.ids([99]), "99"),
        (lambda index: index.export("out", "faiss"), "faiss"),
    ],
)
def test_rejected_calls(index: Index, call: Any, named: str) -> None:
    index.add(codes=CODES)
    with pytest.raises(InputError, match=named):
        call(index)


@pytest.mark.parametrize("code", [[1] * 16, [True] * 16, np.full(2, 255, np.uint8), "ffff"])
def test_search_forms_of_code(index: Index, code: Any) -> None:
    index.add(codes=np.array([[255, 254], [0, 0]], np.uint8))
    assert [row.distance for row in index.search(code=code)] == [1, 16]
    assert index.search(code={"semantic": code}, by="semantic")[0].distance == 1


def test_search_codes_of_21_bits(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).choice([-1, 1], (40, 21)).astype(np.int8)
    with Index.create(tmp_path / "index", bits=21) as index:
        index.add(codes=pack(codes))
        expected = (codes != codes[3]).sum(axis=1)
        results = index.search(code=codes[3], k=40)
        assert [row.distance for row in results] == sorted(expected.tolist())
        assert results.code.tolist() == codes[3].tolist()
        assert index.near_pairs.__name__
        with pytest.raises(InputError, match="general"):
            index.near_pairs(3)
        with pytest.raises(InputError, match="general"):
            index.add(codes=pack(codes), general=pack(codes))


def test_near_pairs_of_keys(index: Index) -> None:
    general = np.zeros((6, 3), np.uint8)
    general[:, 0] = [1, 1, 3, 255, 7, 0]  # the last has no general code
    index.add(codes=CODES, general=general, ids=list("abcdef"))
    index.hide("c")
    pairs = index.near_pairs(2)
    named = [
        (*index.ids(pair), bits) for *pair, bits in zip(*(column.tolist() for column in pairs), strict=True)
    ]
    assert named == [("a", "b", 0), ("a", "e", 2), ("b", "e", 2)]


def test_search_among(index: Index) -> None:
    index.add(codes=CODES, ids=list("abcdef"))
    index.remove("a")
    keys = index.keys(["c", "e"])
    index.compact()
    for among in (["c", "e"], keys, np.array([*keys, 0, 99]), np.array([], np.int64)):
        expected = {"c", "e"} if len(among) else set()
        assert {row.id for row in index.search(code=CODES[0], among=among)} == expected
        assert {item.id for item in index.list(among=among)[0]} == expected
        assert index.count(among=among).total == len(expected)


def test_transaction(index: Index, tmp_path: Path) -> None:
    with Index.open(index.folder, read_only=True) as reader:
        before = index.version
        with index.transaction() as sql:
            sql.execute("CREATE TABLE notes (key INTEGER PRIMARY KEY, text TEXT)")
            index.add(codes=CODES, ids=list("abcdef"), labels=[["new"]] * 6)
            with index.transaction():
                index.remove("a")
            index.hide("b")
            sql.execute("INSERT INTO notes VALUES (?, 'third')", (int(index.keys("c")[0]),))
            assert "a" not in index
            assert "b" in index
            assert index.get("c").labels == ("new",)
            assert [item.id for item in index] == list("bcdef")
            assert len(reader) == 0
            assert reader.version == before
            for refused in (lambda: index.search(id="c"), index.list, index.count):
                with pytest.raises(InputError, match="transaction"):
                    refused()
        assert len(reader) == 4
        assert reader.version > before
        with reader.reading() as sql:
            (key,) = sql.execute("SELECT key FROM notes").fetchone()
            index.remove("d")
            assert reader.ids([key]) == ["c"]
            assert {row.id for row in reader.search(code=CODES[0])} == set("cdef")
        assert {row.id for row in reader.search(code=CODES[0])} == set("cef")


def test_transaction_with_failed_block(index: Index) -> None:
    with index.transaction():
        index.add(codes=CODES[:1], ids=["a"])
        with suppress(KeyError), index.transaction():
            index.add(codes=CODES[1:2], ids=["b"], labels=[["lost"]])
            raise KeyError
        index.add(codes=CODES[2:3], ids=["c"], labels=[["kept"]])
    assert [(item.id, item.labels) for item in index] == [("a", ()), ("c", ("kept",))]
    assert index.labels() == {"kept": 1}
    assert index.verify() == []


def test_add_while_reading(index: Index) -> None:
    with index.reading(), pytest.raises(InputError, match="reads"):
        index.add(codes=CODES)


def test_open_read_only(index: Index) -> None:
    index.add(codes=CODES)
    with Index.open(index.folder, read_only=True) as reader:
        for change in (
            lambda: reader.add(codes=CODES),
            lambda: reader.remove("0"),
            lambda: reader.hide("0"),
            reader.compact,
            lambda: reader.transaction().__enter__(),
        ):
            with pytest.raises(InputError, match="read-only"):
                change()
        assert len(reader.search(id="0")) == 5


def test_close(index: Index) -> None:
    index.add(codes=CODES)
    index.close()
    index.close()
    assert "closed" in repr(index)
    for call in (lambda: len(index), lambda: index.search(id="0"), lambda: index.add(codes=CODES)):
        with pytest.raises(InputError, match="closed"):
            call()


def test_backup(tmp_path: Path) -> None:
    model = ListIndex()
    with Index.create(tmp_path / "index", bits=16, general_bits=24, attributes=ATTRIBUTES) as index:
        rows = random_rows(50)
        assert add(index, rows) == model.add(rows)
        index.hide(["0003"])
        model.set_hidden(["0003"], True)
        assert index.backup(tmp_path / "copy", progress=False) == 49
        index.remove(["0004"])
        with pytest.raises(InputError):
            index.backup(tmp_path / "index", progress=False)
    with Index.open(tmp_path / "copy") as copy:
        check(copy, model)
        assert copy.verify() == []


def test_compact(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index:
        add(index, random_rows(9_000))
        keys = index.keys(["8999", "0001"])
        index.remove([f"{row:04d}" for row in range(2, 8_990)])
        before = index.info()
        index.compact()
        after = index.info()
        assert after["bytes"] < before["bytes"] / 4
        assert (before["removed"], after["removed"], len(index)) == (8_988, 0, 12)
        assert index.keys(["8999", "0001"]).tolist() == keys.tolist()
        add(index, random_rows(1, first=2))
        assert index.keys("0002")[0] == 9_000
        assert damages(index) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"model": "coco", "bits": 8}, "bits"),
        ({"bits": 0}, "0"),
        ({"bits": 8, "general_bits": -1}, "general_bits"),
        ({"general_bits": 8}, "general_bits"),
        ({"model": 3}, "int"),
        ({"bits": 8, "attributes": {"price": int}}, "price"),
        ({"bits": 8, "attributes": {"": float}}, "1 to"),
        ({"bits": 8, "attributes": {"a\n": float}}, "1 to"),
    ],
)
def test_create_rejected_arguments(tmp_path: Path, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Index.create(tmp_path / "index", **arguments)
    assert not (tmp_path / "index").exists()


def test_create_in_used_folder(index: Index, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is an index already"):
        Index.create(index.folder, bits=8)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="not empty"):
        Index.create(tmp_path / "full", bits=8)


def test_open_other_folder(tmp_path: Path) -> None:
    assert not is_index(tmp_path)
    for call in (Index.open, verify_index):
        with pytest.raises(DataError, match="no index"):
            call(tmp_path)


@pytest.mark.parametrize("name", ["items.db", "items.db-wal", "items.db-shm", "items.db-journal", "model"])
def test_open_links(index: Index, tmp_path: Path, name: str) -> None:
    index.close()
    path, outside = index.folder / name, tmp_path / "outside"
    if path.exists():
        path.rename(outside)
    else:
        outside.touch()
    path.symlink_to(outside)
    before = outside.read_bytes()
    with pytest.raises(DataError, match=f"{name}.*link"):
        Index.open(index.folder)
    assert outside.read_bytes() == before


def test_open_other_database(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "items.db") as sql:
        sql.execute("CREATE TABLE facts (json TEXT, crc INTEGER)")
    sql.close()
    for content in (None, b"", b"no database at all" * 100):
        if content is not None:
            (tmp_path / "items.db").write_bytes(content)
        with pytest.raises(DataError, match=r"items\.db"):
            Index.open(tmp_path)
        assert "items.db" in verify_index(tmp_path)[0]


def test_open_read_only_medium() -> None:
    """A user who may only read the folder; in a process of its own, because root may write everywhere."""
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)
        folder = Path(temporary) / "index"
        with Index.create(folder, bits=16) as index:
            index.add(codes=CODES)
            assert len(index.search(id="0")) == 5
        folder.chmod(0o555)
        assert [file.name for file in folder.iterdir()] == ["items.db"]
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                if os.geteuid() == 0:
                    os.setuid(65534)
                with Index.open(folder, read_only=True) as reader:
                    os._exit(0 if len(reader.search(id="0")) == 5 else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        folder.chmod(0o755)
