"""The table of files of a photo index, next to its items in the same SQLite file.

A row is one file: its path, size and time when it was read, the key of its item, and its state. *present* files show
their item; *vanished* ones are gone from their folder and may come back; *removed* ones were removed from the index and
keep path, size and time only, so that later scans skip them. An item is hidden if none of its files is present.

Paths are stored as bytes, since names of files need not be text. Each row has a checksum, which `verify` reads.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

# Attributes of the item of a photo.
ATTRIBUTES: Mapping[str, type] = {"taken": float, "width": float, "height": float}
_SEPARATOR = os.sep.encode()
_AFTER_SEPARATOR = bytes([_SEPARATOR[0] + 1])

SCHEMA = (
    """
    CREATE TABLE files (folder BLOB NOT NULL, name BLOB NOT NULL, key INTEGER NOT NULL, size INTEGER NOT NULL,
        modified INTEGER NOT NULL, state TEXT NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (folder, name)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX files_of_items ON files (key)",
    "CREATE TABLE roots (folder BLOB PRIMARY KEY, checksum INTEGER NOT NULL) WITHOUT ROWID",
)


class FileState(StrEnum):
    """State of a file: in its folder, gone from it, or removed from the index."""

    PRESENT = "present"
    VANISHED = "vanished"
    REMOVED = "removed"


class File(NamedTuple):
    """Path, size and time (in nanoseconds) of a file, the key of its item (-1 of a removed file), and its state."""

    path: str
    size: int
    modified: int
    key: int = -1
    state: str = FileState.PRESENT

    def is_unchanged(self, other: File) -> bool:
        """Return whether path, size and time are equal."""
        return self[:3] == other[:3]


def file_at(path: str) -> File | None:
    """Return the plain file at an absolute path, with links followed; None if there is none."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            path = os.path.realpath(path)
            status = os.stat(path)  # noqa: PTH116 - called for every file of a folder
    except (OSError, ValueError):
        return None
    return File(path, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


# --- reading


def files_in(connection: sqlite3.Connection, folder: str) -> dict[str, File]:
    """Return the files directly in a folder, by path."""
    return {file.path: file for file in _select(connection, "folder = ?", (os.fsencode(folder),))}


def files_at(connection: sqlite3.Connection, path: str) -> list[File]:
    """Return the stored file of a path, or the files in a folder and in all folders below it."""
    return _select(connection, f"(folder = ? AND name = ?) OR {_BELOW}", (*_split(path), *_range(path)))


def files_of(connection: sqlite3.Connection, keys: Sequence[int]) -> dict[int, list[File]]:
    """Return the files of items by key, sorted by path; items without a file have an empty list."""
    by_key: dict[int, list[File]] = {key: [] for key in keys if key >= 0}
    for file in _select(connection, "key IN (SELECT value FROM json_each(?))", (json.dumps([*by_key]),)):
        by_key[file.key].append(file)
    return {key: sorted(files, key=lambda file: file.path) for key, files in by_key.items()}


def all_files(connection: sqlite3.Connection) -> list[File]:
    """Return all files but the removed ones, folder by folder."""
    return _select(connection, f"state != '{FileState.REMOVED}' ORDER BY folder, name", ())


def keys_below(connection: sqlite3.Connection, folder: str) -> NDArray[np.int64]:
    """Return the keys of the items with a present file in a folder or below it."""
    rows = connection.execute(
        f"SELECT DISTINCT key FROM files WHERE state = '{FileState.PRESENT}' AND {_BELOW}", _range(folder)
    )
    return np.fromiter((key for (key,) in rows), np.int64)


def folders_of_keys(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return each folder with the key of each item directly in it."""
    rows = connection.execute(f"SELECT DISTINCT folder, key FROM files WHERE state = '{FileState.PRESENT}'")
    decoded = cache(os.fsdecode)
    return [(decoded(folder), key) for folder, key in rows]


def read_roots(connection: sqlite3.Connection) -> list[str]:
    """Return the folders that were added as a whole, sorted."""
    rows = connection.execute("SELECT folder FROM roots ORDER BY folder")
    return [os.fsdecode(folder) for (folder,) in rows]


def damaged_rows(connection: sqlite3.Connection) -> list[str]:
    """Return one sentence per row of the tables `files` and `roots` whose checksum is wrong."""
    problems = []
    for row in connection.execute("SELECT * FROM files"):
        if row[-1] != _checksum(row[:-1]):
            problems.append(f"the row of the file {row[1]!r} in {row[0]!r} is damaged: add its folder again.")
    for folder, checksum in connection.execute("SELECT folder, checksum FROM roots"):
        if checksum != _checksum((folder,)):
            problems.append(f"the row of the folder {folder!r} in the table roots is damaged: add it again.")
    return problems


# --- writing, within a transaction


def put_files(connection: sqlite3.Connection, files: Iterable[File]) -> None:
    """Store files; a file replaces the stored one of the same path."""
    rows = ((*_split(file.path), file.key, file.size, file.modified, str(file.state)) for file in files)
    connection.executemany(
        "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", ((*row, _checksum(row)) for row in rows)
    )


def delete_files(connection: sqlite3.Connection, files: Iterable[File]) -> None:
    """Delete the rows of files."""
    connection.executemany(
        "DELETE FROM files WHERE folder = ? AND name = ?", [_split(file.path) for file in files]
    )


def write_roots(connection: sqlite3.Connection, folders: Iterable[str]) -> None:
    """Replace the stored folders that were added as a whole."""
    names = list(map(os.fsencode, folders))
    connection.execute("DELETE FROM roots")
    connection.executemany("INSERT INTO roots VALUES (?, ?)", [(name, _checksum((name,))) for name in names])


# --- rows and paths

_BELOW = "(folder = ? OR (folder >= ? AND folder < ?))"


def _range(folder: str) -> tuple[bytes, bytes, bytes]:
    """Return the values of `_BELOW`: the names of folders below "/a" begin with "/a/", and sort before "/a0"."""
    name = os.fsencode(folder).rstrip(_SEPARATOR)
    return name or _SEPARATOR, name + _SEPARATOR, name + _AFTER_SEPARATOR


def _split(path: str) -> tuple[bytes, bytes]:
    folder, name = os.path.split(path)
    return os.fsencode(folder), os.fsencode(name)


def _select(connection: sqlite3.Connection, where: str, values: Sequence[object]) -> list[File]:
    columns = "folder, name, size, modified, key, state"
    rows = connection.execute(f"SELECT {columns} FROM files WHERE {where}", values)
    return [
        File(os.fsdecode(os.path.join(folder, name)), *facts)  # noqa: PTH118 - called for many files
        for folder, name, *facts in rows
    ]


def _checksum(row: Sequence[object]) -> int:
    return crc32(repr(row).encode())
