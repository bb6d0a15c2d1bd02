"""Long work in the background: bringing an index up to date, searching for duplicates; both stop with the server."""

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

_BATCH = 64  # few, so that the first images can be searched soon


class _Stopped(Exception):
    """The server stops: images that are not stored yet are added by the next one."""


class BackgroundSync:
    """Brings an index up to date with folders in a thread while the block runs; `left` images are still to be added.

    `ended` is called when all images are there.
    """

    def __init__(
        self,
        photos: PhotoIndex,
        folders: Sequence[Path],
        ended: Callable[[SyncResult], None],
        progress: Progress = silent,
    ) -> None:
        self._photos, self._folders, self._ended, self._progress = photos, folders, ended, progress
        self.left = 1  # until the files have been listed
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
            self._ended(self._photos.add(list(self._folders), batch=_BATCH, progress=self._report))
        except _Stopped:
            log.info("stopped while images were added")
        except CenterhashError as error:
            log.error("images are no longer added: %s", error)
        finally:
            self.left = 0

    def _report(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        if self._stop.is_set():
            raise _Stopped
        self.left = total - done
        self._progress(stage, done, total, note)


class DuplicateSearch:
    """Searches for duplicates once in the background, and keeps them until the index changes."""

    def __init__(self, photos: PhotoIndex) -> None:
        self._photos = photos
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="centerhash-duplicates")
        self._lock = threading.Lock()
        self._work: Future[Duplicates] | None = None
        self._version: Hashable = None
        self._stop = False
        self.progress = (0, 0)  # steps that are done, and all of them

    def result(self) -> Duplicates | None:
        """Return the duplicates of the index as it is now; None while the search, which this starts, is running."""
        with self._lock:
            version = self._photos.index.version
            if self._work is None or (self._work.done() and self._version != version):
                self._version, self.progress = version, (0, 0)
                self._work = self._pool.submit(self._photos.duplicates, progress=self._report)
            if not self._work.done():
                return None
            work = self._work
            if work.exception() is not None:
                self._work = None  # the next search may succeed
        return work.result()

    def _report(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        if self._stop:
            raise _Stopped
        self.progress = (done, total)

    def close(self) -> None:
        """Abandon a search that is running."""
        self._stop = True
        self._pool.shutdown(wait=True, cancel_futures=True)
