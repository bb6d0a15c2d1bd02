"""Finding images: files, folders and patterns, and what was passed over on the way, by kind."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import overload

from centerhash.core.errors import DataError
from centerhash.data.images import SUFFIXES, is_picture_name
from centerhash.data.layouts.contents import is_folder
from centerhash.data.layouts.parquet import is_stored_image

FOLDERS, OTHERS = "folders without permission", "other files"
# suffixes by what people call such files
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys((".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".3gp", ".mts", ".mpg"), "videos"),
        **dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"), "raw images"),
        **dict.fromkeys((".svg", ".eps", ".psd", ".xcf", ".ai"), "drawings"),
        **dict.fromkeys((".txt", ".md", ".csv", ".json", ".jsonl", ".xml", ".html", ".pdf", ".doc", ".docx"), "texts"),
    }
)  # fmt: skip
# thumbnails, previews and deleted files that other programs keep among the photos, besides hidden folders
_KEPT_BY_PROGRAMS = frozenset(
    {"@eadir", "#recycle", "$recycle.bin", "lost+found", "system volume information"}
)
_PREVIEWS = ".lrdata"  # ends the name of a folder of Lightroom
_BLOCK = 256  # paths that are compressed together
_SEPARATOR = "\0"  # no name has it, and it comes before all that names have
_DESCRIPTIONS = ("labels.csv", "classes.txt")  # read with the images, not passed over


class Paths(Sequence[Path]):
    """Many paths, kept as compressed text: names in a folder resemble each other, so each takes a few bytes."""

    def __init__(self, names: Iterable[str]) -> None:
        left, self._blocks, self._count = iter(names), list[bytes](), 0
        while block := list(islice(left, _BLOCK)):
            self._blocks.append(zlib.compress(_SEPARATOR.join(block).encode("utf-8", "surrogatepass")))
            self._count += len(block)
        self._block = lru_cache(maxsize=4)(self._read)  # threads read one path after the other

    def _read(self, number: int) -> list[str]:
        return zlib.decompress(self._blocks[number]).decode("utf-8", "surrogatepass").split(_SEPARATOR)

    @property
    def names(self) -> Iterator[str]:
        """The paths as text."""
        return chain.from_iterable(map(self._read, range(len(self._blocks))))

    @overload
    def __getitem__(self, at: int) -> Path: ...
    @overload
    def __getitem__(self, at: slice) -> Paths: ...
    def __getitem__(self, at: int | slice) -> Path | Paths:
        if isinstance(at, slice):
            return Paths(str(self[place]) for place in range(self._count)[at])
        block, place = divmod(range(self._count)[at], _BLOCK)
        return Path(self._block(block)[place])

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.names)

    def __len__(self) -> int:
        return self._count


@dataclass(frozen=True)
class Found:
    """Image files, each once, and how many other files were passed over, by kind ("videos": 3)."""

    images: Paths
    skipped: dict[str, int] = field(default_factory=dict)


def list_images(paths: Sequence[str | Path]) -> list[Path]:
    """Find images: files as named, folders with all below them, and patterns such as `photos/*.jpg`.

    Folders and patterns give files with a picture's suffix, sorted, without hidden ones; each comes once.
    """
    return list(find_images(paths).images)


def find_images(paths: Sequence[str | Path]) -> Found:
    """As `list_images`, and what was passed over in folders and patterns."""
    wanted: Sequence[str | Path] = [paths] if isinstance(paths, str | Path) else paths
    skipped: Counter[str] = Counter()
    names: Iterable[str] = chain.from_iterable(_expand(entry, skipped) for entry in wanted)
    images = Paths(names if len(wanted) == 1 else dict.fromkeys(names))
    if not images:
        raise DataError("no images were named: give files, folders or patterns such as 'photos/*.jpg'.")
    return Found(images, dict(skipped))


def skipped_text(skipped: Mapping[str, int]) -> str:
    """What was passed over, as one line: "videos 3, texts 2"; empty where nothing was."""
    advice = {FOLDERS: " (allow reading them)"}
    ranked = sorted(skipped.items(), key=lambda pair: (pair[0] == OTHERS, -pair[1], pair[0]))
    return ", ".join(f"{kind} {count:,}{advice.get(kind, '')}" for kind, count in ranked)


def _expand(entry: str | Path, skipped: Counter[str]) -> Iterator[str]:
    """The images that one argument stands for; a file that is named is taken whatever its suffix."""
    path, passed, found = Path(entry), Counter[str](), False
    closed: list[OSError] = []  # folders below that cannot be read
    try:
        if path.is_file() or is_stored_image(path):
            yield str(path)
            return
        candidates: Iterable[str]
        if path.is_dir():
            os.scandir(path).close()  # raises where the folder that was asked for is itself closed
            # './photos' is 'photos/', '.' is nothing
            place, candidates = f"the folder '{path}'", _files_below(str(path / "_")[:-1], closed)
        elif any(map(_is_wild, path.parts)):
            place, named = f"the pattern '{entry}'", [_is_wild(part) for part in path.parts].index(True)
            matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            files = (
                str(file)
                for file in matches
                if not any(map(is_passed_over, file.parts[named:]))  # hidden, but not by name
            )
            # as paths are sorted: 'a/b.jpg' comes before 'a-b.jpg'
            candidates = sorted(files, key=lambda name: name.replace(os.sep, _SEPARATOR))
        else:
            raise FileNotFoundError("no such file or folder")
        for file in candidates:
            name = file.rpartition(os.sep)[2]
            if not Path(file).is_file() or name in _DESCRIPTIONS:
                continue
            if is_picture_name(name):
                found = True
                yield file
            else:
                passed[kind_of(name)] += 1
    except (OSError, ValueError) as error:  # ValueError: a pattern such as '**x'
        raise DataError(f"cannot list '{entry}': {getattr(error, 'strerror', None) or error}.") from error
    if closed:
        passed[FOLDERS] = len(closed)
    if not found:
        others = f"; passed over {skipped_text(passed)}" if passed else ""
        raise DataError(f"no image in {place}: looked for {', '.join(sorted(SUFFIXES))}{others}.")
    skipped.update(passed)


def _files_below(home: str, closed: list[OSError]) -> Iterator[str]:
    """Yield all files below a folder that are not hidden, sorted; folders that cannot be read go to `closed`.

    `home` ends with a separator, or is "" for the folder that we are in.
    """
    try:
        with os.scandir(home or os.curdir) as entries:
            # a folder is sorted as the beginning of what is below it; links to folders are skipped
            names = sorted(
                entry.name + _SEPARATOR * folder
                for entry in entries
                if not entry.name.startswith(".")
                and not ((folder := is_folder(entry)) and (entry.is_symlink() or is_passed_over(entry.name)))
            )
    except OSError as error:
        closed.append(error)
        return
    for name in names:
        if name.endswith(_SEPARATOR):
            yield from _files_below(home + name[:-1] + os.sep, closed)
        else:
            yield home + name


def kind_of(name: str) -> str:
    """What people call a file that is no image which can be read: "videos", "texts"."""
    return _KINDS.get(Path(name).suffix.lower(), OTHERS)


def is_passed_over(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or one in which a program keeps thumbnails or trash."""
    lower = name.lower()
    return name.startswith(".") or lower in _KEPT_BY_PROGRAMS or lower.endswith(_PREVIEWS)


def _is_wild(part: str) -> bool:
    return any(mark in part for mark in "*?[")
