from __future__ import annotations

import pytest

from centerhash.core.errors import ConfigError
from centerhash.search.names import label_named, match, synonyms

COCO = ("person", "bus", "bench", "knife", "skis", "dog", "bicycle", "TV", "puppy fat", "hot dog", "phone")
WRITTEN = {
    "dog": ("dog", "Dogs", "puppies"),
    "bus": ("BUSES",),
    "bench": ("benches",),
    "knife": ("knives",),
    "skis": ("ski",),
    "hot dog": ("hot-dogs", "hot_dog"),
    "phone": ("Phone", "phones"),
    "bicycle": ("bike",),
    "person": ("People",),
    "TV": ("tv",),
    None: ("unicorn", ""),
}


def test_names_as_people_write_them() -> None:
    for label, names in WRITTEN.items():
        assert [match(name, COCO) for name in names] == [label] * len(names)


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
        ("quantum", COCO, r"11 labels .*'puppy fat', 'TV', 'bus'\."),  # the nearest
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
