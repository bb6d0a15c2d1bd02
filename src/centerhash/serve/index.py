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

from centerhash.core.errors import CenterhashError, ConfigError, InputError
from centerhash.core.rendering import shown_text
from centerhash.data.images import load_image, read_header
from centerhash.data.layouts.parquet import is_stored_image, stored_image
from centerhash.search import Index, Result
from centerhash.search.duplicates import Photo, wanted_file
from centerhash.search.moving import Moved, last_batch, last_moved, move, plan_moves, undo
from centerhash.search.names import words_for
from centerhash.search.results import missing_text
from centerhash.search.uploads import ID_DIGITS, IMAGES
from centerhash.serve import schemas
from centerhash.serve.background import DuplicateSearch
from centerhash.serve.limits import MEGABYTE, Lane, Settings

log = logging.getLogger("centerhash.serve")

SIDE = 360  # pixels of a thumbnail's longer side: sharp in a grid cell on a phone with two dots per pixel
LARGE = 2048  # pixels of a preview's longer side
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
        self._duplicates_to = settings.duplicates_to if settings.may_write else None
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
            "results": [] if empty else self._described(list(filter(is_there, found))),
            "bits": len(found.code),
            "size": found.size,
        }
        return schemas.SearchAnswer.model_validate(answer)

    def read(self, text: str) -> schemas.TypedAnswer:
        """What a person typed, as labels, filters and unknown words."""
        typed, classes = self.index.read(text), self.index.model_info.classes
        return schemas.TypedAnswer(
            labels=[
                schemas.TypedLabel(label=label, weight=weight)
                for label, weight in typed.weights.items()
                if label in classes
            ],
            having=[label for label in typed.weights if label not in classes],
            without=typed.without,
            named=typed.named,
            unknown=[schemas.UnknownWord(word=word, near=list(near)) for word, near in typed.unknown],
        )

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

    def items(self, offset: int, limit: int, under: str | None, **only: Any) -> schemas.ItemsAnswer:
        """Some images, the newest first."""
        path = self._path_of(under)
        found: tuple[list[Result], int] = ([], 0)
        if under is None or path is not None:
            found = self.index.newest(offset, limit, under=path, **only)
        shown = self._described(list(filter(is_there, found[0])))
        answer = {"items": shown, "total": found[1], "size": len(self.index)}
        return schemas.ItemsAnswer.model_validate(answer)

    def months(self, under: str | None, **only: Any) -> schemas.MonthsAnswer:
        """The months in which images were taken, the newest first."""
        path = self._path_of(under)
        found = {} if under is not None and path is None else self.index.months(under=path, **only)
        rows = [schemas.MonthCount(month=month, count=count) for month, count in found.items()]
        return schemas.MonthsAnswer(months=rows)

    def counts(self, under: str | None, **only: Any) -> schemas.CountsAnswer:
        """How many images a further filter by each label, camera or folder would leave."""
        path = self._path_of(under)
        if under is not None and path is None:
            return schemas.CountsAnswer(labels={}, cameras={}, folders={})
        found, names = self.index.counts(under=path, **only), self.folders().names
        folders = Counter[str]()
        for folder, count in found.folders.items():
            for place in (Path(folder), *Path(folder).parents):
                if str(place) in names:
                    folders[names[str(place)]] += count
        return schemas.CountsAnswer(labels=found.labels, cameras=found.cameras, folders=folders)

    def cameras(self) -> schemas.CamerasAnswer:
        """All cameras."""
        rows = [schemas.CameraCount(camera=name, count=count) for name, count in self.index.cameras().items()]
        return schemas.CamerasAnswer(cameras=rows)

    def item(self, id: str) -> schemas.Item:
        """One image."""
        self._check(id)
        return schemas.Item.model_validate(self._described([self.index.get(id)])[0])

    def labels(self) -> schemas.LabelsAnswer:
        """All labels: those of the model first, then others that items carry."""
        model, counts = self.index.model_info, self.index.labels()
        taught = self.index.store.taught()
        centers = {*(() if model.known_centers is None else model.classes), *taught}
        rows = [
            schemas.LabelCount(
                label=label,
                count=counts.get(label, 0),
                center=label in centers,
                taught=label in taught,
                also=words_for(label),
            )
            for label in dict.fromkeys((*model.classes, *counts))
        ]
        return schemas.LabelsAnswer(labels=rows)

    def taught(self) -> schemas.TaughtAnswer:
        """All taught labels."""
        rows = [label.to_dict() for label in self.index.taught().values()]
        return schemas.TaughtAnswer.model_validate({"labels": rows})

    def teach(self, teaching: schemas.Teaching) -> schemas.TaughtLabel:
        """Add examples to a taught label, and learn it."""
        for id in (*teaching.like, *teaching.unlike):
            self._check(id)  # `Index.teach` accepts paths too, and none may come from a request
        taught = self.index.teach(teaching.name, teaching.like, teaching.unlike)
        return schemas.TaughtLabel.model_validate(taught.to_dict())

    def suggest(self, name: str, k: int) -> schemas.SuggestionsAnswer:
        """Items to confirm or reject."""
        found = self.index.suggest(name, k)
        rows = {"likely": self._described(found.likely), "uncertain": self._described(found.uncertain)}
        return schemas.SuggestionsAnswer.model_validate({"name": found.name, **rows})

    def rename_taught(self, renaming: schemas.Renaming) -> schemas.TaughtAnswer:
        """Rename a taught label."""
        self.index.rename_taught(renaming.name, renaming.new)
        return self.taught()

    def forget(self, name: str) -> schemas.TaughtAnswer:
        """Remove a taught label."""
        self.index.forget(name)
        return self.taught()

    def duplicates(self) -> schemas.DuplicatesAnswer:
        """The groups of duplicates, or the progress of the search for them."""
        found = self.duplicate_search.result()
        if found is None:
            done, total = self.duplicate_search.progress
            return schemas.DuplicatesAnswer(done=done, total=total)
        groups = [
            {"kind": group.kind, "rule": group.rule, "items": self._duplicate_items(group.photos)}
            for group in found
        ]
        answer = {
            "groups": [group for group in groups if len(group["items"]) > 1],
            "images": found.looked_at,
            "movable": self._duplicates_to is not None,
            "undo": 0 if self._duplicates_to is None else last_moved(self._duplicates_to),
        }
        return schemas.DuplicatesAnswer.model_validate(answer)

    def _duplicate_items(self, photos: Iterable[Photo]) -> list[dict[str, Any]]:
        """The facts of these files, except those that were removed or moved meanwhile."""
        names, found = self.folders().names, []
        for photo in photos:
            if photo.path is not None and not os.path.lexists(photo.path):
                continue
            with suppress(InputError):
                (facts,) = self._described([self.index.get(photo.id or "")])
                if photo.path is not None:
                    path = Path(photo.path)
                    facts |= {"path": shown_text(path.name), "folder": names.get(str(path.parent))}
                if photo.width is not None:
                    facts |= {"width": photo.width, "height": photo.height}
                facts |= {"file": file_key(photo), "bytes": photo.bytes, "change": photo.change}
                found.append(facts)
        return found

    def move_duplicates(self, wanted: schemas.DuplicateMove) -> schemas.DuplicatesMoved:
        """Move files of one group to the folder that the server was started with."""
        folder, found = self._moving_folder(), self.duplicate_search.result()
        files = {wanted.keep, *wanted.others}
        for group in found or ():
            photos = {file_key(photo): photo for photo in group.photos if photo.path is not None}
            if files <= photos.keys() and wanted.keep not in wanted.others:
                break
        else:
            raise InputError("these files are not in one group of duplicates any more: request them again.")
        assert found is not None
        keep = photos[wanted.keep]
        moves = [wanted_file(keep, photos[file]) for file in dict.fromkeys(wanted.others)]
        try:
            planned, skipped = plan_moves(moves, folder, found.root or Path())
        except ConfigError as error:  # it names folders of this machine
            log.error("duplicates cannot be moved: %s", error)
            raise InputError("files cannot be moved to the folder of this server; see its log.") from None
        with self.duplicate_search.unchanged():
            done = move(planned, folder, index=self.index)
        return _moved(done, skipped)

    def undo_duplicates(self) -> schemas.DuplicatesMoved:
        """Move the files of the last move back."""
        folder = self._moving_folder()
        batch = last_batch(folder)
        if batch is None:
            raise InputError("no files were moved that could be moved back.")
        return _moved(undo(folder, batch=batch, index=self.index), {})

    def _moving_folder(self) -> Path:
        if self._duplicates_to is None:
            raise InputError(
                "this server was started without a folder to move duplicates to (--duplicates-to)."
            )
        return self._duplicates_to

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
        self.thumbnails.forget(f"{id} large")
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

    def preview(self, id: str) -> Thumbnail:
        """A large WebP of an item, for formats that browsers do not show."""
        self._check(id)
        key = f"{id} large"
        found = self.thumbnails.get(key)
        if found is None:
            with _readable(id):
                found = make_thumbnail(self.index.image(id), LARGE)
            self.thumbnails.put(key, found)
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


def is_there(row: Result) -> bool:
    """Return whether a result has no image, or a file of it is there: one may have vanished since the last scan."""
    return not row.paths or any(os.path.exists(path) or is_stored_image(Path(path)) for path in row.paths)  # noqa: PTH110


def file_key(photo: Photo) -> str:
    """Return the name of a file in requests, which does not tell where it is on this machine."""
    return hashlib.blake2b(os.fsencode(photo.path or photo.id or ""), digest_size=8).hexdigest()


def _moved(done: Moved, skipped: Mapping[str, str]) -> schemas.DuplicatesMoved:
    reasons = {**skipped, **done.skipped}
    for reason in reasons.values():  # they name files of this machine
        log.warning(reason)
    return schemas.DuplicatesMoved(photos=done.photos, sidecars=done.sidecars, skipped=len(reasons))


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


def make_thumbnail(path: Path, side: int = SIDE) -> Thumbnail:
    """Decode, shrink and encode one image; ImageError if it cannot be read."""
    image = load_image(path, at_least=side)
    image.thumbnail((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
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
