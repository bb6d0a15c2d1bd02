"""Text queries: labels with weights, and excluded labels.

    parse_query("a cat without people", labels)     # cat, without person
    parse_query("dog:0.7, bicycle", labels)         # both, with weights 0.7 and 1
    match("Bikes", labels)                          # the label "bicycle"

A label is recognized in any case, in singular and plural, and by the synonyms of `SYNONYMS`. A row of that table counts
for a label that is its class or one of its words, so "plane" finds "airplane" as well as another model's "aeroplane".
Nothing is guessed: unknown words are reported with the labels that they may be misspellings of.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from centerhash.core.errors import ConfigError, nearest_names

Tokens: TypeAlias = tuple[str, ...]
# The labels that a name may stand for, by name.
Names: TypeAlias = Mapping[Tokens, tuple[str, ...]]

MAX_LETTERS = 1_000
_MAX_SUGGESTIONS, _MAX_LISTED = 3, 100
# This is a ratio of difflib, whose value for "bicycel" and "bicycle" is 0.86.
_MIN_SIMILARITY = 0.78

SYNONYMS = """
person: people, human, man, men, woman, women, boy, girl, child, children, kid, baby, babies, lady, guy, selfie;
bicycle: bike, cyclist; car: auto, automobile, taxi, cab, suv, jeep; motorcycle: motorbike, moped, scooter;
airplane: plane, aeroplane, aircraft, jet; bus: coach; train: locomotive, tram; truck: lorry, pickup, van;
boat: ship, canoe, kayak, sailboat, sailing boat, yacht, ferry; traffic light: stoplight; fire hydrant: hydrant;
bird: pigeon, seagull, duck, parrot, chicken, swan, goose, geese, owl, eagle, penguin; cat: kitten, kitty;
dog: puppy, pup, hound; horse: pony, foal; sheep: lamb; cow: cattle, bull, calf, calves, ox, oxen;
bear: polar bear, brown bear; backpack: rucksack; umbrella: parasol; handbag: purse, bag; tie: necktie, bow tie;
suitcase: luggage, baggage; skis: skiing, skier; snowboard: snowboarding, snowboarder;
sports ball: ball, football, basketball, tennis ball, baseball, volleyball; skateboard: skateboarding, skateboarder;
surfboard: surfing, surfer; tennis racket: racket, racquet, tennis; bottle: wine bottle; cup: mug, teacup;
wine glass: glass, wineglass, glass of wine, glasses of wine; knife: knives; sandwich: burger, hamburger;
orange: mandarin; hot dog: sausage; donut: doughnut; cake: birthday cake, cupcake; chair: armchair, stool, seat;
couch: sofa, settee; potted plant: plant, houseplant; dining table: table, desk; toilet: wc; tv: television, monitor;
laptop: notebook, computer; mouse: mice; remote: remote control; microwave: microwave oven; oven: stove, cooker;
cell phone: phone, mobile phone, mobile, smartphone, telephone, cellphone; sink: basin; refrigerator: fridge, freezer;
book: novel; clock: watch, alarm clock; teddy bear: teddy, stuffed animal; hair drier: hair dryer, hairdryer
"""
_ROLES = {
    word: role
    for role, words in (
        ("without", "without no not minus except excluding never none"),
        ("with", "with but having including show has ,"),
        ("and", "and or nor plus also"),
        (
            "skipped",
            """a an the of on in at by to from for near next beside under over behind above below between into onto
            inside outside front is are there some any my our your his her their this that these those all one two three
            four five many several lots few find me please where which who photo photos picture pictures image images
            riding playing sitting standing lying holding eating walking running wearing looking sleeping s""",
        ),
    )
    for word in words.split()
}
# The singular of these plurals means something else.
_NOT_LABELS = frozenset({("glasses",)})

_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_TOKEN = re.compile(rf"{_NUMBER.pattern}|[^\W_]+|[^\w\s'’‘`\"-]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_MINUS = re.compile(r"(?:^|(?<=[\s,:]))[-−–](?=\w)")


@dataclass
class ParsedQuery:
    """Hold the labels of a text query: those to rank by with their weights (1 without a number), and excluded ones.

    `unknown` are the words that are no labels, each with the labels that it may mean.
    """

    weights: dict[str, float] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)


def tokens(text: str) -> Tokens:
    """Split a text into words, numbers and marks, without case and accents."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return tuple(_TOKEN.findall(unicodedata.normalize("NFC", _ACCENTS.sub("", plain))))


# --- names of labels


# The words of each row, its class first.
_ROWS = [tuple(map(tokens, re.split("[:,]", row))) for row in SYNONYMS.split(";")]


def synonyms_of(label: str) -> list[str]:
    """Return the synonyms of a label."""
    name = tokens(label)
    return [" ".join(synonym) for row in _ROWS if name in row for synonym in row if synonym != name]


@lru_cache(8)
def _names(labels: tuple[str, ...]) -> Names:
    """Return the labels that each name may stand for: the labels themselves, then synonyms and regular plurals."""
    by_name = {tokens(label): label for label in reversed(labels)}
    by_name.pop((), None)
    names: dict[Tokens, tuple[str, ...]] = {name: (label,) for name, label in by_name.items()}
    rows = [(row, tuple(by_name[word] for word in row if word in by_name)) for row in _ROWS]
    rows += [((name,), (label,)) for name, label in by_name.items()]
    for row, meanings in rows:
        for form in (form for word in row for form in (word, *_forms(word))):
            if meanings and form not in _NOT_LABELS:
                names.setdefault(form, meanings)
    return names


def _forms(name: Tokens) -> Iterator[Tokens]:
    """Yield the regular plurals of a name, whose last word changes, and the singulars that it may be a plural of."""
    *before, last = name
    yield (*before, last + "s")
    if last.endswith(("s", "x", "z", "ch", "sh", "o")):
        yield (*before, last + "es")
    if last.endswith("y") and last[-2:-1] not in "aeiou":
        yield (*before, last[:-1] + "ies")
    for ending, singular in (("ies", "y"), ("es", ""), ("s", "")):
        if last.endswith(ending) and len(last) > len(ending) + 1:
            yield (*before, last.removesuffix(ending) + singular)


def match(name: str, labels: Sequence[str]) -> str | None:
    """Return the label that a name stands for; None if there is none, or if it may be several."""
    if name in labels:
        return name
    meanings = _names(tuple(labels)).get(tokens(name), ())
    return meanings[0] if len(meanings) == 1 else None


def _suggestions(word: str, names: Names) -> tuple[str, ...]:
    """Return the labels that a misspelled word may mean, the nearest first."""
    by_text = {" ".join(name): meanings[0] for name, meanings in names.items()}
    near = nearest_names(word, by_text, 3 * _MAX_SUGGESTIONS, _MIN_SIMILARITY)
    return tuple(dict.fromkeys(by_text[name] for name in near))[:_MAX_SUGGESTIONS]


# --- queries


def parse_query(text: str, labels: Sequence[str]) -> ParsedQuery:
    """Parse a text with the names of labels: a phrase, or names and weights between commas."""
    if len(text) > MAX_LETTERS:
        raise ConfigError(f"a query has at most {MAX_LETTERS:,} letters, got {len(text):,}.")
    names, query, rest = _names(tuple(labels)), ParsedQuery(), tokens(_MINUS.sub(" without ", text))
    longest = max(map(len, names), default=1)
    # After "without" and a label, the exclusion is closed: a further label is excluded only after "and".
    excluded = closed = False
    while rest:
        # The longest name of a label counts, otherwise the first word.
        beginnings = (rest[:size] for size in range(min(longest, len(rest)), 0, -1))
        name = next((beginning for beginning in beginnings if beginning in names), rest[:1])
        meanings, rest = names.get(name, ()), rest[len(name) :]
        role = _ROLES.get(name[0], "" if name[0][0].isalnum() else "skipped")
        # A label named "none" is a label only at the end of a part; elsewhere the word excludes what follows.
        if meanings and (len(name) > 1 or role != "without" or rest[:1] in ((), (",",))):
            role = ""
        if role == "without":
            excluded, closed = True, False
        elif role == "with":
            excluded = False
        elif role == "and":
            closed = False
        elif not role:
            excluded = closed = excluded and not closed
            if len(meanings) != 1:
                word = " ".join(name)
                query.unknown.setdefault(word, meanings or _suggestions(word, names))
                continue
            (label,) = meanings
            weight, rest = _weight(label, rest)
            if excluded:
                query.without.extend([label] * (label not in query.without))
            elif label in query.weights and weight is not None:
                raise ConfigError(f"the label '{label}' is named twice: name it once, with its weight.")
            else:
                query.weights[label] = 1.0 if weight is None else weight
    for label in query.without:
        if label in query.weights:
            raise ConfigError(f"the label '{label}' is both wanted and excluded: write it once.")
    return query


def _weight(label: str, rest: Tokens) -> tuple[float | None, Tokens]:
    """Return the number after the colon that follows a label, and the tokens after it."""
    if rest[:1] != (":",):
        return None, rest
    if not _NUMBER.fullmatch("".join(rest[1:2])):
        raise ConfigError(f"the weight of '{label}' must be a positive number, such as {label}:0.7.")
    return float(rest[1]), rest[2:]


def check_known(query: ParsedQuery, labels: Sequence[str]) -> None:
    """Raise ConfigError for the first unknown word, with the labels that it may mean."""
    for word, near in query.unknown.items():
        allowed = f"{', '.join(labels[:_MAX_LISTED])}{' ...' if len(labels) > _MAX_LISTED else ''}"
        advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Allowed: {allowed}."
        raise ConfigError(f"unknown label '{word}'. {advice}")
