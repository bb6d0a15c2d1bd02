"""The contract of all methods, and of their families."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError
from centerhash.data import Dataset, Splits
from centerhash.evaluation import Evaluation, evaluate
from centerhash.methods.registry import METHODS, Method
from centerhash.model.model import HashModel
from centerhash.training.config import resolve
from centerhash.training.context import EpochRow, RunContext
from centerhash.training.pipeline import fit_frozen
from centerhash.training.run import train
from tests.toys import CLASSES, feature_dataset, separable, toy_config

DEEP = [row.name for row in METHODS.values() if row.family != "shallow"]
FEWER_STEPS = {"cnnh": {"sweeps": 4}}


@dataclass(frozen=True)
class Fitted:
    """A model of one method, what it was trained on, and its log (none for a shallow method)."""

    row: Method
    model: HashModel
    dataset: Dataset
    log: list[EpochRow]

    @property
    def features(self) -> NDArray[np.float32]:
        return np.array(self.dataset.features)


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
def fitted(request: pytest.FixtureRequest) -> Fitted:
    dataset, logs = feature_dataset(160), [list[EpochRow]()]
    assert dataset.features is not None
    model = fit_frozen(
        dataset,
        dataset.features,
        resolve(
            toy_config(method=request.param, bits=32, epochs=12, options=FEWER_STEPS.get(request.param, {}))
        ),
        RunContext(on_epoch=lambda log: logs.append(list(log))),
    )
    return Fitted(METHODS[request.param], model, dataset, logs[-1])


def test_learns(fitted: Fitted) -> None:
    """Several labels share one code, so not even perfect features give 1 here."""
    result = measured(fitted.model, fitted.dataset)
    assert result.random_all < 0.56
    assert result.map_all > (0.8 if fitted.row.uses_labels else 0.65)
    losses = [row["loss"] for row in fitted.log]
    if fitted.row.family == "shallow":
        assert not losses
    else:
        assert losses[-1] < losses[0]


def test_codes_of_any_batch(fitted: Fitted) -> None:
    codes = fitted.model.encode_features(fitted.features)
    assert codes.shape == (160, 32)
    assert codes.dtype == np.int8
    assert set(np.unique(codes)) == {-1, 1}
    together = fitted.model.encode_features(fitted.features[:20])
    alone = [fitted.model.encode_features(fitted.features[row : row + 1])[0] for row in range(20)]
    assert np.array_equal(together, alone)


def test_save_and_load(fitted: Fitted, tmp_path: Path) -> None:
    fitted.model.save(tmp_path)
    loaded = HashModel.load(tmp_path)
    assert loaded.spec == fitted.model.spec
    assert np.array_equal(
        loaded.encode_features(fitted.features), fitted.model.encode_features(fitted.features)
    )
    loaded.save(tmp_path / "again")
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_labels_and_weights(fitted: Fitted, tmp_path: Path) -> None:
    model, features, labels = fitted.model, fitted.features, fitted.dataset.labels
    if fitted.row.family != "central":
        calls = model.predict_labels, model.explain_features, lambda rows: model.weights(rows, labels)
        message = f"a model of method '{fitted.row.name}' has no hash centers"
        for call in calls:
            with pytest.raises(ConfigError, match=message):
                call(features)
        return
    weights = model.weights(features, labels)
    assert not weights[~labels].any()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    assert (model.predict_labels(features) == labels).mean() > 0.7
    model.save(tmp_path)
    assert np.array_equal(HashModel.load(tmp_path).weights(features, labels), weights)


@pytest.mark.parametrize("method", METHODS)
def test_seed(method: str) -> None:
    dataset = feature_dataset(60)
    assert dataset.features is not None
    before = np.array(dataset.features), np.array(dataset.labels)
    options = FEWER_STEPS.get(method, {})
    models = [
        train(dataset, config=toy_config(method=method, epochs=2, seed=seed, options=options))
        for seed in (3, 3, 4)
    ]
    first, again, other = (model.tensors() for model in models)
    assert all(torch.equal(first[name], again[name]) for name in first)
    if method in DEEP:  # a shallow method may have nothing random
        assert any(not torch.equal(first[name], other[name]) for name in first)
    assert models[0].spec == models[1].spec
    assert np.array_equal(dataset.features, before[0])
    assert np.array_equal(dataset.labels, before[1])


@pytest.mark.parametrize("method", METHODS)
def test_few_classes(method: str) -> None:
    features, all_labels = separable(40)
    splits = Splits(train=np.arange(40), query=np.arange(4), database=np.arange(4, 40))
    config = toy_config(method=method, epochs=1, bits=8, options=FEWER_STEPS.get(method, {}))
    for classes in (1, 2):
        labels = all_labels[:, :classes] | (np.arange(classes) == 0)
        dataset = Dataset("few", Path("few"), CLASSES[:classes], labels, splits, features=features)
        model = train(dataset, config=config)
        assert model.encode_features(features).shape == (40, 8)
        if METHODS[method].family == "central":
            assert model.predict_labels(features).any(axis=1).all()
