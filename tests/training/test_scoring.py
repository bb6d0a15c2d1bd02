from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, InputError
from centerhash.data import Dataset
from centerhash.encoding.code_files import evaluate_files
from centerhash.model.model import HashModel
from centerhash.training.scoring import evaluate
from tests.toys import feature_dataset


def test_a_model_is_evaluated_on_a_path_with_the_splits_of_its_training(
    feature_run: Path, feature_folder: Path
) -> None:
    model = HashModel.load(feature_run)
    assert evaluate(model, feature_folder, k=20) == evaluate_files([feature_run], k=20)


def test_stages_are_reported_and_settings_are_passed_on(toy_model: HashModel, toy_dataset: Dataset) -> None:
    calls: list[tuple[Any, ...]] = []
    found = evaluate(
        toy_model,
        toy_dataset,
        k=7,
        seed=3,
        precision_at=(2,),
        exclude_self=True,
        progress=lambda *call: calls.append(call),
    )
    assert calls[-1] == ("encoding", 160, 160)
    assert (found.k, found.seed, found.exclude_self, list(found.precision)) == (7, 3, True, [2])


def test_images_are_refused_by_a_model_of_features(toy_model: HashModel, scene_folder: Path) -> None:
    with pytest.raises(ConfigError, match="has no backbone"):
        evaluate(toy_model, scene_folder, cache=None)


def test_codes_instead_of_a_model_are_told_where_to_go() -> None:
    with pytest.raises(InputError):
        evaluate(np.ones((4, 8)), feature_dataset())  # type: ignore[arg-type]
