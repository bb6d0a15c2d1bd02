"""Parts into a collection: codes without images, which their own model made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from centerhash.core.errors import DataError
from centerhash.encoding.parts import read_manifest, read_parts
from centerhash.encoding.work import model_digest

if TYPE_CHECKING:
    from centerhash.search import Added, Collection


def import_parts(collection: Collection, folder: str | Path) -> Added:
    """Add the codes of a finished folder of parts, part by part; known ids are skipped, so the same call goes on."""
    from centerhash.search import Added

    if read_manifest(folder).model != model_digest(collection.model):
        raise DataError(
            f"the parts in '{folder}' are of another model than the collection's: encode by the run that the index "
            "was made of."
        )
    added = known = 0
    for ids, packed, labels in read_parts(folder):
        done = collection.add_codes(packed, ids, labels)
        added, known = added + done.added, known + done.known
    return Added(added, known, {})
