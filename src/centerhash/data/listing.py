"""Finding images: files, folders and patterns, and what was passed over on the way, by suffix."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from centerhash.core.errors import DataError
from centerhash.data.images import SUFFIXES, is_picture_name

FOLDERS, OTHERS = "folders without permission", "files without a suffix"
# Folders in which other programs keep thumbnails, previews and deleted files among the photos.
_KEPT_BY_PROGRAMS = frozenset(
    {"@eadir", "#recycle", "$recycle.bin", "lost+found", "system volume information"}
)
# Files that are read with the images.
_DESCRIPTIONS = ("labels.csv", "classes.txt")


class ImageFiles(NamedTuple):
    """The names of image files, each once, and how many other files were passed over, by suffix (".mp4": 3)."""

    names: list[str]
    skipped: dict[str, int]


def list_images(paths: Sequence[str | Path]) -> list[Path]:
    """Find images: files as named, folders with all below them, and patterns such as `photos/*.jpg`.

    Folders and patterns give files with a picture's suffix, sorted, without hidden ones; each comes once.
    """
    return list(map(Path, find_images(paths).names))


def find_images(paths: Sequence[str | Path]) -> ImageFiles:
    """As `list_images`, and what was passed over in folders and patterns."""
    entries: Sequence[str | Path] = [paths] if isinstance(paths, str | Path) else paths
    skipped: Counter[str] = Counter()
    names = dict.fromkeys(chain.from_iterable(_expand(entry, skipped) for entry in entries))
    if not names:
        raise DataError("no images were named: give files, folders or patterns such as 'photos/*.jpg'.")
    return ImageFiles(list(names), dict(skipped))


def skipped_text(skipped: Mapping[str, int]) -> str:
    """What was passed over, as one line: ".mp4 3, .txt 2"; empty if nothing was."""
    ranked = sorted(skipped.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{kind} {count:,}" for kind, count in ranked)


def _expand(entry: str | Path, skipped: Counter[str]) -> Iterator[str]:
    """Yield the images that one argument stands for; a file that is named is taken whatever its suffix."""
    path, passed, images = Path(entry), Counter[str](), []
    try:
        if path.is_file():
            yield str(path)
            return
        if path.is_dir():
            os.scandir(path).close()  # raises if the folder itself cannot be read
            files = _files_below(path, passed)
        elif any(map(_is_wild, path.parts)):
            named = [_is_wild(part) for part in path.parts].index(True)
            matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            # A hidden folder that the pattern spells out is wanted.
            files = (file for file in matches if not any(map(is_passed_over, file.parts[named:])))
        else:
            raise FileNotFoundError("no such file or folder")
        for file in files:
            if is_picture_name(file.name) and file.is_file():
                images.append(str(file))
            elif file.name not in _DESCRIPTIONS and file.is_file():
                passed[file.suffix.lower() or OTHERS] += 1
    except (OSError, ValueError) as error:  # ValueError: a pattern such as '**x'
        raise DataError(f"cannot list '{entry}': {getattr(error, 'strerror', None) or error}.") from error
    if not images:
        others = f"; passed over {skipped_text(passed)}" if passed else ""
        raise DataError(f"no image in '{entry}': looked for {', '.join(sorted(SUFFIXES))}{others}.")
    skipped.update(passed)
    # A folder is sorted as the beginning of what is below it: 'a/b.jpg' before 'a-b.jpg'.
    yield from sorted(images, key=lambda name: name.replace(os.sep, "\0"))


def _files_below(root: Path, passed: Counter[str]) -> Iterator[Path]:
    """Yield all files below a folder that are not hidden; links to folders are skipped."""

    def closed(error: OSError) -> None:
        passed[FOLDERS] += 1

    for folder, below, files in os.walk(root, onerror=closed):
        below[:] = [name for name in below if not is_passed_over(name)]
        yield from (Path(folder, name) for name in files if not name.startswith("."))


def is_passed_over(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or one in which a program keeps thumbnails or trash."""
    return name.startswith(".") or name.lower() in _KEPT_BY_PROGRAMS


def _is_wild(part: str) -> bool:
    return any(mark in part for mark in "*?[")
