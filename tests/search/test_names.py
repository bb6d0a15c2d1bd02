from __future__ import annotations

import pytest

from centerhash.core.errors import ConfigError
from centerhash.search.names import label_named, match, synonyms

COCO = (
    "person",
    "bus",
    "bench",
    "knife",
    "puppy fat",
    "skis",
    "dog",
    "hot dog",
    "cell phone",
    "sheep",
    "bicycle",
    "TV",
)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("dog", "dog"),
        ("Dogs", "dog"),
        ("BUSES", "bus"),
        ("benches", "bench"),
        ("knives", "knife"),
        ("ski", "skis"),
        ("hot-dogs", "hot dog"),
        ("cell_phone", "cell phone"),
        ("puppies", "dog"),
        ("bike", "bicycle"),
        ("People", "person"),
        ("tv", "TV"),
        ("phones", "cell phone"),
        ("unicorn", None),
        ("", None),
    ],
)
def test_names_as_people_write_them(name: str, label: str | None) -> None:
    assert match(name, COCO) == label


def test_a_class_of_that_name_goes_before_a_synonym() -> None:
    assert match("puppy", ("dog", "puppy")) == "puppy"
    assert match("Dog", ("dog", "Dog")) == "Dog"
    assert match("puppy", ("cat",)) is None
    assert synonyms()["puppy"] == "dog"
    assert not set(synonyms()) & set(synonyms().values())


@pytest.mark.parametrize(
    ("name", "labels", "ending"),
    [
        ("bicycel", COCO, r"Did you mean 'bicycle'\?"),
        (
            "catt",
            ("dog", "cart", "cat", "catty", "horse", "cast"),
            r"Did you mean 'catty', 'cat' or 'cast'\?",
        ),
        ("quantum", COCO, r"12 labels .*'puppy fat', 'TV', 'bus'\."),  # the nearest
        (
            "dogg",
            [f"dog{number}" for number in range(6_000)],
            r"6,000 labels are known\.",
        ),  # too many to compare
    ],
)
def test_the_nearest_names_are_suggested(name: str, labels: list[str], ending: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown label '{name}'.*{ending}$"):
        label_named(name, labels)
