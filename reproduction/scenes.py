"""Emoji scenes: pictures of known objects whose visible share of the frame is known to the pixel.

They are the embedded data: made on the fly from the OpenMoji font, nothing is downloaded, and a scene depends
only on its seed, its index and its size, so that scenes can be made in any order and by several processes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from reproduction.backdrops import draw_backdrop
from reproduction.glyphs import CLASSES, DISTRACTORS, GLYPHS, PAINTED, SKIN_TONES, TABLES, glyph, opaque

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

_HORIZON = frozenset(("meadow", "savanna", "snow", "sea", "road"))
_FLYING = frozenset(("airplane", "bird"))

LABEL_COUNTS = (0.45, 0.38, 0.17)  # chance of 1, 2, 3 labels
INSTANCE_COUNTS = (0.9, 0.1)  # chance of 1, 2 objects of one label
MAIN_AREA, SIDE_AREA = (0.15, 0.6), (0.03, 0.1)  # of the first label, and of each other; log-uniform
DISTRACTOR_AREA = (0.004, 0.015)  # log-uniform
MOST_DISTRACTORS = 1
STRANGER = 0.03  # chance that a class comes from outside of the theme
TRIES = 12  # places among which an object looks for the freest
PAINT = 0.08  # how far the hue of PAINTED classes turns, as a share of the color circle
LARGEST_SUM = 0.75  # of all areas together, so that a crowd still fits


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture (RGB), its labels in the order of CLASSES, and how much of it each label shows.

    `areas` are shares of the frame: a pixel belongs to the topmost object whose alpha is at least one half.
    `boxes` holds per label and object one [x center, y center, width, height] in 0..1 of the visible pixels.
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


@dataclass(frozen=True)
class Theme:
    """A kind of place: how often it occurs, its backdrops, its classes, how far objects lean (degrees)."""

    chance: float
    backdrops: Mapping[str, float]
    classes: Mapping[str, float]
    lean: float


@dataclass(frozen=True)
class Actor:
    """One object: its class (None for a distractor), look, target area, and center (x, y)."""

    label: str | None
    character: str
    tone: int | None
    area: float
    center: tuple[float, float]
    angle: float
    flip: bool
    hue: float
    gains: tuple[float, float, float]


@dataclass(frozen=True)
class Plan:
    """A scene before it is drawn: the backdrop's kind and the actors from back to front."""

    backdrop: str
    actors: tuple[Actor, ...]


THEMES: Mapping[str, Theme] = {
    name: Theme(**{"classes": dict.fromkeys(CLASSES, 1), **values})
    for name, values in TABLES["themes"].items()
}


def _pick(rng: np.random.Generator, choices: Mapping[str, float]) -> str:
    return _pick_several(rng, choices, 1)[0]


def _pick_several(rng: np.random.Generator, choices: Mapping[str, float], count: int) -> list[str]:
    """Draw `count` different names, each with a chance in proportion to its weight."""
    names = list(choices)
    weights = np.array([choices[name] for name in names])
    drawn = rng.choice(len(names), size=min(count, len(names)), replace=False, p=weights / weights.sum())
    return [names[number] for number in drawn]


def _log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    return math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1])))


def plan_scene(rng: np.random.Generator) -> Plan:
    """Decide on a scene: its theme, classes and backdrop, and one actor per object or distractor."""
    theme = THEMES[_pick(rng, {name: theme.chance for name, theme in THEMES.items()})]
    backdrop = _pick(rng, theme.backdrops)
    wanted: list[tuple[str, float]] = []
    for position, name in enumerate(_pick_labels(rng, theme)):
        bounds = SIDE_AREA if position else MAIN_AREA
        wanted += [(name, area) for area in _instance_areas(rng, bounds)]
    factor = min(1.0, LARGEST_SUM / sum(area for _, area in wanted))
    cast: list[tuple[str | None, float]] = [(label, area * factor) for label, area in wanted]
    for _ in range(rng.integers(0, MOST_DISTRACTORS + 1)):
        cast.append((None, _log_uniform(rng, DISTRACTOR_AREA)))
    # large things tend to stand behind small ones, else most small ones would never be seen
    depths = [area * math.exp(rng.normal(0, 0.5)) for _, area in cast]
    actors: list[Actor] = []
    for position in np.argsort(depths)[::-1]:
        label, area = cast[position]
        rng.random()  # not used: without it, a seed would give other scenes than those of the stored results
        places = [_spot(rng, label, area, backdrop in _HORIZON) for _ in range(TRIES)]
        crowding = [_crowding(place, area, actors) for place in places]
        actors.append(_dress(rng, label, area, places[crowding.index(min(crowding))], theme.lean))
    return Plan(backdrop, tuple(actors))


def _pick_labels(rng: np.random.Generator, theme: Theme) -> list[str]:
    """Draw the different classes of a scene, most from the theme and a few from anywhere."""
    count = 1 + int(rng.choice(len(LABEL_COUNTS), p=LABEL_COUNTS))
    labels = _pick_several(rng, theme.classes, count)
    for position in range(len(labels)):
        if rng.random() < STRANGER:
            others = [name for name in GLYPHS if name not in labels]
            labels[position] = others[int(rng.integers(len(others)))]
    return labels


def _instance_areas(rng: np.random.Generator, bounds: tuple[float, float]) -> list[float]:
    """Draw the areas of one label's objects, which sum to an area within `bounds`."""
    count = 1 + int(rng.choice(len(INSTANCE_COUNTS), p=INSTANCE_COUNTS))
    parts = rng.uniform(0.6, 1.4, count)
    # several objects of a label that is a detail would each be too small to see
    total = _log_uniform(rng, (bounds[0] * count, bounds[1]))
    return [float(part) for part in parts / parts.sum() * total]


def _spot(rng: np.random.Generator, label: str | None, area: float, horizon: bool) -> tuple[float, float]:
    """Draw a center inside the frame; before a horizon things stand on the ground or fly."""
    margin = min(0.45, 0.55 * math.sqrt(area) + 0.02)
    top, bottom = margin, 1 - margin
    if horizon and label in _FLYING:
        bottom = max(top, 0.45)
    elif horizon and label is not None:
        top = min(bottom, 0.5)
    return float(rng.uniform(margin, 1 - margin)), float(rng.uniform(top, bottom))


def _crowding(place: tuple[float, float], area: float, placed: Iterable[Actor]) -> float:
    """Say how far an object of `area` at `place` would reach into the others, all taken as discs."""
    radius = 0.65 * math.sqrt(area)
    overlaps = (radius + 0.65 * math.sqrt(other.area) - math.dist(place, other.center) for other in placed)
    return sum(max(0.0, overlap) for overlap in overlaps)


def _dress(
    rng: np.random.Generator,
    label: str | None,
    area: float,
    center: tuple[float, float],
    lean: float,
) -> Actor:
    """Choose the look of an object: its glyph, skin, color shift, lean and mirror image."""
    glyphs = DISTRACTORS if label is None else GLYPHS[label]
    freedom = PAINT if label in PAINTED else 0.02
    red, green, blue = (float(gain) for gain in rng.uniform(0.86, 1.06, 3))
    return Actor(
        label=label,
        character=glyphs[int(rng.integers(len(glyphs)))],
        tone=int(rng.integers(len(SKIN_TONES))) if label == "person" else None,
        area=area,
        center=center,
        angle=float(rng.normal(0, lean if rng.random() < 0.85 else 3 * lean)),
        flip=bool(rng.random() < 0.5),
        hue=float(rng.uniform(-freedom, freedom)),
        gains=(red, green, blue),
    )


def render_scene(index: int, seed: int = 0, size: int = 224) -> Scene:
    """Make scene number `index` of the endless series `seed` as `size` x `size` pixels."""
    whole_number(index, "index", 0)
    whole_number(seed, "seed", 0)
    whole_number(size, "size", *SIZES)
    attempt = 0
    while True:
        rng = np.random.default_rng([seed, index, attempt])
        plan = plan_scene(rng)
        sprites = keep_visible([draw_sprite(actor, size) for actor in plan.actors], size)
        if any(sprite.label is not None for sprite in sprites):
            break
        attempt += 1  # everything was hidden or out of the frame
    image = draw_backdrop(plan.backdrop, rng, size)
    for sprite in sprites:
        image.paste(sprite.image, (sprite.left, sprite.top), sprite.image)
    return _describe(image, sprites)


def draw_sprite(actor: Actor, size: int) -> Sprite:
    """Draw an actor at its size in a frame of `size` pixels: scaled, mirrored, leaning, colored."""
    drawn = glyph(actor.character, min(size, 512), actor.tone)
    scale = min((actor.area * size * size / drawn.ink) ** 0.5, LARGEST_SIDE * size / max(drawn.image.size))
    width, height = (max(1, round(side * scale)) for side in drawn.image.size)
    image = drawn.image.resize((width, height), Image.Resampling.BILINEAR)
    image = _recolored(image, actor.hue, actor.gains)
    if actor.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = image.rotate(actor.angle, Image.Resampling.BILINEAR, expand=True)
    left, top = (round(c * size - side / 2) for c, side in zip(actor.center, image.size, strict=True))
    return Sprite(actor.label, image, left, top)


def _recolored(image: Image.Image, hue: float, gains: Sequence[float]) -> Image.Image:
    """Turn the hue by a share of the color circle, then scale red, green and blue."""
    levels = np.arange(256)
    hues, saturations, values = image.convert("RGB").convert("HSV").split()
    turned = hues.point(((levels + round(hue * 256)) % 256).tolist())
    colors = Image.merge("HSV", (turned, saturations, values)).convert("RGB")
    scaled = colors.point(np.minimum(np.outer(gains, levels), 255).astype(np.int64).ravel().tolist())
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
            columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
            left, right, top, bottom = columns[0], columns[-1] + 1, rows[0], rows[-1] + 1
            corners = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
            boxes.setdefault(sprite.label, []).append([round(float(edge) / size, 4) for edge in corners])
    labels = tuple(label for label in CLASSES if label in pixels)
    areas = tuple(pixels[label] / (size * size) for label in labels)
    return Scene(image, labels, areas, {label: boxes[label] for label in labels})


def write_scenes(
    folder: str | Path,
    count: int,
    seed: int = 0,
    size: int = 224,
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
    _init_or_check(target, {"recipe": RECIPE, "count": int(count), "seed": int(seed), "size": int(size)})
    make_folder(target / "images")
    rows = []
    for row in _rows(partial(_finished_row, target, seed=seed, size=size), count, workers):
        rows.append(row)
        progress("scenes", len(rows), count)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("file_name", "labels", "areas", "boxes"), *rows])
    table = text.getvalue()
    # an equal file keeps its time stamp, so that nothing that was computed from it looks outdated
    if not (target / "labels.csv").is_file() or (target / "labels.csv").read_bytes() != table.encode():
        write_text(target / "labels.csv", table)
    return target


def _init_or_check(folder: Path, settings: Mapping[str, int]) -> None:
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
            f"'{folder}' was begun with other settings ({found}) than {settings}. "
            "Choose another folder, or the same settings to resume this one."
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
            '`if __name__ == "__main__":`). Run it again with workers=1; it resumes.'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _finished_row(folder: Path, index: int, *, seed: int, size: int) -> Row:
    """Make sure that the image `index` is there, and return its row of the table."""
    name = f"images/{index:06d}.jpg"
    row = _stored_row(folder / name)
    if row is not None and row[0] == name:
        return row
    scene = render_scene(index, seed, size)
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
