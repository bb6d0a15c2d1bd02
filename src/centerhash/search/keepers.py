"""Real files behind paths, and the rules by which one file of a group is kept."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from centerhash.core.errors import ConfigError
from centerhash.data.images import Header
from centerhash.search.moving import JOURNAL

# in this order; the first one in which two files differ decides
RULES = (
    "not a link or upload",
    "preferred folder",
    "resolution",
    "file size",
    "EXIF",
    "date taken",
    "shorter path",
    "name",
)


@dataclass(frozen=True)
class RealFile:
    """A path and the file that it leads to; without a time if it is not to be moved, such as a row of a table."""

    path: Path
    bytes: int | None = None
    modified: int | None = None  # nanoseconds since 1970
    real: tuple[int, int] | None = None  # device and inode
    apart: bool = False  # a link, or an upload that belongs to its index: kept only if there is no other file


def file_at(path: Path) -> RealFile | None:
    """Return the file that a path leads to; None if there is none."""
    try:
        found = path.stat()
        link = path.is_symlink()
    except (OSError, ValueError):
        return None
    return RealFile(path, found.st_size, found.st_mtime_ns, (found.st_dev, found.st_ino), link)


class Keeping:
    """The rules with the folders that a user prefers, the first one most."""

    def __init__(self, prefer: str | Path | Sequence[str | Path] = ()) -> None:
        folders = [Path(folder) for folder in ([prefer] if isinstance(prefer, str | Path) else prefer)]
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"cannot prefer '{folder}': there is no such folder.")
        self._folders = [folder.resolve() for folder in folders]
        self._rank = lru_cache(1 << 12)(self._folder_rank)

    def _folder_rank(self, parent: Path) -> int:
        here = parent.resolve()
        ranks = (rank for rank, folder in enumerate(self._folders) if here.is_relative_to(folder))
        return next(ranks, len(self._folders))

    def key(self, file: RealFile | None, name: str, header: Header | None) -> tuple[Any, ...]:
        """Return what the rules compare, in their order: the smallest is kept."""
        pixels = 0 if header is None else header.width * header.height
        return (
            file is None or file.apart,
            0 if file is None or not self._folders else self._rank(file.path.parent),
            -pixels,
            0 if file is None else -(file.bytes or 0),
            header is None or not header.exif,
            math.inf if header is None or header.taken is None else header.taken,
            len(name),
            name,
        )

    def unique(self, files: Iterable[RealFile]) -> list[RealFile]:
        """Return each real file once, by its best path, in the order of the first paths."""
        chosen: dict[Any, RealFile] = {}
        for file in files:
            name = file.real or str(file.path)
            other = chosen.get(name)
            if other is None or self._path_key(file) < self._path_key(other):
                chosen[name] = file
        return list(chosen.values())

    def _path_key(self, file: RealFile) -> tuple[Any, ...]:
        return self.key(file, str(file.path), None)


def deciding_rule(kept: tuple[Any, ...], others: Iterable[tuple[Any, ...]]) -> str:
    """Return the rule by which a file was kept: the first in which it differs from the best of the others."""
    second = min(others)
    return next(rule for rule, one, other in zip(RULES, kept, second, strict=True) if one != other)


def without_moved(paths: Iterable[Path]) -> tuple[list[Path], int]:
    """Return the paths outside of folders that duplicates were moved to, and the number of the others."""
    seen: dict[Path, bool] = {}

    def is_moved(folder: Path) -> bool:
        if folder not in seen:
            seen[folder] = os.path.lexists(folder / JOURNAL) or (
                folder.parent != folder and is_moved(folder.parent)
            )
        return seen[folder]

    kept, moved = [], 0
    for path in paths:
        if is_moved(path.parent.absolute()):
            moved += 1
        else:
            kept.append(path)
    return kept, moved
