"""Words that people type: labels with weights and labels that must not be there.

    read_text("a cat without people", labels)     cat, and no person
    read_text("dog:0.7, bicycle", labels)         both, with weights 0.7 and 1
    match("Bikes", labels)                         the label "bicycle"

A label is recognized in any case, in singular and plural, and by the synonyms of `SYNONYMS`. A row of that table counts
for a label that is its class or one of its words, so "plane" finds "airplane" as well as another model's "aeroplane".
Nothing is guessed: unknown words are reported with the labels that they may be misspellings of.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from centerhash.core.errors import ConfigError, nearest_names

Tokens: TypeAlias = tuple[str, ...]

MAX_LETTERS = 1_000
_MAX_SUGGESTIONS, _MAX_LISTED = 3, 100
_SIMILAR = 0.78  # of difflib; "bycicle" is as near as this to "bicycle"

SYNONYMS = """
person: people, human, man, men, woman, women, boy, girl, child, children, kid, baby, babies, lady, ladies,
guy, crowd, portrait, selfie; bicycle: bike, cycle, cyclist, mountain bike; car: auto, automobile, taxi, cab,
suv, jeep, limousine; motorcycle: motorbike, motor bike, moped, scooter; airplane: plane, aeroplane,
aircraft, jet, airliner; bus: coach, minibus, double decker; train: locomotive, tram, railway, railroad,
metro; truck: lorry, lorries, pickup, van, fire engine, ambulance; boat: ship, canoe, kayak, sailboat,
sailing boat, yacht, ferry, ferries; traffic light: stoplight, traffic signal; fire hydrant: hydrant; stop
sign: stop; parking meter: parking metre; bench: park bench; bird: pigeon, seagull, gull, duck, parrot,
chicken, swan, goose, geese, owl, eagle, sparrow, crow, penguin; cat: kitten, kitty, kitties; dog: puppy,
puppies, pup, hound, poodle, terrier, labrador, retriever; horse: pony, ponies, foal; sheep: lamb, ram, ewe;
cow: cattle, bull, calf, calves, ox, oxen; bear: polar bear, brown bear, grizzly; backpack: rucksack,
knapsack; umbrella: parasol; handbag: purse, bag; tie: necktie, bow tie; suitcase: luggage, baggage; frisbee:
flying disc; skis: skiing, skier; snowboard: snowboarding, snowboarder; sports ball: ball, football,
basketball, tennis ball, soccer ball, baseball, volleyball; skateboard: skateboarding, skateboarder;
surfboard: surfing, surfer; tennis racket: racket, racquet, tennis racquet, tennis; bottle: wine bottle,
bottle of wine, water bottle; wine glass: glass, wineglass, glass of wine, glasses of wine; cup: mug, coffee
cup, coffee mug, teacup; knife: knives; bowl: dish; sandwich: burger, hamburger; orange: mandarin, tangerine;
hot dog: hotdog, sausage; donut: doughnut; cake: birthday cake, wedding cake, cupcake; chair: armchair,
stool, seat; couch: sofa, settee; potted plant: plant, houseplant, flowerpot; dining table: table, desk,
dinner table; toilet: loo, wc; tv: television, monitor, screen, tv set; laptop: notebook, computer; mouse:
mice, computer mouse; remote: remote control; keyboard: computer keyboard; cell phone: phone, mobile phone,
mobile, smartphone, telephone, cellphone, iphone; microwave: microwave oven; oven: stove, cooker; sink:
washbasin, basin; refrigerator: fridge, freezer; book: novel, textbook; clock: watch, alarm clock; scissors:
shears; teddy bear: teddy, teddies, stuffed animal; hair drier: hair dryer, hairdryer, blow dryer
"""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WITHOUT = _set("without no not minus except excluding never none")
_WITH = _set("with but having including show has")
_AND = _set("and or nor plus also")
_SKIPPED = _set(
    """a an the of on in at by to from for near next beside under over behind above below between into onto inside
    outside front is are there some any my our your his her their this that these those all one two three four five many
    several lots few find me please where which who photo photos picture pictures image images riding playing sitting
    standing lying holding eating walking running wearing looking sleeping s"""
)
# plurals that mean something else than their singular
_NOT_LABELS = frozenset({("glasses",)})

_TOKEN = re.compile(r"[^\W_]+|[^\w\s'’‘`-]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_QUOTED = re.compile(r'\s*"((?:[^"]|"")*)"\s*(?::([^,]*))?(?:,|$)')
_UNQUOTED = re.compile(r"([^,]*)(?:,|$)")
_WEIGHTED = re.compile(r"([^\s:]+)(?:\s*:\s*(\d+\.?\d*|\.\d+)(?!\S))?")
_MINUS = re.compile(r"(?:^|(?<=[\s,]))[-−–](?=\w)")


class Unknown(NamedTuple):
    """A word that is no label, and the labels that it may mean."""

    word: str
    near: tuple[str, ...]


@dataclass
class Words:
    """Hold the labels of a text: those to rank by with their weights (1 without a number), and those to exclude."""

    weights: dict[str, float] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.weights or self.without)


class _Piece(NamedTuple):
    """A label, or a word that is none, with its weight if one is written."""

    name: Tokens
    labels: Sequence[str]
    weight: float | None = None


def tokens(text: str) -> Tokens:
    """Split a text into words, without case and accents."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return tuple(_TOKEN.findall(unicodedata.normalize("NFC", _ACCENTS.sub("", plain))))


# --- names of labels


@lru_cache(1)
def _rows() -> list[tuple[Tokens, ...]]:
    """Return the words of each row of `SYNONYMS`, its class first."""
    rows = []
    for row in SYNONYMS.split(";"):
        name, _, words = row.partition(":")
        rows.append(tuple(map(tokens, (name, *words.split(",")))))
    return rows


def synonyms_of(label: str) -> list[str]:
    """Return the other words that stand for a label."""
    name = tokens(label)
    return [" ".join(word) for row in _rows() if name in row for word in row if word != name]


@lru_cache(8)
def _names(labels: tuple[str, ...]) -> dict[Tokens, tuple[str, ...]]:
    """Return the labels that each name may stand for: the labels themselves, then synonyms, then regular plurals."""
    names: dict[Tokens, tuple[str, ...]] = {}
    for label in labels:
        names.setdefault(tokens(label), (label,))
    names.pop((), None)
    by_name = {name: label for name, (label,) in names.items()}
    for row in _rows():
        meanings = tuple(by_name[word] for word in row if word in by_name)
        for form in (form for word in row for form in (word, *_plurals(word))) if meanings else ():
            if form not in _NOT_LABELS:
                names.setdefault(form, meanings)
    for name, label in by_name.items():
        for form in (*_plurals(name), *_singulars(name)):
            names.setdefault(form, (label,))
    return names


def _plurals(name: Tokens) -> Iterator[Tokens]:
    """Yield the regular plurals of a name, of which the last word changes."""
    *before, last = name
    yield (*before, last + "s")
    if last.endswith(("s", "x", "z", "ch", "sh", "o")):
        yield (*before, last + "es")
    if last.endswith("y") and last[-2:-1] not in "aeiou":
        yield (*before, last[:-1] + "ies")


def _singulars(name: Tokens) -> Iterator[Tokens]:
    """Yield the singulars that a name in the plural may have."""
    *before, last = name
    for ending, singular in (("ies", "y"), ("es", ""), ("s", "")):
        if last.endswith(ending) and len(last) > len(ending) + 1:
            yield (*before, last.removesuffix(ending) + singular)


def match(name: str, labels: Sequence[str]) -> str | None:
    """Return the label that a name stands for; None if there is none, or if it may be several."""
    if name in labels:
        return name
    meanings = _names(tuple(labels)).get(tokens(name), ())
    return meanings[0] if len(meanings) == 1 else None


def unknown_label(name: str, near: Sequence[str], labels: Sequence[str]) -> ConfigError:
    """Return the error for a word that is no label, with the labels that it may mean, or all if they are few."""
    if near:
        return ConfigError(f"unknown label '{name}'. Did you mean {' or '.join(map(repr, near))}?")
    if len(labels) <= _MAX_LISTED:
        return ConfigError(f"unknown label '{name}'. Allowed: {', '.join(labels)}.")
    return ConfigError(f"unknown label '{name}': none of {len(labels):,} labels has this name.")


def _suggestions(word: str, names: dict[Tokens, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the labels that a misspelled word may mean, the nearest first."""
    by_text = {" ".join(name): meanings[0] for name, meanings in names.items()}
    near = nearest_names(word, by_text, 3 * _MAX_SUGGESTIONS, _SIMILAR)
    return tuple(dict.fromkeys(by_text[name] for name in near))[:_MAX_SUGGESTIONS]


# --- texts


def read_text(text: str, labels: Sequence[str]) -> Words:
    """Read a text with the names of labels: words, or names and weights between commas, which quotes may contain."""
    if len(text) > MAX_LETTERS:
        raise ConfigError(f"a query has at most {MAX_LETTERS:,} letters, got {len(text):,}.")
    names, words = _names(tuple(labels)), Words()
    for part in _parts(text, labels, names):
        _read_part(part, names, words)
    for label in words.without:
        if label in words.weights:
            raise ConfigError(f"the label '{label}' is both wanted and excluded: write it once.")
    return words


def check_known(words: Words, labels: Sequence[str]) -> Words:
    """Return the words, or raise ConfigError for the first unknown one."""
    for word, near in words.unknown:
        raise unknown_label(word, near, labels)
    return words


def _parts(
    text: str, labels: Sequence[str], names: dict[Tokens, tuple[str, ...]]
) -> Iterator[Sequence[_Piece]]:
    """Yield the pieces of each part of a text between commas."""
    start = 0
    while start < len(text):
        matched = _QUOTED.match(text, start) or _UNQUOTED.match(text, start)
        assert matched is not None  # an unquoted part may be empty
        start = matched.end()
        part = matched[1].strip()
        if matched.re is _QUOTED:
            yield [_named(part.replace('""', '"'), labels, names, matched[2])]
            continue
        name, colon, number = (piece.strip() for piece in part.rpartition(":"))
        if match(part, labels) is not None:
            yield [_named(part, labels, names, None)]
        elif colon and match(name, labels) is not None:
            yield [_named(name, labels, names, number)]
        else:
            yield list(_split(_MINUS.sub(" without ", part), names))


def _named(
    name: str, labels: Sequence[str], names: dict[Tokens, tuple[str, ...]], number: str | None
) -> _Piece:
    """Return the piece of one name that is quoted or stands between commas, with the number behind its colon."""
    try:
        weight = None if number is None else float(number)
    except ValueError:
        raise ConfigError(
            f"the weight of '{name}' must be a positive number such as 0.7, got '{number}'."
        ) from None
    meanings = (name,) if name in labels else names.get(tokens(name), ())
    return _Piece(tokens(name) or (name,), meanings, weight)


def _split(part: str, names: dict[Tokens, tuple[str, ...]]) -> Iterator[_Piece]:
    """Split words into pieces: the longest names of labels, and single other words."""
    singles: list[tuple[str, float | None]] = []
    for word, number in _WEIGHTED.findall(part):
        *before, last = tokens(word) or (word,)
        singles += [(each, None) for each in before]
        singles.append((last, float(number) if number else None))
    longest, at = max(map(len, names), default=0), 0
    while at < len(singles):
        for size in range(min(longest, len(singles) - at), 0, -1):
            some = singles[at : at + size]
            name = tuple(word for word, _ in some)
            if name in names and name[0] not in _WITHOUT and all(weight is None for _, weight in some[:-1]):
                yield _Piece(name, names[name], some[-1][1])
                break
        else:
            size = 1
            yield _Piece((singles[at][0],), (), singles[at][1])
        at += size


def _read_part(pieces: Sequence[_Piece], names: dict[Tokens, tuple[str, ...]], words: Words) -> None:
    """Add the labels of a part; "without" counts for the next label and for those joined to it by "and"."""
    excluded = closed = False  # closed: a label followed the "without", so that only "and" continues it
    for piece in pieces:
        word = piece.name[0]
        if not piece.labels and word in _WITHOUT:
            excluded, closed = True, False
        elif not piece.labels and word in _WITH:
            excluded = False
        elif not piece.labels and word in _AND:
            closed = False
        elif piece.labels or (word not in _SKIPPED and any(map(str.isalnum, word))):
            excluded = excluded and not closed
            closed = excluded
            _add_word(piece, names, excluded, words)


def _add_word(piece: _Piece, names: dict[Tokens, tuple[str, ...]], excluded: bool, words: Words) -> None:
    """Add one label, or a word that is none."""
    if len(piece.labels) != 1:
        name = " ".join(piece.name)
        words.unknown.append(Unknown(name, tuple(piece.labels) or _suggestions(name, names)))
        return
    (label,) = piece.labels
    if excluded:
        words.without = list(dict.fromkeys([*words.without, label]))
    elif label in words.weights and piece.weight is not None:
        raise ConfigError(f"the label '{label}' is named twice: name it once, with its weight.")
    else:
        words.weights[label] = 1.0 if piece.weight is None else piece.weight
