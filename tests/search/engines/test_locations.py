"""Texts that name where the items of an index live."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from centerhash.core.errors import ConfigError
from centerhash.search.engines.base import HammingIndex
from centerhash.search.engines.table import ENGINES, create_store, read_store


@pytest.mark.parametrize(
    ("text", "engine", "address", "settings"),
    [
        ("flat", "flat", "", {}),
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
def test_stores(text: str, engine: str, address: str, settings: dict[str, object]) -> None:
    store = read_store(text)
    assert (store.engine.name, store.address, store.settings) == (engine, address, settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("falt", "unknown store 'falt'. Did you mean 'flat'"),
        ("falt?kind=hnsw", "unknown store 'falt'. Did you mean 'flat'"),
        ("", "unknown store ''. Allowed: flat, milvus"),
        (
            "faiss",
            "the store 'faiss' is no more, because flat finds all neighbours in less time: write flat.",
        ),
        ("faiss?kind=hnsw", "An index that was created with it opens as flat."),
        ("http://host:19530", "unknown store 'http'"),
        ("flat:elsewhere", "without ':elsewhere'"),
        ("flat?kind=hnsw", "setting of the store 'flat' 'kind'"),
        ("milvus:b.db?consistncy=Strong", "Did you mean 'consistency'"),
        ("milvus", "milvus needs an address"),
        ("milvus:#birds", "milvus needs an address"),
        ("milvus:b.db?kind=hnsw", "Allowed: collection, consist"),
    ],
)
def test_refused_stores(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_store(text)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_what_its_row_says(name: str) -> None:
    row = ENGINES[name]
    engine = row.load()
    assert issubclass(engine, HammingIndex)
    assert row.title


@pytest.mark.parametrize("missing", ["pymilvus", "milvus_lite"])
def test_a_missing_library_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError):
        create_store(f"milvus:{tmp_path / 'new.db'}", tmp_path, 16)
