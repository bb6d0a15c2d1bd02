"""Pixel hashes: whether two images are the same photo, whatever became of its file.

A perceptual hash (pHash of the library imagehash: signs of the lowest frequencies of a grey 32 x 32 image, 64 bits)
hardly changes when a photo is encoded again, resized or brightened, but mirroring and cropping change all of it. An
image is therefore kept by several *views*: the whole, the mirrored whole, and nine windows of nine tenths of its sides.
A crop is found since the whole of the smaller image looks like a window of the larger one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from centerhash.core.errors import ImageError
from centerhash.core.extras import require
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, silent
from centerhash.data.images import load_image

VIEWS = 11
_SIDE = 128  # of the grey square that all views are cut from
_WINDOW = 0.9  # of its side


def views_of(image: Image.Image) -> NDArray[np.uint64]:
    """Hashes (VIEWS,) of an RGB image: the whole, mirrored, and nine windows."""
    phash = require("imagehash").phash
    grey = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    hashes = [phash(view).hash for view in (grey, ImageOps.mirror(grey), *_windows(grey))]
    packed = np.packbits(np.stack(hashes).reshape(VIEWS, 64), axis=1)
    return packed.view(np.uint64).ravel()


def _windows(image: Image.Image) -> Iterator[Image.Image]:
    side = round(_WINDOW * image.width)
    starts = (0, (image.width - side) // 2, image.width - side)
    for top in starts:
        for left in starts:
            yield image.crop((left, top, left + side, top + side))


def read_views(
    paths: Mapping[int, Path], progress: Progress = silent
) -> tuple[dict[int, NDArray[np.uint64]], dict[int, ImageError]]:
    """The views of image files by their rows, and why others cannot be read; threads decode side by side."""
    require("imagehash")  # a missing library is said before anything is read
    return read_all(lambda path: views_of(load_image(path, at_least=_SIDE)), paths, "pixels", progress)
