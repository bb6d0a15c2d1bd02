"""Equations of taught labels, compared with naive loops and with properties that hold for any input."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import pack
from centerhash.core.errors import InputError
from centerhash.search import teaching
from centerhash.search.items import VISUAL_BITS
from centerhash.search.teaching import Example, PackedCodes, Taught

BITS = 12
Problem = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def problem(seed: int, rows: int = 14, width: int = 5) -> Problem:
    """Inputs, targets, weights and a penalty of a small regression."""
    generator = np.random.default_rng(seed)
    inputs = np.where(generator.random((rows, width)) < 0.5, -1.0, 1.0)
    inputs[:, -1] = 1
    targets = np.where(generator.random(rows) < 0.4, 1.0, -1.0)
    targets[:2] = 1, -1
    half = generator.normal(size=(width, width))
    return inputs, targets, generator.uniform(0.2, 2, rows), half @ half.T + np.eye(width)


def codes(seed: int, rows: int, bits: int = BITS, seen: float = 0.7) -> PackedCodes:
    generator = np.random.default_rng(seed)
    semantic = pack(np.where(generator.random((rows, bits)) < 0.5, -1, 1))
    visual = pack(np.where(generator.random((rows, VISUAL_BITS)) < 0.5, -1, 1))
    shown = (generator.random(rows) < seen).astype(np.uint8)
    visual[shown == 0] = 0
    return PackedCodes(semantic, visual, shown)


def example(id: str, row: int, every: PackedCodes, like: bool = True) -> Example:
    visual = every.visual[row].tobytes() if every.has_visual[row] else None
    return Example(id, like, every.semantic[row].tobytes(), visual)


def naive_loss(parameters: Any, inputs: Any, targets: Any, weights: Any, penalty: Any) -> float:
    total = 0.0
    for x, t, c in zip(inputs, targets, weights, strict=True):
        score = sum(float(a) * float(b) for a, b in zip(x, parameters, strict=True))
        total += c * math.log(1 + math.exp(-t * score))
    for i, row in enumerate(penalty):
        for j, value in enumerate(row):
            total += value * parameters[i] * parameters[j] / 2
    return total


# --- regression


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_loss_and_its_derivatives(seed: int) -> None:
    inputs, _, weights, penalty = values = problem(seed)
    at = np.random.default_rng(seed).normal(size=5)
    assert teaching.loss(at, *values) == pytest.approx(naive_loss(at, *values))
    slope = teaching.gradient(at, *values)
    curvature = teaching.hessian(at, inputs, weights, penalty)
    for j in range(5):
        step = np.zeros(5)
        step[j] = 1e-5
        difference = (naive_loss(at + step, *values) - naive_loss(at - step, *values)) / 2e-5
        assert slope[j] == pytest.approx(difference, abs=1e-4)
        change = (teaching.gradient(at + step, *values) - teaching.gradient(at - step, *values)) / 2e-5
        assert curvature[j] == pytest.approx(change, abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.001, 1000))
def test_the_minimum_is_one(seed: int, strength: float) -> None:
    inputs, targets, weights, penalty = problem(seed)
    penalty = strength * penalty
    values = (inputs, targets, weights, penalty)
    found = teaching.minimize(*values)
    least = teaching.loss(found, *values)
    for other in found + np.random.default_rng(seed).normal(scale=0.01 + np.abs(found).max(), size=(20, 5)):
        assert least <= teaching.loss(other, *values) + 1e-6
    assert np.abs(teaching.gradient(found, *values)).max() < 1e-2 * (1 + least)


def test_the_minimum_is_that_of_gradient_descent() -> None:
    values = problem(3)
    slow = np.zeros(5)
    for _ in range(5000):
        slow -= 0.01 * teaching.gradient(slow, *values)
    assert teaching.minimize(*values) == pytest.approx(slow, abs=1e-4)


def test_scores_of_left_out_rows_are_near_to_those_of_a_regression_without_them() -> None:
    inputs, targets, weights, penalty = problem(5, rows=40)
    order = np.argsort(-targets, kind="stable")
    inputs, targets, weights = inputs[order], targets[order], weights[order]
    count = int((targets > 0).sum())
    found = teaching.minimize(inputs, targets, weights, penalty)
    center = inputs[count:].mean(axis=0)
    quick = teaching.left_out_scores(found, inputs, targets, weights, penalty, count, center)
    for row in range(count):
        rest = np.arange(len(inputs)) != row
        without = teaching.minimize(inputs[rest], targets[rest], weights[rest], penalty)
        assert quick[row] == pytest.approx(float((inputs[row] - center) @ without), abs=0.05)
        assert quick[row] < (inputs[row] - center) @ found + 1e-9  # it is no worse off with itself
    assert teaching.sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]


def test_the_penalty_is_the_covariance_of_the_others() -> None:
    others = np.array([[1, 1, 1], [1, -1, 1], [-1, -1, 1], [-1, -1, 1]], float)
    # means 0 and -1/2, variances 1 and 3/4, covariance 1/2
    expected = teaching.STRENGTH * (np.array([[1, 0.5], [0.5, 0.75]]) + teaching.RIDGE * np.eye(2))
    assert teaching.covariance_penalty(others)[:2, :2] == pytest.approx(expected)
    assert teaching.covariance_penalty(others)[2].tolist() == [0, 0, 1e-6]


# --- calibration


def test_calibration_by_hand() -> None:
    parameters = np.array([1.0, 0.0, 5.0])
    others = np.array([4.0, 6.0, 4.0, 6.0])
    center, spread = teaching.center_and_spread(others, parameters)
    assert (center, spread) == (5.0, 1.0)  # variance (4 * 1 + 1) / 5
    found = teaching.calibrated(parameters, others, 2.0)
    share = teaching.estimated_share(np.exp([-4.0, 0.0, -4.0, 0.0]))
    offset = math.log(share / (1 - share)) - 2
    assert found == pytest.approx([2, 0, 10 - 10 + offset])
    assert teaching.shrunk_distance(np.array([3.0, 4.0])) == 3.0  # (3 + 4 + 2) / 3
    assert teaching.shrunk_distance(np.array([9.0])) == teaching.DISTANCE  # one alone was never left out
    assert teaching.shrunk_distance(np.array([-5.0, -5.0])) == teaching.DISTANCE / 4


@settings(max_examples=25, deadline=None)
@given(st.floats(0.02, 0.4), st.floats(2.5, 5), st.integers(0, 1000))
def test_the_share_of_items_with_a_label_is_found_again(share: float, distance: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    having = generator.random(20_000) < share
    scores = generator.normal(size=20_000) + distance * having
    found = teaching.estimated_share(np.exp(distance * scores - distance**2 / 2))
    assert found == pytest.approx(share, abs=0.02)


def test_the_estimated_share_has_limits() -> None:
    assert teaching.estimated_share(np.zeros(10)) == teaching.LEAST
    assert teaching.estimated_share(np.zeros(10), 0.3) == 0.3
    assert teaching.estimated_share(np.full(10, 1e9)) == teaching.MOST


# --- codes


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 70), st.integers(1, 20), st.sampled_from([0.0, 0.5, 1.0]))
def test_scores_are_those_of_unpacked_bits(seed: int, bits: int, rows: int, seen: float) -> None:
    every = codes(seed, rows, bits, seen)
    parameters = np.random.default_rng(seed).normal(size=bits + VISUAL_BITS + 1).astype(np.float32)
    inputs = every.inputs(bits)
    assert set(np.unique(inputs)) <= {-1.0, 0.0, 1.0}
    assert (inputs[:, bits:-1] == 0).all(axis=1).tolist() == (every.has_visual == 0).tolist()
    expected = inputs @ parameters.astype(np.float64)
    assert teaching.scores(parameters, every) == pytest.approx(expected, abs=1e-3)
    alone = [
        teaching.scores(
            parameters,
            PackedCodes(every.semantic[row][None], every.visual[row][None], every.has_visual[row : row + 1]),
        )[0]
        for row in range(rows)
    ]
    assert teaching.scores(parameters, every).tolist() == [float(value) for value in alone]
    blank = PackedCodes(every.semantic, np.empty((0, 16), np.uint8), np.zeros(rows, np.uint8))
    assert teaching.scores(parameters, blank) == pytest.approx(blank.inputs(bits) @ parameters, abs=1e-3)


def planted(seed: int, rows: int, marked: int) -> PackedCodes:
    """Random codes, of which the first `marked` have nearly all semantic bits and many visual bits set."""
    generator = np.random.default_rng(seed)
    bits = np.where(generator.random((rows, BITS + VISUAL_BITS)) < 0.5, -1, 1)
    bits[:marked, :70] = np.where(generator.random((marked, 70)) < 0.05, -1, 1)
    return PackedCodes(pack(bits[:, :BITS]), pack(bits[:, BITS:]), np.ones(rows, np.uint8))


def rows_of(every: PackedCodes, rows: Any) -> PackedCodes:
    return PackedCodes(every.semantic[rows], every.visual[rows], every.has_visual[rows])


def test_a_planted_label_is_learned() -> None:
    every, marked = planted(0, 2000, 60), np.arange(2000) < 60
    examples = [example(str(row), row, every) for row in range(8)]
    label = teaching.learn(examples, rows_of(every, np.arange(8, 2000)), BITS, 2000)
    likely = label.probabilities(every)
    assert ((likely[8:] >= 0.5) == marked[8:]).mean() > 0.98
    assert (
        likely[8:60].min() > np.sort(likely[60:])[-20]
    )  # at most 20 of 1,940 others before the last of them
    again = teaching.learn(examples, rows_of(every, np.arange(8, 2000)), BITS, 2000)
    assert np.array_equal(label.parameters, again.parameters)
    assert label.center.shape == (BITS,)
    # an item that is rejected becomes less likely, and so does one with the same code
    rejected = int(np.argmax(np.where(marked, 0, likely)))
    fewer = teaching.learn(
        [*examples, example("no", rejected, every, like=False)],
        rows_of(every, np.arange(8, 2000)),
        BITS,
        2000,
    )
    assert fewer.probabilities(every)[rejected] < likely[rejected]


@pytest.mark.parametrize("others", [1, 2, 30])
def test_few_items_are_enough(others: int) -> None:
    every = planted(1, others + 1, 1)
    label = teaching.learn(
        [example("a", 0, every)], rows_of(every, np.arange(1, others + 1)), BITS, others + 1
    )
    assert np.isfinite(label.parameters).all()
    assert label.probabilities(every).argmax() == 0
    with pytest.raises(InputError, match="other images"):
        teaching.learn([example("a", 0, every)], rows_of(every, np.arange(0)), BITS, 1)


# --- what is stored


def a_label(seed: int = 0) -> Taught:
    every = codes(seed, 20)
    examples = [example(f"{row}", row, every, like=row != 2) for row in range(4)]
    return teaching.learn(examples, rows_of(every, np.arange(4, 20)), BITS, 20)


def test_a_label_is_read_as_it_was_written() -> None:
    label = a_label()
    read = Taught.from_row(label.row("Bella"), BITS)
    assert np.array_equal(read.parameters, label.parameters)
    assert read.examples == label.examples
    assert (read.example_ids(like=True), read.example_ids(like=False)) == (("0", "1", "3"), ("2",))
    text = json.dumps(teaching.to_file({"Bella": label}, "digest", BITS))
    (name, moved), *rest = teaching.from_file(text, "digest", BITS).items()
    assert (name, rest) == ("Bella", [])
    assert np.array_equal(moved.parameters, label.parameters)
    assert moved.examples == label.examples


def test_rows_that_make_no_sense_are_rejected() -> None:
    name, parameters, examples = a_label().row("Bella")
    rows = json.loads(examples)
    bad: list[Any] = [
        (name, parameters[:-4], examples),
        (name, np.full(BITS + VISUAL_BITS + 1, np.nan, "<f4").tobytes(), examples),
        ("", parameters, examples),
        (7, parameters, examples),
        (name, parameters, "[]"),
        (name, parameters, "{}"),
        (name, parameters, "no json"),
        (name, parameters, json.dumps([rows[0], rows[0]])),
    ]
    for field, value in (("id", ""), ("like", 1), ("semantic", "ffff"), ("semantic", "ff"), ("visual", "00")):
        bad.append((name, parameters, json.dumps([{**rows[0], field: value}])))
    bad.append((name, parameters, json.dumps([{**rows[0], "more": 1}])))
    for row in bad:
        with pytest.raises(ValueError):
            Taught.from_row(row, BITS)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"model": "another"},
        {"bits": BITS + 1},
        {"labels": {}},
        {"labels": [1]},
        {"labels": [{"name": "x"}]},
        {"labels": [{"name": "x", "parameters": ["a"], "examples": []}]},
    ],
)
def test_files_of_other_models_or_with_other_content_are_rejected(change: dict[str, Any]) -> None:
    value = {**teaching.to_file({"Bella": a_label()}, "digest", BITS), **change}
    value.pop("checksum")
    with pytest.raises(ValueError):
        teaching.from_file(json.dumps(teaching.with_checksum(value)), "digest", BITS)
    with pytest.raises(ValueError, match="checksum"):
        teaching.from_file(json.dumps({**value, "checksum": 1}), "digest", BITS)


@pytest.mark.parametrize("name", ["", " Bella", "a\nb", "x" * 257, None, 3, "\ud800"])
def test_names_that_cannot_be_labels(name: Any) -> None:
    with pytest.raises(InputError, match="name of a label"):
        teaching.check_name(name)
    assert teaching.check_name("Bella, the dog: 2") == "Bella, the dog: 2"


def test_an_example_that_is_given_again_changes_sides() -> None:
    every = codes(0, 3)
    known = [example("a", 0, every), example("b", 1, every)]
    found = teaching.with_examples(known, [example("b", 1, every, like=False)])
    assert [(one.id, one.like) for one in found] == [("a", True), ("b", False)]
    with pytest.raises(InputError, match="like"):
        teaching.with_examples(known[:1], [example("a", 0, every, like=False)])
