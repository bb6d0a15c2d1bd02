"""Copy an index while it is in use: one snapshot of its database, its model and its uploads, verified."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import atomic_folder, explain_write_errors
from centerhash.core.progress import Progress
from centerhash.search.database import FILE
from centerhash.search.store import Store
from centerhash.search.uploads import IMAGES

if TYPE_CHECKING:
    from centerhash.search.index import Index


def back_up(index: Index, folder: Path, progress: Progress) -> int:
    """Copy an index into a new folder, atomically, and return the number of its items.

    The copy is verified before it gets its name. Other processes may write to the index meanwhile.
    """
    from centerhash.search.index import MODEL, SPEC, Index, verify_index

    store = index.store
    if not isinstance(store, Store):
        raise ConfigError(
            f"the items of '{index.folder}' are in Milvus: back them up with Milvus's own tools."
        )
    if index.spec.model:
        index.model.content()  # raises if the model is damaged
    with atomic_folder(folder) as draft:
        store.back_up(draft / FILE, progress)
        with explain_write_errors(folder):
            shutil.copy2(index.folder / SPEC, draft / SPEC)
            if index.spec.model:
                shutil.copytree(index.folder / MODEL, draft / MODEL)
            if (index.folder / IMAGES).is_dir():
                (draft / IMAGES).mkdir()
            for file in index.uploads.files():
                with suppress(FileNotFoundError):  # removed meanwhile
                    shutil.copy2(file, draft / IMAGES / file.name)
        with Index.open(draft) as copy:
            # those that were removed after the snapshot of the database
            gone = [
                id
                for id, path in copy.store.paths()
                if copy.uploads.holds(path) and not (draft / path).exists()
            ]
            copy.remove(gone)
            count = len(copy)
        problems = verify_index(draft)
        if problems:
            raise DataError(f"nothing was backed up: {problems[0].replace(str(draft), str(index.folder))}")
    return count
