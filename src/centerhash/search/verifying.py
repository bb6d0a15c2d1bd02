"""Reading all of an index, and saying what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from centerhash.core.errors import InputError
from centerhash.search.uploads import has_file

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
    for item in index.items() if not found else ():  # a damaged store cannot be gone through
        if item.path is not None and index.uploads.path(item.path) is None:
            found.append(
                f"the item '{item.id}' names the file '{item.path}', which is no image of this index: remove it."
            )
        elif item.path is not None and index.uploads.holds(item.path) and not has_file(index.uploads, item):
            found.append(f"'{index.uploads.path(item.path)}', the image of the item '{item.id}', is missing.")
    return found
