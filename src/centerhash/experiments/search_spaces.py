"""The settings that `centerhash tune` tries for each method, as functions of the number of bits.

points("csq", bits=32)      # settings by names of options and of training
authors("csq")             # the authors' setting, as far as options reach it
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from centerhash.methods.registry import Method, get_method

# Settings by names of options and of training.
Point: TypeAlias = Mapping[str, Any]
# Returns the point of a tuned setting at a number of bits.
PointByBits: TypeAlias = Callable[[int], Point]

# Every deep method is tried with these.
LEARNING_RATES = (5e-4, 1e-3, 2e-3, 4e-3)


def _spaces(bits: int) -> dict[str, dict[str, list[Any]]]:
    """Return the values of each method's options that are tried; lambda of ICS-softmax is relative to the scale."""
    cubic = bits**3 / 131072
    return {
        "lsh": {"normalize": [True, False]},
        "sh": {"normalize": [True, False]},
        "itq": {"normalize": [True, False], "iterations": [20, 50, 100]},
        "bre": {"bandwidth": [0.35, 0.7, 1.0], "points": [50, 100, 200], "partners": [25, 50]},
        "ksh": {"bandwidth": [0.35, 0.7, 1.0], "anchors": [300, 1000], "ridge": [0.0, 0.01, 0.03]},
        "sdh": {"bandwidth": [0.4, 0.7, 1.0], "scaled": [True, False], "nu": [1e-5, 1e-3]},
        "cnnh": {"sweeps": [5, 10, 20]},
        "dnnh": {"margin": [1.0, 2.0, 4.0], "epsilon": [0.25, 0.5]},
        "dpsh": {"slope": [8 / bits, 0.5], "lambda": [0.01, 0.1, 1.0]},
        "dhn": {"slope": [8 / bits, 0.5, 1.0], "lambda": [1.0, 0.1 * bits, 0.3 * bits]},
        "hashnet": {"class_num": [0.0, 1.0], "last_beta": [7.1414, 10.0], "continuous": [True, False]},
        "dch": {"gamma": [20.0, 1.0 * bits, 2.0 * bits], "lambda": [0.0, 0.1, 1.0]},
        "greedyhash": {"alpha": [0.01, 0.1, 1.0], "classifier": ["sigmoid", "softmax"]},
        "idhn": {"alpha": [5.0, 10.0], "gamma": [0.1, 1.0], "lambda": [0.01, 0.1, 1.0]},
        "csq": {"gamma": [0.05, 0.1, 0.5, 1.0], "centers": ["auto", "random"]},
        "dpn": {"margin": [0.5, 1.0, 2.0], "target": ["majority", "each"]},
        "ewcs": {"gamma": [0.05, 0.1, 0.5, 1.0], "centers": ["auto", "random"]},
        "ics": {"lambda": [cubic, 4 * cubic, 16 * cubic], "gamma": [0.05, 0.25, 0.5]},
        "ics-printed": {"lambda": [0.01, 0.1, 1.0], "gamma": [0.05, 0.25, 0.5]},
        "orthohash": {"scale": [4.0, 6.0, 8.0], "margin": [0.0, 0.1, 0.2]},
        "hyp2": {"beta": [0.5, 1.0, 2.0], "tanh": [True, False]},
        "mdsh": {"beta": [0.01, 0.1, 1.0], "scale": [bits**0.5, 2 * bits**0.5], "lambda": [1e-4, 0.01]},
        "lscsh": {"alpha_1": [0.01, 0.1, 1.0], "alpha_2": [0.1, 0.5, 2.0], "gamma": [0.05, 0.5]},
        "crh": {"heads": [1, 2, 4], "rounds": [5, 10, 30], "codebook": [1, 2, 4]},
        "ics-softmax": {"scale": [6.0, 8.0, 10.0], "lambda": [0.125, 0.25, 0.5]},
    }


# Methods that are not listed have the same setting by their authors as by default.
_AUTHORS: dict[str, Point] = {
    "lsh": {"normalize": False},
    "sh": {"normalize": False},
    "itq": {"iterations": 50},
    "bre": {"supervised": False, "samples": 1000, "points": 50, "partners": 25},
    "ksh": {"bandwidth": 1.0, "anchors": 300, "ridge": 0.0, "labeled": 2000, "iterations": 500},
    "sdh": {"bandwidth": 0.4, "scaled": False, "nu": 1e-5},
    "dnnh": {"margin": 1.0, "epsilon": 0.5},
    "dpsh": {"slope": 0.5, "lambda": 0.1},
    "dhn": {"slope": 1.0},  # and lambda 0.3 K, the default
    "hashnet": {"class_num": 1.0, "last_beta": 7.1414, "continuous": True},
    "dch": {"gamma": 20.0, "lambda": 0.0, "distance": "squared", "weights": "similar"},
    "greedyhash": {"alpha": 0.1, "classifier": "softmax"},
    "idhn": {"alpha": 5.0, "gamma": 0.1, "lambda": 0.1},
    "csq": {"gamma": 0.05, "quantization": "squared", "centers": "random", "assignment": "random"},
    "dpn": {"margin": 1.0, "target": "each", "centers": "bernoulli", "assignment": "random"},
    "ewcs": {"gamma": 0.05, "assignment": "random"},
    "ics": {"gamma": 0.05, "assignment": "random"},
    "ics-printed": {"lambda": 0.01, "gamma": 0.05, "assignment": "random"},
    "orthohash": {
        "scale": 8.0,
        "margin": 0.2,
        "centers": "bernoulli",
        "assignment": "random",
        "head": {"logit_norm": True},
    },
    "hyp2": {"beta": 0.5, "tanh": False, "kaiming": True},
    "mdsh": {"beta": 1.0, "lambda": 1e-4, "centers": "mdsh", "assignment": "random"},
    "lscsh": {
        "solver": "pgd",
        "keep": True,
        "steps": 1,
        "lambda": 0.001,
        "gamma": 0.05,
        "alpha_1": 1.0,
        "alpha_2": 0.5,
        "assignment": "random",
    },
    "ics-softmax": {"scale": 8.0},
}


def points(method: str, bits: int) -> list[Point]:
    """Return all points of a method at a number of bits: its settings, at each learning rate of a deep one."""
    grid = _spaces(bits).get(method, {})
    space: list[Point] = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    if method == "ics-softmax":
        space = [{**point, "lambda": point["lambda"] * point["scale"]} for point in space]
    if get_method(method).family == "shallow":
        return space
    return [{"learning_rate": rate, **point} for rate in LEARNING_RATES for point in space]


def authors(method: str) -> Point:
    """Return the authors' setting of a method, as far as options reach it; empty if it is the default."""
    return _AUTHORS.get(method, {})


def at_bits(method: str, point: Point, bits: int, new_bits: int) -> Point:
    """Return the point of the space at `new_bits` that corresponds to one at `bits`; any other point as it is."""
    space = points(method, bits)
    return points(method, new_bits)[space.index(point)] if point in space else point


def training_options(method: Method, point: Point) -> dict[str, Any]:
    """Return a point as options of training, those of the method in `options`."""
    names = method.option_names()
    options = {name: value for name, value in point.items() if name in names}
    training = {name: value for name, value in point.items() if name not in names}
    return {**training, "options": options} if options else training
