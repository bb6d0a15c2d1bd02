"""Texts that name an engine and a place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from centerhash.core.errors import ConfigError
from centerhash.search.engines.base import HammingIndex
from centerhash.search.engines.table import ENGINES, create_index, open_index, read_location


@pytest.mark.parametrize(
    ("text", "engine", "place", "settings"),
    [
        ("folder", "flat", "folder", {}),
        ("flat:folder", "flat", "folder", {}),
        ("./a:b/c", "flat", "./a:b/c", {}),
        ("C:\\images", "flat", "C:\\images", {}),
        ("flat:a?b#c:d", "flat", "a?b#c:d", {}),
        ("faiss:some/folder", "faiss", "some/folder", {}),
        ("faiss:folder?kind=hnsw&effort=128", "faiss", "folder", {"kind": "hnsw", "effort": 128}),
        ("milvus:a/b.db", "milvus", "a/b.db", {}),
        ("milvus:b.db#birds", "milvus", "b.db", {"collection": "birds"}),
        ("milvus:http://host:19530", "milvus", "http://host:19530", {}),
        (
            "milvus:https://me:secret@host:19530?consistency=Bounded#birds",
            "milvus",
            "https://me:secret@host:19530",
            {"collection": "birds", "consistency": "Bounded"},
        ),
    ],
)
def test_locations(text: str, engine: str, place: str, settings: dict[str, object]) -> None:
    location = read_location(text)
    assert (location.engine.name, location.place, location.settings) == (engine, place, settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "fais:folder",
            r"unknown engine 'fais'\. Did you mean 'faiss'\? Allowed: faiss, flat, milvus\. An index is",
        ),
        ("http://host:19530", "unknown engine 'http'.*milvus:http://host:19530#collection"),
        ("my:folder", "unknown engine 'my'.*needs flat: before it"),
        ("", "the location '' names no place"),
        ("flat:", "the location 'flat:' names no place"),
        ("milvus:#birds", "the location 'milvus:#birds' names no place"),
        ("faiss:folder?knd=hnsw", "unknown setting of the engine 'faiss' 'knd'. Did you mean 'kind'"),
        (
            "milvus:b.db?kind=hnsw",
            "unknown setting of the engine 'milvus' 'kind'. .*Allowed: collection, consist",
        ),
    ],
)
def test_refused_locations(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_index(text)


def test_refused_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the engine 'flat' has no settings, got 'kind'"):
        create_index(str(tmp_path / "new"), 16, kind="hnsw")
    with pytest.raises(ConfigError, match="unknown setting of the engine 'milvus' 'colection'"):
        create_index("milvus:b.db", 16, colection="birds")
    assert list(tmp_path.iterdir()) == []


def test_settings_of_an_index_that_is_there_must_agree(tmp_path: Path) -> None:
    location = f"faiss:{tmp_path / 'new'}"
    create_index(location, 32, kind="hnsw", effort=100).close()
    open_index(location + "?kind=hnsw&effort=100").close()
    with pytest.raises(ConfigError, match="has kind=hnsw, not multihash: leave that out"):
        open_index(location + "?kind=multihash")
    with pytest.raises(ConfigError, match="has effort=100, not 64: leave that out"):
        open_index(location + "?effort=64")
    open_index(location).close()  # a refusal leaves no lock behind


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_what_its_row_says(name: str) -> None:
    row = ENGINES[name]
    engine = row.load()
    assert issubclass(engine, HammingIndex)
    assert engine.exact == row.exact
    assert row.title


@pytest.mark.parametrize("missing", ["pymilvus", "milvus_lite"])
def test_a_missing_library_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf"needs '{missing}.*pip install 'centerhash\[milvus\]'"):
        create_index(f"milvus:{tmp_path / 'new.db'}", 16)
