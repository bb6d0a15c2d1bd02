"""Adding a folder of images to an index while it is served."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from centerhash.core.errors import CenterhashError
from centerhash.core.progress import Progress, silent
from centerhash.search import Added, Index

log = logging.getLogger("centerhash.serve")

_BATCH = 64  # images that can be searched together: few, so that the first are there soon


class _Stopped(Exception):
    """The server ends: what is not stored yet is added by the next one."""


class Filling:
    """Adds images in a thread for as long as the block runs; `left` is how many are still to come."""

    def __init__(
        self, index: Index, images: Path, ended: Callable[[Added], None], progress: Progress = silent
    ) -> None:
        self.index, self.images = index, images
        self.left = 1  # until the files have been listed, all that is known is that there is something
        self._progress, self._ended = progress, ended
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._add, name="adding", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _add(self) -> None:
        try:
            self._ended(self.index.add(self.images, progress=self._seen, batch=_BATCH))
        except _Stopped:
            log.info("stopped while %s was added", self.images)
        except CenterhashError as error:
            log.error("not all images were added: %s", error)
        finally:
            self.left = 0

    def _seen(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        if self._stop.is_set():
            raise _Stopped
        self.left = total - done
        self._progress(stage, done, total, note)
