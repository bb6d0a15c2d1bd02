"""Queries by labels and by items: reading labels, the code between centers, and explanations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.centers import hash_centers
from centerhash.core.errors import ConfigError, InputError
from centerhash.index import Index
from centerhash.index import query as queries
from centerhash.index.items import LEVELS, Facts, Item
from centerhash.index.query import label_code, labels_of_code, read_labels
from centerhash.index.ranking import GeneralRanking, LabelRanking, SemanticRanking
from centerhash.model.loading import load
from centerhash.model.model import HashModel
from tests.toys import CLASSES

NAMES = ("bicycle", "bus", "dog", "potted plant", "ratio 1:2", "tv", "black, white", '5" disk')


@pytest.fixture(scope="module")
def facts(toy_model: HashModel, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    with Index.create(tmp_path_factory.mktemp("query") / "index", toy_model) as index:
        return index.facts


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("dog", {"dog": 1.0}),
        ("dog, bicycle", {"dog": 0.5, "bicycle": 0.5}),
        ("dog:0.7,bicycle:0.3", {"dog": 0.7, "bicycle": 0.3}),
        ("  dog : 3 ,bicycle: 1,", {"dog": 0.75, "bicycle": 0.25}),
        ("dog:3, tv", {"dog": 0.75, "tv": 0.25}),
        ("potted plant:1e2", {"potted plant": 1.0}),
        ("ratio 1:2, dog", {"ratio 1:2": 0.5, "dog": 0.5}),
        ("ratio 1:2:3, dog", {"ratio 1:2": 0.75, "dog": 0.25}),
        ('"black, white", dog', {"black, white": 0.5, "dog": 0.5}),
        (' "black, white" : 3,dog', {"black, white": 0.75, "dog": 0.25}),
        ('dog, "black, white":3', {"dog": 0.25, "black, white": 0.75}),
        ('5" disk:3, dog', {'5" disk': 0.75, "dog": 0.25}),
        ('"5"" disk", dog', {'5" disk': 0.5, "dog": 0.5}),
        ("dog:1e308, tv:1e308", {"dog": 0.5, "tv": 0.5}),
        (["dog", "tv"], {"dog": 0.5, "tv": 0.5}),
        ({"tv": 1, "dog": 3}, {"tv": 0.25, "dog": 0.75}),
    ],
)
def test_read_labels(text: Any, weights: dict[str, float]) -> None:
    weights_of_labels = read_labels(text, NAMES)
    assert list(weights_of_labels) == list(weights)
    assert weights_of_labels == pytest.approx(weights)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "label"),
        (" , ", "label"),
        ([], "label"),
        ("dgo", "'dgo'.*'dog'"),
        ("bicycel:0.3", "'bicycel'.*'bicycle'"),
        ("cat:dog", "'cat:dog'"),
        ("dog, bus, dog:2", "'dog'.*twice"),
        (["dog", "dog"], "'dog'.*twice"),
        (["Dog"], "'Dog'.*'dog'"),
        ({3: 0.5}, "'3'"),
        ({"dog": "much"}, "'dog'.*got 'much'"),
        ({"dog": None}, "'dog'.*got None"),
        ([3], r"got \[3\]"),
        (3, "got 3"),
        *((f"dog:{weight}", f"'dog:{weight}'") for weight in ("much", "")),
        *((f"dog:{weight}", f"'dog'.*got {weight}") for weight in ("0.0", "-1.0", "nan", "inf")),
    ],
)
def test_read_rejected_labels(text: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read_labels(text, NAMES)


def test_label_code() -> None:
    centers = hash_centers(10, 64)  # any two are 32 apart
    for row, center in enumerate(centers):
        assert np.array_equal(label_code(centers, np.eye(10)[row]), center)
    for share, nearer, farther in ((0.5, 16, 16), (0.75, 8, 24), (0.7, 10, 22), (0.99, 0, 32)):
        weights = np.zeros(10)
        weights[[3, 7]] = share, 1 - share
        code = label_code(centers, weights)
        assert [(centers[row] != code).sum() for row in (3, 7)] == [nearer, farther]
        assert sorted(weights)[:8] == [0] * 8  # the input stays as it is


def test_label_code_with_tie() -> None:
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
def test_label_code_is_minimum(seed: int, numbers: list[int]) -> None:
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
def test_label_code_between_two_centers(seed: int, share: int) -> None:
    centers = np.random.default_rng(seed).choice([-1, 1], size=(2, 8))
    weights = np.array([share, 20 - share]) / 20
    best = min(spread(centers, weights, np.array(code)) for code in itertools.product([-1, 1], repeat=8))
    assert spread(centers, weights, label_code(centers, weights)) == pytest.approx(best)


def test_query_by_labels(facts: Facts) -> None:
    query = queries.query_by_labels(facts, {"cat": 1, "dog": 3})
    assert [(row.label, row.weight) for row in query.explained] == [("dog", 0.75), ("cat", 0.25)]
    for row in query.explained:
        assert row.distance == (facts.centers[CLASSES.index(row.label)] != query.code).sum()
        assert row.similarity == pytest.approx(1 - 2 * row.distance / 16)


def test_labels_of_code(facts: Facts) -> None:
    code = facts.centers[CLASSES.index("elk")]
    two = labels_of_code(facts, code, ("elk", "fox", "no class"), {})
    assert [row.label for row in two] == ["elk", "fox"]
    assert sum(row.weight for row in two) == pytest.approx(1, abs=1e-5)
    shares = labels_of_code(facts, code, ("elk", "fox"), {"elk": (255, 50), "fox": (9, 150)})
    assert [(row.label, row.weight) for row in shares] == [("fox", 0.75), ("elk", 0.25)]
    for unknown in (("no class",), ()):
        assert [(row.label, row.distance) for row in labels_of_code(facts, code, unknown, {})] == [("elk", 0)]


def test_ranking_of_queries(facts: Facts) -> None:
    code, general = np.zeros(2, np.uint8), np.zeros(16, np.uint8)
    facts = replace(facts, general_bits=128)
    labels, plain = queries.query_by_labels(facts, "cat"), queries.query_by_item(facts, Item(0, "a", code))
    both = queries.query_by_item(facts, Item(1, "b", code, general))
    for query, by, ranking, uses_general in (
        (labels, None, LabelRanking, False),
        (labels, "both", LabelRanking, False),
        (labels, "semantic", SemanticRanking, False),
        (plain, None, SemanticRanking, False),
        (plain, "semantic", SemanticRanking, False),
        (both, None, SemanticRanking, True),
        (both, "both", SemanticRanking, True),
        (both, "general", GeneralRanking, True),
        (both, "semantic", SemanticRanking, False),
    ):
        created = query.ranking(facts, by, 3, False)
        assert (type(created), getattr(created, "general", None) is not None) == (ranking, uses_general)
    # The limit is that of the 128 general bits, not of the 16 semantic ones.
    assert isinstance(both.ranking(facts, "general", 128, False), GeneralRanking)
    for query, by, within in ((labels, "general", None), (plain, "both", None), (both, "both", 17)):
        with pytest.raises(InputError):
            query.ranking(facts, by, within, False)
    with pytest.raises(ConfigError, match=facts.method):
        queries.query_by_labels(replace(facts, hash_centers=None), "cat")


def test_facts_of_model(toy_model: HashModel, facts: Facts) -> None:
    assert (facts.method, facts.backbone, facts.bits, facts.classes) == ("ics-softmax", None, 16, CLASSES)
    assert np.array_equal(facts.centers, toy_model.centers.numpy())
    again = Facts.from_json(facts.to_json())
    for name in ("hash_centers", "directions"):
        assert np.array_equal(getattr(again, name), getattr(facts, name))
    assert (again.label_threshold, again.method) == (facts.label_threshold, facts.method)


def test_label_scores_of_probable_classes() -> None:
    probability, least = np.zeros((3, 12), np.float32), queries.MIN_SCORED_PROBABILITY / 2
    probability[0] = np.linspace(1, 0.5, 12)
    probability[1, [3, 5]] = 0.9, least
    probability[2, 7] = least
    model: Any = Mock(has_probabilities=True, classes=range(12), weights=lambda _, scored: scored)
    model.label_probabilities.return_value = probability
    scores = queries.label_scores(model, probability, [(), (), ()])
    assert list(map(list, scores or ())) == [list(range(queries.MAX_SCORED_CLASSES)), [3], [7]]


def test_label_scores_of_carried_labels() -> None:
    model = load("coco")
    features = np.random.default_rng(0).random((2, model.spec.features)).astype(np.float32)
    probability = model.label_probabilities(features)
    rarest = model.classes[int(probability[0].argmin())]
    scores = queries.label_scores(model, features, [(rarest, "no class"), ()])
    assert scores is not None
    assert rarest in scores[0]
    assert "no class" not in scores[0]
    for row, stored in enumerate(scores):
        for name, (level, share) in stored.items():
            assert level == round(LEVELS * float(probability[row, model.classes.index(name)]))
            assert 0 <= share <= LEVELS
        assert sum(share for _, share in stored.values()) == pytest.approx(LEVELS, abs=len(stored))
    assert queries.label_scores(model, features[:0], []) is None
