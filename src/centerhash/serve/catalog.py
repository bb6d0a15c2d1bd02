"""The collection as a whole: which images there are, the newest first, and in which folders.

A store keeps items in the order of their ids and knows nothing of time, so the newest is what the files say: the image
whose file was last modified, which for an upload is when it was added. The folders of this machine are nobody's
business: they are named from the one on that holds all images.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from centerhash.core.errors import ImageError
from centerhash.data.images import read_header
from centerhash.data.layouts.parquet import is_stored_image
from centerhash.search.questions import filter_of
from centerhash.search.uploads import IMAGES

if TYPE_CHECKING:
    from centerhash.search import Index

UPLOADS = "uploads"  # what the folder of images without a file of their own is called
_KEPT = 16  # filters whose answers are kept
_SHAPES = 1 << 16  # images whose size is kept


class File(NamedTuple):
    """What is known of an image's file without opening it; the time is 0 where it is gone."""

    modified: float
    folder: str


@dataclass(frozen=True)
class Listing:
    """The images of an index at one moment."""

    version: tuple[int, ...]
    ids: Sequence[str]  # the newest first
    folders: dict[str, int]  # by the name that clients know: how many images are in it and below it
    places: dict[str, str]  # the path of each of these names
    names: dict[str, str]  # and the name of each of these paths
    missing: int  # files that are gone
    matching: OrderedDict[tuple[object, ...], Sequence[str]] = field(default_factory=OrderedDict)


class Catalog:
    """The listing of an index, made when it is first asked for, and mended after a change. For several threads."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = Lock()
        self._files: dict[str, File] = {}
        self._listing: Listing | None = None
        self._refreshed = 0

    def refreshed(self) -> None:
        """Note that another process has changed the index."""
        self._refreshed += 1

    def now(self) -> Listing:
        """What there is; only images that are new are looked at."""
        with self._lock:
            version = (self._index.store.changes, self._refreshed, len(self._index))
            if self._listing is None or self._listing.version != version:
                self._update()
                self._listing = self._listed(version)
            return self._listing

    def ids(
        self, having: Sequence[str] = (), without: Sequence[str] = (), under: str | None = None
    ) -> Sequence[str]:
        """The ids of the images that a filter lets through, the newest first."""
        listing = self.now()
        if not having and not without and under is None:
            return listing.ids
        key = (tuple(having), tuple(without), under)
        if key not in listing.matching:
            listing.matching[key] = self._matching(listing, having, without, under)
            while len(listing.matching) > _KEPT:
                listing.matching.popitem(last=False)
        return listing.matching[key]

    def place(self, folder: str) -> str | None:
        """The path of a folder by its name; None for all names but those of the listing, whatever the disk holds."""
        return self.now().places.get(folder.strip("/"))

    def folder_of(self, path: str) -> str | None:
        """The name of the folder of an image, by the path of its file; None as long as there is no listing."""
        listing = self._listing
        return None if listing is None else listing.names.get(str(Path(path).parent))

    def _matching(
        self, listing: Listing, having: Sequence[str], without: Sequence[str], under: str | None
    ) -> Sequence[str]:
        place = None if under is None else listing.places.get(under.strip("/"))
        if under is not None and place is None:
            return ()
        store, facts = self._index.store, self._index.facts
        only = filter_of(store, facts, self._index.folder, having, without, place)
        anything = np.zeros((1, -(-facts.bits // 8)), np.uint8)
        found = set(store.within(anything, facts.bits, only=only)[0].ids)  # all codes are this near
        return [id for id in listing.ids if id in found]

    def _update(self) -> None:
        known, uploads = self._files, self._index.uploads
        self._files = {}
        folders: dict[str, str] = {}  # each text once, however many images it holds
        for key, name in self._index.store.paths():
            id = str(key)
            if id in known:
                self._files[id] = known[id]
            else:
                path = str(uploads.path(name))
                parent = UPLOADS if uploads.holds(name) else str(Path(path).parent)
                self._files[id] = File(modified(path), folders.setdefault(parent, parent))

    def _listed(self, version: tuple[int, ...]) -> Listing:
        files = self._files
        ids = sorted(files, key=lambda id: (-files[id].modified, id))
        direct = Counter(file.folder for file in files.values())
        uploads = direct.pop(UPLOADS, 0)
        places = folder_names(direct)
        names = {place: name for name, place in places.items()}
        folders = dict.fromkeys(places, 0)
        for folder, count in direct.items():
            for place in (folder, *map(str, Path(folder).parents)):
                if place in names:
                    folders[names[place]] += count
        if uploads:
            own = os.path.realpath(self._index.folder / IMAGES)
            folders[UPLOADS], places[UPLOADS], names[own] = uploads, own, UPLOADS
        missing = sum(not file.modified for file in files.values())
        return Listing(version, ids, folders, places, names, missing)


def folder_names(folders: Iterable[str]) -> dict[str, str]:
    """Names for absolute folders and those between them and the one that holds them all, with their paths.

    {"photos": "/home/me/photos", "photos/2024": "/home/me/photos/2024"}
    """
    folders = sorted(folders)
    if not folders:
        return {}
    top = os.path.commonpath(folders)
    above = Path(top).parent
    places = {
        str(place)
        for folder in folders
        for place in (Path(folder), *Path(folder).parents)
        if place.is_relative_to(top)
    }
    return {Path(os.path.relpath(place, above)).as_posix(): place for place in sorted(places)}


def modified(path: str) -> float:
    """When a file was last modified, in seconds since 1970; 0 where it is gone."""
    try:
        return Path(path).stat().st_mtime
    except (OSError, ValueError):
        stored = is_stored_image(Path(path))  # a row of a parquet file
        return modified(str(Path(path).parent)) if stored else 0.0


def shape(path: str, at: float) -> tuple[int, int] | None:
    """Width and height of an image that was modified `at` a time; None where it cannot be read."""
    return _shape(path, at) if at else None


@lru_cache(_SHAPES)
def _shape(path: str, at: float) -> tuple[int, int] | None:
    try:
        header = read_header(path)
    except ImageError:  # its thumbnail says so too
        return None
    return header.width, header.height
