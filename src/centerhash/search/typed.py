"""What a person types into the search box: labels with weights, labels that must not be there, words in file names.

    "a dog on a couch without person"    dog and couch; no person
    "dog:0.7, person:0.3"                labels with weights
    "hot dog", "traffic lights"          the longest name counts
    "犬と猫", "Hund ohne Menschen"         ten languages, see words.tsv
    "dog Paris 2023"                     dog, in photos whose folder or file is named so

Words that several languages share are read in the language of most of the query. Nothing is guessed: a word that is
neither a label nor part of a file name is reported, with the labels that it may be a misspelling of.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from centerhash.core.errors import ConfigError
from centerhash.search.names import (
    AND,
    ANY,
    LABEL,
    ROLES,
    SKIPPED,
    WITH,
    WITHOUT,
    WITHOUT_BEHIND,
    Meaning,
    Tokens,
    Vocabulary,
    folded,
    is_unspaced,
    match,
    tokens,
    unknown_label,
    vocabulary,
)

MOST_TEXT = 1_000  # letters of a query
_LEAST_NAME = 2  # letters of a word that is looked for in the names of files
_QUOTED = re.compile(r'\s*"((?:[^"]|"")*)"\s*(?::([^,]*))?(?:[,，、]|$)')
_UNQUOTED = re.compile(r"([^,，、]*)(?:[,，、]|$)")
_WEIGHTED = re.compile(r"([^\s:]+)(?:\s*:\s*(\d+\.?\d*|\.\d+)(?!\S))?")
_PARTICLES = frozenset("のとやをにで的和与跟")  # an unknown word in a script without blanks may end at one
_MINUS = re.compile(r"(?:^|(?<=[\s,]))[-−–](?=\w)")


class Unknown(NamedTuple):
    """A word that is no label, and the labels that it may mean."""

    word: str
    near: tuple[str, ...]


@dataclass
class Typed:
    """What a text asks for."""

    weights: dict[str, float] = field(default_factory=dict)  # of the labels, as written: 1 without a number
    without: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)  # words that folders or files are named with
    unknown: list[Unknown] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.weights or self.without or self.named)


class _Piece(NamedTuple):
    """Some words of a text with what they may mean (nothing for an unknown word), and their weight if one is given."""

    words: Tokens
    meanings: tuple[Meaning, ...]
    weight: float | None = None


def read_typed(
    text: str, labels: Sequence[str], is_name: Callable[[str], bool] = lambda word: False
) -> Typed:
    """Read a text, given the labels that can be found and whether a word is part of the name of a folder or file."""
    if len(text) > MOST_TEXT:
        raise ConfigError(f"a query has at most {MOST_TEXT:,} letters, got {len(text):,}.")
    words = vocabulary(labels)
    parts = [list(part) for part in _parts(text, labels, words)]
    best = _languages(piece for part in parts for piece in part)
    found = Typed()
    for part in parts:
        _read_part([_chosen(piece, best) for piece in part], found, is_name, words)
    for label in found.without:
        if label in found.weights:
            raise ConfigError(f"the label '{label}' is both wanted and not wanted: write it once.")
    return found


def check_known(typed: Typed, labels: Sequence[str]) -> Typed:
    """Return what was read, or raise ConfigError for its first unknown word."""
    for word, near in typed.unknown:
        raise unknown_label(word, near, labels)
    return typed


# --- from text to pieces


def _parts(text: str, labels: Sequence[str], words: Vocabulary) -> Iterator[Iterator[_Piece]]:
    """Yield the pieces of each part of a text between commas; in double quotes, a name may contain commas."""
    place = 0
    while place < len(text):
        found = _QUOTED.match(text, place) or _UNQUOTED.match(text, place)
        assert found is not None  # an unquoted part may be empty
        place = found.end()
        if found.re is _QUOTED:
            name, number = found[1].replace('""', '"'), found[2]
            weight = None if number is None else _weight(name, number.strip())
            yield iter([_named_piece(name, labels, words, weight)])
        elif found[1].strip():
            yield _pieces(found[1].strip(), labels, words)


def _pieces(part: str, labels: Sequence[str], words: Vocabulary) -> Iterator[_Piece]:
    """Yield the pieces of a part: one name as it stands, a name with a weight, or several words."""
    name, colon, number = (piece.strip() for piece in part.rpartition(":"))
    if match(part, labels) is not None:
        yield _named_piece(part, labels, words, None)
    elif colon and match(name, labels) is not None:
        yield _named_piece(name, labels, words, _weight(name, number))
    else:
        yield from _split(_MINUS.sub(" without ", part), words)


def _named_piece(name: str, labels: Sequence[str], words: Vocabulary, weight: float | None) -> _Piece:
    """Return the piece of a name that is quoted or stands between commas."""
    label = match(name, labels)
    if label is None:
        return _Piece((name,), words.meanings.get(tokens(name), ()), weight)
    return _Piece(tokens(name), words.meanings.get(tokens(name), (Meaning(LABEL, label, ANY),)), weight)


def _weight(name: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ConfigError(
            f"the weight of '{name}' must be a positive number such as 0.7, got '{number}'."
        ) from None


def _split(part: str, words: Vocabulary) -> Iterator[_Piece]:
    """Split words into pieces: the longest known names, and single unknown words."""
    singles: list[tuple[str, float | None]] = []
    for word, number in _WEIGHTED.findall(part):
        own = tokens(word) or (word,)
        singles += [(each, None) for each in own[:-1]]
        singles.append((own[-1], float(number) if number else None))
    at = 0
    while at < len(singles):
        for size in range(min(words.longest, len(singles) - at), 0, -1):
            some = singles[at : at + size]
            name = tuple(word for word, _ in some)
            if name in words.meanings and all(weight is None for _, weight in some[:-1]):
                yield _Piece(name, words.meanings[name], some[-1][1])
                at += size
                break
        else:
            word, weight = singles[at]
            at += 1
            if is_unspaced(word):
                pieces = _split_unspaced(word, words)
                yield from pieces[:-1]
                yield pieces[-1]._replace(weight=weight)
            elif any(letter.isalnum() for letter in word):
                yield _Piece((word,), (), weight)


def _split_unspaced(text: str, words: Vocabulary) -> list[_Piece]:
    """Split a text without blanks into known words, the fewest that cover it; otherwise it is one unknown word.

    Two labels in a row are rather a word of their own (bear + cat is a panda), and an unknown word ends at a particle.
    """
    # by the end of the text read, and the kind of the last piece: cost and pieces
    best: dict[tuple[int, str], tuple[int, list[_Piece]]] = {(0, "start"): (0, [])}
    for start in range(len(text)):
        for kind in ("start", "particle", LABEL, "other", "unknown"):
            if (start, kind) not in best:
                continue
            cost, pieces = best[start, kind]
            for end in range(start + 1, len(text) + 1):
                word = text[start:end]
                meanings = words.meanings.get((word,), ())
                if meanings:
                    roles = {meaning.role for meaning in meanings}
                    now = LABEL if LABEL in roles else "particle" if word in _PARTICLES else "other"
                    if {kind, now} == {LABEL} or (kind == "unknown" and now != "particle"):
                        continue
                    added = 1
                elif kind in ("start", "particle") and (end == len(text) or text[end] in _PARTICLES):
                    now, added = "unknown", 100 * len(word)
                else:
                    continue
                known = best.get((end, now))
                if known is None or cost + added < known[0]:
                    best[end, now] = (cost + added, [*pieces, _Piece((word,), meanings)])
    ends = [found for (end, _), found in best.items() if end == len(text)]
    cost, pieces = min(ends, key=lambda found: found[0])
    pieces = [
        piece if piece.meanings else piece._replace(meanings=words.head(piece.words[0])) for piece in pieces
    ]
    if all(not piece.meanings or piece.words[0] in _PARTICLES for piece in pieces):
        return [_Piece((text,), ())]
    return pieces


# --- from pieces to what is asked for


def _languages(pieces: Iterator[_Piece]) -> set[str]:
    """Return the languages in which most words of a query are known."""
    votes = Counter[str]()
    for piece in pieces:
        for language in {meaning.language for meaning in piece.meanings} - {ANY}:
            votes[language] += len(piece.words)
    return {language for language, count in votes.items() if count == max(votes.values())}


def _chosen(piece: _Piece, languages: set[str]) -> _Piece:
    """Return a piece with the meanings it has in these languages, all of the same role; all if it has none there."""
    own = tuple(each for each in piece.meanings if each.language in languages or each.language == ANY)
    meanings = own or piece.meanings
    role = next((role for role in ROLES if any(each.role == role for each in meanings)), None)
    return piece._replace(meanings=tuple(each for each in meanings if each.role == role))


def _read_part(
    pieces: Sequence[_Piece], found: Typed, is_name: Callable[[str], bool], words: Vocabulary
) -> None:
    """Add the labels and words of a part; "without" counts for the next label, and for those joined to it by "and"."""
    negated = closed = False  # closed: a label followed the "without", so that only "and" continues it
    last: str | None = None
    for at, piece in enumerate(pieces):
        role = piece.meanings[0].role if piece.meanings else None
        if role == WITHOUT:
            negated, closed = True, False
        elif role == WITHOUT_BEHIND and last is not None and last in found.weights:
            del found.weights[last]
            _add_without(found, last)
        elif role == WITH:
            negated = False
        elif role == AND and closed:
            closed = False
        elif role in (None, LABEL):
            if closed:
                negated = False
            closed = negated
            last = _read_word(piece, found, negated, is_name, words)
        elif role == SKIPPED and at + 1 == len(pieces):
            negated = False


def _read_word(
    piece: _Piece, found: Typed, negated: bool, is_name: Callable[[str], bool], words: Vocabulary
) -> str | None:
    """Add one label, or a word that is none; return the label."""
    labels = list(dict.fromkeys(each.label for each in piece.meanings))
    word = " ".join(piece.words)
    if len(labels) != 1:
        if not labels and not negated and len(word) >= _LEAST_NAME and is_name(word):
            found.named.append(word)
        else:
            near = labels or words.suggestions(folded(word))
            found.unknown.append(Unknown(word, tuple(near)))
        return None
    (label,) = labels
    if negated:
        _add_without(found, label)
    elif label in found.weights and piece.weight is not None:
        raise ConfigError(f"the label '{label}' is named twice: name it once, with its weight.")
    else:
        found.weights[label] = 1.0 if piece.weight is None else piece.weight
    return label


def _add_without(found: Typed, label: str) -> None:
    if label not in found.without:
        found.without.append(label)
