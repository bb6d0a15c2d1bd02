"""The served index: responses without paths of this machine, thumbnails, and the worker pools that compute them."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from centerhash.core.errors import CenterhashError, ImageError, InputError
from centerhash.core.files import utf8_text
from centerhash.data.images import read_header
from centerhash.index import Index
from centerhash.index.items import Item
from centerhash.index.query import as_result
from centerhash.photos import PhotoIndex
from centerhash.photos.duplicates import Group
from centerhash.photos.text_query import parse_query, synonyms_of
from centerhash.photos.thumbnails import thumbnail
from centerhash.serve import schemas
from centerhash.serve.background import DuplicateSearch
from centerhash.serve.limits import WorkerPool
from centerhash.serve.settings import Settings

log = logging.getLogger("centerhash.serve")

# A thumbnail of this size is sharp on a phone with two dots per pixel.
THUMBNAIL_SIDE, PREVIEW_SIDE = 360, 2048  # pixels
# A thumbnail takes some 20 kB.
_CACHED_THUMBNAILS = 4096
# Uploads are decoded in this process, so only formats whose decoders are widely used and attacked are accepted.
_UPLOAD_TYPES = ("image/jpeg", "image/png", "image/webp", "image/heic", "image/heif")


class UnknownId(CenterhashError):
    """No item has this id."""


class Collection:
    """An index of photos, or of codes alone, for many clients at once."""

    def __init__(self, served: PhotoIndex | Index, settings: Settings) -> None:
        self._served = served
        self.photos = served if isinstance(served, PhotoIndex) else None
        self.index = served.index if isinstance(served, PhotoIndex) else served
        self.duplicate_search = None if self.photos is None else DuplicateSearch(self.photos)
        self._thumbnail = lru_cache(_CACHED_THUMBNAILS)(partial(self._resized, side=THUMBNAIL_SIDE))
        # Decoding and the network are slow, codes quick; a page requests dozens of thumbnails at once.
        self.image_pool = WorkerPool("images", settings.workers, settings.queue)
        self.code_pool = WorkerPool("codes", settings.workers, settings.queue)
        self.thumbnail_pool = WorkerPool("thumbnails", settings.workers, 4 * settings.queue)
        self._folder_names = lru_cache(1)(self._name_folders)

    def close(self) -> None:
        """Abandon a search for duplicates, and finish all other work."""
        if self.duplicate_search is not None:
            self.duplicate_search.close()
        for pool in (self.image_pool, self.code_pool, self.thumbnail_pool):
            pool.close()

    # --- searches

    def search(self, image: bytes | None = None, **query: Any) -> schemas.SearchResponse:
        """Search by an upload, or by the `id` or `labels` of a query."""
        if image is not None and read_header(image).media_type not in _UPLOAD_TYPES:
            raise ImageError("image bytes of another format: send a JPEG, PNG, WebP or HEIC.")
        options = self._options(query)
        if "id" in options:
            self._check_id(options["id"])
        if self.photos is not None:
            results: Any = self.photos.search(image, **options)
        elif image is not None:
            raise InputError("this index holds codes and no photos: search by an id or by labels.")
        else:
            results = self.index.search(**options)
        answer = {
            "labels": [vars(row) for row in results.labels],
            "results": self._to_json(filter(_exists, results)),
            "bits": self.index.bits,
            "size": results.size,
        }
        return schemas.SearchResponse.model_validate(answer)

    def _options(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that were passed, with the name of the folder replaced by its path."""
        options = {name: value for name, value in query.items() if value is not None}
        if self.photos is None:
            if unknown := options.keys() & {"under", "after", "before"}:
                raise InputError(f"this index holds codes and no photos: it has no filter '{min(unknown)}'.")
        elif "under" in options:
            paths = {name: path for path, name in self._folder_names(self.index.version).items()}
            # No photo is below the path of an unknown name.
            options["under"] = paths.get(options["under"], os.devnull)
        return options

    def parse(self, text: str) -> schemas.ParsedQueryResponse:
        """Parse a text query into labels, excluded labels and unknown words."""
        query = parse_query(text, [*dict.fromkeys((*self.index.classes, *self.index.labels()))])
        return schemas.ParsedQueryResponse(labels=query.weights, without=query.without, unknown=query.unknown)

    def _to_json(self, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """Return results with the facts of their files, without the folders of this machine."""
        results = [as_result(row, row.code, None, None) if isinstance(row, Item) else row for row in rows]
        return [{**row.to_dict(), **self._file_facts(getattr(row, "paths", ()))} for row in results]

    def _file_facts(self, paths: Sequence[str]) -> dict[str, Any]:
        """Return the name and folder of the first file, and the folders and names of all."""
        names = self._folder_names(self.index.version) if paths else {}
        folders = [names.get(os.path.dirname(path), "") for path in paths]  # noqa: PTH120 - called for many files
        files = [utf8_text(os.path.basename(path)) for path in paths]  # noqa: PTH119
        return {
            "path": files[0] if files else None,
            "folder": folders[0] if folders else None,
            "paths": [f"{folder}/{file}".lstrip("/") for folder, file in zip(folders, files, strict=True)],
        }

    # --- the collection

    def _name_folders(self, version: int) -> dict[str, str]:
        """Return the names of the folders by path, for a version of the index."""
        return {} if self.photos is None else folder_names(self.photos.count().folders)

    def items(self, offset: int, limit: int, **query: Any) -> schemas.ItemsResponse:
        """Return a page of the items, the newest first."""
        listed, total = self._served.list(offset, limit, **self._options(query))
        answer = {"items": self._to_json(filter(_exists, listed)), "total": total, "size": len(self.index)}
        return schemas.ItemsResponse.model_validate(answer)

    def item(self, id: str) -> schemas.ItemResponse:
        """Return one item."""
        self._check_id(id)
        return schemas.ItemResponse.model_validate(self._to_json([self._served.get(id)])[0])

    def counts(self, **query: Any) -> schemas.CountsResponse:
        """Count the items that a further filter by each label or folder would leave."""
        counts = self._served.count(**self._options(query))
        names, folders = self._folder_names(self.index.version), Counter[str]()
        for folder, count in getattr(counts, "folders", {}).items():
            for parent in (Path(folder), *Path(folder).parents):
                if str(parent) in names:
                    folders[names[str(parent)]] += count
        return schemas.CountsResponse(labels=counts.labels, folders=folders)

    def labels(self) -> schemas.LabelsResponse:
        """Return all labels: those of the model first, then others that items carry."""
        counts, has_centers = self.index.labels(), self.index.facts.hash_centers is not None
        rows = [
            schemas.LabelCount(
                label=label,
                count=counts.get(label, 0),
                center=has_centers and label in self.index.classes,
                also=synonyms_of(label),
            )
            for label in dict.fromkeys((*self.index.classes, *counts))
        ]
        return schemas.LabelsResponse(labels=rows)

    def duplicates(self) -> schemas.DuplicatesResponse:
        """Return the groups of duplicates, or the progress of the search for them."""
        if self.duplicate_search is None:
            raise InputError("this index holds codes and no photos: it has no duplicates.")
        result = self.duplicate_search.result()
        if result is None:
            done, total = self.duplicate_search.progress
            return schemas.DuplicatesResponse(done=done, total=total)
        groups = [{"kind": group.kind, "items": self._duplicate_items(group)} for group in result]
        groups = [group for group in groups if len(group["items"]) > 1]
        return schemas.DuplicatesResponse.model_validate({"groups": groups, "images": result.compared})

    def _duplicate_items(self, group: Group) -> list[dict[str, Any]]:
        """Return the facts of the files of a group, except those that have vanished meanwhile."""
        assert self.photos is not None
        items = []
        for path, id in zip(group.paths, group.ids, strict=True):
            with suppress(OSError, InputError):
                size = Path(path).stat().st_size
                (row,) = self._to_json([self.photos.get(id)])
                items.append({**row, **self._file_facts([path]), "bytes": size})
        return items

    # --- images

    def thumbnail(self, id: str) -> bytes:
        """Return a small WebP of an item."""
        # Another process may have removed an image whose thumbnail is cached.
        self._check_id(id)
        return self._thumbnail(id)

    def preview(self, id: str) -> bytes:
        """Return a large WebP of an item, for formats that browsers do not show."""
        return self._resized(id, PREVIEW_SIDE)

    def _resized(self, id: str, side: int) -> bytes:
        path, _ = self.original(id)
        with _readable(id):
            return thumbnail(path, side, "WEBP")

    def original(self, id: str) -> tuple[Path, str]:
        """Return the image file of an item and its media type; UnknownId if it is gone, or is no image any more."""
        self._check_id(id)
        if self.photos is None:
            raise UnknownId("this index holds codes and no photos.")
        with _readable(id):
            path = self.photos.image(id)
            return path, read_header(path).media_type

    def _check_id(self, id: str) -> None:
        if id not in self.index:
            raise UnknownId("no item of this id in the index.")


def _exists(row: object) -> bool:
    """Return whether a result has no file, or one that exists: it may have vanished since the last scan."""
    paths = getattr(row, "paths", ())
    return not paths or any(map(os.path.exists, paths))


@contextmanager
def _readable(id: str) -> Iterator[None]:
    """Turn errors of reading an image into UnknownId: their text contains a path of this machine."""
    try:
        yield
    except CenterhashError as error:
        log.warning("the image of %r cannot be read: %s", id, error)
        raise UnknownId("the image of this id cannot be read.") from None


def folder_names(folders: Iterable[str]) -> dict[str, str]:
    """Name folders and those above them, relative to the folder above the one that holds them all.

    /home/me/photos/2023 and /home/me/photos/2024 become photos/2023 and photos/2024, below photos.
    """
    paths = set(map(Path, folders))
    top = Path(os.path.commonpath(paths)) if paths else Path()
    parents = {parent for path in paths for parent in (path, *path.parents) if parent.is_relative_to(top)}
    return {str(path): path.relative_to(top.parent).as_posix() for path in sorted(parents)}
