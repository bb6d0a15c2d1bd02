"""An index for many clients at once: every call goes to a lane of threads, none blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from centerhash.core.errors import CenterhashError
from centerhash.search.results import missing_text
from centerhash.serve.settings import MEGABYTE, Settings
from centerhash.serve.thumbnails import Thumbnail, ThumbnailCache, make_thumbnail
from centerhash.serve.work import Lane, Work

if TYPE_CHECKING:
    from centerhash.search import Index, Result, Results

log = logging.getLogger("centerhash.serve")

_REFRESH_SECONDS = 1.0  # how long after a writer's `add` a server that only reads may still not know of it
DECODING = 1 / 3  # of a request's time: what is not decoded by then is ended


class UnknownId(CenterhashError):
    """No item of that id."""


class ServedIndex:
    """The index, its lanes and its thumbnails."""

    def __init__(self, index: Index, settings: Settings) -> None:
        self.index = index
        self._decoding_seconds = DECODING * settings.timeout
        self.thumbnails = ThumbnailCache(int(settings.thumbnail_mb * MEGABYTE))
        self.images = Lane("images", settings.workers, settings.queue)  # decoding and the network: slow
        self.codes = Lane("codes", settings.workers, settings.queue)  # codes only: quick
        # a page asks for dozens at once
        self.small = Lane("thumbnails", settings.workers, 4 * settings.queue)
        self.changes = Lane("changes", 1, settings.queue)  # one at a time
        self._making: dict[str, asyncio.Task[Thumbnail]] = {}

    def decoding(self) -> AbstractContextManager[None]:
        """Within this block, what clients send is decoded in processes that can be killed."""
        if self.index.facts.backbone is None:
            return nullcontext()
        return self.index.encoder().apart(self._decoding_seconds)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes."""
        return (self.images, self.codes, self.small, self.changes)

    async def search(
        self, image: bytes | None = None, *, id: str | None = None, labels: str | None = None, **options: Any
    ) -> Results:
        """As `Index.search`, by an upload, an id or the text of labels."""
        search = partial(self.index.search, image, id=id, labels=labels, **options)
        if image is not None:
            return await self.images.run(search)
        return await self.codes.run(search if id is None else lambda: self._known(id, search))

    async def labels(self) -> dict[str, int]:
        """How many items carry each label."""
        return await self.codes.run(self.index.labels)

    async def add(self, data: bytes) -> Result:
        """Store an image durably."""
        return await self.changes.run(lambda: self.index.add_bytes(data))

    async def remove(self, id: str) -> None:
        """Take an item out durably."""
        # only an id gets this far: `Index.remove` takes paths too, and none may come from a request
        await self.changes.run(lambda: self._known(id, lambda: self.index.remove([id])))
        self.thumbnails.forget(id)

    async def thumbnail(self, id: str) -> Thumbnail:
        """The small image of an item; several clients that ask at once wait for the same work.

        The index is asked each time: another process may have removed an image whose thumbnail is kept.
        """
        task = self._making.get(id)
        if task is None:
            work = partial(self._known, id, lambda: self.thumbnails.get(id) or self._make(id))
            task = asyncio.create_task(self.small.run(work))
            self._making[id] = task
            task.add_done_callback(lambda _: self._making.pop(id, None))
        return await asyncio.shield(task)

    def _make(self, id: str) -> Thumbnail:
        try:
            made = make_thumbnail(self.index.image(id))
        except CenterhashError as error:  # its text names a path of this machine
            log.warning("no thumbnail of %r: %s", id, error)
            raise UnknownId("the image of this id cannot be read.") from None
        self.thumbnails.put(id, made)
        return made

    def _known(self, id: str, work: Callable[[], Work]) -> Work:
        if id not in self.index:
            raise UnknownId("no image of this id in the index.")
        return work()

    async def count_missing(self) -> None:
        """Say once how many images can be found but not shown since their file is gone."""
        try:
            count = len(await asyncio.to_thread(self.index.missing))
        except CenterhashError as error:  # an item was removed meanwhile, or the index is damaged
            log.warning("files that are gone were not counted: %s", error)
            return
        if count:
            log.warning(missing_text(self.index.folder, count))

    async def keep_fresh(self) -> None:
        """See what another process adds, for as long as this runs."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                await self.codes.run(self.index.refresh)
            except CenterhashError as error:  # a full lane, or a writer in the middle of something
                log.warning("not refreshed: %s", error)

    def close(self) -> None:
        """Finish all that has been begun."""
        for lane in self.lanes:
            lane.close()
