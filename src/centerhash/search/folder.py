"""The folder of an index: made whole or not at all, what stands in its index.json, and what is damaged in it."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import AliasChoices, Field

from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.files import atomic_folder, parse_json, write_json
from centerhash.core.options import Options
from centerhash.search.engines.table import create_store, read_store
from centerhash.search.uploads import IMAGES

if TYPE_CHECKING:
    from centerhash.model.model import HashModel
    from centerhash.search.index import Index

SPEC, MODEL, ITEMS = "index.json", "model", "items"
_OLD_SPEC = "collection.json"  # of earlier versions, where the store was called engine
OWN = (SPEC, _OLD_SPEC, MODEL, ITEMS, IMAGES)  # entries of the folder that are its own


class IndexSpec(Options):
    """What stands in index.json."""

    format: Literal[1] = 1
    store: str = Field(validation_alias=AliasChoices("store", "engine"))
    bits: int
    classes: tuple[str, ...]


def create_folder(folder: Path, model: HashModel, store: str) -> None:
    """Make the folder of an empty index, whole or not at all.

    It is put together beside its place and renamed, so that a kill leaves nothing that looks like an index.
    """
    if spec_file(folder) is not None:
        raise ConfigError(f"'{folder}' is an index already: open it and add to it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' is there already and is not empty: name a new folder for the index.")
    spec = IndexSpec(store=full_store(store, folder), bits=model.bits, classes=model.classes)
    with atomic_folder(folder) as draft:
        model.save(draft / MODEL)
        create_store(spec.store, draft / ITEMS, spec.bits).close()
        write_json(draft / SPEC, spec.model_dump())


def spec_file(folder: Path) -> Path | None:
    """The file that says what the folder is; None where it is no index."""
    # Path.is_file would raise where the folder is closed to us
    return next((file for name in (SPEC, _OLD_SPEC) if os.path.isfile(file := folder / name)), None)  # noqa: PTH113


def read_spec(folder: Path) -> IndexSpec:
    """Read index.json, or say what the folder is instead."""
    file = spec_file(folder)
    if file is None:
        raise DataError(
            f"'{folder}' is no index ({SPEC} is missing): create one first, with `centerhash index create` or "
            "centerhash.Index.create."
        )
    try:
        return IndexSpec.model_validate(parse_json(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror or error}.") from None
    except ValueError as error:  # no json, no UTF-8, other fields
        reason = str(error).splitlines()[0]
        raise DataError(f"'{file}' is damaged or of another version: {reason}") from None


def full_store(text: str, folder: Path) -> str:
    """Check the text of a store and complete it: a Milvus one with an absolute file and a name of its own there."""
    store = read_store(text)
    if not store.engine.remote:
        return text
    address, _, name = text.partition(":")[2].partition("#")
    if "://" not in address:
        address = str(Path(address).resolve())
    digest = blake2b(str(folder.resolve()).encode(), digest_size=4).hexdigest()
    return f"milvus:{address}#{name or 'centerhash_' + digest}"


def problems(index: Index) -> list[str]:
    """One sentence for each part of an index that is damaged, naming the file."""
    found = []
    try:
        if index.model.tuned_weights is not None:  # a damaged model says so, and so does its backbone
            index.model.backbone()
    except InputError as error:
        found.append(str(error))
    found += [*index.store.verify(), *index.uploads.damaged()]
    for id, path in index.store.paths() if not found else ():  # a damaged store cannot be gone through
        file = index.uploads.path(path)
        if file is None:
            found.append(
                f"the item '{id}' names the file '{path}', which is no image of this index: remove it."
            )
        elif index.uploads.holds(path) and not file.exists():
            found.append(f"'{file}', the image of the item '{id}', is missing.")
    return found
