from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.core.errors import ConfigError
from centerhash.search.names import (
    folded,
    label_named,
    match,
    tokens,
    typo,
    vocabulary,
    word_table,
    words_for,
)

COCO = (
    "person",
    "bus",
    "bench",
    "knife",
    "skis",
    "dog",
    "bicycle",
    "TV",
    "puppy fat",
    "hot dog",
    "phone",
    "vase",
    "cup",
)
WRITTEN = {
    "dog": ("dog", "Dogs", "puppies", "Hund", "perros", "犬", "psem"),
    "bus": ("BUSES", "ônibus", "onibus"),
    "bench": ("benches", "Parkbänke", "Parkbaenke"),
    "knife": ("knives", "couteaux"),
    "skis": ("ski",),
    "hot dog": ("hot-dogs", "hot_dog"),
    "phone": ("Phone", "phones"),
    "bicycle": ("bike", "Vélo", "rowery"),
    "person": ("People", "niños", "crianças"),
    "TV": ("tv",),
    None: ("unicorn", "", "vaso", "glasses"),  # a vase in Italian, a cup in Spanish
}


def test_names_as_people_write_them() -> None:
    for label, names in WRITTEN.items():
        assert [match(name, COCO) for name in names] == [label] * len(names)


def test_a_class_of_that_name_goes_before_a_word_for_another() -> None:
    assert match("puppy", ("dog", "puppy")) == "puppy"
    assert match("Dog", ("dog", "Dog")) == "Dog"
    assert match("puppy", ("cat",)) is None


def test_words_lead_to_the_label_that_another_model_uses_for_the_same_thing() -> None:
    assert match("plane", ("aeroplane", "sofa")) == "aeroplane"
    assert match("canapé", ("aeroplane", "sofa")) == "sofa"
    assert "Hund" in words_for("dog")
    assert words_for("no such class") == []


def test_the_table_has_ten_languages_for_every_class() -> None:
    classes = [row for row in word_table() if not row.startswith("(")]
    assert len(classes) == 80
    for row in classes:
        assert list(word_table()[row]) == ["en", "de", "fr", "es", "it", "pt", "nl", "pl", "ja", "zh"]
        missing = [
            language for language, words in word_table()[row].items() if not words and language != "en"
        ]
        assert (row, missing) == (row, [])  # in English, the class itself is a word


@pytest.mark.parametrize(
    ("name", "labels", "ending"),
    [
        ("bicycel", COCO, r"Did you mean 'bicycle'\?"),
        ("vaso", COCO, r"Did you mean 'cup' or 'vase'\?|Did you mean 'vase' or 'cup'\?"),
        ("quantum", COCO, "Allowed: person, bus, bench, .*, cup."),
        ("dogg", [f"dog{number}" for number in range(6_000)], r"6,000 labels.*"),
    ],
)
def test_errors_name_the_labels_that_may_be_meant(name: str, labels: list[str], ending: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown label '{name}'.*({ending})$"):
        label_named(name, labels)


@pytest.mark.parametrize(
    ("written", "word", "mistakes"),
    [
        ("bicycel", "bicycle", 1),  # two letters in the wrong order
        ("biycle", "bicycle", 1),
        ("bicyccle", "bicycle", 1),
        ("bucycle", "bicycle", 1),  # the key next to it
        ("refridgeratr", "refrigerator", 2),
        ("dgo", "dog", 1),
        ("bench", "bench", None),
        ("beach", "bench", None),
        ("house", "horse", None),
        ("card", "car", None),
        ("sea", "seat", None),
        ("snow", "snowboard", None),
        ("xicycle", "bicycle", None),
    ],
)
def test_typos(written: str, word: str, mistakes: int | None) -> None:
    assert typo(written, word) == mistakes


@pytest.mark.parametrize(
    "word", ["beach", "sea", "snow", "house", "tree", "boots", "beard", "strand", "plage"]
)
def test_real_words_are_no_typos(word: str) -> None:
    labels = [row for row in word_table() if not row.startswith("(")]
    assert vocabulary(labels).suggestions(word) == []


@given(st.text(max_size=20))
def test_folding_twice_changes_nothing(text: str) -> None:
    once = folded(text)
    assert folded(once) == once
    assert tokens(" ".join(tokens(text))) == tokens(text)
