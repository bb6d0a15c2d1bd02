"""The steps after the last epoch: rotation, label threshold, class sizes, general code."""

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
from centerhash.centers import hash_centers
from centerhash.data import Dataset
from centerhash.methods.shallow.projections import ITQ
from centerhash.networks.heads import Head, HeadOptions
from centerhash.training import finish
from centerhash.training.finish import code_rotation, label_threshold, read_code
from centerhash.weights import class_sizes, softmax_weights
from tests.toys import feature_dataset

# logarithms of the sizes of the six toy classes
SIZES = np.array([1.5, -1.0, 0.5, 0.0, -0.5, 1.0])


# Rotation


def mean_cosine(logits: NDArray[Any]) -> float:
    """Mean cosine between logits (n, K) and their own signs."""
    lengths = np.linalg.norm(logits, axis=1) * np.sqrt(logits.shape[1])
    return float((np.abs(logits).sum(axis=1) / lengths).mean())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12))
def test_code_rotation_is_orthogonal(seed: int, bits: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(60, bits)) * np.linspace(3, 0.2, bits)
    rotation = code_rotation(logits)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(bits), atol=1e-9)
    assert mean_cosine(logits @ rotation) >= mean_cosine(logits) - 1e-9


def test_code_rotation_by_hand() -> None:
    codes = np.where(np.random.default_rng(0).random((80, 16)) < 0.5, 1.0, -1.0)
    np.testing.assert_allclose(code_rotation(codes * 3), np.eye(16), atol=1e-9)
    logits = np.random.default_rng(1).normal(size=(50, 8))
    scaled = logits * np.linspace(0.1, 9, 50)[:, None]
    np.testing.assert_allclose(code_rotation(scaled), code_rotation(logits), atol=1e-9)
    assert np.isfinite(code_rotation(np.vstack([logits, np.zeros((1, 8))]))).all()


def test_rotation_keeps_center_angles() -> None:
    data = feature_dataset()
    assert data.features is not None
    rotated = train(data, method="orthohash", bits=16, epochs=3, head=HeadOptions(rotate=True))
    plain = train(data, method="orthohash", bits=16, epochs=3)
    similarities = [model.similarities(data.features) for model in (rotated, plain)]
    np.testing.assert_allclose(*similarities, atol=1e-4)
    assert rotated.predict_labels(data.features).tolist() == plain.predict_labels(data.features).tolist()
    np.testing.assert_array_equal(rotated.centers.numpy(), np.where(rotated.directions.numpy() >= 0, 1, -1))
    np.testing.assert_array_equal(plain.directions.numpy(), plain.centers.numpy())
    assert not (rotated.encode_features(data.features) == plain.encode_features(data.features)).all()


def test_rotation_of_any_deep_method() -> None:
    data = feature_dataset()
    assert data.features is not None
    plain = train(data, method="dhn", bits=16, epochs=2)
    rotated = train(data, method="dhn", bits=16, epochs=2, head=HeadOptions(rotate=True))
    assert isinstance(plain.network, Head)
    assert isinstance(rotated.network, Head)
    assert plain.network.rotation is None
    assert rotated.network.rotation is not None
    expected = plain.logits(data.features) @ rotated.network.rotation.matrix.numpy()
    np.testing.assert_allclose(rotated.logits(data.features), expected, atol=1e-4)


def test_evidence_does_not_change_codes() -> None:
    data = feature_dataset()
    assert data.features is not None
    models = [train(data, bits=16, epochs=3, head=HeadOptions(evidence=on)) for on in (True, False)]
    logits = [model.logits(data.features) for model in models]
    np.testing.assert_allclose(*logits, atol=1e-4)
    several = data.labels.sum(axis=1) > 1
    weights = [model.weights(data.features, data.labels)[several] for model in models]
    assert not np.allclose(*weights)


# Label threshold


def best_f1_cut(similarities: NDArray[Any], labels: NDArray[Any]) -> tuple[float, float]:
    """The best F1 over all cuts at a similarity, and that cut, by a loop."""
    scores = []
    for cut in np.unique(similarities):
        predicted = similarities >= cut
        scores.append((2 * (predicted & labels).sum() / (predicted.sum() + labels.sum()), cut))
    return max(scores)


def test_label_threshold_has_best_f1() -> None:
    generator = np.random.default_rng(0)
    centers = torch.from_numpy(hash_centers(5, 16)).float()
    labels = generator.random((30, 5)) < 0.4
    logits = (labels @ centers.numpy() + generator.normal(size=(30, 16)) * 1.5).astype(np.float32)
    similarities = logits @ centers.numpy().T / (np.linalg.norm(logits, axis=1, keepdims=True) * 4)
    _, cut = best_f1_cut(similarities, labels)
    assert label_threshold(logits, labels, centers) == pytest.approx(cut, abs=1e-5)


def test_label_threshold_of_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "_MOST_SIMILARITIES", 8)
    centers = torch.from_numpy(hash_centers(4, 8)).float()
    labels = np.eye(4, dtype=bool)
    spoiled = np.concatenate([labels[:2], labels[:1:-1]])
    assert label_threshold(centers.numpy(), spoiled, centers) == pytest.approx(1)


# Sizes of classes: learned from areas for the weights, and for nothing else


@pytest.fixture(scope="module")
def sized_dataset() -> Dataset:
    """The toy dataset, whose areas follow the sizes of the classes and nothing else."""
    data = feature_dataset()
    return dataclasses.replace(data, areas=(np.exp(SIZES) * data.labels / 10).astype(np.float32))


@given(st.integers(0, 10_000))
@example(2112)  # flat enough for a search that stops early
def test_class_sizes_from_areas(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(300, 5, generator=generator) < 0.6
    weights = softmax_weights(torch.randn(300, 5, generator=generator).double(), labels)
    sizes = torch.randn(5, generator=generator).double()
    areas = torch.nn.functional.normalize(weights * torch.exp(sizes), p=1, dim=1)
    fitted = class_sizes(weights, labels, 0.3 * areas, ridge=0.0)
    torch.testing.assert_close(fitted - fitted.mean(), sizes - sizes.mean(), atol=1e-4, rtol=0)


def test_class_sizes_by_hand() -> None:
    # equal weights and areas of 3 to 1: sizes log(3) apart
    labels, areas = torch.tensor([[True, True]]), torch.tensor([[0.6, 0.2]])
    sizes = class_sizes(torch.full((1, 2), 0.5), labels, areas, ridge=0.0)
    assert float(sizes[0] - sizes[1]) == pytest.approx(np.log(3), abs=1e-6)


def test_class_sizes_without_areas() -> None:
    labels = torch.tensor([[True, False], [True, True], [False, False]])
    areas = torch.tensor([[0.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert class_sizes(labels.float(), labels, areas).tolist() == [0.0, 0.0]


def test_weights_learn_sizes(sized_dataset: Dataset, tmp_path: Path) -> None:
    data, rows = sized_dataset, sized_dataset.splits.query
    assert data.features is not None
    assert data.areas is not None
    sized, plain = (
        train(data, bits=16, epochs=5, sizes=sizes, out=tmp_path / str(sizes)) for sizes in (True, False)
    )
    features, labels = data.features[rows], data.labels[rows]
    np.testing.assert_array_equal(sized.logits(features), plain.logits(features))
    np.testing.assert_array_equal(sized.label_probabilities(features), plain.label_probabilities(features))
    several = labels.sum(axis=1) > 1
    largest = data.areas[rows][several].argmax(axis=1)
    agreement = [
        (model.weights(features, labels)[several].argmax(axis=1) == largest).mean()
        for model in (sized, plain)
    ]
    assert agreement[0] > agreement[1] + 0.1
    stored = HashModel.load(tmp_path / "True").weights(features, labels)
    np.testing.assert_array_equal(stored, sized.weights(features, labels))


@pytest.mark.parametrize("method", ["csq", "ics"])
def test_sizes_need_evidence(sized_dataset: Dataset, method: str) -> None:
    data = sized_dataset
    assert data.features is not None
    models = [train(data, method=method, bits=16, epochs=2, sizes=sizes) for sizes in (True, False)]
    weights = [model.weights(data.features, data.labels) for model in models]
    np.testing.assert_array_equal(*weights)


# General code


def test_read_code_by_hand() -> None:
    features = np.array([[0.0], [4.0]], np.float32)  # standardized: -1 and 1, sum of squares 2
    code = read_code(np.array([[1.0], [5.0]]), features)
    slope = 4 / (2 + 200)
    np.testing.assert_allclose(code.transform(features), [[3 - slope], [3 + slope]])


def test_read_code_of_changed_features() -> None:
    generator = np.random.default_rng(0)
    before = generator.normal(size=(24_000, 32)).astype(np.float32)
    mixed = np.linalg.qr(generator.normal(size=(32, 32)))[0]
    after = before * np.where(np.arange(32) < 4, 4, 1) @ mixed
    old, new = slice(20_000), slice(20_000, None)
    source = ITQ(16).fit(before[old])
    code = read_code(source.transform(before[old]), after[old].astype(np.float32))
    equal = (code.transform(after[new]) > 0) == (source.transform(before[new]) > 0)
    assert equal.mean() > 0.9
