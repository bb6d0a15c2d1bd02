"""Temporary: `newest`, `folders` and `version` of an index, until `Index` itself has them; then this file goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from centerhash.data.layouts.parquet import is_stored_image
from centerhash.search.questions import filter_of
from centerhash.search.results import Result, as_result

if TYPE_CHECKING:
    from centerhash.search import Index


class Catalog:
    """The images of an index, kept in memory; for several threads."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = Lock()
        self._files: dict[str, tuple[float, str]] = {}  # by id: modified, folder
        self._ids: list[str] = []  # the newest first
        self._listed: Hashable = None

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the index does."""
        return self._index.store.changes, len(self._index)

    def newest(
        self,
        offset: int,
        limit: int,
        *,
        having: Sequence[str] = (),
        without: Sequence[str] = (),
        under: str | None = None,
    ) -> tuple[list[Result], int]:
        """Some of the images that pass the filter, the newest first, and how many there are."""
        self._update()
        ids = self._ids
        store, facts = self._index.store, self._index.facts
        if having or without or under is not None:
            only = filter_of(store, facts, self._index.folder, having, without, under)
            anything = np.zeros((1, -(-facts.bits // 8)), np.uint8)
            found = set(store.within(anything, facts.bits, only=only)[0].ids)  # all codes are this near
            ids = [id for id in ids if id in found]
        items = store.get(ids[offset : offset + limit])
        return [as_result(item, 0, self._index.uploads) for item in items], len(ids)

    def folders(self) -> dict[str, int]:
        """The absolute folders of image files, with the number of images directly in each."""
        self._update()
        return dict(sorted(Counter(folder for _, folder in self._files.values()).items()))

    def _update(self) -> None:
        with self._lock:
            version = self.version
            if self._listed == version:
                return
            known, self._files = self._files, {}
            for key, name in self._index.store.paths():
                id = str(key)
                path = self._index.uploads.path(name)
                self._files[id] = known.get(id) or (_modified(str(path)), str(Path(str(path)).parent))
            self._ids = sorted(self._files, key=lambda id: (-self._files[id][0], id))
            self._listed = version


def _modified(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except (OSError, ValueError):
        stored = is_stored_image(Path(path))
        return _modified(str(Path(path).parent)) if stored else 0.0
