"""Words in names of files and folders: "paris" finds 2023/Paris/IMG_01.jpg and paris-night.jpg, not comparison.jpg."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from os.path import commonpath
from pathlib import Path

from centerhash.search.names import folded, is_unspaced


@lru_cache(64)
def _pattern(word: str) -> re.Pattern[str]:
    """Return what finds a word that begins a part of a name; parts end at signs, and between letters and digits."""
    plain = re.escape(folded(word))
    if is_unspaced(folded(word)):
        return re.compile(plain)
    before = r"(?<!\d)" if word[:1].isdigit() else r"(?<![^\W\d_])"
    return re.compile(before + plain)


def names_part(word: str, name: str) -> bool:
    """Return whether a word begins a part of a name, in any case and with or without accents."""
    return bool(word) and _pattern(word).search(folded(name)) is not None


def like_pattern(word: str) -> str:
    """Return a pattern for SQL's LIKE ... ESCAPE '!' that every name with this word fits, and others may."""
    return (
        "%"
        + "".join(letter if letter.isascii() and letter.isalnum() else "%" for letter in folded(word))
        + "%"
    )


def folders_named(word: str, folders: Iterable[str]) -> list[str]:
    """Return the folders with a word in their name or in that of a folder above; what all have above them is no name."""
    places = [folder for folder in folders if Path(folder).is_absolute()]  # uploads are in a relative one
    if not places:
        return []
    drives = {Path(place).drive for place in places}
    top = str(Path(commonpath(places)).parent) if len(drives) == 1 else ""
    return [place for place in places if names_part(word, place.removeprefix(top))]
