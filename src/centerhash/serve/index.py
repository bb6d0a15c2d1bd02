"""An index for many clients at once: every call goes to a lane of threads, none blocks the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from centerhash.core.errors import CenterhashError, InputError
from centerhash.data.images import read_header
from centerhash.data.layouts.parquet import is_stored_image, stored_image
from centerhash.search.results import missing_text
from centerhash.search.uploads import ID_LETTERS
from centerhash.serve.background import Finding
from centerhash.serve.catalog import Catalog, modified, shape
from centerhash.serve.schemas import DuplicatesAnswer, Item, ItemsAnswer, SearchAnswer
from centerhash.serve.settings import MEGABYTE, Settings
from centerhash.serve.thumbnails import Thumbnail, ThumbnailCache, make_thumbnail
from centerhash.serve.work import Lane, Work

if TYPE_CHECKING:
    from centerhash.search import Index, Result

log = logging.getLogger("centerhash.serve")

_REFRESH_SECONDS = 1.0  # how long after a writer's `add` a server that only reads may still not know of it
DECODING = 1 / 3  # of a request's time: what is not decoded by then is ended


class UnknownId(CenterhashError):
    """No item of that id."""


@dataclass(frozen=True)
class Original:
    """The file of an image, and its bytes where it lies inside another file."""

    path: Path
    media_type: str
    data: bytes | None


class ServedIndex:
    """The index, its lanes and its thumbnails."""

    def __init__(self, index: Index, settings: Settings) -> None:
        self.index = index
        self._decoding_seconds = DECODING * settings.timeout
        self.catalog, self.finding = Catalog(index), Finding(index)
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
    ) -> SearchAnswer:
        """As `Index.search`, by an upload, an id or the text of labels."""
        search = partial(self._search, image, id, labels, **options)
        if image is not None:
            return await self.images.run(search)
        return await self.codes.run(search if id is None else lambda: self._known(id, search))

    def _search(
        self, image: bytes | None, id: str | None, labels: str | None, under: str | None, **options: Any
    ) -> SearchAnswer:
        place = None if under is None else self.catalog.place(under)
        found = self.index.search(image, id=id, labels=labels, under=place, **options)
        answer = found.to_dict(self._described)
        if under is not None and place is None:  # a folder without images, be there one on the disk or not
            answer["results"] = []
        return SearchAnswer.model_validate(answer)

    def _described(self, row: Result) -> dict[str, Any]:
        """A result as on the command line, with what its file says, but without the folders of this machine."""
        shown = row.to_dict()
        if row.path is None:
            return shown
        at = modified(row.path)
        width, height = shape(row.path, at) or (None, None)
        folder = self.catalog.folder_of(row.path)
        name = Path(row.path).name
        return shown | {"path": name, "folder": folder, "date": at or None, "width": width, "height": height}

    async def items(
        self, offset: int, limit: int, having: Sequence[str], without: Sequence[str], under: str | None
    ) -> ItemsAnswer:
        """Some images, the newest first."""

        def look() -> ItemsAnswer:
            ids = self.catalog.ids(having, without, under)
            rows = self._rows(ids[offset : offset + limit])
            return ItemsAnswer.model_validate({"items": rows, "total": len(ids), "size": len(self.index)})

        return await self.codes.run(look)

    async def item(self, id: str) -> Item:
        """What is known of one image."""
        found = await self.codes.run(lambda: self._known(id, lambda: self._described(self.index.get(id))))
        return Item.model_validate(found)

    async def duplicates(self) -> DuplicatesAnswer:
        """The groups of duplicates, or how far the search for them has come."""

        def look() -> DuplicatesAnswer:
            found = self.finding.look()
            if found is None:
                done, total = self.finding.progress
                return DuplicatesAnswer(done=done, total=total)
            groups = ((group.kind, [photo.id for photo in group.photos]) for group in found)
            shown = [{"kind": kind, "items": self._rows(ids)} for kind, ids in groups]
            left = [group for group in shown if len(group["items"]) > 1]
            return DuplicatesAnswer.model_validate({"groups": left, "images": found.looked_at})

        return await self.codes.run(look)

    def _rows(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """What is known of these images, but for those that were removed meanwhile."""
        rows = []
        for id in ids:
            with suppress(InputError):
                rows.append(self._described(self.index.get(id)))
        return rows

    async def add(self, data: bytes) -> tuple[Result, bool]:
        """Store an image durably; say also whether it is new."""

        def add() -> tuple[Result, bool]:
            known = hashlib.sha256(data).hexdigest()[:ID_LETTERS] in self.index
            return self.index.add_bytes(data), not known

        return await self.changes.run(add)

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

    async def original(self, id: str) -> Original:
        """The image file of an item; UnknownId where it is gone, or is no image any more."""
        return await self.small.run(lambda: self._known(id, lambda: self._original(id)))

    def _original(self, id: str) -> Original:
        try:
            path = self.index.image(id)
            stored = stored_image(path) if is_stored_image(path) else None
            return Original(path, read_header(path if stored is None else stored).media_type, stored)
        except CenterhashError as error:  # its text names a path of this machine
            log.warning("no original of %r: %s", id, error)
            raise UnknownId("the image of this id cannot be read.") from None

    async def prepare(self, counted: Callable[[int], None] | None = None) -> None:
        """List the images before the first visitor asks, and say once how many of their files are gone."""
        try:
            missing = (await asyncio.to_thread(self.catalog.now)).missing
        except CenterhashError as error:  # the index is damaged
            log.warning("files that are gone were not counted: %s", error)
            return
        if counted is not None:
            counted(missing)

    def warn_of_missing(self, count: int) -> None:
        """Say that images can be found but not shown."""
        if count:
            log.warning(missing_text(self.index.folder, count))

    async def keep_fresh(self) -> None:
        """See what another process adds, for as long as this runs."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                if await self.codes.run(self.index.refresh):
                    self.catalog.refreshed()
            except CenterhashError as error:  # a full lane, or a writer in the middle of something
                log.warning("not refreshed: %s", error)

    def close(self) -> None:
        """Finish all that has been begun."""
        self.finding.close()
        for lane in self.lanes:
            lane.close()
