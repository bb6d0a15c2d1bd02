from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.core.errors import ConfigError, InputError
from centerhash.data import Dataset
from centerhash.methods.centers import hash_centers
from centerhash.model.model import HashModel
from centerhash.search.facts import ModelFacts, read_facts
from centerhash.search.label_query import (
    label_code,
    labels_of_code,
    read_labels,
)
from centerhash.search.questions import question_of_labels
from centerhash.training.run import train
from tests.toys import CLASSES, toy_config

NAMES = ("bicycle", "bus", "dog", "potted plant", "ratio 1:2", "tv", "black, white", '5" disk')


def test_labels_with_weights() -> None:
    for text, weights in (
        ("dog", {"dog": 1.0}),
        ("dog, bicycle", {"dog": 0.5, "bicycle": 0.5}),
        ("dog:0.7,bicycle:0.3", {"dog": 0.7, "bicycle": 0.3}),
        ("  dog : 3 ,bicycle: 1,", {"dog": 0.75, "bicycle": 0.25}),
        ("dog:3, tv", {"dog": 0.75, "tv": 0.25}),
        ("potted plant:1e2", {"potted plant": 1.0}),
        ("ratio 1:2, dog", {"ratio 1:2": 0.5, "dog": 0.5}),
        ("ratio 1:2:3, dog", {"ratio 1:2": 0.75, "dog": 0.25}),
        ('"black, white", dog', {"black, white": 0.5, "dog": 0.5}),
        (' "Black, white" : 3,dog', {"black, white": 0.75, "dog": 0.25}),
        ('dog, "black, white":3', {"dog": 0.25, "black, white": 0.75}),
        ('5" disk:3, dog', {'5" disk': 0.75, "dog": 0.25}),
        ('"5"" disk", dog', {'5" disk': 0.5, "dog": 0.5}),
        ("dog:1e308, tv:1e308", {"dog": 0.5, "tv": 0.5}),
    ):
        found = read_labels(text, NAMES)
        assert list(found) == list(weights)
        assert found == pytest.approx(weights)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no label was named: write for example"),
        (" , ", "no label was named"),
        ("dgo", "unknown label 'dgo'. Did you mean 'dog'?"),
        ("bicycel:0.3", "unknown label 'bicycel'. Did you mean 'bicycle'?"),
        ("cat:dog", "unknown label 'cat:dog'"),
        ("dog, bus, dog:2", "the label 'dog' is named twice"),
        ("dog:much", "the weight of 'dog' must be a positive number such as 0.7, got 'much'"),
        ("dog:", "the weight of 'dog' must be a positive number such as 0.7, got ''"),
        ("dog:0", "the weight of 'dog' must be a positive number, got 0.0"),
        ("dog:-1", "the weight of 'dog' must be a positive number, got -1.0"),
        ("dog:nan", "the weight of 'dog' must be a positive number, got nan"),
        ("dog:inf", "the weight of 'dog' must be a positive number, got inf"),
    ],
)
def test_labels_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_labels(text, NAMES)
    assert message in str(refused.value)


def test_one_label_is_its_center() -> None:
    centers = hash_centers(10, 32)
    for row, center in enumerate(centers):
        assert np.array_equal(label_code(centers, np.eye(10)[row]), center)


def test_a_code_lies_between_two_labels_as_their_weights_say() -> None:
    for share, nearer, farther in ((0.5, 16, 16), (0.75, 8, 24), (0.7, 10, 22), (0.99, 0, 32)):
        centers = hash_centers(10, 64)  # any two are 32 apart
        weights = np.zeros(10)
        weights[[3, 7]] = share, 1 - share
        code = label_code(centers, weights)
        assert [(centers[row] != code).sum() for row in (3, 7)] == [nearer, farther]


def test_a_bit_without_majority_is_plus_one() -> None:
    centers = np.array([[1, 1, -1, -1], [1, -1, 1, -1]])
    assert label_code(centers, np.array([1, 1])).tolist() == [1, 1, 1, -1]
    # 0.1 + 0.2 - 0.3 is not 0 in floating point
    three = np.array([[1, 1, -1, -1]] * 2 + [[-1, 1, 1, -1]])
    assert label_code(three, np.array([0.1, 0.2, 0.3])).tolist() == [1, 1, 1, -1]


def spread(centers: np.ndarray, weights: np.ndarray, code: np.ndarray) -> float:
    """sum_j w_j d_j^2 of one code, as it is defined."""
    return sum(
        weight * sum(a != b for a, b in zip(center, code, strict=True)) ** 2
        for center, weight in zip(centers.tolist(), weights.tolist(), strict=True)
    )


weight_lists = st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), numbers=weight_lists)
def test_no_flip_of_a_bit_brings_the_code_nearer(seed: int, numbers: list[int]) -> None:
    centers = np.random.default_rng(seed).choice([-1, 1], size=(3, 12))
    weights = np.array(numbers) / sum(numbers)
    code = label_code(centers, weights)
    assert set(code.tolist()) <= {-1, 1}
    assert np.array_equal(code, label_code(centers, weights * 7))  # only the shares count
    least = spread(centers, weights, code)
    for bit in range(12):
        flipped = code.copy()
        flipped[bit] = -flipped[bit]
        assert spread(centers, weights, flipped) >= least - 1e-9


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), share=st.integers(1, 19))
def test_between_two_centers_no_code_at_all_is_nearer(seed: int, share: int) -> None:
    centers = np.random.default_rng(seed).choice([-1, 1], size=(2, 8))
    weights = np.array([share, 20 - share]) / 20
    best = min(spread(centers, weights, np.array(code)) for code in itertools.product([-1, 1], repeat=8))
    assert spread(centers, weights, label_code(centers, weights)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(4), r"weights must be of shape \(3,\), one per center, got \(4,\)"),
        (np.zeros(3), "not all 0"),
        (np.array([1, -1, 1]), "not negative"),
        (np.array([1, np.nan, 1]), "finite"),
    ],
)
def test_weights_that_are_refused(weights: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        label_code(hash_centers(3, 16), weights)


def test_inputs_stay_as_they_are() -> None:
    centers, weights = hash_centers(3, 16), np.array([3.0, 2.0, 0.0])
    before = centers.copy()
    label_code(centers, weights)
    assert np.array_equal(centers, before)
    assert weights.tolist() == [3, 2, 0]


@pytest.fixture
def facts(toy_model: HashModel, tmp_path: Path) -> ModelFacts:
    toy_model.save(tmp_path)
    return read_facts(tmp_path)


def test_the_question_by_labels_is_explained(toy_model: HashModel, facts: ModelFacts) -> None:
    question = question_of_labels(facts, {"cat": 1, "dog": 3})
    code, explained = question.code, question.explained
    assert [(row.label, row.weight) for row in explained] == [("dog", 0.75), ("cat", 0.25)]
    for row in explained:
        center = toy_model.centers.numpy()[CLASSES.index(row.label)]
        assert row.distance == (center != code).sum()
        assert row.similarity == pytest.approx(1 - 2 * row.distance / 16)
    with pytest.raises(ConfigError):
        question_of_labels(facts, {"dgo": 1})


def test_a_stored_code_is_explained_by_its_labels(facts: ModelFacts) -> None:
    code = facts.centers[CLASSES.index("elk")]
    given_two = labels_of_code(facts, code, ("elk", "fox", "no class"), {})
    assert [row.label for row in given_two] == ["elk", "fox"]
    assert sum(row.weight for row in given_two) == pytest.approx(1, abs=1e-5)
    shares = labels_of_code(facts, code, ("elk", "fox"), {"elk": (255, 50), "fox": (9, 150)})
    assert [(row.label, row.weight) for row in shares] == [("fox", 0.75), ("elk", 0.25)]
    assert [row.label for row in labels_of_code(facts, code, ("no class",), {})] == ["elk"]
    assert labels_of_code(facts, code, (), {})[0].distance == 0


def test_only_central_methods_know_labels(toy_dataset: Dataset, toy_model: HashModel, tmp_path: Path) -> None:
    without = train(toy_dataset, config=toy_config(method="lsh"))
    assert toy_model.has_centers
    assert not without.has_centers
    without.save(tmp_path)
    with pytest.raises(ConfigError):
        question_of_labels(read_facts(tmp_path), {"cat": 1})
