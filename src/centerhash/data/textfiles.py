"""Small text files of a data set: reading lines and class names, and naming files in error texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeVar

from centerhash.core.errors import DataError

Name = TypeVar("Name", str, int)


def read_bytes(path: Path, advice: str = "") -> bytes:
    """Read a whole file, or say why it cannot be read, and what to do."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.{advice}") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file, with or without the byte order mark that spreadsheets add."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"'{path}' is not UTF-8 text (byte 0x{error.object[error.start]:02x} "
            f"at position {error.start:,}): save it with the encoding UTF-8."
        ) from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, stripped, with empty lines at the end left out."""
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    lines = [line.strip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def read_classes(path: Path) -> tuple[str, ...]:
    """Read `classes.txt`: one class name per line, in the order of the label columns."""
    return check_classes(read_lines(path), f"'{path}'")


def check_classes(names: Iterable[str], where: str = "classes") -> tuple[str, ...]:
    """Return class names, all different; `where` is what holds them, for error texts."""
    classes = () if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if not classes:
        raise DataError(f"{where} must hold one name per class, got {names!r}.")
    if not all(isinstance(name, str) and name for name in classes):
        wrong = next(place for place, name in enumerate(classes) if not isinstance(name, str) or not name)
        raise DataError(f"{where}: name {wrong + 1} is {classes[wrong]!r}, but every class needs a name.")
    repeated = duplicates(classes)
    if repeated:
        raise DataError(f"{where} names these classes more than once: {first_few(repeated)}.")
    return classes


def normal_name(file_name: str) -> str:
    """Spell a file name one way: `./a.jpg` and `a.jpg` are the same file."""
    return str(PurePosixPath(file_name))


def leads_out(name: str) -> bool:
    """Whether a file name leaves its folder, as Linux or Windows would read it."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = windows.root != ""  # "/x", "\\x", "C:/x"; but "12:30.jpg" is a plain name here
    return rooted or "\0" in name or ".." in posix.parts or ".." in windows.parts


def duplicates(names: Iterable[Name]) -> list[Name]:
    """Return the names that occur more than once, in order of first appearance."""
    return [name for name, count in Counter(names).items() if count > 1]


def first_few(names: Sequence[str], count: int = 5) -> str:
    """Quote the first names of a long list and say how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:count])
    more = len(names) - count
    return f"{shown} and {more:,} more" if more > 0 else shown
