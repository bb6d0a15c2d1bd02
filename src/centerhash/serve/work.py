"""Work that would block the event loop, done in a few threads behind a queue that can be full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from centerhash.core.errors import CenterhashError

Work = TypeVar("Work")  # what a piece of work returns


class Busy(CenterhashError):
    """All places of a lane are taken; the client may come back in a moment."""


class Lane:
    """A few worker threads, and places for those who wait: quick work does not stand behind slow work.

    A place is given back when its work has really ended, not when the client stopped waiting for it.
    """

    def __init__(self, name: str, workers: int, queue: int) -> None:
        self.name = name
        self.places = workers + queue
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=f"centerhash-{name}")
        self._lock = Lock()
        self.taken = 0  # how many are being worked for, or wait

    def check(self) -> None:
        """Raise Busy when no place is free: worth asking before a body is read."""
        if self.taken >= self.places:
            raise Busy("the server is busy: try again in a moment.")

    async def run(self, work: Callable[[], Work]) -> Work:
        """Do `work` in a thread, or raise Busy. Cancelled while it waits, it is never done."""
        with self._lock:
            self.check()
            self.taken += 1
        try:
            future = self._pool.submit(work)
        except RuntimeError:  # closed
            self._leave()
            raise Busy("the server is stopping.") from None
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def _leave(self, future: Future[Any] | None = None) -> None:
        with self._lock:
            self.taken -= 1

    def close(self) -> None:
        """Finish what has been begun or waits, and take nothing new."""
        self._pool.shutdown(wait=True)
