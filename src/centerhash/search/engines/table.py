"""ENGINES: one frozen row per engine that can hold the items of an index, and the texts that name a store.

flat, milvus:FILE.db, milvus:http://host:19530?consistency=Bounded#collection
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from centerhash.core.errors import ConfigError, unknown_name
from centerhash.search.engines.base import HammingIndex

FORMER = "faiss"  # an engine of before, whose items are in the files of a flat one, with structures of faiss beside


@dataclass(frozen=True)
class Engine:
    """One engine: what it is for, where its class is, and what the text of a store may set."""

    name: str
    title: str  # what it is for
    home: str  # "module:Class" below centerhash
    extra: str | None = None  # the optional part of the package to install for it
    settings: tuple[str, ...] = ()  # what its text may set
    remote: bool = False  # whether it keeps the items at an address of its own, not in the index's folder

    def load(self) -> Any:
        """The engine's class, imported only when it is used."""
        module, name = self.home.split(":")
        return getattr(importlib.import_module(f"centerhash.{module}"), name)


ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        row.name: row
        for row in (
            Engine(
                name="flat",
                title="exact search in a folder, up to hundreds of millions of codes on one machine",
                home="search.engines.flat:FlatIndex",
            ),
            Engine(
                name="milvus",
                title="exact search in a milvus-lite file, on a Milvus server, or on a cluster of machines",
                home="search.engines.milvus_engine:MilvusIndex",
                extra="milvus",
                settings=("collection", "consistency"),
                remote=True,
            ),
        )
    }
)


@dataclass(frozen=True)
class Store:
    """What the text of a store says: the engine, the address of a remote one ("" for others), and settings."""

    engine: Engine
    address: str
    settings: Mapping[str, Any]


def read_store(text: str) -> Store:
    """Read the text of a store, such as `flat` or `milvus:http://host:19530#collection`."""
    name = re.split("[:?#]", text, maxsplit=1)[0]
    if name == FORMER:
        raise ConfigError(
            f"the store '{FORMER}' is no more, because flat finds all neighbours in less time: write flat. An index that "
            "was created with it opens as flat."
        )
    if name not in ENGINES:
        raise unknown_name("store", name, ENGINES)
    engine, rest, settings = ENGINES[name], text.removeprefix(name), dict[str, Any]()
    if engine.remote and "#" in rest:
        rest, _, settings["collection"] = rest.rpartition("#")
    rest, _, query = rest.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    settings |= {name: int(value) if value.isdecimal() else value for name, value in given}
    address = rest.removeprefix(":")
    if address and not engine.remote:
        raise ConfigError(f"the store '{name}' keeps its items in the index: write it without '{rest}'.")
    if engine.remote and not address:
        raise ConfigError(
            "milvus needs an address: milvus:http://127.0.0.1:19530, or milvus:items.db for a local file."
        )
    for setting in settings:
        if setting not in engine.settings:
            raise unknown_name(f"setting of the store '{name}'", setting, engine.settings or ("none",))
    return Store(engine, address, settings)


def create_store(text: str, folder: Path, bits: int) -> HammingIndex:
    """Make an empty store for codes of `bits` (K) bits, in a folder unless it is remote, and open it for writing."""
    store = read_store(text)
    made: HammingIndex = store.engine.load().create(store.address or folder, bits, **store.settings)
    return made


def open_store(text: str, folder: Path, *, read_only: bool = False) -> HammingIndex:
    """Open the store that `create_store` made of the same text, for writing unless `read_only`."""
    store = read_store("flat" if text.partition("?")[0] == FORMER else text)
    opened: HammingIndex = store.engine.load().open(
        store.address or folder, read_only=read_only, **store.settings
    )
    return opened
