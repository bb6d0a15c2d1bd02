"""The default index of a folder of images: next to the folder, or in the cache if that is not writable."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

from centerhash.core.errors import ConfigError, DataError
from centerhash.data.listing import find_images
from centerhash.model.loading import BUILTIN, load
from centerhash.networks.cache import default_cache
from centerhash.search.index import Index, is_index


def default_place(images: Path) -> Path:
    """Return the folder of the default index of a folder of images: `photos.index` next to `photos`, or in the cache."""
    home = images.resolve()
    name = f"{home.name or 'images'}.index"
    beside = home.parent / name
    digest = blake2b(str(home).encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    cached = default_cache() / "indexes" / digest / name
    if is_index(beside) and os.access(beside, os.W_OK):
        return beside
    free = not beside.exists() and os.access(home.parent, os.W_OK)
    return beside if free and not is_index(cached) else cached


def open_default(images: Path, model: str | Path | None = None, **opening: Any) -> tuple[Index, str]:
    """Open the default index of a folder of images, shared; create it with `model` (the built-in one) if missing.

    Returns it with a warning, or "", if it was made by another version of the built-in model. `opening` is passed on
    to `Index.open`.
    """
    if not images.is_dir():
        raise DataError(f"no such index or folder of images: '{images}'.")
    find_images([images])  # a folder without images leaves no index behind
    place = default_place(images)
    if not is_index(place):
        Index.create(place, BUILTIN[0] if model is None else model).close()
        return Index.open(place, shared=True, **opening), ""
    index = Index.open(place, shared=True, **opening)
    wanted = load(BUILTIN[0] if model is None else model)
    if wanted.digest == index.model.digest:
        return index, ""
    if model is not None:
        index.close()
        raise ConfigError(
            f"'{place}' was made with another model than '{model}', and keeps it: leave the model out, or move the "
            "index away to make a new one."
        )
    of_before = (index.model.bits, index.model.classes) == (wanted.bits, wanted.classes)
    return index, (
        f"'{place}' was made with another version of the built-in model, and keeps it: move the index away and run "
        "the same command again to make a new one."
        if of_before
        else ""
    )
