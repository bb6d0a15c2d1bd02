"""A collection for many clients at once: every call goes to a lane of threads, none blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from centerhash.core.errors import CenterhashError
from centerhash.search.label_query import parse_labels
from centerhash.serve.settings import MEGABYTE, Settings
from centerhash.serve.thumbnails import Thumbnail, ThumbnailCache, make_thumbnail
from centerhash.serve.work import Lane, Result

if TYPE_CHECKING:
    from centerhash.search import Answer, Collection, Found

log = logging.getLogger("centerhash.serve")

_REFRESH_SECONDS = 1.0  # how long after a writer's `add` a server that only reads may still not know of it


class UnknownId(CenterhashError):
    """No item of that id."""


class Library:
    """The collection, its lanes and its thumbnails."""

    def __init__(self, collection: Collection, settings: Settings) -> None:
        self.collection = collection
        self.thumbnails = ThumbnailCache(int(settings.thumbnail_mb * MEGABYTE))
        self.pictures = Lane("pictures", settings.workers, settings.queue)  # decoding and the network: slow
        self.codes = Lane("codes", settings.workers, settings.queue)  # codes only: quick
        self.small = Lane(
            "thumbnails", settings.workers, 4 * settings.queue
        )  # a page asks for dozens at once
        self.changes = Lane("changes", 1, settings.queue)  # one at a time
        self._making: dict[str, asyncio.Task[Thumbnail]] = {}

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes."""
        return (self.pictures, self.codes, self.small, self.changes)

    @property
    def size(self) -> int:
        """The number of pictures."""
        return len(self.collection.index)

    async def by_image(self, data: bytes, k: int, labels: Sequence[str], within: int | None) -> Answer:
        """The nearest to an uploaded picture."""
        return await self.pictures.run(
            lambda: self.collection.by_image(data, k=k, labels=labels, within=within)
        )

    async def by_id(self, id: str, k: int, labels: Sequence[str], within: int | None) -> Answer:
        """The nearest to a picture of the index."""
        search = partial(self.collection.by_id, id, k=k, labels=labels, within=within)
        return await self.codes.run(lambda: self._known(id, search))

    async def by_labels(self, text: str, k: int, labels: Sequence[str], within: int | None) -> Answer:
        """The nearest to a mixture of labels, such as "dog:0.7, bicycle:0.3"."""
        weights = parse_labels(text, self.collection.model.classes)
        return await self.codes.run(
            lambda: self.collection.by_labels(weights, k=k, labels=labels, within=within)
        )

    async def labels(self) -> dict[str, int]:
        """How many pictures carry each label."""
        return await self.codes.run(self.collection.index.labels)

    async def add(self, data: bytes) -> Found:
        """Store a picture for good."""
        return await self.changes.run(lambda: self.collection.add_bytes(data))

    async def remove(self, id: str) -> None:
        """Take a picture out for good."""
        # only what is an id goes on: `Collection.remove` takes paths too, and none may come from a request
        await self.changes.run(lambda: self._known(id, lambda: self.collection.remove([id])))
        self.thumbnails.forget(id)

    async def thumbnail(self, id: str) -> Thumbnail:
        """The small picture of an item; several clients that ask at once wait for the same work.

        The index is asked each time: another process may have removed a picture whose thumbnail is kept.
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
            made = make_thumbnail(self.collection.image(id))
        except CenterhashError as error:  # its text names a path of this machine
            log.warning("no thumbnail of %r: %s", id, error)
            raise UnknownId("the picture of this id cannot be read.") from None
        self.thumbnails.put(id, made)
        return made

    def _known(self, id: str, work: Callable[[], Result]) -> Result:
        if id not in self.collection.index:
            raise UnknownId("no picture of this id in the index.")
        return work()

    async def keep_fresh(self) -> None:
        """See what another process adds, for as long as this runs."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                await self.codes.run(self.collection.refresh)
            except CenterhashError as error:  # a full lane, or a writer in the middle of something
                log.warning("not refreshed: %s", error)

    def close(self) -> None:
        """Finish all that has been begun."""
        for lane in self.lanes:
            lane.close()
