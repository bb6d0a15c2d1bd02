"""What stands where in an emoji scene: themes, classes, sizes and places, decided before a pixel is drawn.

All lengths are shares of the frame's side and all areas shares of the frame, so a plan has no resolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from centerhash.data.scenes.glyphs import (
    CLASSES,
    DISTRACTORS,
    GLYPHS,
    LOOKALIKES,
    ODD_GLYPHS,
    PAINTED,
    SHAPES,
    SKIN_TONES,
    TABLES,
)

_HORIZON = frozenset(("meadow", "savanna", "snow", "sea", "road"))
_FLYING = frozenset(("airplane", "bird", "kite"))


@dataclass(frozen=True)
class Theme:
    """A kind of place: how often it occurs, its backdrops, its classes, how far objects lean (degrees)."""

    chance: float
    backdrops: Mapping[str, float]
    classes: Mapping[str, float]
    lean: float


@dataclass(frozen=True)
class Recipe:
    """How hard scenes are to read: what is drawn, how large, how crowded, how much in disguise."""

    glyphs: Mapping[str, str]  # of each class
    distractors: str
    left_out: tuple[str, ...]  # backdrops
    label_counts: tuple[float, ...]  # chance of 1, 2, ... labels
    instance_counts: tuple[float, ...]  # chance of 1, 2, ... objects of one label
    main_area: tuple[float, float]  # of a scene's first label, log-uniform
    side_area: tuple[float, float]  # of its other labels, log-uniform
    distractor_area: tuple[float, float]  # log-uniform
    most_distractors: int
    stranger: float  # chance that a class comes from outside of the theme
    careless: float  # chance that an object does not look for a free place
    tries: int  # places among which an object looks for the freest
    lean: float  # times the theme's
    paint: float  # how far the hue of PAINTED classes turns, as a share of the colour circle
    largest_sum: float  # of all labels' areas together, so that a crowd still fits


@dataclass(frozen=True)
class Actor:
    """One object: its class (None for a distractor), look, target area, and centre (x, y)."""

    label: str | None
    character: str
    tone: int | None
    area: float
    centre: tuple[float, float]
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


def _recipe(name: str, glyphs: Mapping[str, str], distractors: str) -> Recipe:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in TABLES["recipes"][name].items()
    }
    return Recipe(glyphs=glyphs, distractors=distractors, **values)


_TYPICAL = {
    name: "".join(character for character in characters if character not in ODD_GLYPHS)
    for name, characters in GLYPHS.items()
    if name not in LOOKALIKES
}
CLEAR, HARD = _recipe("clear", _TYPICAL, SHAPES), _recipe("hard", GLYPHS, DISTRACTORS)


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


def plan_scene(rng: np.random.Generator, recipe: Recipe = CLEAR) -> Plan:
    """Decide on a scene: its theme, classes and backdrop, and one actor per object or distractor."""
    theme = THEMES[_pick(rng, {name: theme.chance for name, theme in THEMES.items()})]
    backdrop = _pick(
        rng, {name: chance for name, chance in theme.backdrops.items() if name not in recipe.left_out}
    )
    wanted: list[tuple[str, float]] = []
    for position, name in enumerate(_pick_labels(rng, theme, recipe)):
        bounds = recipe.side_area if position else recipe.main_area
        wanted += [(name, area) for area in _instance_areas(rng, recipe.instance_counts, bounds)]
    cast = _shrunk_to_fit(wanted, recipe.largest_sum)
    for _ in range(rng.integers(0, recipe.most_distractors + 1)):
        cast.append((None, _log_uniform(rng, recipe.distractor_area)))
    # large things tend to stand behind small ones, else most small ones would never be seen
    depths = [area * math.exp(rng.normal(0, 0.5)) for _, area in cast]
    actors: list[Actor] = []
    for position in np.argsort(depths)[::-1]:
        label, area = cast[position]
        tries = 1 if rng.random() < recipe.careless else recipe.tries
        centre = _place(rng, label, area, backdrop in _HORIZON, actors, tries)
        actors.append(_dress(rng, label, area, centre, recipe, theme.lean * recipe.lean))
    return Plan(backdrop, tuple(actors))


def _pick_labels(rng: np.random.Generator, theme: Theme, recipe: Recipe) -> list[str]:
    """Draw the different classes of a scene, most from the theme and a few from anywhere."""
    count = 1 + int(rng.choice(len(recipe.label_counts), p=recipe.label_counts))
    labels = _pick_several(
        rng, {name: weight for name, weight in theme.classes.items() if name in recipe.glyphs}, count
    )
    for position in range(len(labels)):
        if rng.random() < recipe.stranger:
            others = [name for name in recipe.glyphs if name not in labels]
            labels[position] = others[int(rng.integers(len(others)))]
    return labels


def _instance_areas(
    rng: np.random.Generator, chances: Sequence[float], bounds: tuple[float, float]
) -> list[float]:
    """Draw the areas of one label's objects, which sum to an area within `bounds`."""
    count = 1 + int(rng.choice(len(chances), p=chances))
    parts = rng.uniform(0.6, 1.4, count)
    # several objects of a label that is a detail would each be too small to see
    total = _log_uniform(rng, (bounds[0] * count, bounds[1]))
    return [float(part) for part in parts / parts.sum() * total]


def _shrunk_to_fit(cast: Sequence[tuple[str, float]], largest_sum: float) -> list[tuple[str | None, float]]:
    """Shrink the areas in proportion when they sum to more than LARGEST_SUM."""
    factor = min(1.0, largest_sum / sum(area for _, area in cast))
    return [(label, area * factor) for label, area in cast]


def _place(
    rng: np.random.Generator,
    label: str | None,
    area: float,
    horizon: bool,
    placed: Sequence[Actor],
    tries: int,
) -> tuple[float, float]:
    """Choose the centre that is freest of a few; one try alone may hide something."""
    places = [_spot(rng, label, area, horizon) for _ in range(tries)]
    return min(places, key=lambda place: _crowding(place, area, placed))


def _spot(rng: np.random.Generator, label: str | None, area: float, horizon: bool) -> tuple[float, float]:
    """Draw a centre inside the frame; before a horizon things stand on the ground or fly."""
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
    overlaps = (radius + 0.65 * math.sqrt(other.area) - math.dist(place, other.centre) for other in placed)
    return sum(max(0.0, overlap) for overlap in overlaps)


def _dress(
    rng: np.random.Generator,
    label: str | None,
    area: float,
    centre: tuple[float, float],
    recipe: Recipe,
    lean: float,
) -> Actor:
    """Choose the look of an object: its glyph, skin, colour shift, lean and mirror image."""
    glyphs = recipe.distractors if label is None else recipe.glyphs[label]
    freedom = recipe.paint if label in PAINTED else 0.02
    red, green, blue = (float(gain) for gain in rng.uniform(0.86, 1.06, 3))
    return Actor(
        label=label,
        character=glyphs[int(rng.integers(len(glyphs)))],
        tone=int(rng.integers(len(SKIN_TONES))) if label == "person" else None,
        area=area,
        centre=centre,
        angle=float(rng.normal(0, lean if rng.random() < 0.85 else 3 * lean)),
        flip=bool(rng.random() < 0.5),
        hue=float(rng.uniform(-freedom, freedom)),
        gains=(red, green, blue),
    )
