"""The search box: phrases, weights, negation, words in file names, and unknown words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.core.errors import ConfigError
from centerhash.search.names import folders_named, names_part, word_table
from centerhash.search.typed import MOST_TEXT, read_typed

COCO = tuple(row for row in word_table() if not row.startswith("("))
TYPED = Path(__file__).parents[1] / "data" / "typed.tsv"


def read(text: str) -> tuple[list[str], list[str], list[str]]:
    typed = read_typed(text, COCO)
    return list(typed.weights), typed.without, [row.word for row in typed.unknown]


@pytest.mark.parametrize(
    ("text", "labels", "without", "unknown"),
    [
        ("dog person", ["dog", "person"], [], []),
        ("dogs with people", ["dog", "person"], [], []),
        ("a dog on a couch", ["dog", "couch"], [], []),
        ("dog and couch without person", ["dog", "couch"], ["person"], []),
        ("hot dog", ["hot dog"], [], []),
        ("hot, dog", ["dog"], [], ["hot"]),
        ("dog without person and car with couch", ["dog", "couch"], ["person", "car"], []),
        ("dog without a person car", ["dog", "car"], ["person"], []),
        ("no person", [], ["person"], []),
        ("dog -person", ["dog"], ["person"], []),
        ("teddy-bear", ["teddy bear"], [], []),
        ("cachorro no sofá", ["dog", "couch"], [], []),  # "no" is "in the"
        ("dog no sofa", ["dog"], ["couch"], []),
        ("perro y vaso", ["dog", "cup"], [], []),
        ("cane e vaso", ["dog", "vase"], [], []),
        ("vaso", [], [], ["vaso"]),
        ("een foto van een hond", ["dog"], [], []),
        ("van", ["truck"], [], []),
        ("l'ours et le chat", ["bear", "cat"], [], []),
        ("犬と猫", ["dog", "cat"], [], []),
        ("人がいない犬", ["dog"], ["person"], []),
        ("沙发上的狗", ["couch", "dog"], [], []),
        ("没有人和车的狗", ["dog"], ["person", "car"], []),
        ("公園の犬", ["dog"], [], ["公園"]),
        ("熊猫", [], [], ["熊猫"]),  # bear + cat
        ("人形", [], [], ["人形"]),  # person + shape
        ("sea", [], [], ["sea"]),
        ("snow dog", ["dog"], [], ["snow"]),
        ("the of", [], [], []),
    ],
)
def test_phrases(text: str, labels: list[str], without: list[str], unknown: list[str]) -> None:
    found = read(text)
    assert (found[0], sorted(found[1]), found[2]) == (labels, sorted(without), unknown)


def test_weights_with_and_without_commas() -> None:
    assert read_typed("dog:0.7, person:0.3", COCO).weights == {"dog": 0.7, "person": 0.3}
    assert read_typed("dog:0.7 traffic lights: 2 and cat", COCO).weights == {
        "dog": 0.7,
        "traffic light": 2.0,
        "cat": 1.0,
    }


def test_names_of_the_index_are_understood_as_labels() -> None:
    typed = read_typed(
        "my dog Bella and Aunt Mary without no entry", [*COCO, "bella", "aunt mary", "no entry"]
    )
    assert list(typed.weights) == ["dog", "bella", "aunt mary"]
    assert typed.without == ["no entry"]


def test_words_in_file_names_are_neither_labels_nor_unknown() -> None:
    typed = read_typed("dog Paris 2023 Rome", COCO, lambda word: word in ("paris", "2023", "dog"))
    assert (list(typed.weights), typed.named) == (["dog"], ["paris", "2023"])
    assert [row.word for row in typed.unknown] == ["rome"]


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("bicycel", ("bicycle",)),
        ("a dgo", ("dog",)),
        ("umbrela", ("umbrella",)),
        ("beach", ()),
        ("house", ()),
    ],
)
def test_a_misspelled_word_is_asked_about(text: str, near: tuple[str, ...]) -> None:
    typed = read_typed(text, COCO)
    assert not typed
    assert typed.unknown[0].near == near


@pytest.mark.parametrize(
    ("text", "named"),
    [("dog without dog", "'dog'.*both"), ("dog, dog:2", "'dog'.*twice"), ("x" * (MOST_TEXT + 1), "1,001")],
)
def test_contradictions(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_typed(text, COCO)


@given(st.text(max_size=60))
def test_any_text_is_read_or_rejected_in_a_sentence(text: str) -> None:
    try:
        typed = read_typed(text, COCO)
    except ConfigError:
        return
    assert set(typed.weights) | set(typed.without) <= set(COCO)


def test_what_people_type_in_ten_languages() -> None:
    found = Counter[tuple[bool, str]]()
    for line in TYPED.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        _, text, meant = line.split("\t")
        expected = sorted(label.strip() for label in meant.split(",") if label.strip())
        labels, without, _ = read(text)
        got = sorted([*labels, *(f"-{label}" for label in without)])
        kind = "right" if got == expected else "wrong" if got else "refused"
        found[bool(expected), kind] += 1
    known, other = (
        sum(count for (is_known, _), count in found.items() if is_known is kind) for kind in (True, False)
    )
    assert known >= 400
    assert other >= 150
    assert found[True, "right"] >= 0.95 * known
    assert found[True, "wrong"] <= 0.02 * known
    assert found[False, "wrong"] <= 0.02 * other


# --- names of files and folders


@pytest.mark.parametrize(
    ("word", "name", "fits"),
    [
        ("paris", "2023/Paris/IMG_01.jpg", True),
        ("paris", "Paris-night.jpg", True),
        ("par", "Paris", True),
        ("paris", "comparison.jpg", False),
        ("2023", "IMG20230405.jpg", True),
        ("023", "IMG20230405.jpg", False),
        ("munchen", "München 2.jpg", True),
        ("旅行", "家族旅行.jpg", True),
        ("", "a.jpg", False),
    ],
)
def test_a_word_begins_a_part_of_a_name(word: str, name: str, fits: bool) -> None:
    assert names_part(word, name) is fits


def test_folders_above_all_photos_are_no_names() -> None:
    folders = ["/home/ann/photos/rome", "/home/ann/photos/home", "images"]
    assert folders_named("home", folders) == ["/home/ann/photos/home"]
    assert folders_named("ann", folders) == []
    assert folders_named("photos", folders) == folders[:2]
    assert folders_named("images", folders) == []
