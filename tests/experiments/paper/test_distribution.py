from __future__ import annotations

import json

import numpy as np
import pytest

from centerhash.core.errors import InputError
from centerhash.experiments.agreement import BINS, weight_distribution

LABELS = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1], [0, 0, 0]], dtype=bool)
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])


def test_variances_by_hand() -> None:
    found = weight_distribution(WEIGHTS, LABELS)
    # of 1, 0, .5, .25, .25, 1: mean .5, squares .25 + .25 + 0 + .0625 + .0625 + .25
    assert found["variance"] == pytest.approx(0.875 / 6)
    # without the image of one label: mean .4, squares .36 + .16 + .01 + .0225 + .0225
    assert found["variance_several"] == pytest.approx(0.575 / 5)
    # from 1/2, 1/2, 1/3, 1/3, 1/3
    assert found["variance_uneven"] == pytest.approx((0.25 + 0.25 + 1 / 36 + 2 / 144) / 5)
    assert found["labels"] == 6


def test_corners_and_unevenness_by_hand() -> None:
    found = weight_distribution(WEIGHTS, LABELS)
    assert found["corner"] == 0.5
    assert found["by_count"] == {
        "2": {"images": 1, "uneven": pytest.approx(1)},
        "3": {"images": 1, "uneven": pytest.approx((1 / 2 - 1 / 3) / (2 / 3))},
    }


def test_the_histogram_counts_labels_of_images_with_several() -> None:
    histogram = weight_distribution(WEIGHTS, LABELS)["histogram"]
    assert sum(histogram) == 5
    assert {place: count for place, count in enumerate(histogram) if count} == {
        0: 1,
        BINS // 4: 2,
        BINS // 2: 1,
        BINS - 1: 1,
    }


def test_weights_outside_the_labels_do_not_matter() -> None:
    spoiled = np.where(LABELS, WEIGHTS, 7.0)
    assert weight_distribution(spoiled, LABELS) == weight_distribution(WEIGHTS, LABELS)


def test_images_with_one_label_each_have_nothing_to_spread() -> None:
    found = weight_distribution(np.eye(3), np.eye(3, dtype=bool))
    assert (found["variance"], found["variance_several"], found["corner"], found["by_count"]) == (0, 0, 0, {})
    json.dumps(found)


def test_shapes_of_weights_and_labels_must_agree() -> None:
    with pytest.raises(InputError):
        weight_distribution(WEIGHTS, LABELS[:3])
