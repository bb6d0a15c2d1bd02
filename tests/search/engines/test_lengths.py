from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.core.errors import OutputError
from centerhash.search.engines.lengths import APART, NAME, Noted, note, noted


def test_a_journal_and_the_next_have_a_place_each(tmp_path: Path) -> None:
    path = tmp_path / NAME
    assert noted(path, 1) is None
    note(path, 1, Noted(10))
    for key in range(2, 6):  # each is noted before it takes the place of the one before
        note(path, key, Noted(10 * key), kept=key - 1)
        assert noted(path, key - 1) == Noted(10 * (key - 1), 3 * (key > 2))
        assert noted(path, key) == Noted(10 * key)
        note(path, key, Noted(10 * key, 3))
        assert noted(path, key) == Noted(10 * key, 3)
    assert path.stat().st_size == 2 * APART


def test_a_damaged_note_is_none(tmp_path: Path) -> None:
    path = tmp_path / NAME
    note(path, 7, Noted(123))
    sound = path.read_bytes()
    place = sound.index(b"\xc7CHL")
    for at in range(place, place + 24):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 8]) + sound[at + 1 :])
        assert noted(path, 7) is None
        note(path, 7, Noted(5))
        assert noted(path, 7) == Noted(5)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        note(tmp_path / "file" / NAME, 1, Noted(1))
