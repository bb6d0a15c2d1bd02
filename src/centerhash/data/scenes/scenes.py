"""Emoji scenes: pictures of known objects whose visible share of the frame is known to the pixel.

They are the embedded data: made on the fly from the OpenMoji font, nothing is downloaded, and a scene depends
only on its seed, its index and its size, so that scenes can be made in any order and by several processes.
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from centerhash.core.checks import whole_number
from centerhash.core.errors import DataError, OutputError
from centerhash.core.files import atomic, make_folder, write_json, write_text
from centerhash.core.progress import Progress, silent
from centerhash.data.scenes.backdrops import draw_backdrop
from centerhash.data.scenes.glyphs import CLASSES, glyph, opaque
from centerhash.data.scenes.staging import CLEAR, HARD, Actor, plan_scene

__all__ = ["CLASSES", "MIN_AREA", "Box", "Scene", "render_scene", "write_scenes"]

Box: TypeAlias = list[float]
Row: TypeAlias = tuple[str, str, str, str]  # of labels.csv: file_name, labels, areas, boxes

MIN_AREA = 0.004  # of the frame: an object that shows less is taken out of the scene
MIN_VISIBLE = 0.35  # of the object itself: less cannot be recognised
LARGEST_SIDE = 1.0  # of the frame's side: thin objects are not stretched further to reach their area
SIZES = (32, 1024)
MOST_SCENES = 1_000_000  # six digits in a file name
MOST_WORKERS = 256
RECIPE = 2  # raise it when the same seed gives other scenes than before
JPEG_QUALITY = 90
END_OF_JPEG = b"\xff\xd9"


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture (RGB), its labels in the order of CLASSES, and how much of it each label shows.

    `areas` are shares of the frame: a pixel belongs to the topmost object whose alpha is at least one half.
    `boxes` holds per label and object one [x centre, y centre, width, height] in 0..1 of the visible pixels.
    """

    image: Image.Image
    labels: tuple[str, ...]
    areas: tuple[float, ...]
    boxes: Mapping[str, list[Box]]


@dataclass(frozen=True, eq=False)
class Sprite:
    """An object ready to be pasted: its class (None for a distractor), RGBA bitmap and upper left corner."""

    label: str | None
    image: Image.Image
    left: int
    top: int


def render_scene(index: int, seed: int = 0, size: int = 224, hard: bool = False) -> Scene:
    """Make scene number `index` of the endless series `seed` as `size` x `size` pixels.

    `hard` scenes have smaller objects, partly hidden and in any colour, among things that resemble them.
    """
    whole_number(index, "index", 0)
    whole_number(seed, "seed", 0)
    whole_number(size, "size", *SIZES)
    attempt = 0
    while True:
        rng = np.random.default_rng([seed, index, attempt])
        plan = plan_scene(rng, HARD if hard else CLEAR)
        sprites = keep_visible([draw_sprite(actor, size) for actor in plan.actors], size)
        if any(sprite.label is not None for sprite in sprites):
            break
        attempt += 1  # everything was hidden or out of the frame
    image = draw_backdrop(plan.backdrop, rng, size)
    for sprite in sprites:
        image.paste(sprite.image, (sprite.left, sprite.top), sprite.image)
    return _describe(image, sprites)


def draw_sprite(actor: Actor, size: int) -> Sprite:
    """Draw an actor at its size in a frame of `size` pixels: scaled, mirrored, leaning, coloured."""
    drawn = glyph(actor.character, min(size, 512), actor.tone)
    scale = min((actor.area * size * size / drawn.ink) ** 0.5, LARGEST_SIDE * size / max(drawn.image.size))
    width, height = (max(1, round(side * scale)) for side in drawn.image.size)
    image = drawn.image.resize((width, height), Image.Resampling.BILINEAR)
    image = _recoloured(image, actor.hue, actor.gains)
    if actor.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = image.rotate(actor.angle, Image.Resampling.BILINEAR, expand=True)
    left, top = (round(c * size - side / 2) for c, side in zip(actor.centre, image.size, strict=True))
    return Sprite(actor.label, image, left, top)


def _recoloured(image: Image.Image, hue: float, gains: Sequence[float]) -> Image.Image:
    """Turn the hue by a share of the colour circle, then scale red, green and blue."""
    levels = np.arange(256)
    hues, saturations, values = image.convert("RGB").convert("HSV").split()
    turned = hues.point(((levels + round(hue * 256)) % 256).tolist())
    colours = Image.merge("HSV", (turned, saturations, values)).convert("RGB")
    scaled = colours.point(np.minimum(np.outer(gains, levels), 255).astype(np.int64).ravel().tolist())
    scaled.putalpha(image.getchannel("A"))
    return scaled


def owner_map(sprites: Sequence[Sprite], size: int) -> NDArray[np.int16]:
    """Return (size, size) the number of the topmost opaque sprite at each pixel, -1 where there is none."""
    owners = np.full((size, size), -1, dtype=np.int16)
    for number, sprite in enumerate(sprites):
        left, top = max(0, sprite.left), max(0, sprite.top)
        mask = opaque(sprite.image)[
            top - sprite.top : size - sprite.top, left - sprite.left : size - sprite.left
        ]
        owners[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = number
    return owners


def keep_visible(sprites: Sequence[Sprite], size: int) -> list[Sprite]:
    """Leave out the objects that show less than MIN_AREA of the frame or MIN_VISIBLE of themselves.

    Taking one out can only uncover others, so one pass is enough for all that stay.
    """
    shown = np.bincount(owner_map(sprites, size).ravel() + 1, minlength=len(sprites) + 1)[1:]
    kept = []
    for sprite, pixels in zip(sprites, shown, strict=True):
        wanted = max(MIN_AREA * size * size, MIN_VISIBLE * int(opaque(sprite.image).sum()))
        if sprite.label is None or pixels >= wanted:
            kept.append(sprite)
    return kept


def _describe(image: Image.Image, sprites: Sequence[Sprite]) -> Scene:
    """Measure what each label shows of the picture."""
    size = image.width
    owners = owner_map(sprites, size)
    pixels: dict[str, int] = {}
    boxes: dict[str, list[Box]] = {}
    for number, sprite in enumerate(sprites):
        if sprite.label is not None:
            mask = owners == number
            pixels[sprite.label] = pixels.get(sprite.label, 0) + int(mask.sum())
            boxes.setdefault(sprite.label, []).append(_box(mask))
    labels = tuple(label for label in CLASSES if label in pixels)
    areas = tuple(pixels[label] / (size * size) for label in labels)
    return Scene(image, labels, areas, {label: boxes[label] for label in labels})


def _box(mask: NDArray[np.bool_]) -> Box:
    """Return [x centre, y centre, width, height] in 0..1 around the set pixels of `mask` (size, size)."""
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    left, right, top, bottom = columns[0], columns[-1] + 1, rows[0], rows[-1] + 1
    corners = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
    return [round(float(value) / mask.shape[0], 4) for value in corners]


def write_scenes(
    folder: str | Path,
    count: int,
    seed: int = 0,
    size: int = 224,
    hard: bool = False,
    progress: Progress = silent,
    workers: int = 1,
) -> Path:
    """Write scenes 0 to `count` - 1 as `images/000000.jpg` ... with `labels.csv`, and return the folder.

    A run that was interrupted resumes where it stopped; `labels.csv` comes last, so its presence means that
    all images are there. The same settings give the same bytes, with any number of worker processes.
    A script that asks for several `workers` must keep its own work under `if __name__ == "__main__":`, since each
    of them imports it.
    """
    whole_number(count, "count", 1, MOST_SCENES)
    whole_number(seed, "seed", 0)
    whole_number(size, "size", *SIZES)
    whole_number(workers, "workers", 1, MOST_WORKERS)
    target = make_folder(folder)
    _claim(
        target,
        {"recipe": RECIPE, "count": int(count), "seed": int(seed), "size": int(size), "hard": bool(hard)},
    )
    make_folder(target / "images")
    rows = []
    for row in _rows(partial(_finished_row, target, seed=seed, size=size, hard=hard), count, workers):
        rows.append(row)
        progress("scenes", len(rows), count)
    table = _as_csv(rows)
    # an equal file keeps its time stamp, so that nothing that was computed from it looks outdated
    if not (target / "labels.csv").is_file() or (target / "labels.csv").read_bytes() != table.encode():
        write_text(target / "labels.csv", table)
    return target


def _claim(folder: Path, settings: Mapping[str, int]) -> None:
    """Record the settings in `scenes.json`, or check that the folder was begun with the same ones."""
    record = folder / "scenes.json"
    if not record.exists():
        if (folder / "labels.csv").exists() or (folder / "images").exists():
            raise DataError(
                f"'{folder}' holds images or labels but no scenes.json, so they are not emoji scenes; "
                "choose another folder."
            )
        write_json(record, settings)
        return
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"'{record}' cannot be read ({error}); choose another folder for the scenes."
        ) from error
    if found != settings:
        raise DataError(
            f"'{folder}' was begun with other settings ({found}) than asked for now "
            f"({settings}); choose another folder, or the same settings to resume this one."
        )


def _rows(make: Callable[[int], Row], count: int, workers: int) -> Iterator[Row]:
    """Yield `make(0)` ... `make(count - 1)` in order, worked out by this process or by several."""
    if workers == 1:
        yield from map(make, range(count))
        return
    # a fresh interpreter per worker: forking a process with threads (torch, numba) can hang
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(make, range(count), chunksize=16)
    except BrokenProcessPool as error:
        raise OutputError(
            f"one of {workers} processes making scenes ended too early (out of memory, or a script without "
            '`if __name__ == "__main__":`); run it again with workers=1, it resumes where it stopped.'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _finished_row(folder: Path, index: int, *, seed: int, size: int, hard: bool) -> Row:
    """Make sure that the image `index` is there, and return its row of the table."""
    name = f"images/{index:06d}.jpg"
    row = _stored_row(folder / name)
    if row is not None and row[0] == name:
        return row
    scene = render_scene(index, seed, size, hard)
    boxes = json.dumps(scene.boxes, separators=(",", ":"))
    row = (name, "|".join(scene.labels), "|".join(f"{area:.6f}" for area in scene.areas), boxes)
    encoded = io.BytesIO()
    scene.image.save(encoded, "JPEG", quality=JPEG_QUALITY, comment=json.dumps(row).encode())
    with atomic(folder / name) as stream:
        stream.write(encoded.getvalue())
    return row


def _stored_row(path: Path) -> Row | None:
    """Read the row that an earlier run wrote into the image's comment; None when no whole image is there."""
    try:
        content = path.read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            name, labels, areas, boxes = json.loads(image.info["comment"])
    except (OSError, KeyError, ValueError, TypeError):  # missing, damaged or not ours: it is made again
        return None
    if not content.endswith(END_OF_JPEG):
        return None
    return (str(name), str(labels), str(areas), str(boxes))


def _as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("file_name", "labels", "areas", "boxes"))
    writer.writerows(rows)
    return text.getvalue()
