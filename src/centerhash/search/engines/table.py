"""ENGINES: one frozen row per engine, and the texts that say which one holds an index and where.

FOLDER or flat:FOLDER, faiss:FOLDER, faiss:FOLDER?kind=hnsw, milvus:FILE.db, milvus:http://host:19530#collection
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from centerhash.core.errors import ConfigError, unknown_name
from centerhash.search.engines.base import HammingIndex

DEFAULT_ENGINE = "flat"
_SEE = (
    "An index is FOLDER, flat:FOLDER, faiss:FOLDER?kind=hnsw, milvus:FILE.db or milvus:http://host:19530#collection; "
    "a folder with a colon in its name needs flat: before it."
)


@dataclass(frozen=True)
class Engine:
    """One engine: what it is for, where its class is, and what a location may say beside the place."""

    name: str
    title: str  # what it is for
    home: str  # "module:Class" below centerhash
    exact: bool  # approximate engines may miss neighbours
    extra: str | None = None  # the optional part of the package to install for it
    fixed: tuple[str, ...] = ()  # settings that `create` takes, and that stay with the index
    settings: tuple[str, ...] = ()  # settings of every opening
    fragment: str | None = None  # the setting that stands behind a '#'

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
                title="exact search in a folder, up to tens of millions of codes on one machine",
                home="search.engines.flat:FlatIndex",
                exact=True,
            ),
            Engine(
                name="faiss",
                title="approximate search in a folder, for more than ten million codes on one machine",
                home="search.engines.faiss_engine:FaissIndex",
                exact=False,
                fixed=("kind", "hashes", "hash_bits", "flips", "links", "build_effort", "effort"),
            ),
            Engine(
                name="milvus",
                title="exact search in a milvus-lite file, on a Milvus server, or on a cluster of machines",
                home="search.engines.milvus_engine:MilvusIndex",
                exact=True,
                extra="milvus",
                settings=("collection", "consistency"),
                fragment="collection",
            ),
        )
    }
)


@dataclass(frozen=True)
class Location:
    """Where an index is: its engine, the folder, file or server, and settings."""

    engine: Engine
    place: str
    settings: Mapping[str, Any]

    def with_settings(self, more: Mapping[str, Any]) -> Location:
        """The same place with more settings, which must be ones of the engine."""
        for name in more:
            allowed = (*self.engine.fixed, *self.engine.settings)
            if not allowed:
                raise ConfigError(f"the engine '{self.engine.name}' has no settings, got '{name}'.")
            if name not in allowed:
                raise unknown_name(f"setting of the engine '{self.engine.name}'", name, allowed)
        return Location(self.engine, self.place, {**self.settings, **more})


def read_location(text: str) -> Location:
    """Read a location such as `flat:FOLDER` or `milvus:http://host:19530#collection`."""
    name, colon, place = text.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][\w-]+", name):  # one letter is a drive
        name, place = DEFAULT_ENGINE, text
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES, _SEE)
    engine = ENGINES[name]
    settings: dict[str, Any] = {}
    if engine.fragment and "#" in place:
        place, _, settings[engine.fragment] = place.rpartition("#")
    if engine.fixed or engine.settings:
        place, _, query = place.partition("?")
        given = parse_qsl(query, keep_blank_values=True)
        settings |= {name: int(value) if value.isdecimal() else value for name, value in given}
    if not place:
        raise ConfigError(f"the location '{text}' names no place. {_SEE}")
    return Location(engine, place, {}).with_settings(settings)


def create_index(location: str, bits: int, **settings: Any) -> HammingIndex:
    """Make an empty index for codes of `bits` (K) bits at a location, and open it for writing.

    `settings` are those that a location may carry: kind of faiss (with the settings of its kind), collection and
    consistency of milvus.
    """
    where = read_location(location).with_settings(settings)
    index: HammingIndex = where.engine.load().create(where.place, bits, **where.settings)
    return index


def open_index(location: str, *, read_only: bool = False) -> HammingIndex:
    """Open the index at a location, for writing unless `read_only`."""
    where = read_location(location)
    engine = where.engine
    asked = {name: value for name, value in where.settings.items() if name in engine.settings}
    index = engine.load().open(where.place, read_only=read_only, **asked)
    try:
        _check_fixed(where, index)
    except BaseException:
        index.close()
        raise
    opened: HammingIndex = index
    return opened


def _check_fixed(where: Location, index: Any) -> None:
    """Refuse a location that asks for other settings than the index was created with."""
    asked = {name: value for name, value in where.settings.items() if name in where.engine.fixed}
    described = index.info() if asked else {}
    stored = {**described, **described.get("settings", {})}
    for name, value in asked.items():
        if stored.get(name) != value:
            raise ConfigError(
                f"the index '{where.place}' has {name}={stored.get(name)}, not {value}: leave that out."
            )
