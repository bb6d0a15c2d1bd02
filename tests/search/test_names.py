from __future__ import annotations

import pytest

from centerhash.core.errors import ConfigError
from centerhash.search.names import label_named, match, synonyms

CLASSES = (
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
    "teddy bear",
)
COCO = (*CLASSES, "bicycle", "scissors", "TV", "wine glass")


def test_names_as_people_write_them() -> None:
    for name, label in (
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
    ):
        assert match(name, COCO) == label


def test_a_class_of_that_name_goes_before_a_synonym() -> None:
    assert match("puppy", ("dog", "puppy")) == "puppy"
    assert match("Dog", ("dog", "Dog")) == "Dog"
    assert match("puppy", ("cat",)) is None


def test_a_synonym_stands_for_one_class() -> None:
    assert synonyms()["puppy"] == "dog"
    assert not set(synonyms()) & set(synonyms().values())


def test_the_nearest_names_are_suggested_and_few_of_them() -> None:
    with pytest.raises(ConfigError, match=r"^unknown label 'bicycel'. Did you mean 'bicycle'\?$"):
        label_named("bicycel", COCO)
    with pytest.raises(ConfigError) as refused:
        label_named("quantum", COCO)
    assert str(refused.value) == (
        "unknown label 'quantum': 15 labels are known, the nearest are 'puppy fat', 'TV', 'bus'."
    )


def test_several_near_names_are_suggested_the_nearest_first() -> None:
    with pytest.raises(ConfigError, match=r"^unknown label 'catt'. Did you mean 'catty', 'cat' or 'cast'\?$"):
        label_named("catt", ("dog", "cart", "cat", "catty", "horse", "cast"))


def test_of_very_many_labels_none_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"^unknown label 'dogg': 6,000 labels are known\.$"):
        label_named("dogg", [f"dog{number}" for number in range(6_000)])
