from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import open_dataset
from centerhash.experiments.compare import train_and_evaluate
from centerhash.experiments.runner import differences, run_tasks
from centerhash.experiments.tasks import Source, make_task, plan_tasks, validation_split
from centerhash.networks.backbones import DEFAULT_BACKBONE, get_backbone
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.run_folder import fingerprint
from tests.toys import feature_dataset


def test_plan_tasks_by_seed() -> None:
    names = [task.name for task in plan_tasks(["csq", "ics"], [16, 24], 2)]
    assert names[:5] == [
        "csq 16 bits seed 0",
        "ics 16 bits seed 0",
        "csq 24 bits seed 0",
        "ics 24 bits seed 0",
        "csq 16 bits seed 1",
    ]
    assert len(names) == 8


def test_plan_tasks_resolves() -> None:
    (task,) = plan_tasks(["ics"], [16], 1, {"ics": {"options": {"lambda": "0.2"}}}, {"epochs": 7})
    expected = resolve(TrainConfig(method="ics", bits=16, epochs=7, sizes=False, options={"lambda": 0.2}))
    assert task.config == expected
    assert task.resolved == expected.model_dump(mode="json")
    assert task.resolved["options"]["beta"] is not None


def test_impossible_bits() -> None:
    with pytest.raises(ConfigError, match="'bits' of training cannot be 7"):
        plan_tasks(["ics"], [16, 7], 1)


def test_name_and_key() -> None:
    options = {"method": "ics", "bits": 16}
    plain, described = make_task(options), make_task(options, value=0.1, test={"images": 3})
    assert described.name == "ics 16 bits seed 0 (value 0.1)"
    assert described.identity == {**plain.identity, "about": {"value": 0.1, "test": {"images": 3}}}
    assert plain.key != described.key


# What it is measured on


def test_validation_split() -> None:
    dataset = feature_dataset(160)  # 120 to train on
    splits = validation_split(dataset).splits
    assert (len(splits.train), len(splits.query), splits.source) == (90, 30, "validation")
    assert np.array_equal(splits.query, splits.database)
    assert sorted([*splits.train, *splits.query]) == sorted(dataset.splits.train.tolist())
    again = validation_split(dataset).splits
    assert np.array_equal(again.query, splits.query)


def test_too_few_images() -> None:
    with pytest.raises(DataError, match="at least 8, got 6"):
        validation_split(feature_dataset(8))


def test_facts_of_a_source(feature_folder: Path) -> None:
    setup, dataset = Source(feature_folder, k=50).open(), open_dataset(feature_folder)
    facts = setup.facts()
    assert facts["fingerprint"] == fingerprint(dataset)
    assert facts["split"] == dataset.splits.source
    assert facts["images"] == {"train": 144, "query": 16, "database": 144}
    assert facts["evaluation"] == {"k": 50, "exclude_self": False}


def test_facts_of_images(scene_folder: Path, feature_cache: Path) -> None:
    facts = Source(scene_folder, cache=feature_cache, device="cpu").open().facts()
    key = get_backbone(DEFAULT_BACKBONE).key
    assert facts["backbone"] == {"name": DEFAULT_BACKBONE, "crop": 256, "pool": "mean+max", "key": key}
    assert differences(facts, facts) == []
    assert len(differences({**facts, "backbone": {"key": "other"}}, facts)) == 1


def test_validation_of_images(scene_folder: Path, feature_cache: Path) -> None:
    """Their labels, names, areas and splits stay theirs."""
    totals: list[int] = []
    source = Source(scene_folder, validation=True, cache=feature_cache, device="cpu")
    setup = source.open(lambda stage, done, total, note="", /: totals.append(total))
    dataset = open_dataset(scene_folder)
    expected, subset = validation_split(dataset), setup.dataset
    assert set(totals) == {len(dataset.splits.train)} == {len(setup.features)}
    assert dataset.areas is not None
    assert subset.areas is not None
    for name, rows in expected.splits.items():
        rows_of_subset = getattr(subset.splits, name)
        assert [subset.names[row] for row in rows_of_subset] == [dataset.names[row] for row in rows]
        assert np.array_equal(subset.labels[rows_of_subset], dataset.labels[rows])
        assert np.array_equal(subset.areas[rows_of_subset], dataset.areas[rows])
        assert subset.image_paths is not None
        assert [subset.image_paths[row].name for row in rows_of_subset] == [
            Path(dataset.names[row]).name for row in rows
        ]


def test_order_of_settings() -> None:
    points = {"ics": lambda bits: {"learning_rate": 0.1, "gamma": 0.5}}
    (task,) = plan_tasks(["ics"], [16], 1, None, {"learning_rate": 0.2}, points)
    assert (task.config.learning_rate, task.config.options["gamma"]) == (0.2, 0.5)
    (task,) = plan_tasks(["ics"], [16], 1, {"ics": {"learning_rate": 0.3}}, {"learning_rate": 0.2}, points)
    assert task.config.learning_rate == 0.3


def test_backbone_is_for_images(feature_folder: Path, scene_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="backbone"):
        Source(feature_folder, backbone=get_backbone("efficientnet-lite0", crop=224)).open()
    (task,) = plan_tasks(["ics"], [16], 1, None, {"crop": 128})
    with pytest.raises(ConfigError, match="crop"):
        run_tasks(Source(scene_folder), [task], tmp_path / "out", train_and_evaluate)


def test_depth_of_validation(feature_folder: Path) -> None:
    facts = Source(feature_folder, k=50, validation=True).open().facts()
    assert facts["images"] == {"train": 108, "query": 36, "database": 36}
    assert facts["evaluation"] == {"k": 12, "exclude_self": True}  # 50 * 36 / 144 = 12.5, to even
