"""The steps after the last epoch: rotation, label threshold, class sizes, visual code."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash import HashModel, train
from centerhash.core.errors import ConfigError
from centerhash.data import Dataset
from centerhash.methods.centers import hash_centers
from centerhash.methods.shallow.projections import Itq, ItqOptions
from centerhash.methods.weights import class_sizes, resized, softmax_weights
from centerhash.networks.heads import HeadOptions, Rotation, build_head
from centerhash.training.finish import code_rotation, label_threshold, read_code, rotate_head
from reproduction.agreement import measure_agreement
from tests.toys import feature_dataset

TRUE = np.array([1.5, -1.0, 0.5, 0.0, -0.5, 1.0])  # logarithms of the sizes of the six toy classes


# Rotation


def quantization(logits: np.ndarray) -> float:
    """Mean cosine between logits (n, K) and their own signs."""
    return float(
        (np.abs(logits).sum(axis=1) / np.linalg.norm(logits, axis=1)).mean() / np.sqrt(logits.shape[1])
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12))
def test_a_rotation_is_orthogonal_and_brings_logits_no_further_from_codes(seed: int, bits: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(60, bits)) * np.linspace(3, 0.2, bits)
    rotation = code_rotation(logits)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(bits), atol=1e-9)
    assert quantization(logits @ rotation) >= quantization(logits) - 1e-9


def test_codes_lengths_and_zeros_do_not_affect_the_rotation() -> None:
    codes = np.where(np.random.default_rng(0).random((80, 16)) < 0.5, 1.0, -1.0)
    np.testing.assert_allclose(code_rotation(codes * 3), np.eye(16), atol=1e-9)
    logits = np.random.default_rng(1).normal(size=(50, 8))
    scaled = logits * np.linspace(0.1, 9, 50)[:, None]
    np.testing.assert_allclose(code_rotation(scaled), code_rotation(logits), atol=1e-9)
    assert np.isfinite(code_rotation(np.vstack([logits, np.zeros((1, 8))]))).all()


def test_the_head_rotates_its_logits() -> None:
    head = build_head(5, 8, HeadOptions(hidden=(), rotate=True)).eval()
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    before = head(features).logits.detach()
    rotation = rotate_head(head, before.numpy())
    np.testing.assert_allclose(rotation.numpy(), code_rotation(before.numpy()), atol=1e-6)
    torch.testing.assert_close(head(features).logits, before @ rotation)
    layer = Rotation(8)
    torch.testing.assert_close(layer(before), before)  # the identity until it is set
    assert not list(layer.parameters())


def test_a_rotation_keeps_every_angle_to_the_centers() -> None:
    data = feature_dataset()
    assert data.features is not None
    rotated = train(data, method="orthohash", bits=16, epochs=3, head=HeadOptions(rotate=True))
    plain = train(data, method="orthohash", bits=16, epochs=3)
    np.testing.assert_allclose(
        rotated.similarities(data.features), plain.similarities(data.features), atol=1e-4
    )
    assert rotated.predict_labels(data.features).tolist() == plain.predict_labels(data.features).tolist()
    assert set(np.unique(rotated.centers.numpy())) == {-1.0, 1.0}
    np.testing.assert_array_equal(rotated.centers.numpy(), np.where(rotated.directions.numpy() >= 0, 1, -1))
    np.testing.assert_array_equal(plain.directions.numpy(), plain.centers.numpy())
    assert not (rotated.encode_features(data.features) == plain.encode_features(data.features)).all()


def test_any_deep_method_can_be_rotated_and_only_ours_is_by_default() -> None:
    data = feature_dataset()
    plain = train(data, method="dhn", bits=16, epochs=2)
    rotated = train(data, method="dhn", bits=16, epochs=2, head=HeadOptions(rotate=True))
    assert data.features is not None
    before, after = plain.logits(data.features), rotated.logits(data.features)
    matrix = next(tensor for name, tensor in rotated.tensors().items() if name.endswith("matrix")).numpy()
    np.testing.assert_allclose(after, before @ matrix, atol=1e-4)
    assert not any(name.endswith("matrix") for name in plain.tensors())
    assert any(name.endswith("matrix") for name in train(data, bits=16, epochs=2).tensors())


def test_evidence_does_not_change_the_codes() -> None:
    data = feature_dataset()
    assert data.features is not None
    with_it = train(data, bits=16, epochs=3)
    without = train(data, bits=16, epochs=3, head=HeadOptions(evidence=False))
    np.testing.assert_allclose(with_it.logits(data.features), without.logits(data.features), atol=1e-4)
    several = data.labels.sum(axis=1) > 1
    assert not np.allclose(
        with_it.weights(data.features, data.labels)[several],
        without.weights(data.features, data.labels)[several],
    )
    with pytest.raises(ConfigError, match=r"'csq'.*ics-softmax"):
        train(data, method="csq", bits=16, epochs=1, head=HeadOptions(evidence=True))


# Label threshold


def best_f1_cut(similarities: NDArray[Any], labels: NDArray[Any]) -> tuple[float, float]:
    """The best F1 over all cuts at a similarity, and that cut, by a loop."""
    found = []
    for cut in np.unique(similarities):
        chosen = similarities >= cut
        found.append((2 * (chosen & labels).sum() / (chosen.sum() + labels.sum()), cut))
    return max(found)


def test_the_threshold_has_the_best_f1() -> None:
    generator = np.random.default_rng(0)
    centers = torch.from_numpy(hash_centers(5, 16)).float()
    labels = generator.random((30, 5)) < 0.4
    logits = (labels @ centers.numpy() + generator.normal(size=(30, 16)) * 1.5).astype(np.float32)
    lengths = np.linalg.norm(logits, axis=1, keepdims=True) * 4
    score, cut = best_f1_cut(logits @ centers.numpy().T / lengths, labels)
    found = label_threshold(logits, labels, centers)
    assert found == pytest.approx(cut, abs=1e-5)
    chosen = logits @ centers.numpy().T / lengths >= found - 1e-6
    assert 2 * (chosen & labels).sum() / (chosen.sum() + labels.sum()) == pytest.approx(score)


def test_the_threshold_reads_a_bounded_number_of_similarities() -> None:
    centers = torch.from_numpy(hash_centers(4, 8)).float()
    logits, labels = centers.numpy()[[0, 1, 2, 3]], np.eye(4, dtype=bool)
    spoiled = labels[:, ::-1].copy()
    spoiled[:2] = labels[:2]
    assert label_threshold(logits, spoiled, centers, entries=8) == pytest.approx(1)


# Sizes of classes: learned from areas for the weights, and for nothing else


@pytest.fixture(scope="module")
def sized_dataset() -> Dataset:
    """The toy dataset, whose areas follow the sizes of the classes and nothing else."""
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


def test_images_without_information_leave_all_sizes_at_zero() -> None:
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
    np.testing.assert_array_equal(sized.label_probabilities(features), plain.label_probabilities(features))
    found = [
        measure_agreement(model.weights(features, labels), data.areas[rows], labels)
        for model in (sized, plain)
    ]
    assert found[0].largest > found[1].largest + 0.1
    assert found[0].centred_pearson > found[1].centred_pearson + 0.2
    again = HashModel.load(tmp_path / "True").weights(features, labels)
    np.testing.assert_array_equal(again, sized.weights(features, labels))


def test_without_areas_sizes_change_nothing(sized_dataset: Dataset) -> None:
    data = feature_dataset()
    assert data.areas is None
    assert data.features is not None
    models = [train(data, bits=16, epochs=2, sizes=sizes) for sizes in (True, False)]
    first, second = (model.weights(data.features, data.labels) for model in models)
    np.testing.assert_array_equal(first, second)
    assert (
        train(sized_dataset, method="csq", bits=16, epochs=2).bits == 16
    )  # without evidence, areas are unused


# Visual code


def test_regression_by_hand() -> None:
    features = np.array([[0.0], [4.0]], np.float32)  # standardized: -1 and 1, sum of squares 2
    found = read_code(np.array([[1.0], [5.0]]), features)
    slope = 4 / (2 + 200)
    np.testing.assert_allclose(found.values(features), [[3 - slope], [3 + slope]])


def test_a_code_is_read_from_features_in_which_other_directions_have_grown() -> None:
    generator = np.random.default_rng(0)
    before = generator.normal(size=(24_000, 32)).astype(np.float32)
    mixed = np.linalg.qr(generator.normal(size=(32, 32)))[0]
    after = before * np.where(np.arange(32) < 4, 4, 1) @ mixed
    known, new = slice(20_000), slice(20_000, None)
    source = Itq.fit(before[known], np.zeros((20_000, 0), np.bool_), 16, ItqOptions(), 0)
    found = read_code(source.values(before[known]), after[known].astype(np.float32))
    equal = (found.values(after[new]) > 0) == (source.values(before[new]) > 0)
    assert equal.mean() > 0.9
