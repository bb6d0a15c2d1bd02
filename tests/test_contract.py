"""One contract for all methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from centerhash.data import Dataset, Splits
from centerhash.evaluation import Evaluation, evaluate
from centerhash.methods import METHODS
from centerhash.model import HashModel
from centerhash.runs import fit
from centerhash.train import (
    EpochRow,
)
from tests.toys import CLASSES, feature_dataset, separable, toy_config


def measured(model: HashModel, dataset: Dataset) -> Evaluation:
    assert dataset.features is not None
    query, database = dataset.splits.query, dataset.splits.database
    return evaluate(
        model.encode_features(dataset.features[query]),
        model.encode_features(dataset.features[database]),
        dataset.labels[query],
        dataset.labels[database],
        k=len(database),
    )


@pytest.fixture(scope="module", params=METHODS)
def fitted(request: pytest.FixtureRequest) -> tuple[HashModel, Dataset, list[EpochRow]]:
    dataset, logs = feature_dataset(240), []
    model = fit(
        dataset,
        toy_config(method=request.param, bits=32, epochs=25),
        on_epoch=lambda log: logs.append(list(log)),
    )
    return model, dataset, logs[-1]


Fitted = tuple[HashModel, Dataset, list[EpochRow]]


def test_every_method_lowers_its_loss(fitted: Fitted) -> None:
    losses = [row["loss"] for row in fitted[2]]
    assert losses[-1] < losses[0]


def test_every_method_learns_separable_data(fitted: Fitted) -> None:
    """Several labels share one code, so not even perfect features give 1 here."""
    found = measured(*fitted[:2])
    assert found.chance_textbook < 0.55
    assert found.map_textbook > 0.8


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_perfect_where_each_image_has_one_label(method: str) -> None:
    dataset = feature_dataset(160, most_labels=1)
    found = measured(fit(dataset, toy_config(method=method, epochs=15)), dataset)
    assert found.chance_textbook < 0.3
    assert found.map_textbook > 0.99


def test_every_method_gives_codes_of_plus_and_minus_one(fitted: Fitted) -> None:
    model, dataset, _ = fitted
    assert dataset.features is not None
    codes = model.encode_features(dataset.features)
    assert codes.shape == (240, 32)
    assert codes.dtype == np.int8
    assert set(np.unique(codes)) == {-1, 1}


def test_every_method_is_stored_and_read_without_change(fitted: Fitted, tmp_path: Path) -> None:
    model, dataset, _ = fitted
    assert dataset.features is not None
    model.save(tmp_path)
    loaded = HashModel.load(tmp_path)
    assert loaded.spec == model.spec
    assert np.array_equal(loaded.encode_features(dataset.features), model.encode_features(dataset.features))
    assert np.array_equal(
        loaded.weights(dataset.features, dataset.labels), model.weights(dataset.features, dataset.labels)
    )


def test_every_method_gives_weights_that_sum_to_one(fitted: Fitted) -> None:
    model, dataset, _ = fitted
    assert dataset.features is not None
    weights = model.weights(dataset.features, dataset.labels)
    assert not weights[~dataset.labels].any()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_depends_on_its_seed_alone(method: str) -> None:
    dataset = feature_dataset(60)
    assert dataset.features is not None
    before = np.array(dataset.features), np.array(dataset.labels)
    models = [fit(dataset, toy_config(method=method, epochs=2, seed=seed)) for seed in (3, 3, 4)]
    first, again, other = (model.tensors() for model in models)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert models[0].spec == models[1].spec
    assert np.array_equal(dataset.features, before[0])
    assert np.array_equal(dataset.labels, before[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [1, 2])
def test_every_method_works_with_few_classes(method: str, classes: int) -> None:
    features, labels = separable(40)
    labels = labels[:, :classes] | (np.arange(classes) == 0)
    splits = Splits(train=np.arange(40), query=np.arange(4), database=np.arange(4, 40))
    dataset = Dataset("few", Path("few"), CLASSES[:classes], labels, splits, features=features)
    model = fit(dataset, toy_config(method=method, epochs=1, bits=8))
    assert model.encode_features(features).shape == (40, 8)
    assert model.predict_labels(features).any(axis=1).all()
