"""Long work in the background: following a folder of images, searching for duplicates; both stop with the server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from centerhash.core.errors import CenterhashError, DataError, InputError
from centerhash.core.progress import Progress, silent
from centerhash.search import Added, Index
from centerhash.search.watching import Watch

if TYPE_CHECKING:
    from centerhash.search.duplicates import Duplicates

log = logging.getLogger("centerhash.serve")

_BATCH = 64  # images that can be searched together: few, so that the first are there soon


class _Stopped(Exception):
    """The server stops: images that are not stored yet are added by the next one."""


class Filling:
    """Keeps an index in step with folders in a thread while the block runs; `left` images are still to be added.

    `ended` is called after the first scan, and after every later change.
    """

    def __init__(
        self,
        index: Index,
        folders: Sequence[Path],
        ended: Callable[[Added], None],
        progress: Progress = silent,
    ) -> None:
        self.index, self.folders = index, ", ".join(map(str, folders))
        self.left = 1  # until the files have been listed, all that is known is that there is something
        self._progress, self._ended = progress, ended
        self._watch = Watch(index, folders, self._changed, self._report, batch=_BATCH)
        self._thread = threading.Thread(target=self._run, name="adding", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._watch.stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._watch.run()
        except _Stopped:
            log.info("stopped while %s was added", self.folders)
        except CenterhashError as error:
            log.error("no longer following %s: %s", self.folders, error)
        finally:
            self.left = 0

    def _changed(self, done: Added) -> None:
        self.left = 0
        self._ended(done)

    def _report(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        if self._watch.stop.is_set():
            raise _Stopped
        self.left = total - done
        self._progress(stage, done, total, note)


class DuplicateSearch:
    """Searches for duplicates once in the background, and keeps them until the index changes."""

    def __init__(self, index: Index, version: Callable[[], Hashable]) -> None:
        self._index, self._version_now = index, version
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="centerhash-duplicates")
        self._lock = threading.Lock()
        self._work: Future[Duplicates] | None = None
        self._version: Hashable = None
        self._stop = False
        self.progress = (0, 0)  # done, total

    def result(self) -> Duplicates | None:
        """The duplicates of the index as it is now; None while the search, which this starts, is running."""
        with self._lock:
            version = self._version_now()
            if self._work is None or (self._work.done() and self._version != version):
                self._version, self.progress = version, (0, 0)
                self._work = self._pool.submit(self._index.duplicates, progress=self._report)
            if not self._work.done():
                return None
            work = self._work
            if work.exception() is not None:
                self._work = None  # the next one may do better
        try:
            return work.result()
        except DataError as error:  # its text may name files of ours
            log.warning("no duplicates: %s", error)
            raise InputError(
                "this index cannot be searched for duplicates: it needs at least two images."
            ) from None

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Keep the result although the block changes the index: files of duplicates get other paths."""
        with self._lock:
            current = self._version == self._version_now()
            yield
            if current:
                self._version = self._version_now()

    def _report(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        if self._stop:
            raise _Stopped
        self.progress = (done, total)

    def close(self) -> None:
        """Abandon a search that is running."""
        self._stop = True
        self._pool.shutdown(wait=True, cancel_futures=True)
