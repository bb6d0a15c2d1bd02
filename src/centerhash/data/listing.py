"""Finding images: files, folders and patterns, and what was passed over on the way, by kind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import overload

from centerhash.core.errors import DataError
from centerhash.data.images import HEIC_SUFFIXES, SUFFIXES, heic_advice, is_picture_name, reads_heic
from centerhash.data.layouts.parquet import is_stored_image

HEIC, FOLDERS, OTHERS = "HEIC images", "folders without permission", "other files"
# suffixes by what people call such files
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(HEIC_SUFFIXES, HEIC),
        **dict.fromkeys((".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".3gp", ".mts", ".mpg"), "videos"),
        **dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"), "raw images"),
        **dict.fromkeys((".svg", ".eps", ".psd", ".xcf", ".ai"), "drawings"),
        **dict.fromkeys((".txt", ".md", ".csv", ".json", ".jsonl", ".xml", ".html", ".pdf", ".doc", ".docx"), "texts"),
    }
)  # fmt: skip
_DESCRIPTIONS = ("labels.csv", "classes.txt")  # read with the images, not passed over


class Paths(Sequence[Path]):
    """Many paths, kept as text: a `Path` takes several times the memory, and is made when one is asked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)

    @overload
    def __getitem__(self, at: int) -> Path: ...
    @overload
    def __getitem__(self, at: slice) -> Paths: ...
    def __getitem__(self, at: int | slice) -> Path | Paths:
        return Paths(self.names[at]) if isinstance(at, slice) else Path(self.names[at])

    def __len__(self) -> int:
        return len(self.names)


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
    wanted: Iterable[str | Path] = [paths] if isinstance(paths, str | Path) else paths
    names: dict[str, None] = {}
    skipped: Counter[str] = Counter()
    for entry in wanted:
        names.update(dict.fromkeys(_expand(entry, skipped)))
    if not names:
        raise DataError("no images were named: give files, folders or patterns such as 'photos/*.jpg'.")
    return Found(Paths(names), dict(skipped))


def skipped_text(skipped: Mapping[str, int]) -> str:
    """What was passed over, as one line: "HEIC images 3 (pip install ...), videos 2"; empty where nothing was."""
    advice = {HEIC: f" ({heic_advice()})", FOLDERS: " (allow reading them)"}
    ranked = sorted(skipped.items(), key=lambda pair: (pair[0] == OTHERS, -pair[1], pair[0]))
    return ", ".join(f"{kind} {count:,}{advice.get(kind, '')}" for kind, count in ranked)


def _expand(entry: str | Path, skipped: Counter[str]) -> list[str]:
    """The images that one argument stands for; a file that is named is taken whatever its suffix."""
    path, passed = Path(entry), Counter[str]()
    closed: list[OSError] = []  # folders below that cannot be read
    try:
        if path.is_file() or is_stored_image(path):
            return [str(path)]
        if path.is_dir():
            place, candidates = f"the folder '{path}'", _files_below(path, closed)
        elif any(map(_is_wild, path.parts)):
            place, named = f"the pattern '{entry}'", [_is_wild(part) for part in path.parts].index(True)
            matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            candidates = (str(file) for file in matches if not _is_hidden(file, named))
        else:
            raise FileNotFoundError("no such file or folder")
        images = []
        for file in candidates:
            name = file.rpartition(os.sep)[2]
            if not Path(file).is_file() or name in _DESCRIPTIONS:
                continue
            if is_picture_name(name):
                images.append(file)
            else:
                passed[kind_of(name)] += 1
    except (OSError, ValueError) as error:  # ValueError: a pattern such as '**x'
        raise DataError(f"cannot list '{entry}': {getattr(error, 'strerror', None) or error}.") from error
    if closed:
        passed[FOLDERS] = len(closed)
    if not images:
        others = f"; passed over {skipped_text(passed)}" if passed else ""
        looked = sorted(SUFFIXES | HEIC_SUFFIXES if reads_heic() else SUFFIXES)
        raise DataError(f"no image in {place}: looked for {', '.join(looked)}{others}.")
    skipped.update(passed)
    # folder by folder, as paths are sorted: 'a/b.jpg' comes before 'a-b.jpg'
    return sorted(images, key=lambda name: name.replace(os.sep, "\0"))


def _files_below(folder: Path, closed: list[OSError]) -> Iterator[str]:
    """Yield all files in a folder and below it that are not hidden; folders that cannot be read go to `closed`."""
    os.scandir(folder).close()  # raises where the folder that was asked for is itself closed
    for place, below, files in os.walk(folder, onerror=closed.append):
        below[:] = [name for name in below if not name.startswith(".")]
        home = str(Path(place, "_"))[:-1]  # './photos' is 'photos/', '.' is nothing
        yield from (home + name for name in files if not name.startswith("."))


def kind_of(name: str) -> str:
    """What people call a file that is no image which can be read: "videos", "texts"."""
    return _KINDS.get(Path(name).suffix.lower(), OTHERS)


def _is_wild(part: str) -> bool:
    return any(mark in part for mark in "*?[")


def _is_hidden(file: Path, named: int) -> bool:
    """Whether a file or a folder above it is hidden; the first `named` parts were asked for by name."""
    return any(part.startswith(".") for part in file.parts[named:])
