"""What stands where in an emoji scene: themes, classes, sizes and places, decided before a pixel is drawn.

All lengths are shares of the frame's side and all areas shares of the frame, so a plan has no resolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from centerhash.data.scenes.glyphs import CLASSES, DISTRACTORS, GLYPHS, PAINTED, SKIN_TONES

LABEL_COUNTS = (0.22, 0.29, 0.25, 0.15, 0.09)  # chance of 1, 2, ... labels
INSTANCE_COUNTS = (0.68, 0.21, 0.11)  # chance of 1, 2, 3 objects of one label
LABEL_AREA = (0.014, 0.55)  # log-uniform: from a detail to half of the picture
DISTRACTOR_AREA = (0.004, 0.06)
LARGEST_SUM = 0.75  # of all areas together, so that a crowd still fits
MOST_DISTRACTORS = 3
STRANGER = 0.1  # chance that a class comes from outside of the theme

_INDOORS = {"room": 5.0, "plain": 1.0, "gradient": 1.0, "stripes": 1.0}
_TABLE = {
    "wood": 3.0,
    "checker": 2.0,
    "dots": 1.0,
    "stripes": 1.0,
    "plain": 1.0,
    "gradient": 1.0,
    "room": 1.0,
}
_ANYWHERE = dict.fromkeys(("meadow", "road", "room", "plain", "gradient", "stripes", "checker", "dots"), 1.0)
_HORIZON = frozenset(("meadow", "savanna", "snow", "sea", "road"))
_FLYING = frozenset(("airplane", "bird", "kite"))


@dataclass(frozen=True)
class Theme:
    """A kind of place: how often it occurs, its backdrops, its classes, how far objects lean (degrees)."""

    chance: float
    backdrops: Mapping[str, float]
    classes: Mapping[str, float]
    lean: float = 7.0


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


def _weights(text: str) -> dict[str, float]:
    """Read "car 8, bus 3" as {"car": 8.0, "bus": 3.0}."""
    pairs = (entry.strip().rsplit(" ", 1) for entry in text.split(","))
    return {name: float(weight) for name, weight in pairs}


THEMES: Mapping[str, Theme] = {
    "street": Theme(
        0.16,
        {"road": 5.0, "gradient": 1.0, "plain": 1.0, "snow": 0.5},
        _weights(
            "person 9, car 8, bus 4, truck 4, traffic light 4, motorcycle 3.5, bicycle 3, umbrella 2, "
            "dog 1.5, suitcase 1, train 0.8, bird 0.7"
        ),
    ),
    "farm": Theme(
        0.1,
        {"meadow": 6.0, "gradient": 1.0, "plain": 1.0, "snow": 0.5},
        _weights("cow 4, horse 4, sheep 4, person 4, dog 2, bird 2, truck 1, cat 1, apple 0.7"),
    ),
    "wildlife": Theme(
        0.1,
        {"savanna": 5.0, "meadow": 2.0, "gradient": 1.0, "plain": 0.5},
        _weights("elephant 3, giraffe 3, zebra 3, bear 3, bird 2.5, person 1.5"),
    ),
    "table": Theme(
        0.16,
        _TABLE,
        _weights(
            "cup 4, bottle 4, bowl 4, person 4, apple 3, pizza 3, cake 3, banana 2.5, donut 2.5, chair 1.5, "
            "potted plant 1, cat 0.6, clock 0.6, book 0.6"
        ),
        lean=16.0,
    ),
    "living room": Theme(
        0.13,
        _INDOORS,
        _weights(
            "person 5, couch 4, chair 4, tv 4, potted plant 3, book 3, cat 3, dog 2.5, teddy bear 2.5, "
            "clock 2, laptop 1.5, cup 1.5, bottle 0.8, cake 0.6, bowl 0.6"
        ),
    ),
    "office": Theme(
        0.08,
        {**_INDOORS, "wood": 2.0},
        _weights(
            "laptop 5, person 5, book 4, chair 4, cup 3, clock 3, potted plant 2, tv 1.5, bottle 1, "
            "suitcase 1, apple 0.7"
        ),
    ),
    "park": Theme(
        0.1,
        {"meadow": 6.0, "sea": 1.0, "gradient": 1.0, "snow": 0.5},
        _weights("person 7, sports ball 5, kite 3.5, dog 3, bicycle 3, bird 2, umbrella 1.5, bottle 0.7"),
        lean=12.0,
    ),
    "harbour": Theme(
        0.05,
        {"sea": 6.0, "gradient": 1.0, "plain": 0.5},
        _weights("boat 7, person 4, bird 3, umbrella 2, kite 1.5, airplane 1, dog 0.7, sports ball 0.7"),
    ),
    "journey": Theme(
        0.08,
        {"road": 2.0, "snow": 2.0, "meadow": 2.0, "gradient": 2.0, "plain": 1.0},
        _weights("airplane 5, train 5, suitcase 4, person 4, bus 2, umbrella 1, clock 1, book 0.7, cup 0.7"),
    ),
    "anything": Theme(0.04, _ANYWHERE, dict.fromkeys(CLASSES, 1.0), lean=12.0),
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
    cast = _shrunk_to_fit(
        [(name, area) for name in _pick_labels(rng, theme) for area in _instance_areas(rng)]
    )
    for _ in range(rng.integers(0, MOST_DISTRACTORS + 1)):
        cast.append((None, _log_uniform(rng, DISTRACTOR_AREA)))
    # large things tend to stand behind small ones, else most small ones would never be seen
    depths = [area * math.exp(rng.normal(0, 0.5)) for _, area in cast]
    actors: list[Actor] = []
    for position in np.argsort(depths)[::-1]:
        label, area = cast[position]
        centre = _place(rng, label, area, backdrop in _HORIZON, actors)
        actors.append(_dress(rng, label, area, centre, theme.lean))
    return Plan(backdrop, tuple(actors))


def _pick_labels(rng: np.random.Generator, theme: Theme) -> list[str]:
    """Draw the different classes of a scene, most from the theme and a few from anywhere."""
    count = 1 + int(rng.choice(len(LABEL_COUNTS), p=LABEL_COUNTS))
    labels = _pick_several(rng, theme.classes, count)
    for position in range(len(labels)):
        if rng.random() < STRANGER:
            others = [name for name in CLASSES if name not in labels]
            labels[position] = others[int(rng.integers(len(others)))]
    return labels


def _instance_areas(rng: np.random.Generator) -> list[float]:
    """Draw the areas of one label's objects; together they follow LABEL_AREA."""
    count = 1 + int(rng.choice(len(INSTANCE_COUNTS), p=INSTANCE_COUNTS))
    parts = rng.uniform(0.6, 1.4, count)
    # several objects of a label that is a detail would each be too small to see
    total = _log_uniform(rng, (LABEL_AREA[0] * count, LABEL_AREA[1]))
    return [float(part) for part in parts / parts.sum() * total]


def _shrunk_to_fit(cast: Sequence[tuple[str, float]]) -> list[tuple[str | None, float]]:
    """Shrink the areas in proportion when they sum to more than LARGEST_SUM."""
    factor = min(1.0, LARGEST_SUM / sum(area for _, area in cast))
    return [(label, area * factor) for label, area in cast]


def _place(
    rng: np.random.Generator, label: str | None, area: float, horizon: bool, placed: Iterable[Actor]
) -> tuple[float, float]:
    """Choose a centre: most objects take the freest of a few places, the others may hide something."""
    tries = 1 if rng.random() < 0.3 else 6
    places = [_spot(rng, label, area, horizon) for _ in range(tries)]
    before = list(placed)
    return min(places, key=lambda place: _crowding(place, area, before))


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
    rng: np.random.Generator, label: str | None, area: float, centre: tuple[float, float], lean: float
) -> Actor:
    """Choose the look of an object: its glyph, skin, colour shift, lean and mirror image."""
    glyphs = DISTRACTORS if label is None else GLYPHS[label]
    freedom = 0.5 if label in PAINTED else 0.02
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
