"""Backgrounds of the emoji scenes: landscapes, rooms and plain patterns in muted colors."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats: TypeAlias = NDArray[np.float32]
Range: TypeAlias = tuple[float, float]


def draw_backdrop(kind: str, rng: np.random.Generator, size: int) -> Image.Image:
    """Draw the backdrop `kind` (a key of BACKDROPS) as an RGB image of `size` x `size` pixels."""
    picture = BACKDROPS[kind](rng, size)
    picture = picture + _smooth_noise(rng, size, cells=int(rng.integers(3, 9)), strength=rng.uniform(2, 12))
    strength = np.float32(2 * rng.uniform(0, 7))  # of the grain of a camera
    picture = picture + (rng.random((size, size, 1), dtype=np.float32) - np.float32(0.5)) * strength
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))


@lru_cache(maxsize=4)
def _grid(size: int) -> tuple[Floats, Floats]:
    """Return the coordinates x (1, size) and y (size, 1) of the pixel centers in 0..1."""
    line = ((np.arange(size) + 0.5) / size).astype(np.float32)
    return line[None, :], line[:, None]


def _color(rng: np.random.Generator, hue: Range, saturation: Range, value: Range) -> Floats:
    """Draw a color (3,) in 0..255 from ranges of hue, saturation and value; hues wrap around 1."""
    drawn = (rng.uniform(*hue) % 1.0, rng.uniform(*saturation), rng.uniform(*value))
    return np.array(colorsys.hsv_to_rgb(*drawn), dtype=np.float32) * 255


def _muted(rng: np.random.Generator) -> Floats:
    return _color(rng, (0, 1), (0.04, 0.38), (0.5, 0.96))


def _blend(first: Floats, second: Floats, amount: Floats) -> Floats:
    """Mix two colors (3,) or pictures (S, S, 3) by `amount` (S, S), where 0 is the first."""
    mixed: Floats = first + (second - first) * amount[..., None]
    return mixed


def _smooth_noise(rng: np.random.Generator, size: int, cells: int, strength: float) -> Floats:
    """Return soft patches (S, S, 1): a small random grid, enlarged."""
    coarse = Image.fromarray(rng.uniform(-1, 1, (cells, cells)).astype(np.float32))
    fine = coarse.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(fine, dtype=np.float32)[..., None] * np.float32(strength)


def _skyline(rng: np.random.Generator, size: int, level: float, height: float) -> Floats:
    """Return the upper edge (1, S) of a rolling hill around `level` from the top in 0..1."""
    x, _ = _grid(size)
    edge = np.full_like(x, level)
    for _ in range(3):
        edge += np.float32(height / 3) * np.sin(rng.uniform(2, 9) * x + rng.uniform(0, 6.3))
    return edge


def _below(edge: Floats, size: int) -> Floats:
    """Return 1 under `edge` (1, S) and 0 above it, (S, S), with a soft border of one pixel."""
    _, y = _grid(size)
    share: Floats = np.clip((y - edge) * size + 0.5, 0, 1)
    return share


def _landscape(rng: np.random.Generator, size: int, ground: Floats, hills: bool) -> Floats:
    """Return sky over ground with up to two rows of hills between them."""
    _, y = _grid(size)
    horizon = rng.uniform(0.34, 0.56)
    high = _color(rng, (0.52, 0.63), (0.1, 0.45), (0.7, 0.97))
    low = _color(rng, (-0.05, 0.62), (0.02, 0.22), (0.85, 1.0))
    picture = _blend(high, low, np.broadcast_to(np.clip(y / horizon, 0, 1), (size, size)))
    for row in range(int(rng.integers(0, 3)) if hills else 0):
        hill = ground * 0.45 + _color(rng, (0.3, 0.6), (0.05, 0.25), (0.6, 0.8)) * 0.5
        edge = _skyline(rng, size, horizon - 0.1 + 0.05 * row, 0.12)
        picture = _blend(picture, hill, _below(edge, size))
    shade = 1.08 - 0.3 * np.clip((y - horizon) / (1 - horizon), 0, 1) * rng.uniform(0.2, 1)
    front = np.broadcast_to((ground * shade[..., None]).astype(np.float32), (size, size, 3))
    flat = _skyline(rng, size, horizon, 0.015 if hills else 0.0)
    return _blend(picture, front, _below(flat, size))


def _hills(hue: Range, saturation: Range, value: Range) -> Callable[[np.random.Generator, int], Floats]:
    """Return what draws a landscape with hills on ground of these colors."""
    return lambda rng, size: _landscape(rng, size, _color(rng, hue, saturation, value), hills=True)


def _sea(rng: np.random.Generator, size: int) -> Floats:
    picture = _landscape(rng, size, _color(rng, (0.48, 0.6), (0.25, 0.5), (0.5, 0.8)), hills=False)
    if rng.random() < 0.5:
        beach = _color(rng, (0.08, 0.13), (0.15, 0.35), (0.8, 0.92))
        picture = _blend(picture, beach, _below(_skyline(rng, size, rng.uniform(0.7, 0.9), 0.06), size))
    return picture


def _road(rng: np.random.Generator, size: int) -> Floats:
    """Return a street: houses as blocks before the sky, pavement and a dashed lane."""
    x, y = _grid(size)
    ground = _color(rng, (0, 1), (0.0, 0.1), (0.5, 0.72))
    picture = _landscape(rng, size, ground, hills=False)
    roofs = rng.uniform(0.12, 0.42, int(rng.integers(4, 9))).astype(np.float32)
    house = np.minimum((x * len(roofs)).astype(np.int64), len(roofs) - 1)
    fronts = np.stack([_color(rng, (0, 1), (0.03, 0.28), (0.6, 0.88)) for _ in roofs])
    standing = _below(roofs[house], size) * (1 - _below(np.full_like(x, rng.uniform(0.52, 0.6)), size))
    picture = _blend(picture, np.broadcast_to(fronts[house[0]], (size, size, 3)), standing)
    lane = rng.uniform(0.7, 0.85)
    dashes = (np.abs(y - lane) < 0.012) & ((x * rng.uniform(4, 7) + rng.random()) % 1.0 < 0.55)
    return _blend(picture, np.full(3, 235, np.float32), dashes.astype(np.float32) * 0.8)


def _room(rng: np.random.Generator, size: int) -> Floats:
    """Return a wall, papered or not, a skirting board and a floor."""
    x, y = _grid(size)
    wall, floor = _muted(rng), _color(rng, (0.03, 0.12), (0.12, 0.45), (0.45, 0.8))
    edge = np.full_like(x, rng.uniform(0.55, 0.78))
    paper = ((x * rng.integers(6, 16)) % 1.0 < 0.5) * np.float32(rng.uniform(0, 0.1))
    picture = _blend(
        wall, np.full(3, 255, np.float32), np.broadcast_to(paper.astype(np.float32), (size, size))
    )
    picture = _blend(picture, np.full(3, 245, np.float32), _below(edge - np.float32(0.035), size))
    boards = ((y * rng.integers(14, 26)) % 1.0 < 0.12) * np.float32(0.14)
    planks = _blend(floor, np.zeros(3, np.float32), np.broadcast_to(boards.astype(np.float32), (size, size)))
    return _blend(picture, planks, _below(edge, size))


def _gradient(rng: np.random.Generator, size: int) -> Floats:
    """Return a change from one color to another, straight in any direction or around a point."""
    x, y = _grid(size)
    if rng.random() < 0.4:
        amount = np.hypot(x - rng.uniform(0.2, 0.8), y - rng.uniform(0.2, 0.8)) / np.float32(0.9)
    else:
        angle = rng.uniform(0, 2 * np.pi)
        amount = 0.5 + (x - 0.5) * np.cos(angle) * 0.9 + (y - 0.5) * np.sin(angle) * 0.9
    return _blend(_muted(rng), _muted(rng), np.clip(amount, 0, 1).astype(np.float32))


def _wood(rng: np.random.Generator, size: int) -> Floats:
    """Return a table top: grain along boards."""
    x, y = _grid(size)
    light = _color(rng, (0.05, 0.11), (0.2, 0.45), (0.6, 0.9))
    bend = np.sin(x * rng.uniform(2, 6) + rng.uniform(0, 6.3)) * rng.uniform(0.1, 0.6)
    lines = (
        np.sin(y * rng.uniform(50, 90) + bend * 3) * 0.5 + np.sin(y * rng.uniform(120, 200) + bend * 5) * 0.3
    )
    seams = (y * rng.integers(2, 6)) % 1.0 < 0.02
    return _blend(
        light, light * np.float32(0.6), np.clip(0.2 + 0.15 * lines + 0.6 * seams, 0, 1).astype(np.float32)
    )


BACKDROPS: Mapping[str, Callable[[np.random.Generator, int], Floats]] = {
    "meadow": _hills((0.2, 0.36), (0.25, 0.5), (0.5, 0.78)),
    "savanna": _hills((0.09, 0.16), (0.25, 0.5), (0.65, 0.88)),
    "snow": _hills((0.5, 0.65), (0.0, 0.08), (0.85, 0.95)),
    "sea": _sea,
    "road": _road,
    "room": _room,
    "plain": lambda rng, size: np.broadcast_to(_muted(rng), (size, size, 3)),
    "gradient": _gradient,
    "wood": _wood,
}
