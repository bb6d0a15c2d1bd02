"""Words that other people use for the classes of the built-in model: how many are read right, wrong, or not at all.

    python -m benchmarks.words WORDS.tsv [--misses] [--out benchmarks/results/words.json]

A line of WORDS.tsv has five columns: the source of the word, "learned" or "held out", the language, the class, the word.
Lists of other people are not part of this repository; the result names their sources. Only words of learned sources may
be looked at to extend the table of words: `--misses` prints those alone. Held-out words are only counted. A word that
several sources of a half share in a language counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reporting import arguments_of, store
from centerhash.core.errors import CenterhashError
from centerhash.model.loading import load
from centerhash.search.typed import read_typed

HALVES = ("learned", "held out")
RIGHT, WRONG, REFUSED = "right", "wrong", "refused"


class Word(NamedTuple):
    """A word of a list: where it is from, whether it may be learned from, and the class that it stands for."""

    source: str
    half: str
    language: str
    label: str
    text: str


def read_words(path: Path) -> list[Word]:
    """Read the lines of a file of words."""
    words = [Word(*line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines() if line]
    for word in words:
        if word.half not in HALVES:
            raise SystemExit(f"'{path}': the second column must be one of {HALVES}, got '{word.half}'.")
    return words


def outcome(word: Word, classes: Sequence[str]) -> str:
    """Return whether a word is read as its class, as another one, or not."""
    try:
        typed = read_typed(word.text, classes)
    except CenterhashError:
        return REFUSED
    if list(typed.weights) == [word.label] and not (typed.without or typed.unknown):
        return RIGHT
    return WRONG if set(typed.weights) - {word.label} else REFUSED


def counted(words: Iterable[Word], classes: Sequence[str]) -> dict[str, Any]:
    """Count the outcomes of different words."""
    different = {(word.language, word.label, word.text.casefold()): word for word in words}
    counts = Counter(outcome(word, classes) for word in different.values())
    total = counts.total()
    return {
        "words": total,
        **{name: counts[name] for name in (RIGHT, WRONG, REFUSED)},
        **{f"{name} share": round(counts[name] / total, 4) for name in (RIGHT, WRONG, REFUSED)},
    }


def main() -> None:
    """Count all words, print the shares and store them."""
    parser = arguments_of(__doc__)
    parser.add_argument("words", type=Path, help="lists of words")
    parser.add_argument("--misses", action="store_true", help="print the misses among learned words")
    options = parser.parse_args()
    words, classes = read_words(options.words), load("coco").classes
    figures: dict[str, Any] = {}
    for half in HALVES:
        own = [word for word in words if word.half == half]
        languages = sorted({word.language for word in own})
        figures[half] = {
            "all": counted(own, classes),
            **{
                language: counted([w for w in own if w.language == language], classes)
                for language in languages
            },
            "sources": {
                source: counted([word for word in own if word.source == source], classes)
                for source in dict.fromkeys(word.source for word in own)
            },
        }
        for name in ("all", *languages):
            row = figures[half][name]
            shares = ", ".join(f"{each} {row[f'{each} share']:.1%}" for each in (RIGHT, WRONG, REFUSED))
            print(f"{half:8} {name:3} {row['words']:5} words: {shares}")
    if options.misses:
        for word in words:
            result = outcome(word, classes)
            if word.half == "learned" and result != RIGHT:
                print(f"{result:8} {word.language} {word.label}: {word.text}")
    store(options.out, figures)


if __name__ == "__main__":
    main()
