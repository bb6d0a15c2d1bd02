"""Connections to the database of a store."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from pathlib import Path

from centerhash.core.errors import DataError

MAX_BYTES = 1 << 26  # of one value


class _Connection(sqlite3.Connection):
    """A connection that is counted by its file while it is open."""

    file: tuple[int, int] | None = None

    def close(self) -> None:
        super().close()
        with _CONNECTING:
            if self.file is not None:
                _CONNECTED[self.file] -= 1
                self.file = None


# closing any descriptor of a file drops all locks of this process on it (POSIX), also those of SQLite; another process
# would then delete the write-ahead log that our connections use
_CONNECTING, _CONNECTED = threading.Lock(), Counter[tuple[int, int]]()


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error
    return status.st_dev, status.st_ino


def connect(path: Path, options: str) -> sqlite3.Connection:
    """Connect to a file; `options` are those of SQLite's addresses, such as mode=ro."""
    uri = f"{path.absolute().as_uri()}?{options}"
    with _CONNECTING:
        sql = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10, factory=_Connection
        )
        try:
            sql.file = _identity(path)
        except DataError:
            sqlite3.Connection.close(sql)  # it is not counted yet
            raise
        _CONNECTED[sql.file] += 1
    sql.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
    sql.execute("PRAGMA trusted_schema = OFF")
    sql.execute("PRAGMA cell_size_check = ON")
    return sql


def modes_of(path: Path) -> bytes:
    """Read the modes of writing and of reading, 2 for the write-ahead mode; nothing if this process has read them."""
    try:
        with _CONNECTING:
            if _CONNECTED[_identity(path)]:
                return b""
            with path.open("rb") as stream:
                return stream.read(20)[18:]
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error


def stat_of(path: Path) -> os.stat_result | None:
    """Return the facts of a file; None if there is none."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}.") from error


def bytes_of(path: Path) -> int:
    """Return the bytes of a file; 0 if there is none."""
    found = stat_of(path)
    return 0 if found is None else found.st_size
