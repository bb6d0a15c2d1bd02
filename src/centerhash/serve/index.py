"""An index for many clients at once: the answers to their requests, and the lanes of threads that compute them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

from PIL import Image

from centerhash.core.errors import CenterhashError, InputError
from centerhash.core.rendering import shown_text
from centerhash.data.images import load_image, read_header
from centerhash.data.layouts.parquet import is_stored_image, stored_image
from centerhash.search import Index, Result
from centerhash.search.names import synonyms
from centerhash.search.results import missing_text
from centerhash.search.uploads import ID_DIGITS, IMAGES
from centerhash.serve import schemas
from centerhash.serve.background import DuplicateSearch
from centerhash.serve.limits import MEGABYTE, Lane, Settings

log = logging.getLogger("centerhash.serve")

SIDE = 360  # pixels of a thumbnail's longer side: sharp in a grid cell on a phone with two dots per pixel
UPLOADS = "uploads"  # the name of the folder of images that came without a file
DECODING = 1 / 3  # of a request's time: what is not decoded by then is ended
_REFRESH_SECONDS = 1.0  # how long after a writer's `add` a server that only reads may not see it


class UnknownId(CenterhashError):
    """No item of that id."""


@dataclass(frozen=True)
class Folders:
    """The folders of images, by names that do not tell where they lie on this machine."""

    counts: dict[str, int]  # by name: images in it and below it
    names: dict[str, str]  # by path


class ServedIndex:
    """The index, its lanes and its thumbnails."""

    def __init__(self, index: Index, settings: Settings) -> None:
        self.index = index
        self.duplicate_search = DuplicateSearch(index, lambda: self.index.version)
        self.thumbnails = ThumbnailCache(int(settings.thumbnail_mb * MEGABYTE))
        self.images = Lane("images", settings.workers, settings.queue)  # decoding and the network: slow
        self.codes = Lane("codes", settings.workers, settings.queue)  # codes only: quick
        # a page requests dozens at once
        self.small = Lane("thumbnails", settings.workers, 4 * settings.queue)
        self.changes = Lane("changes", 1, settings.queue)  # one at a time
        self.lanes = (self.images, self.codes, self.small, self.changes)
        self._decoding_seconds = DECODING * settings.timeout
        uploads = str(index.folder.resolve() / IMAGES)
        self._folders = lru_cache(1)(lambda version: named_folders(self.index.folders(), uploads))

    def decoding(self) -> AbstractContextManager[None]:
        """Within this block, uploads are decoded in processes that can be killed."""
        if self.index.model_info.backbone is None:
            return nullcontext()
        return self.index.encoder().sandboxed(self._decoding_seconds)

    def search(
        self, image: bytes | None = None, *, id: str | None = None, under: str | None, **query: Any
    ) -> schemas.SearchAnswer:
        """As `Index.search`, by an upload, an id or the text of labels."""
        path = self._path_of(under)
        try:
            found = self.index.search(image, id=id, under=path, **query)
        except InputError:
            if id is not None:  # only now: it is one more read, and most ids are there
                self._check(id)
            raise
        empty = under is not None and path is None  # a folder without images, whether or not it exists
        answer = {
            "labels": [vars(row) for row in found.labels],
            "results": [] if empty else self._described(found),
            "bits": len(found.code),
            "size": found.size,
        }
        return schemas.SearchAnswer.model_validate(answer)

    def _described(self, rows: Sequence[Result]) -> list[dict[str, Any]]:
        """Results as on the command line with the facts of their files, without the folders of this machine."""
        names = self.folders().names if any(row.path is not None for row in rows) else {}
        described = []
        for row in rows:
            facts = row.to_dict() | {"path": None if row.path is None else shown_text(row.name or "")}
            places = [(names.get(str(Path(path).parent)), Path(path).name) for path in row.paths]
            facts["folder"] = places[0][0] if places else None
            facts["paths"] = [shown_text(f"{folder}/{name}" if folder else name) for folder, name in places]
            described.append(facts)
        return described

    def folders(self) -> Folders:
        """The folders of the images as they are now."""
        return self._folders(self.index.version)

    def _path_of(self, folder: str | None) -> str | None:
        """The path of a folder by its name; None for all other names, whatever the disk holds."""
        if folder is None:
            return None
        paths = {name: path for path, name in self.folders().names.items()}
        return paths.get(folder.strip("/"))

    def items(
        self, offset: int, limit: int, under: str | None, **labels: Sequence[str]
    ) -> schemas.ItemsAnswer:
        """Some images, the newest first."""
        path = self._path_of(under)
        found: tuple[list[Result], int] = ([], 0)
        if under is None or path is not None:
            found = self.index.newest(offset, limit, under=path, **labels)
        answer = {"items": self._described(found[0]), "total": found[1], "size": len(self.index)}
        return schemas.ItemsAnswer.model_validate(answer)

    def item(self, id: str) -> schemas.Item:
        """One image."""
        self._check(id)
        return schemas.Item.model_validate(self._described([self.index.get(id)])[0])

    def labels(self) -> schemas.LabelsAnswer:
        """All labels: those of the model first, then others that items carry."""
        model, counts = self.index.model_info, self.index.labels()
        centers = set(() if model.known_centers is None else model.classes)
        rows = [
            schemas.LabelCount(
                label=label,
                count=counts.get(label, 0),
                center=label in centers,
                also=[word for word, meant in synonyms().items() if meant == label],
            )
            for label in dict.fromkeys((*model.classes, *counts))
        ]
        return schemas.LabelsAnswer(labels=rows)

    def duplicates(self) -> schemas.DuplicatesAnswer:
        """The groups of duplicates, or the progress of the search for them."""
        found = self.duplicate_search.result()
        if found is None:
            done, total = self.duplicate_search.progress
            return schemas.DuplicatesAnswer(done=done, total=total)
        groups = [
            {"kind": group.kind, "items": self._rows(photo.id for photo in group.photos)} for group in found
        ]
        left = [group for group in groups if len(group["items"]) > 1]
        return schemas.DuplicatesAnswer.model_validate({"groups": left, "images": found.looked_at})

    def _rows(self, ids: Iterable[str]) -> list[dict[str, Any]]:
        """The facts of these images, except those that were removed meanwhile."""
        found = []
        for id in ids:
            with suppress(InputError):
                found.append(self.index.get(id))
        return self._described(found)

    def add(self, data: bytes, name: str) -> schemas.Added:
        """Store an image durably."""
        new = hashlib.sha256(data).hexdigest()[:ID_DIGITS] not in self.index
        added = self.index.add_bytes(data, name)
        return schemas.Added(id=added.id, labels=list(added.labels), new=new, size=len(self.index))

    def remove(self, id: str) -> schemas.Removed:
        """Remove an item durably."""
        self._check(id)  # `Index.remove` accepts paths too, and none may come from a request
        self.index.remove([id])
        self.thumbnails.forget(id)
        return schemas.Removed(id=id, size=len(self.index))

    def thumbnail(self, id: str) -> Thumbnail:
        """The thumbnail of an item."""
        self._check(id)  # another process may have removed an image whose thumbnail is cached
        found = self.thumbnails.get(id)
        if found is None:
            with _readable(id):
                found = make_thumbnail(self.index.image(id))
            self.thumbnails.put(id, found)
        return found

    def original(self, id: str) -> tuple[Path, str, bytes | None]:
        """The image file of an item, its media type, and its bytes if it is stored inside another file.

        UnknownId if it is gone, or is no image any more.
        """
        self._check(id)
        with _readable(id):
            path = self.index.image(id)
            stored = stored_image(path) if is_stored_image(path) else None
            return path, read_header(path if stored is None else stored).media_type, stored

    def _check(self, id: str) -> None:
        if id not in self.index:
            raise UnknownId("no image of this id in the index.")

    async def count_missing(self, report: Callable[[int], None] | None) -> None:
        """Report how many files of indexed images are gone, or log a warning."""
        try:
            count = len(await asyncio.to_thread(self.index.missing))
        except CenterhashError as error:  # the index is damaged
            log.warning("files that are gone were not counted: %s", error)
            return
        if report is not None:
            report(count)
        elif count:
            log.warning(missing_text(self.index.folder, count))

    async def keep_fresh(self) -> None:
        """Load what another process writes, for as long as this runs."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                await self.codes.run(self.index.refresh)
            except CenterhashError as error:  # a full lane, or a writer in the middle of something
                log.warning("not refreshed: %s", error)

    def close(self) -> None:
        """Finish all that has been begun."""
        self.duplicate_search.close()
        for lane in self.lanes:
            lane.close()


@contextmanager
def _readable(id: str) -> Iterator[None]:
    """Turn errors of reading an image into UnknownId: their text names a path of this machine."""
    try:
        yield
    except CenterhashError as error:
        log.warning("the image of %r cannot be read: %s", id, error)
        raise UnknownId("the image of this id cannot be read.") from None


def named_folders(direct: Mapping[str, int], uploads: str) -> Folders:
    """Name folders, given the number of images in each, from the one on that holds them all.

    /home/me/photos/2023 and /home/me/photos/2024 become photos/2023 and photos/2024, below photos.
    """
    others = sorted(path for path in direct if path != uploads)
    drives = {Path(folder).drive for folder in others}  # of Windows; elsewhere one without a name
    top = Path(os.path.commonpath(others)) if len(drives) == 1 else Path()
    sums = Counter[str]()
    for folder in others:
        for path in (Path(folder), *Path(folder).parents):
            if len(drives) > 1 or path.is_relative_to(top):
                sums[str(path)] += direct[folder]
    names = {
        path: Path(path if len(drives) > 1 else os.path.relpath(path, top.parent)).as_posix()
        for path in sorted(sums)
    }
    if uploads in direct:
        sums[uploads], names[uploads] = direct[uploads], UPLOADS
    return Folders({name: sums[path] for path, name in names.items()}, names)


@dataclass(frozen=True)
class Thumbnail:
    """An encoded small image, and the tag by which a browser recognizes its copy."""

    data: bytes
    etag: str


def make_thumbnail(path: Path) -> Thumbnail:
    """Decode, shrink and encode one image; ImageError if it cannot be read."""
    image = load_image(path, at_least=SIDE)
    image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0)
    stream = io.BytesIO()
    image.save(stream, "WEBP", quality=80, method=2)
    data = stream.getvalue()
    return Thumbnail(data, f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"')


class ThumbnailCache:
    """The thumbnails used last, up to a number of bytes; thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Thumbnail] = OrderedDict()
        self._lock = RLock()
        self.size = 0  # bytes in use

    def get(self, key: str) -> Thumbnail | None:
        """The thumbnail of `key`, if it is there."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: str, thumbnail: Thumbnail) -> None:
        """Store a thumbnail, and evict the least recently used ones."""
        with self._lock:
            self.forget(key)
            self._kept[key] = thumbnail
            self.size += len(thumbnail.data)
            while self.size > self._max_bytes:
                self.forget(next(iter(self._kept)))

    def forget(self, key: str) -> None:
        """Remove a thumbnail, if it is there."""
        with self._lock:
            dropped = self._kept.pop(key, None)
            self.size -= len(dropped.data) if dropped is not None else 0
