"""Typical sizes of classes: learned from areas for the weights, and for nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from centerhash import HashModel, train
from centerhash.data import Dataset
from centerhash.methods.weights import class_sizes, resized, softmax_weights
from reproduction.agreement import measure_agreement
from tests.toys import feature_dataset

TRUE = np.array([1.5, -1.0, 0.5, 0.0, -0.5, 1.0])  # in logarithms, of the six classes of the toy data


@pytest.fixture(scope="module")
def sized_dataset() -> Dataset:
    """The toy data set, whose areas follow the sizes of the classes and nothing else."""
    data = feature_dataset()
    return dataclasses.replace(data, areas=(np.exp(TRUE) * data.labels / 10).astype(np.float32))


@given(st.integers(0, 10_000))
@example(2112)  # flat enough for a search that stops early
def test_sizes_that_made_the_areas_are_found(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(300, 5, generator=generator) < 0.6
    weights = softmax_weights(torch.randn(300, 5, generator=generator).double(), labels)
    sizes = torch.randn(5, generator=generator).double()
    found = class_sizes(weights, labels, 0.3 * resized(weights, sizes), ridge=0.0)
    torch.testing.assert_close(found - found.mean(), sizes - sizes.mean(), atol=1e-4, rtol=0)


def test_two_labels_by_hand() -> None:
    # equal weights and areas of 3 to 1: sizes log(3) apart
    labels, areas = torch.tensor([[True, True]]), torch.tensor([[0.6, 0.2]])
    found = class_sizes(torch.full((1, 2), 0.5), labels, areas, ridge=0.0)
    assert float(found[0] - found[1]) == pytest.approx(np.log(3), abs=1e-6)
    torch.testing.assert_close(
        resized(torch.full((1, 2), 0.5).double(), found), torch.tensor([[0.75, 0.25]]).double()
    )


def test_images_that_say_nothing_leave_all_sizes_at_zero() -> None:
    labels = torch.tensor([[True, False], [True, True], [False, False]])
    areas = torch.tensor([[0.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert class_sizes(labels.float(), labels, areas).tolist() == [0.0, 0.0]
    assert resized(torch.zeros(1, 2), torch.ones(2)).tolist() == [[0.0, 0.0]]


def test_weights_learn_sizes_and_codes_do_not(sized_dataset: Dataset, tmp_path: Path) -> None:
    data = sized_dataset
    assert data.features is not None
    assert data.areas is not None
    sized, plain = (
        train(data, bits=16, epochs=5, sizes=sizes, out=tmp_path / str(sizes)) for sizes in (True, False)
    )
    rows = data.splits.query
    features, labels = data.features[rows], data.labels[rows]
    np.testing.assert_array_equal(sized.logits(features), plain.logits(features))
    np.testing.assert_array_equal(sized.presence(features), plain.presence(features))
    found = [
        measure_agreement(model.weights(features, labels), data.areas[rows], labels)
        for model in (sized, plain)
    ]
    assert found[0].largest > found[1].largest + 0.1
    assert found[0].centred_pearson > found[1].centred_pearson + 0.2
    again = HashModel.load(tmp_path / "True").weights(features, labels)
    np.testing.assert_array_equal(again, sized.weights(features, labels))


def test_where_nothing_is_known_of_areas_nothing_changes() -> None:
    data = feature_dataset()
    assert data.areas is None
    assert data.features is not None
    models = [train(data, bits=16, epochs=2, sizes=sizes) for sizes in (True, False)]
    first, second = (model.weights(data.features, data.labels) for model in models)
    np.testing.assert_array_equal(first, second)


def test_a_method_without_evidence_takes_areas_as_no_offence(sized_dataset: Dataset) -> None:
    assert train(sized_dataset, method="csq", bits=16, epochs=2).bits == 16
