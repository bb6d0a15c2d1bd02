"""A few images to calibrate on and to compare engines by: the user's own, or emoji scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.data.images import squash_and_crop
from centerhash.data.listing import list_images
from centerhash.data.scenes.scenes import render_scene
from centerhash.networks.backbones import Backbone
from centerhash.networks.encoder import pixels_of
from centerhash.networks.engines.table import Pixels

MOST = 512  # of the user's images: bounds memory, and more do not change the ranges


@dataclass(frozen=True)
class Sample:
    """Images (N, H, W, 3) as a backbone sees them, their labels (N, C) where they are known, and what they are."""

    pixels: Pixels
    labels: NDArray[np.bool_] | None
    kind: str

    @property
    def what(self) -> str:
        """The sample in words."""
        return f"{len(self.pixels)} {self.kind}"

    def halves(self) -> tuple[Sample, Sample]:
        """Every second image, and the others."""
        first, second = (
            Sample(self.pixels[start::2], None if self.labels is None else self.labels[start::2], self.kind)
            for start in (0, 1)
        )
        return first, second


def scene_sample(backbone: Backbone, count: int) -> Sample:
    """Emoji scenes with their labels."""
    scenes = [render_scene(index, hard=True) for index in range(count)]
    names = sorted({label for scene in scenes for label in scene.labels})
    labels = np.array([[name in scene.labels for name in names] for scene in scenes])
    pixels = [
        squash_and_crop(scene.image, backbone.resize, backbone.crop, backbone.interpolation)
        for scene in scenes
    ]
    return Sample(np.stack(pixels), labels, "emoji scenes")


def image_sample(images: Sequence[str | Path], backbone: Backbone) -> Sample:
    """Images out of files, folders and patterns, at most MOST of them, evenly over the list."""
    paths = list_images(images)
    if len(paths) < 2:
        raise DataError(f"{len(paths)} image is too few to export by: give at least 2, better 100.")
    places = np.linspace(0, len(paths) - 1, min(MOST, len(paths))).round().astype(int)
    return Sample(np.stack([pixels_of(paths[place], backbone) for place in places]), None, "images")
