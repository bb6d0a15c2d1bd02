"""Duplicates of a served index: found once in the background, and kept until the index changes."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

from centerhash.core.errors import DataError, InputError

if TYPE_CHECKING:
    from centerhash.search import Index
    from centerhash.search.duplicates import Duplicates

log = logging.getLogger("centerhash.serve")


class _Stopped(Exception):
    """The server ends."""


class Finding:
    """Looks for duplicates in a thread of its own: `look` says what was found, or how far the work has come."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="centerhash-duplicates")
        self._lock = Lock()
        self._work: Future[Duplicates] | None = None
        self._version: tuple[int, int] | None = None
        self._stop = False
        self.progress = (0, 0)  # done, total

    def look(self) -> Duplicates | None:
        """The duplicates of the index as it is now; None while they are looked for, which this begins."""
        with self._lock:
            version = (self._index.store.changes, len(self._index))
            if self._work is None or (self._work.done() and self._version != version):
                self._version, self.progress = version, (0, 0)
                self._work = self._pool.submit(self._index.duplicates, progress=self._seen)
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
                "this index cannot be looked through: it needs two images with visual codes at least."
            ) from None

    def _seen(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        if self._stop:
            raise _Stopped
        self.progress = (done, total)

    def close(self) -> None:
        """Give up what has been begun."""
        self._stop = True
        self._pool.shutdown(wait=True, cancel_futures=True)
