"""Validation during training: mAP of images that are held out, and never of the queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data import Dataset, Splits
from centerhash.evaluation import evaluate
from centerhash.training.context import RunContext, hold_out
from centerhash.training.finish import validation_map
from centerhash.training.run import train
from tests.toys import CLASSES, cli, feature_dataset, run_contents, run_log, toy_config, write_feature_folder

BRIEF = {"epochs": 5, "batch_size": 16}


def test_hold_out_a_tenth() -> None:
    dataset = feature_dataset(160)  # the first 40 are queries
    labels = dataset.labels.copy()
    labels[100:] = False
    leaky = replace(dataset, labels=labels, splits=replace(dataset.splits, train=np.arange(160)))
    for seed in range(20):
        held_out = hold_out(leaky, seed)
        assert len(held_out) == 6
        assert set(held_out.tolist()) <= set(range(40, 100))
    assert np.array_equal(hold_out(leaky, 0), hold_out(leaky, 0))
    assert not np.array_equal(hold_out(leaky, 0), hold_out(leaky, 1))


def test_hold_out_at_most_1000() -> None:
    many = np.tile(feature_dataset(40).labels, (400, 1))
    splits = Splits(train=np.arange(40, 16_000), query=np.arange(40), database=np.arange(40, 16_000))
    features = np.zeros((16_000, 2), np.float32)
    assert len(hold_out(Dataset("large", Path("large"), CLASSES, many, splits, features=features), 0)) == 1000


def test_split_validation_keeps_order() -> None:
    context = RunContext(validation=np.array([2, 5, 9]))
    kept, held_out = context.split_validation(np.array([5, 1, 4, 2]))
    assert (kept.tolist(), held_out.tolist()) == ([1, 4], [5, 2])


def test_validation_map_of_codes() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(60, 8)).astype(np.float32)
    # Signs alone do not determine these labels.
    labels = np.abs(logits[:, :3]) > 0.6
    sides = logits[:10], logits[10:], labels[:10], labels[10:]
    codes = (np.where(side >= 0, 1, -1) for side in sides[:2])
    plain = evaluate(*codes, *sides[2:], precision_at=()).map_retrieved  # type: ignore[misc, arg-type]
    configs = [toy_config(bits=8, head={"rotate": rotate}) for rotate in (False, True)]
    maps = [validation_map(*sides, config) for config in configs]
    assert maps[0] == plain
    assert maps[1] != plain


def test_map_every_interval(tmp_path: Path) -> None:
    train(feature_dataset(), config=toy_config(**BRIEF, eval_interval=2), out=tmp_path / "run")
    maps = {
        row["epoch"]: row["validation_map"] for row in run_log(tmp_path / "run") if "validation_map" in row
    }
    assert sorted(maps) == [2, 4, 5]
    assert all(0.3 < value <= 1 for value in maps.values())
    with np.load(tmp_path / "run" / "splits.npz") as splits:
        assert sorted(splits) == ["database", "query", "train", "validation"]
        assert len(splits["validation"]) == 12
        rows = np.concatenate([splits["train"], splits["validation"]])
    assert np.array_equal(np.sort(rows), feature_dataset().splits.train)


def test_last_map_of_model(tmp_path: Path) -> None:
    dataset, config = feature_dataset(), toy_config(**BRIEF, eval_interval=3)
    model = train(dataset, config=config, out=tmp_path)
    held_out = hold_out(dataset, config.seed)
    kept, _ = RunContext(validation=held_out).split_validation(dataset.splits.train)
    assert dataset.features is not None
    query, database = (model.encode_features(dataset.features[side]) for side in (held_out, kept))
    expected = evaluate(query, database, dataset.labels[held_out], dataset.labels[kept], precision_at=())
    assert run_log(tmp_path)[-1]["validation_map"] == pytest.approx(expected.map_retrieved, abs=0.01)


@pytest.mark.slow
def test_held_out_images_are_unused(tmp_path: Path) -> None:
    """A run with validation is that of a dataset without these images."""
    dataset, config = feature_dataset(), toy_config(**BRIEF)
    context = RunContext(validation=hold_out(dataset, config.seed))
    kept, held_out = context.split_validation(dataset.splits.train)
    assert len(held_out) == 12
    smaller = dataset.with_splits(replace(dataset.splits, train=kept))
    train(smaller, config=config, out=tmp_path / "smaller")
    train(dataset, config=toy_config(**BRIEF, eval_interval=1), out=tmp_path / "validated")
    plain, validated = run_contents(tmp_path / "smaller"), run_contents(tmp_path / "validated")
    for name in ("model.safetensors", "query.npz", "database.npz", "weights.npz"):
        assert plain[name] == validated[name], name


def test_too_few_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="18 with labels"):
        train(feature_dataset(24), config=toy_config(eval_interval=2))
    folder = write_feature_folder(tmp_path / "data", count=12)
    done = cli("train", folder, "--eval-interval", "1", "--out", tmp_path / "run")
    assert done.code == 2
    assert "--eval-interval" in done.err
