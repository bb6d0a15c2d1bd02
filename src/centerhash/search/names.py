"""Names of labels as people write them: in any case and number, by everyday words, in ten languages.

words.tsv holds one row per class of the built-in model and one column per language; plurals that follow a rule are not
listed. Rows in parentheses hold the words of a query that are no labels: and, with, without, articles. A row counts for a
label of any model if the label is its class or one of its words, so that "plane" finds the label "aeroplane" as well.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from os.path import commonpath
from pathlib import Path
from typing import NamedTuple, TypeAlias

from centerhash.core.errors import ConfigError

Tokens: TypeAlias = tuple[str, ...]

LABEL, AND, WITH, WITHOUT, WITHOUT_BEHIND, SKIPPED, OTHER = (
    "label",
    "(and)",
    "(with)",
    "(without)",
    "(without, behind the word)",
    "(skipped)",
    "(other words)",
)
ROLES = (WITHOUT, WITHOUT_BEHIND, LABEL, AND, WITH, SKIPPED)  # which one counts if a word has several
ANY = ""  # the language of the names of labels

# endings of words and those of their plural; in ENGLISH the last word of a name changes, elsewhere the first
ENGLISH = "en"
_PLURALS: Mapping[str, tuple[tuple[str, str], ...]] = {
    ENGLISH: (
        *(("", "s"), ("s", "ses"), ("x", "xes"), ("ch", "ches"), ("sh", "shes"), ("o", "oes")),
        *(("y", "ies"), ("f", "ves"), ("fe", "ves")),
    ),
    "de": (("", "s"), ("", "n"), ("", "e"), ("", "en")),
    "fr": (("", "s"), ("", "x"), ("al", "aux")),
    "es": (("", "s"), ("", "es"), ("z", "ces")),
    "it": (
        *(("o", "i"), ("a", "e"), ("e", "i"), ("io", "i"), ("co", "chi"), ("go", "ghi")),
        *(("ca", "che"), ("ga", "ghe"), ("cia", "ce"), ("gia", "ge")),
    ),
    "pt": (("", "s"), ("", "es"), ("ao", "oes"), ("ao", "aes"), ("ao", "aos"), ("m", "ns"), ("l", "is")),
}
_SPELLED_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "ae", "Ö": "oe", "Ü": "ue"})
_LETTERS = str.maketrans({"ł": "l", "ø": "o", "œ": "oe", "æ": "ae", "đ": "d"})
_ACCENTS = re.compile("[\u0300-\u036f]")
# scripts without blanks between words
_UNSPACED = "\u3005\u3041-\u309f\u30a0-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+|[^\w\s'’‘`-]")
_KATAKANA, _HIRAGANA = re.compile("[\u30a0-\u30ff]+"), re.compile("[\u3041-\u309f]")
_LEAST_HEAD, _LEAST_KATAKANA = 2, 3  # characters of the last part of a compound
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_SUGGESTED = 3  # names that an error text lists
_LISTED = 100  # labels that an error text lists
_SHORT, _LONG = 5, 9  # letters from which one mistake, or two, may be a typo
_FOREIGN = 7  # letters of a word of another language than English that a typo may be meant as
_MOST_COMPARED = 50_000  # words: a hint is not worth seconds


class Meaning(NamedTuple):
    """What a word may be: its role, the label for the role LABEL, and a language."""

    role: str
    label: str
    language: str


def folded(text: str) -> str:
    """Return a text without case and without accents on Latin letters."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold().translate(_LETTERS))
    return unicodedata.normalize("NFC", _ACCENTS.sub("", plain))


def tokens(text: str) -> Tokens:
    """Split a text into folded words; text in a script without blanks stays in one piece up to the next sign."""
    return tuple(_TOKEN.findall(folded(text)))


def is_unspaced(token: str) -> bool:
    """Return whether a token is in a script without blanks between words."""
    return re.match(rf"[{_UNSPACED}]", token) is not None


@cache
def word_table() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Return the words of each row of words.tsv by language."""
    text = (files("centerhash.search") / "words.tsv").read_text(encoding="utf-8")
    head, *rows = (line.split("\t") for line in text.splitlines())
    return {
        row[0]: {
            language: tuple(word.strip() for word in cell.split(",") if word.strip())
            for language, cell in zip(head[1:], row[1:], strict=True)
        }
        for row in rows
    }


def words_for(label: str) -> list[str]:
    """Return all words that stand for a label, as they are listed in the table."""
    row = _row_of(label)
    if row is None:
        return []
    every = dict.fromkeys(word for words in word_table()[row].values() for word in (row, *words))
    return [word for word in every if word != label]


@cache
def _rows() -> Mapping[Tokens, str]:
    """Return the class that each English word, or the name of a class, stands for."""
    found: dict[Tokens, str] = {}
    for label, words in word_table().items():
        if not label.startswith("("):
            found |= {tokens(word): label for word in words[ENGLISH]}
    return found | {tokens(label): label for label in word_table() if not label.startswith("(")}


def _row_of(label: str) -> str | None:
    return _rows().get(tokens(label))


@dataclass(frozen=True)
class Vocabulary:
    """What every word of a query may mean, given the labels that can be found."""

    meanings: Mapping[Tokens, tuple[Meaning, ...]]
    longest: int  # words of a name
    spelled: Mapping[str, str]  # the label of each word that a typo may be meant as
    others: frozenset[Tokens]  # words that are near a label's, and mean something else

    def labels_of(self, name: Tokens) -> list[str]:
        """Return the labels that a name may mean."""
        return list(dict.fromkeys(each.label for each in self.meanings.get(name, ()) if each.role == LABEL))

    def head(self, text: str) -> tuple[Meaning, ...]:
        """Return what the last part of a compound without blanks means, if it is a label: 小型飛行機 is a 飛行機.

        Short parts do not count, nor those in hiragana, in which most words end like others.
        """
        for start in range(1, len(text) - 1):
            last = text[start:]
            least = _LEAST_KATAKANA if _KATAKANA.fullmatch(last) else _LEAST_HEAD
            if (text,) in self.others or len(last) < least or _HIRAGANA.search(last):
                continue
            found = tuple(each for each in self.meanings.get((last,), ()) if each.role == LABEL)
            if found:
                return found
        return ()

    def suggestions(self, word: str) -> list[str]:
        """Return the labels that a misspelled word may mean, the nearest first; none for other known words."""
        if (word,) in self.others or len(self.spelled) > _MOST_COMPARED:
            return []
        near: dict[str, int] = {}
        for name, label in self.spelled.items():
            apart = typo(word, name)
            if apart is not None:
                near[label] = min(apart, near.get(label, apart))
        return sorted(near, key=lambda label: near[label])[:_SUGGESTED]


def vocabulary(labels: Sequence[str]) -> Vocabulary:
    """Return the vocabulary for labels: classes of a model, and any other names that items may carry."""
    return _vocabulary(tuple(labels))


@lru_cache(8)
def _vocabulary(labels: tuple[str, ...]) -> Vocabulary:
    found: dict[Tokens, dict[Meaning, None]] = defaultdict(dict)
    spelled: dict[str, str] = {}
    own: dict[Tokens, str] = {}  # the names themselves go before any other word
    for label in labels:
        own.setdefault(tokens(label), label)
    others = frozenset(tokens(word) for words in word_table()[OTHER].values() for word in words)
    meant_by = defaultdict[str | None, list[str]](list)
    for label in own.values():
        meant_by[_row_of(label)].append(label)
    for row, by_language in word_table().items():
        for language, words in by_language.items() if row != OTHER else ():
            if row.startswith("("):
                for word in words:
                    found[tokens(word)][Meaning(row, "", language)] = None
            for form in (
                _forms((row, *words) if language == ENGLISH else words, language) if row in meant_by else ()
            ):
                if form not in others:
                    for label in meant_by[row]:
                        found[form][Meaning(LABEL, label, language)] = None
            for word in words if row in meant_by else ():
                # short words of all languages are near too many others
                if language == ENGLISH or len(word) >= _FOREIGN:
                    spelled.setdefault(" ".join(tokens(word)), meant_by[row][0])
    for label in own.values():
        language = ENGLISH if _row_of(label) == label else ANY
        for form in (*_singulars(tokens(label)), *_forms([label], ENGLISH)):
            if form not in own and not any(meaning.role == LABEL for meaning in found.get(form, ())):
                found[form][Meaning(LABEL, label, language)] = None
    for name, label in own.items():
        # a class with a row keeps the languages in which its name is a word
        languages = [each.language for each in found.get(name, ()) if each.label == label]
        found[name] = dict.fromkeys(Meaning(LABEL, label, each) for each in dict.fromkeys([*languages, ANY]))
    found.pop((), None)
    meanings = {name: tuple(each) for name, each in found.items()}
    spelled |= {" ".join(name): label for name, label in own.items()}
    return Vocabulary(meanings, max(map(len, found), default=0), spelled, others)


def _forms(words: Iterable[str], language: str) -> Iterator[Tokens]:
    """Yield words as tokens, in the singular and in the plurals that follow a rule, with umlauts written either way."""
    for word in words:
        spellings = {word, word.translate(_SPELLED_OUT)} if language == "de" else {word}
        for name in map(tokens, spellings):
            yield name
            at = len(name) - 1 if language == ENGLISH else 0
            for singular, plural in _PLURALS.get(language, ()) if name else ():
                whole = singular == "y" and name[at][-2:-1] in "aeiou"  # boys, not boies
                if name[at].endswith(singular) and len(name[at]) > len(singular) + 1 and not whole:
                    yield (
                        *name[:at],
                        name[at].removesuffix(singular) + plural,
                        *name[at + 1 :],
                    )


def _singulars(name: Tokens) -> Iterator[Tokens]:
    """Yield what a name may be in the singular, for a class that is named in the plural."""
    for singular, plural in _PLURALS[ENGLISH] if name else ():
        if name[-1].endswith(plural) and len(name[-1]) > len(plural) + 1:
            yield (*name[:-1], name[-1].removesuffix(plural) + singular)


def match(name: str, labels: Sequence[str]) -> str | None:
    """Return the label that a name means: itself, in another case or number, or by a word for it; None if not one."""
    if name in labels:
        return name
    found = vocabulary(labels).labels_of(tokens(name))
    return found[0] if len(found) == 1 else None


def label_named(name: str, labels: Sequence[str]) -> str:
    """As `match`, or ConfigError with the labels that may be meant."""
    found = match(name, labels)
    if found is not None:
        return found
    words = vocabulary(labels)
    several = words.labels_of(tokens(name))
    raise unknown_label(name, several or words.suggestions(" ".join(tokens(name))), labels)


def unknown_label(name: str, near: Sequence[str], labels: Sequence[str]) -> ConfigError:
    """Build the error for a word that is no label, with the labels that may be meant, or all if they are few."""
    if near:
        *first, last = map(repr, near)
        either = f"{', '.join(first)} or {last}" if first else last
        return ConfigError(f"unknown label '{name}'. Did you mean {either}?")
    if len(labels) <= _LISTED:
        return ConfigError(f"unknown label '{name}'. Allowed: {', '.join(labels)}.")
    return ConfigError(f"unknown label '{name}': none of {len(labels):,} labels has this name.")


# --- typos


def typo(written: str, word: str) -> int | None:
    """Return how many mistakes turn a word into what is written, None if too many for its length.

    A mistake is a letter too many or too few, two letters in the wrong order, or a neighboring key. In a short word only
    the wrong order counts: real words differ by the rest ("card" is no "car").
    """
    most = 2 if len(written) >= _LONG else 1
    if not word or written == word or abs(len(written) - len(word)) > most or len(written) < 3:
        return None
    if len(written) < _SHORT or len(word) < _SHORT - 1:
        return 1 if _swapped(written, word) else None
    if written[0] != word[0] and not _swapped(written[:2], word[:2]):
        return None
    apart = _mistakes(written, word)
    return apart if apart <= most else None


def _swapped(one: str, other: str) -> bool:
    """Return whether two neighboring letters are in the other order, and the rest is equal."""
    differing = [at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]]
    if len(one) != len(other) or len(differing) != 2 or differing[1] != differing[0] + 1:
        return False
    first, second = differing
    return one[first] == other[second] and one[second] == other[first]


def _mistakes(one: str, other: str) -> int:
    """Return the number of mistakes between two words: see `typo`; 3 for a letter that is no neighbor."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, right in enumerate(other, 1):
            cost = 0 if letter == right else 1 if right in _neighbors(letter) else 3
            least = min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + cost)
            if i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], right) and letter != right:
                least = min(least, rows[-2][j - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]


@cache
def _neighbors(letter: str) -> frozenset[str]:
    """Return the letters on the keys next to this one."""
    for number, row in enumerate(_KEYS):
        at = row.find(letter)
        if at >= 0:
            return frozenset(
                "".join(other[max(0, at - 1) : at + 2] for other in _KEYS[max(0, number - 1) : number + 2])
            )
    return frozenset()


# --- words in names of files and folders: "paris" finds 2023/Paris/IMG_01.jpg and paris-night.jpg, not comparison.jpg


@lru_cache(64)
def _pattern(word: str) -> re.Pattern[str]:
    """Return what finds a word that begins a part of a name; parts end at signs, and between letters and digits."""
    plain = re.escape(folded(word))
    if is_unspaced(folded(word)):
        return re.compile(plain)
    before = r"(?<!\d)" if word[:1].isdigit() else r"(?<![^\W\d_])"
    return re.compile(before + plain)


def names_part(word: str, name: str) -> bool:
    """Return whether a word begins a part of a name, in any case and with or without accents."""
    return bool(word) and _pattern(word).search(folded(name)) is not None


def like_pattern(word: str) -> str:
    """Return a pattern for SQL's LIKE ... ESCAPE '!' that every name with this word fits, and others may."""
    return (
        "%"
        + "".join(letter if letter.isascii() and letter.isalnum() else "%" for letter in folded(word))
        + "%"
    )


def folders_named(word: str, folders: Iterable[str]) -> list[str]:
    """Return the folders with a word in their name or in that of a folder above; what all have above them is no name."""
    places = [folder for folder in folders if Path(folder).is_absolute()]  # uploads are in a relative one
    if not places:
        return []
    drives = {Path(place).drive for place in places}
    top = str(Path(commonpath(places)).parent) if len(drives) == 1 else ""
    return [place for place in places if names_part(word, place.removeprefix(top))]
