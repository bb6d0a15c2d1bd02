"""Damage of the database: every code, id, label and attribute in an answer is right, or an error names the file."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from centerhash.core.errors import DataError, OutputError
from centerhash.index import Index, verify_index
from tests.index.naive import (
    QUERIES,
    ListIndex,
    add,
    check,
    create,
    random_rows,
    same_rows,
    search,
    small_chunks,
)


def sound(folder: Path) -> ListIndex:
    """Create an index of several chunks, and return its items as a list."""
    model = ListIndex()
    with create(folder) as index:
        for start in (0, 100, 200):
            rows = [
                replace(row, kind=f"kind {number % 40}")
                for number, row in enumerate(random_rows(100, start, start))
            ]
            add(index, rows)
            model.add(rows)
        index.remove(["0150", "0151"])
        index.hide(["0007"])
    model.remove(["0150", "0151"])
    model.set_hidden(["0007"], True)
    return model


def answers(folder: Path, model: ListIndex, generator: random.Random) -> None:
    """Search a damaged index and compare the results."""
    ids = generator.sample([row.id for row in model.visible], 5)
    with Index.open(folder) as index:
        for query in generator.sample(QUERIES, 4):
            passed = {**query, "id": ids[0]} if "id" in query else query
            if "id" not in passed or model.row(ids[0]).general is not None:
                assert search(index, passed, 7, {}) == model.search(passed, 7, {})
        only = {"having": "cat", "where": {"kind": ["kind 1", "kind 2"], "price": (1, 7)}}
        assert search(index, QUERIES[0], 50, only) == model.search(QUERIES[0], 50, only)
        same_rows(index, model, [model.row(id) for id in ids])
        assert ids[0] in index
        assert "0150" not in index
        assert index.ids(index.keys(ids)) == ids
        assert index.labels() == model.label_counts({})
        check(index, model)


def damaged(folder: Path, copy: Path, model: ListIndex, generator: random.Random, content: bytes) -> bool:
    """Search a copy with other bytes in its file; return whether an error was raised."""
    shutil.copytree(folder, copy)
    (copy / "items.db").write_bytes(content)
    try:
        answers(copy, model, generator)
    except (DataError, OutputError) as error:
        if "items.db" not in str(error):
            raise
        return True
    finally:
        shutil.rmtree(copy)
    return False


def random_damages(folder: Path, count: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Damage the file at random offsets; return how often it was noticed, the others changed no answer."""
    small_chunks(monkeypatch, 64)
    model, generator = sound(folder / "sound"), random.Random(seed)
    content, noticed = (folder / "sound" / "items.db").read_bytes(), 0
    for _ in range(count):
        changed, kind = bytearray(content), generator.randrange(4)
        start = generator.randrange(len(content))
        if kind == 0:
            changed[start] ^= 1 << generator.randrange(8)
        elif kind == 1:
            changed[start : start + 512] = bytes(len(changed[start : start + 512]))
        elif kind == 2:  # a page from another offset
            page = generator.randrange(len(content) // 16384) * 16384
            other = generator.randrange(len(content) // 16384) * 16384
            changed[page : page + 16384] = content[other : other + 16384]
        else:
            del changed[start:]
        noticed += damaged(folder / "sound", folder / "copy", model, generator, bytes(changed))
    return noticed


def test_random_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert random_damages(tmp_path, 40, 3, monkeypatch) > 15


def test_damaged_ids_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swap single letters of ids, labels and texts, in tables and in the indexes over them."""
    small_chunks(monkeypatch, 64)
    model, generator = sound(tmp_path / "sound"), random.Random(4)
    content, noticed = (tmp_path / "sound" / "items.db").read_bytes(), 0
    texts = [b"0042", b"0199", b"0298", b"cat", b"other", b"kind 17", b"kind 3"]
    for text in texts:
        offsets = [offset for offset in range(len(content)) if content.startswith(text, offset)]
        for offset in generator.sample(offsets, min(4, len(offsets))):
            changed = bytearray(content)
            changed[offset + len(text) - 1] ^= 1
            noticed += damaged(tmp_path / "sound", tmp_path / "copy", model, generator, bytes(changed))
    assert noticed > 10


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM chunks WHERE name = 'semantic' AND chunk = 1",
        "DELETE FROM chunks WHERE name = 'labels' AND chunk = 0",
        "UPDATE chunks SET chunk = 99 WHERE name = 'flags' AND chunk = 2",
        "UPDATE chunks SET data = zeroblob(length(data)) WHERE name = 'general'",
        "UPDATE chunks SET data = x'00' WHERE name = 'key' AND chunk = 0",
        "UPDATE chunks SET version = version + 1 WHERE name = 'semantic'",
        "UPDATE chunks SET name = 'colors' WHERE name = 'semantic' AND chunk = 7",
        "UPDATE items SET id = 'stranger' WHERE id = '0003'",
        "DELETE FROM items WHERE id = '0003'",
        "UPDATE texts SET text = 'lion' WHERE text = 'cat'",
        "DELETE FROM texts WHERE attribute = '' AND number = 1",
        "UPDATE texts SET text = 'kind 99' WHERE text = 'kind 1'",
        "DELETE FROM texts WHERE attribute = 'kind'",
        "UPDATE meta SET rows = rows + 1",
        "DELETE FROM meta",
        "UPDATE facts SET json = replace(json, '16', '24')",
        "DELETE FROM facts",
        "DROP TABLE items",
    ],
)
def test_changed_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    small_chunks(monkeypatch, 32)
    model = sound(tmp_path / "index")
    with closing(sqlite3.connect(tmp_path / "index" / "items.db")) as sql:
        done = sql.execute(statement)
        sql.commit()
    assert done.rowcount
    with pytest.raises(DataError, match=r"items\.db"):
        answers(tmp_path / "index", model, random.Random(0))
    assert any("items.db" in problem for problem in verify_index(tmp_path / "index"))


def test_damaged_id_index(tmp_path: Path) -> None:
    """SQLite's index over ids has no checksum: missing ids are looked up in the table."""
    model = sound(tmp_path / "index")
    with closing(sqlite3.connect(tmp_path / "index" / "items.db")) as sql:
        sql.execute("PRAGMA writable_schema = ON")
        pages = "SELECT rootpage FROM sqlite_schema WHERE name IN ('sqlite_autoindex_items_1', 'changed')"
        items, changed = [page for (page,) in sql.execute(pages)]
        for name, page in (("sqlite_autoindex_items_1", changed), ("changed", items)):
            sql.execute("UPDATE sqlite_schema SET rootpage = ? WHERE name = ?", (page, name))
        sql.commit()
    with pytest.raises(DataError, match=r"items\.db"), Index.open(tmp_path / "index") as index:
        index.get(model.rows[0].id)
