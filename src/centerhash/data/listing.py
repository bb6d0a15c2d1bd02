"""Find images by files, folders and patterns, and count the skipped files by suffix."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from centerhash.core.errors import DataError
from centerhash.data.images import SUFFIXES, is_picture_name

NO_PERMISSION, NO_SUFFIX = "folders without permission", "files without a suffix"
# Programs store thumbnails, previews and deleted files in these folders next to photos.
_IGNORED_FOLDERS = ("@eadir", "#recycle", "$recycle.bin", "lost+found", "system volume information")
# These files are read with the images, so they do not count as skipped.
_DESCRIPTIONS = ("labels.csv", "classes.txt")


class ImageFiles(NamedTuple):
    """The names of image files, each once, and the numbers of skipped files by suffix (".mp4": 3)."""

    names: list[str]
    skipped: dict[str, int]


def list_images(paths: Sequence[str | Path]) -> list[Path]:
    """Find images by files, folders with all below them, and patterns such as `photos/*.jpg`.

    Folders and patterns yield files with a picture's suffix, sorted and not hidden. Each file is returned once.
    """
    return list(map(Path, find_images(paths).names))


def find_images(paths: Sequence[str | Path]) -> ImageFiles:
    """Find images as `list_images`, and count the skipped files in folders and patterns."""
    entries: Sequence[str | Path] = [paths] if isinstance(paths, str | Path) else paths
    skipped: Counter[str] = Counter()
    names = dict.fromkeys(chain.from_iterable(_expand(entry, skipped) for entry in entries))
    if not names:
        raise DataError("no images were named: give files, folders or patterns such as 'photos/*.jpg'.")
    return ImageFiles(list(names), dict(skipped))


def skipped_text(skipped: Mapping[str, int]) -> str:
    """Return the numbers of skipped files as one line, such as ".mp4 3, .txt 2", or an empty text."""
    ranked = sorted(skipped.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{kind} {count:,}" for kind, count in ranked)


def _expand(entry: str | Path, skipped: Counter[str]) -> Iterator[str]:
    """Yield the images of one argument; a file is accepted whatever its suffix."""
    path, counts, images = Path(entry), Counter[str](), []
    try:
        if path.is_file():
            yield str(path)
            return
        if path.is_dir():
            # This raises an error if the folder itself cannot be read.
            os.scandir(path).close()
            files = _files_below(path, counts)
        elif any(map(_is_wild, path.parts)):
            depth = [_is_wild(part) for part in path.parts].index(True)
            matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            # A hidden folder that the pattern names is not ignored.
            files = (file for file in matches if not any(map(_is_ignored, file.parts[depth:])))
        else:
            raise FileNotFoundError("no such file or folder")
        for file in files:
            if is_picture_name(file.name) and file.is_file():
                images.append(str(file))
            elif file.name not in _DESCRIPTIONS and file.is_file():
                counts[file.suffix.lower() or NO_SUFFIX] += 1
    except (OSError, ValueError) as error:  # ValueError: pattern '**x'
        raise DataError(f"cannot list '{entry}': {getattr(error, 'strerror', None) or error}.") from error
    if not images:
        rest = f"; skipped {skipped_text(counts)}" if counts else ""
        raise DataError(f"no image in '{entry}': looked for {', '.join(sorted(SUFFIXES))}{rest}.")
    skipped.update(counts)
    # Files are sorted by folder first: 'a/b.jpg' before 'a-b.jpg'.
    yield from sorted(images, key=lambda name: name.replace(os.sep, "\0"))


def _files_below(root: Path, skipped: Counter[str]) -> Iterator[Path]:
    """Yield all files below a folder that are not hidden; links to folders are skipped."""

    def count_folder(error: OSError) -> None:
        skipped[NO_PERMISSION] += 1

    for folder, below, files in os.walk(root, onerror=count_folder):
        below[:] = [name for name in below if not _is_ignored(name)]
        yield from (Path(folder, name) for name in files if not name.startswith("."))


def _is_ignored(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or one of the folders of other programs."""
    return name.startswith(".") or name.lower() in _IGNORED_FOLDERS


def _is_wild(part: str) -> bool:
    return any(mark in part for mark in "*?[")
