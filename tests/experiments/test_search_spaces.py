"""The search spaces of `tune`: every point is a training run that can start, at any number of bits."""

from __future__ import annotations

import pytest

from centerhash.experiments.search_spaces import LEARNING_RATES, at_bits, authors, points, training_options
from centerhash.experiments.tasks import make_task
from centerhash.methods.registry import METHODS, get_method

BUILT_IN = [name for name, method in METHODS.items() if method.built_in]


@pytest.mark.parametrize("name", BUILT_IN)
def test_points_can_be_trained(name: str) -> None:
    method = get_method(name)
    for bits in (16, 64):
        for point in [*points(name, bits), authors(name)]:
            make_task({**training_options(method, point), "method": name, "bits": bits})
        assert len(points(name, bits)) == len(points(name, 8)) > 1
        assert ("learning_rate" in points(name, bits)[0]) == (method.family != "shallow")


def test_largest_search_space() -> None:
    sizes = {name: len(points(name, 32)) for name in BUILT_IN}
    assert sizes["ics-softmax"] <= max(size for name, size in sizes.items() if name != "ics-softmax")


def test_points_by_hand() -> None:
    assert {point["lambda"] for point in points("dhn", 20)} == {1.0, 2.0, 6.0}
    assert {point["slope"] for point in points("dpsh", 32)} == {0.25, 0.5}
    assert {point["lambda"] for point in points("ics", 32)} == {0.25, 1.0, 4.0}
    assert {point["lambda"] for point in points("ics-softmax", 8) if point["scale"] == 8.0} == {1, 2, 4}
    assert {point["learning_rate"] for point in points("csq", 8)} == set(LEARNING_RATES)


def test_at_bits() -> None:
    point = {"learning_rate": 0.002, "slope": 1.0, "lambda": 9.6}
    assert at_bits("dhn", point, 32, 64) == {**point, "lambda": 19.2}
    assert at_bits("dhn", {"lambda": 7.0}, 32, 64) == {"lambda": 7.0}  # of no space: as it is
    assert at_bits("dhn", {}, 32, 64) == {}
