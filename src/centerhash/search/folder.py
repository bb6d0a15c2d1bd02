"""The folder of a collection: made whole or not at all, and where its engine keeps the items."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from centerhash.core.errors import ConfigError, DataError, OutputError, unknown_name
from centerhash.core.files import make_folder, write_json
from centerhash.core.options import Options
from centerhash.model import HashModel
from centerhash.search.engines.table import ENGINES, create_index

SPEC, MODEL, ITEMS = "collection.json", "model", "items"


class CollectionSpec(Options):
    """What stands in collection.json."""

    format: Literal[1] = 1
    engine: str
    bits: int
    classes: tuple[str, ...]


def create_folder(folder: Path, model: HashModel, engine: str) -> None:
    """Make the folder of an empty collection, whole or not at all.

    It is put together beside its place and renamed, so that a kill leaves nothing that looks like a collection.
    """
    if (folder / SPEC).exists():
        raise ConfigError(
            f"'{folder}' is a collection already: add to it with `centerhash index add {folder} IMAGES`."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"'{folder}' is there already and is not empty: name a new folder for the collection."
        )
    spec = CollectionSpec(engine=full_engine(engine, folder), bits=model.bits, classes=model.classes)
    parent = make_folder(Path(os.path.realpath(folder)).parent)
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=parent))
    except OSError as error:
        raise OutputError(f"cannot write '{folder}': {error.strerror or error}.") from error
    try:
        model.save(draft / MODEL)
        create_index(index_location(draft, spec.engine), spec.bits).close()
        write_json(draft / SPEC, spec.model_dump())
        draft.chmod(make_folder(draft / MODEL).stat().st_mode)  # mkdtemp makes private folders
        draft.rename(folder)
    except OSError as error:
        raise OutputError(f"cannot write '{folder}': {error.strerror or error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # gone by its new name when all went well


def read_spec(folder: Path) -> CollectionSpec:
    """Read collection.json, or say what the folder is instead."""
    try:
        return CollectionSpec.model_validate(json.loads((folder / SPEC).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"'{folder}' is no collection ({SPEC} is missing): make one with `centerhash index create {folder} "
            "--model RUN`."
        ) from None
    except OSError as error:
        raise DataError(f"cannot read '{folder / SPEC}': {error.strerror or error}.") from None
    except ValueError as error:  # no json, no UTF-8, other fields
        reason = str(error).splitlines()[0]
        raise DataError(f"'{folder / SPEC}' is damaged or of another version: {reason}") from None


def full_engine(engine: str, folder: Path) -> str:
    """Check an engine and complete it: a Milvus one with an absolute file and a name of its own there."""
    kind = re.split("[:?]", engine, maxsplit=1)[0]
    if kind not in ENGINES:
        raise unknown_name("engine", kind, ENGINES)
    if kind == "faiss" and "?" in str(folder.resolve()):
        raise ConfigError(
            f"'{folder}' has a '?' in its path, which faiss reads as a setting: use another folder."
        )
    if kind != "milvus":
        if ":" in engine:
            raise ConfigError(f"the engine '{kind}' keeps its items in the collection: write it without ':'.")
        return engine
    address, _, name = engine.removeprefix("milvus").removeprefix(":").partition("#")
    if not address:
        raise ConfigError(
            "milvus needs an address: milvus:http://127.0.0.1:19530, or milvus:items.db for a local file."
        )
    if "://" not in address:
        address = str(Path(address).resolve())
    digest = blake2b(str(folder.resolve()).encode(), digest_size=4).hexdigest()
    return f"milvus:{address}#{name or 'centerhash_' + digest}"


def index_location(folder: Path, engine: str) -> str:
    """Where the items of an engine are, as `centerhash.search.engines.table` reads it."""
    if engine.startswith("milvus:"):
        return engine
    kind, mark, options = engine.partition("?")
    return f"{kind}:{folder / ITEMS}{mark}{options}"
