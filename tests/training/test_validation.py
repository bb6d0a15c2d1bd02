"""A validated training run: mAP of images that it does not train on, and never of the queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import Dataset, Splits, open_dataset
from centerhash.evaluation import evaluate
from centerhash.networks.backbones import get_backbone
from centerhash.networks.encoder import pixels_of
from centerhash.training.finetuning import plain_inputs
from centerhash.training.finish import validation_map
from centerhash.training.run import train
from centerhash.training.session import Session, hold_out
from reproduction.scenes import write_scenes
from tests.toys import (
    CLASSES,
    cli,
    feature_dataset,
    refused,
    run_contents,
    run_log,
    toy_config,
    write_feature_folder,
)

BRIEF = {"epochs": 5, "batch_size": 16}


def measured(run: Path) -> dict[int, float]:
    return {int(row["epoch"]): row["validation_map"] for row in run_log(run) if "validation_map" in row}


def stored_splits(run: Path) -> dict[str, Any]:
    with np.load(run / "splits.npz") as stored:
        return dict(stored)


def test_a_tenth_of_the_labelled_training_images_is_held_out_and_no_query() -> None:
    dataset = feature_dataset(160)  # the first 40 ask
    leaky = dataset.with_splits(replace(dataset.splits, train=np.arange(160)))
    labels = leaky.labels.copy()
    labels[100:] = False
    leaky = replace(leaky, labels=labels)
    for seed in range(20):
        held = hold_out(leaky, seed)
        assert len(held) == 6
        assert set(held.tolist()) <= set(range(40, 100))
    assert not np.array_equal(hold_out(leaky, 0), hold_out(leaky, 1))
    assert np.array_equal(hold_out(leaky, 0), hold_out(leaky, 0))


def test_at_most_a_thousand_are_held_out() -> None:
    dataset = feature_dataset(40)
    many = np.tile(dataset.labels, (400, 1))
    splits = Splits(train=np.arange(40, 16_000), query=np.arange(40), database=np.arange(40, 16_000))
    features = np.zeros((16_000, 2), np.float32)
    large = Dataset("large", Path("large"), CLASSES, many, splits, features=features)
    assert len(hold_out(large, 0)) == 1000


def test_rows_are_split_off_in_their_order() -> None:
    kept, held_out = Session(held_out=np.array([2, 5, 9])).split_off(np.array([5, 1, 4, 2]))
    assert (kept.tolist(), held_out.tolist()) == ([1, 4], [5, 2])


def test_the_figure_is_that_of_the_codes_with_and_without_rotation() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(60, 8)).astype(np.float32)
    labels = np.abs(logits[:, :3]) > 0.6  # what signs alone do not tell
    sides = logits[:10], logits[10:], labels[:10], labels[10:]
    plain = evaluate(
        np.where(sides[0] >= 0, 1, -1), np.where(sides[1] >= 0, 1, -1), *sides[2:], precision_at=()
    )
    assert validation_map(*sides, rotate=False) == plain.map_peers
    assert validation_map(*sides, rotate=True) != plain.map_peers


def test_mean_precision_stands_in_the_log_every_so_many_epochs_and_after_the_last(tmp_path: Path) -> None:
    train(feature_dataset(), config=toy_config(**BRIEF, watch=2), out=tmp_path / "run")
    figures = measured(tmp_path / "run")
    assert sorted(figures) == [2, 4, 5]
    assert all(0.3 < figure <= 1 for figure in figures.values())
    splits = stored_splits(tmp_path / "run")
    assert sorted(splits) == ["database", "query", "train", "validation"]
    assert len(splits["validation"]) == 12
    both = np.concatenate([splits["train"], splits["validation"]])
    assert np.array_equal(np.sort(both), feature_dataset().splits.train)


def test_the_last_figure_is_that_of_the_model() -> None:
    dataset, rows = feature_dataset(), list[dict[str, float]]()

    class Rows:
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            rows.append(metrics)

    config = toy_config(**BRIEF, watch=3)
    model = train(dataset, config=config, logger=Rows())
    held = hold_out(dataset, config.seed)
    kept, _ = Session(held_out=held).split_off(dataset.splits.train)
    assert dataset.features is not None
    codes = [model.encode_features(dataset.features[side]) for side in (held, kept)]
    expected = evaluate(*codes, dataset.labels[held], dataset.labels[kept], precision_at=()).map_peers
    assert rows[-1]["validation_map"] == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
def test_the_held_out_images_decide_nothing(tmp_path: Path) -> None:
    """A watched training is that of a data set without these images."""
    dataset, config = feature_dataset(), toy_config(**BRIEF)
    held_out = hold_out(dataset, config.seed)
    kept, held = Session(held_out=held_out).split_off(dataset.splits.train)
    assert len(held) == 12
    smaller = dataset.with_splits(replace(dataset.splits, train=kept))
    train(smaller, config=config, out=tmp_path / "smaller")
    train(dataset, config=toy_config(**BRIEF, watch=1), out=tmp_path / "watched")
    plain, watched = run_contents(tmp_path / "smaller"), run_contents(tmp_path / "watched")
    for name in ("model.safetensors", "query.npz", "database.npz", "weights.npz"):
        assert plain[name] == watched[name], name


def test_plain_inputs_are_the_pixels_that_will_be_encoded(tmp_path: Path) -> None:
    write_scenes(tmp_path, 3, size=64)
    paths, backbone = open_dataset(tmp_path).image_paths, get_backbone("efficientnet-lite0")
    assert paths is not None
    batches = list(plain_inputs(paths, backbone, batch=2))
    assert [len(batch) for batch in batches] == [2, 1]
    for path, pixels in zip(paths, torch.cat(batches), strict=True):
        assert np.array_equal(pixels.numpy(), pixels_of(path, backbone))


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'itq'"):
        train(feature_dataset(), method="itq", bits=16, watch=2)
    few = feature_dataset(24)
    with pytest.raises(DataError, match="18 with labels"):
        train(few, config=toy_config(watch=2))
    folder = write_feature_folder(tmp_path / "data", count=len(CLASSES) * 2)
    assert "--watch" in refused(cli("train", folder, "--watch", "1", "--out", tmp_path / "run"))
