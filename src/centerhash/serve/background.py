"""Background work that stops with the server: bring an index up to date, search for duplicates."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from centerhash.core.errors import CenterhashError
from centerhash.core.progress import Progress, silent
from centerhash.photos import Duplicates, PhotoIndex, SyncResult

log = logging.getLogger("centerhash.serve")

# Batches are small, so that the first images can be searched soon.
_BATCH = 64


class _Stopped(Exception):
    """The server stops; the next one adds the images that are not stored yet."""


class BackgroundSync:
    """Bring an index up to date with folders, in a thread while the block runs.

    `remaining` is the number of images still to be added. `on_end` is called when all of them are added.
    """

    def __init__(
        self,
        photos: PhotoIndex,
        folders: Sequence[Path],
        on_end: Callable[[SyncResult], None],
        progress: Progress = silent,
    ) -> None:
        self._photos, self._folders, self._on_end, self._progress = photos, folders, on_end, progress
        # The number is unknown, but not 0, until the files have been listed.
        self.remaining = 1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adding", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._on_end(self._photos.add(list(self._folders), batch=_BATCH, progress=self._report))
        except _Stopped:
            log.info("stopped while images were added")
        except CenterhashError as error:
            log.error("images are no longer added: %s", error)
        finally:
            self.remaining = 0

    def _report(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        if self._stop.is_set():
            raise _Stopped
        self.remaining = total - done
        self._progress(stage, done, total, note)


class DuplicateSearch:
    """Search for duplicates in the background, once for each requested version of the index."""

    def __init__(self, photos: PhotoIndex) -> None:
        self._photos = photos
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="centerhash-duplicates")
        self._lock = threading.Lock()
        self._search: Future[Duplicates] | None = None
        self._version: Hashable = None
        self._stop = False
        self.progress = (0, 0)  # steps: done, total

    def result(self) -> Duplicates | None:
        """Return the duplicates of the index as it is now; None while the search, which this starts, is running."""
        with self._lock:
            version = self._photos.index.version
            if self._search is None or (self._search.done() and self._version != version):
                self._version, self.progress = version, (0, 0)
                self._search = self._pool.submit(self._photos.duplicates, progress=self._report)
            search = self._search
            if not search.done():
                return None
            if search.exception() is not None:
                self._search = None  # the next search may succeed
        return search.result()

    def _report(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        if self._stop:
            raise _Stopped
        self.progress = (done, total)

    def close(self) -> None:
        """Abandon a search that is running."""
        self._stop = True
        self._pool.shutdown(wait=True, cancel_futures=True)
