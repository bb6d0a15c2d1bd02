"""Small pictures of drawn shapes whose labels and visible areas are known, for tests and benchmarks.

folder = write_shapes(tmp_path / "photos", 40)     # images/000000.jpg ... and labels.csv
picture, areas = draw_shapes(number=3, size=256)   # areas: label -> visible share of the frame
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Outline = NDArray[np.float64]  # (N, 2) corners within the circle of radius 1
SMALLEST = 0.01  # share of the frame that a shape must show to be a label
MOST = 4  # shapes in a picture


def polar(radii: NDArray[np.float64]) -> Outline:
    """Return the outline with N radii (N,) at even angles, the first one at the top."""
    angles = np.linspace(0, 2 * np.pi, len(radii), endpoint=False) - np.pi / 2
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def regular(corners: int) -> Outline:
    """Return a regular polygon."""
    return polar(np.ones(corners))


def star(points: int, inner: float) -> Outline:
    """Return a star whose notches have the radius `inner`."""
    return polar(np.tile([1.0, inner], points))


def moon() -> Outline:
    """Return a crescent: half a circle, and back along a flatter arc."""
    angles = np.linspace(-np.pi / 2, np.pi / 2, 20)
    outer = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.concatenate([outer, (outer * (0.4, 1))[::-1]]) - (0.5, 0)


def heart() -> Outline:
    """Return the usual curve of a heart."""
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    height = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([16 * np.sin(t) ** 3, -height], axis=1) / 17


CORNERS = {  # outlines by hand
    "arrow": [(0, -1), (0.8, 0), (0.3, 0), (0.3, 1), (-0.3, 1), (-0.3, 0), (-0.8, 0)],
    "bar": [(-1, -0.25), (1, -0.25), (1, 0.25), (-1, 0.25)],
    "bolt": [(0.2, -1), (-0.6, 0.2), (0, 0.1), (-0.3, 1), (0.6, -0.3), (0, -0.2)],
    "house": [(0, -1), (0.8, -0.2), (0.8, 0.9), (-0.8, 0.9), (-0.8, -0.2)],
}
SHAPES: dict[str, tuple[Outline, tuple[int, int, int]]] = {
    "arrow": (np.array(CORNERS["arrow"]), (0, 110, 60)),
    "bar": (np.array(CORNERS["bar"]), (120, 70, 20)),
    "bolt": (np.array(CORNERS["bolt"]), (250, 210, 0)),
    "circle": (regular(40), (220, 30, 30)),
    "cross": (star(4, 0.3), (20, 20, 20)),
    "heart": (heart(), (255, 90, 170)),
    "hexagon": (regular(6), (0, 170, 190)),
    "house": (np.array(CORNERS["house"]), (250, 130, 20)),
    "moon": (moon(), (245, 245, 245)),
    "square": (regular(4), (30, 60, 220)),
    "star": (star(5, 0.45), (130, 40, 170)),
    "triangle": (regular(3), (60, 190, 40)),
}
CLASSES = tuple(SHAPES)


def draw_shapes(number: int, size: int = 64, seed: int = 0) -> tuple[Image.Image, dict[str, float]]:
    """Draw picture `number`; return it with the visible share of the frame of each label."""
    generator = np.random.default_rng([seed, number])
    shade = tuple(generator.integers(130, 200, 3).tolist())
    picture, owners = Image.new("RGB", (size, size), shade), Image.new("L", (size, size))
    names = generator.choice(CLASSES, generator.choice(np.arange(1, MOST + 1)), replace=False)
    # large ones first, so that they do not hide the others; the first one always shows enough to be a label
    radii = np.sort(generator.uniform(0.14, 0.36, len(names)))[::-1]
    for place, (name, radius) in enumerate(zip(names.tolist(), radii, strict=True), 1):
        outline, color = SHAPES[name]
        angle, center = generator.uniform(-0.3, 0.3), generator.uniform(0.2, 0.8, 2)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        corners = [tuple(corner) for corner in ((center + radius * outline @ turn.T) * size).tolist()]
        tint = tuple(np.clip(np.add(color, generator.integers(-25, 26, 3)), 0, 255).tolist())
        ImageDraw.Draw(picture).polygon(corners, fill=tint)
        ImageDraw.Draw(owners).polygon(corners, fill=place)
    pixels = np.bincount(np.asarray(owners).ravel(), minlength=len(names) + 1)[1:] / size**2
    shares = {name: float(share) for name, share in zip(names.tolist(), pixels, strict=True)}
    return picture, {name: shares[name] for name in CLASSES if shares.get(name, 0.0) >= SMALLEST}


def write_shapes(folder: Path, count: int, size: int = 64, seed: int = 0) -> Path:
    """Write pictures 0 to `count` - 1 with labels.csv (file_name, labels, areas), and return the folder."""
    (folder / "images").mkdir(parents=True)
    with (folder / "labels.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("file_name", "labels", "areas"))
        for number in range(count):
            picture, areas = draw_shapes(number, size, seed)
            name = f"images/{number:06d}.jpg"
            picture.save(folder / name, quality=90)
            table.writerow((name, "|".join(areas), "|".join(f"{area:.6f}" for area in areas.values())))
    return folder
