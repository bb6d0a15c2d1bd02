"""Reading all of an index, and saying what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from centerhash.core.errors import InputError

if TYPE_CHECKING:
    from centerhash.search.index import Index


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
