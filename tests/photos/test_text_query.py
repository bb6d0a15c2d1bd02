"""Text queries: labels, weights, exclusions and unknown words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centerhash.core.errors import ConfigError
from centerhash.model.loading import load
from centerhash.photos.text_query import MAX_LETTERS, check_known, match, parse_query, synonyms_of, tokens

COCO = load("coco").classes
FEW = ("person", "bus", "bench", "knife", "skis", "dog", "bicycle", "TV", "puppy fat", "hot dog", "phone")
QUERIES = Path(__file__).with_name("text_queries.tsv")


@pytest.mark.parametrize(
    ("text", "labels", "without", "unknown"),
    [
        ("dog person", ["dog", "person"], [], []),
        ("a cat without people", ["cat"], ["person"], []),
        ("dogs and cats", ["dog", "cat"], [], []),
        ("a dog on a couch", ["dog", "couch"], [], []),
        ("dog and sofa without person", ["dog", "couch"], ["person"], []),
        ("hot dog", ["hot dog"], [], []),
        ("hot, dog", ["dog"], [], ["hot"]),
        ("dog without person and car with couch", ["dog", "couch"], ["person", "car"], []),
        ("dog without a person car", ["dog", "car"], ["person"], []),
        ("no person", [], ["person"], []),
        ("dog no sofa", ["dog"], ["couch"], []),
        ("dog -person", ["dog"], ["person"], []),
        ("teddy-bear", ["teddy bear"], [], []),
        ("the dog's bowl", ["dog", "bowl"], [], []),
        ("black cat", ["cat"], [], ["black"]),
        ("snow dog", ["dog"], [], ["snow"]),
        ("the of", [], [], []),
        ("", [], [], []),
    ],
)
def test_parse_query(text: str, labels: list[str], without: list[str], unknown: list[str]) -> None:
    query = parse_query(text, COCO)
    assert (list(query.weights), query.without) == (labels, without)
    assert list(query.unknown) == unknown


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("dog:0.7, bicycle", {"dog": 0.7, "bicycle": 1.0}),
        ("dog:0.7 traffic lights: 2 and cat", {"dog": 0.7, "traffic light": 2.0, "cat": 1.0}),
        ('"a, b":.5, dog', {"a, b": 0.5, "dog": 1.0}),
        ("9:30", {"9:30": 1.0}),
        ("my dog Bella and Aunt Mary", {"dog": 1.0, "bella": 1.0, "aunt mary": 1.0}),
    ],
)
def test_parse_query_weights(text: str, weights: dict[str, float]) -> None:
    assert parse_query(text, [*COCO, "a, b", "9:30", "bella", "aunt mary"]).weights == weights


@pytest.mark.parametrize(
    ("name", "labels", "label"),
    [
        *((name, FEW, "dog") for name in ("dog", "Dogs", "puppies", "DOG")),
        *((name, FEW, "hot dog") for name in ("hot-dogs", "hot_dog")),
        *((name, FEW, "phone") for name in ("phones", "mobile")),
        *((name, FEW, None) for name in ("unicorn", "", "glasses", "puppy fats!")),
        ("BUSES", FEW, "bus"),
        ("benches", FEW, "bench"),
        ("knives", FEW, "knife"),
        ("ski", FEW, "skis"),
        ("bike", FEW, "bicycle"),
        ("People", FEW, "person"),
        ("television", FEW, "TV"),
        ("plane", ("aeroplane", "sofa"), "aeroplane"),
        ("couch", ("aeroplane", "sofa"), "sofa"),
        ("puppy", ("dog", "puppy"), "puppy"),
        ("Dog", ("dog", "Dog"), "Dog"),
        ("settee", ("sofa", "couch"), None),
        ("glasses", ("wine glass",), None),
        ("犬", ("犬",), "犬"),
        ("cafe", ("Café",), "Café"),
    ],
)
def test_match(name: str, labels: tuple[str, ...], label: str | None) -> None:
    assert match(name, labels) == label


@pytest.mark.parametrize(
    ("text", "near"),
    [("bicycel", ("bicycle",)), ("umbrela", ("umbrella",)), ("pupy", ("dog",)), ("quantum", ())],
)
def test_check_known(text: str, near: tuple[str, ...]) -> None:
    query = parse_query(text, COCO)
    assert (query.weights, query.without, query.unknown) == ({}, [], {text: near})
    with pytest.raises(ConfigError, match=near[0] if near else text):
        check_known(query, COCO)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dog without dog", "'dog'"),
        ("dog, dog:2", "'dog'"),
        ("dog:x", "'dog'"),
        ("x" * (MAX_LETTERS + 1), "1,001"),
    ],
)
def test_parse_query_errors(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_query(text, COCO)


def test_synonyms_of() -> None:
    assert {"bike", "cyclist"} <= set(synonyms_of("bicycle"))
    assert "person" in synonyms_of("people")
    assert synonyms_of("no such class") == []


@given(st.text(max_size=60))
def test_parse_any_text(text: str) -> None:
    assert tokens(" ".join(tokens(text))) == tokens(text)
    try:
        query = parse_query(text, COCO)
    except ConfigError:
        return
    assert {*query.weights, *query.without} <= set(COCO)


def test_parse_real_queries() -> None:
    counts = Counter[tuple[bool, str]]()
    for line in QUERIES.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            text, meaning = line.split("\t")
            expected = sorted(label.strip() for label in meaning.split(",") if label.strip())
            query = parse_query(text, COCO)
            labels = sorted([*query.weights, *(f"-{label}" for label in query.without)])
            outcome = "right" if labels == expected else "wrong" if labels else "refused"
            counts[bool(expected), outcome] += 1
    known, unknown = (sum(n for (flag, _), n in counts.items() if flag is kind) for kind in (True, False))
    assert (known, unknown) == (100, 58)
    assert counts[True, "right"] >= 0.95 * known
    assert counts[True, "wrong"] <= 0.02 * known
    assert counts[False, "wrong"] <= 0.02 * unknown
