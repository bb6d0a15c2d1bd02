"""A run: the files it leaves, resuming and starting over, what it rejects; evaluation of a model."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from centerhash.codes import unpack
from centerhash.core.errors import ConfigError, DataError, InputError, OutputError
from centerhash.core.files import make_folder
from centerhash.data import Dataset, open_dataset
from centerhash.encoding.code_files import read_run_codes
from centerhash.model.model import HashModel
from centerhash.networks.head_options import HeadOptions
from centerhash.training import pipeline
from centerhash.training.config import TrainConfig
from centerhash.training.run import evaluate, train
from centerhash.training.run_folder import read_config
from tests.networks.toys import write_labeled_images
from tests.toys import (
    RUN_FILES,
    Killed,
    evaluate_files,
    feature_dataset,
    names,
    run_contents,
    run_log,
    toy_config,
    write_feature_folder,
)

BRIEF = {"epochs": 3, "batch_size": 16}


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture
def small_folder(tmp_path: Path) -> Path:
    return write_feature_folder(tmp_path / "data", count=60)


# What a finished run holds


def test_files_of_a_run(feature_run: Path, image_run: Path) -> None:
    assert names(feature_run) == names(image_run) == RUN_FILES
    rows = run_log(feature_run)
    assert [row["epoch"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_stored_configuration(feature_folder: Path, feature_run: Path, tmp_path: Path) -> None:
    stored = read_config(feature_run)
    config = TrainConfig(**stored["config"])
    assert (config.method, config.head.hidden) == (toy_config().method, toy_config().head.hidden)
    assert config.options
    assert None not in config.options.values()
    assert (stored["data"]["images"], stored["splits"]) == (160, "drawn with seed 0")
    assert {"centerhash", "python", "torch", "numpy", "timm", "pillow"} <= set(stored["versions"])
    train(feature_folder, config=config, out=tmp_path / "again")
    assert run_contents(tmp_path / "again") == run_contents(feature_run)


def test_stored_weights(feature_folder: Path, feature_run: Path) -> None:
    dataset, model = open_dataset(feature_folder), HashModel.load(feature_run)
    assert dataset.features is not None
    stored = arrays(feature_run / "weights.npz")
    dense = np.zeros(dataset.labels.shape)
    dense[stored["rows"], stored["classes"]] = stored["weights"]
    rows = dataset.splits.train
    assert np.array_equal(np.unique(stored["rows"]), np.sort(rows))
    np.testing.assert_allclose(dense[rows].sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(dense[rows], model.weights(dataset.features[rows], dataset.labels[rows]))
    assert len(stored["weights"]) == dataset.labels[rows].sum()


def test_unlabeled_rows_have_no_weights(small_folder: Path, tmp_path: Path) -> None:
    labels = np.load(small_folder / "labels.npy")
    labels[[5, 17]] = False
    np.save(small_folder / "labels.npy", labels)
    np.save(small_folder / "query.npy", np.arange(5))
    train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "run")
    rows = arrays(tmp_path / "run" / "weights.npz")["rows"]
    assert set(range(5, 60)) - set(rows.tolist()) == {5, 17}


def test_stored_splits_and_codes(feature_folder: Path, feature_run: Path) -> None:
    dataset, model = open_dataset(feature_folder), HashModel.load(feature_run)
    assert dataset.features is not None
    splits = arrays(feature_run / "splits.npz")
    assert sorted(splits) == ["database", "query", "train"]
    assert all(np.array_equal(rows, getattr(dataset.splits, name)) for name, rows in splits.items())
    for name, stored in zip(("query", "database"), read_run_codes(feature_run), strict=True):
        rows = getattr(dataset.splits, name)
        assert (stored.bits, stored.classes) == (16, dataset.classes)
        assert np.array_equal(stored.ids, rows)
        assert np.array_equal(stored.labels, dataset.labels[rows])
        assert np.array_equal(unpack(stored.packed, 16), model.encode_features(dataset.features[rows]))
        assert stored.names is None


def test_run_on_images(image_run: Path, scene_folder: Path) -> None:
    model, dataset = HashModel.load(image_run), open_dataset(scene_folder)
    assert (model.spec.backbone, model.spec.crop, model.spec.pool) == ("efficientnet-lite0", 256, "mean+max")
    assert model.classes == dataset.classes
    for codes in read_run_codes(image_run):
        assert codes.names is not None
        assert codes.ids is not None
        assert list(codes.names) == [dataset.names[row] for row in codes.ids]


def test_training_without_a_folder(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_folder(tmp_path / "empty"))
    dataset = open_dataset(small_folder)
    first = train(dataset, config=toy_config(**BRIEF))
    assert not list((tmp_path / "empty").iterdir())
    second = train(dataset, config=toy_config(**BRIEF), out=tmp_path / "run")
    assert dataset.features is not None
    assert first.spec == second.spec
    assert np.array_equal(first.logits(dataset.features), second.logits(dataset.features))


def test_keywords_override_the_configuration() -> None:
    dataset, hidden = feature_dataset(60), {"hidden": (16,)}
    model = train(dataset, config=TrainConfig(epochs=1, bits=32, head=hidden), bits=24, method="csq", seed=3)
    assert (model.bits, model.spec.method, model.spec.seed, model.spec.head.hidden) == (24, "csq", 3, (16,))
    again = train(dataset, config=TrainConfig(method="csq", epochs=1, bits=24, seed=3, head=hidden))
    assert again.spec == model.spec


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epcohs": 3}, "'epochs'"),
        ({"overwite": True}, "'overwrite'"),
        ({"bits": 7}, "'bits'"),
        ({"config": {"bits": 16}}, "TrainConfig, got dict"),
        ({"method": "icss"}, "'ics'"),
        ({"eval_interval": 1, "method": "itq"}, "eval_interval="),
    ],
)
def test_rejected_settings(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        train(feature_dataset(60), out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", [None, 3, np.zeros((4, 2))])
def test_rejected_data(data: Any) -> None:
    with pytest.raises(InputError):
        train(data)


def test_progress_stages(small_folder: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int, str]] = []
    config = toy_config(**BRIEF)
    train(small_folder, config=config, out=tmp_path / "run", progress=lambda *call: calls.append(call))
    assert [call[1:3] for call in calls if call[0] == "training"] == [(1, 3), (2, 3), (3, 3)]
    assert next(call for call in calls if call[0] == "training")[3].startswith("loss ")
    assert [call for call in calls if call[0] == "encoding"][-1][1:3] == (60, 60)


# Resuming and starting over


def test_finished_run_is_loaded(small_folder: Path, tmp_path: Path) -> None:
    run, config = tmp_path / "run", toy_config(**BRIEF)
    trained = train(small_folder, config=config, out=run)
    before = run_contents(run)
    with mock.patch.object(pipeline, "fit_frozen", side_effect=AssertionError("it was trained again")):
        assert train(small_folder, config=config, out=run).spec == trained.spec
    assert run_contents(run) == before
    (run / "model.json").unlink()
    train(small_folder, config=config, out=run)
    assert run_contents(run) == before


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"bits": 24}, ["bits was 16, now 24"]),
        ({"method": "csq"}, ["method was ics-softmax, now csq"]),
        ({"seed": 5, "epochs": 2}, ["seed was 0, now 5", "epochs was 12, now 2"]),
        ({"options": {"lambda": 7.5}}, ["lambda was", "now 7.5"]),
        ({"head": HeadOptions(hidden=(9,))}, ["hidden was [32], now [9]"]),
    ],
)
def test_other_settings_are_rejected(
    feature_folder: Path, feature_run: Path, changes: dict[str, Any], differences: list[str]
) -> None:
    before = run_contents(feature_run)
    with pytest.raises(ConfigError) as caught:
        train(feature_folder, config=toy_config(**{"method": "ics-softmax", **changes}), out=feature_run)
    assert all(difference in str(caught.value) for difference in differences)
    assert run_contents(feature_run) == before


def test_other_data_is_rejected(feature_run: Path, tmp_path: Path) -> None:
    new_data = open_dataset(write_feature_folder(tmp_path / "toy", seed=9))
    with pytest.raises(ConfigError, match="fingerprint"):
        train(new_data, config=toy_config(), out=feature_run)


def test_overwrite(small_folder: Path, tmp_path: Path) -> None:
    """Neither files nor the checkpoint of the other run are used; without it they are kept."""
    run, checkpoint = tmp_path / "run", tmp_path / "run" / "checkpoint.safetensors"

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training":
            raise Killed

    with pytest.raises(Killed):
        train(small_folder, config=toy_config(**BRIEF, seed=4), out=run, checkpoint_seconds=0, progress=stop)
    with pytest.raises(ConfigError, match="seed was 4, now 0"):
        train(small_folder, config=toy_config(**BRIEF), out=run)
    assert checkpoint.exists()
    train(small_folder, config=toy_config(**BRIEF), out=run, overwrite=True)
    train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "fresh")
    assert names(run) == RUN_FILES
    assert run_contents(run) == run_contents(tmp_path / "fresh")
    assert run_log(run) == run_log(tmp_path / "fresh")


def test_run_without_work_is_replaced(small_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with mock.patch.object(pipeline, "fit_frozen", side_effect=Killed), pytest.raises(Killed):
        train(small_folder, config=toy_config(**BRIEF, seed=4), out=run)
    assert read_config(run)["config"]["seed"] == 4
    train(small_folder, config=toy_config(**BRIEF), out=run)
    assert read_config(run)["config"]["seed"] == 0


def test_files_that_cannot_be_deleted(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", forbidden)
    with pytest.raises(OutputError):
        train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "run", overwrite=True)


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"\xff\xfe"])
def test_damaged_configuration(small_folder: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_bytes(content)
    with pytest.raises(DataError, match=r"config\.json"):
        train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "run")


def test_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_output_below_a_file(small_folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        train(small_folder, config=toy_config(**BRIEF), out=tmp_path / name)


# Images that cannot be read


def test_broken_images(feature_cache: Path, tmp_path: Path) -> None:
    folder = write_labeled_images(tmp_path / "images", 20, size=48)
    (folder / "003.png").write_bytes(b"")
    (folder / "007.png").write_bytes((folder / "007.png").read_bytes()[:900])
    dataset, run = open_dataset(folder), tmp_path / "run"
    settings: dict[str, Any] = {"config": toy_config(epochs=1), "cache": feature_cache, "device": "cpu"}
    with pytest.raises(DataError) as caught:
        train(dataset, out=run, **settings)
    assert all(word in str(caught.value) for word in ("2 of 20", "003.png", "007.png", "skip_broken"))
    train(dataset, out=run, skip_broken=True, **settings)
    used = np.unique(np.concatenate(list(arrays(run / "splits.npz").values())))
    assert sorted(set(range(20)) - set(used.tolist())) == [3, 7]
    _, database = read_run_codes(run)
    assert database.ids is not None
    assert not {3, 7} & {*database.ids.tolist(), *arrays(run / "weights.npz")["rows"].tolist()}


# Evaluation


def test_evaluate_path(feature_run: Path, feature_folder: Path) -> None:
    model = HashModel.load(feature_run)
    assert evaluate(model, feature_folder, k=20) == evaluate_files([feature_run], k=20)


def test_evaluation_settings(toy_model: HashModel, toy_dataset: Dataset) -> None:
    calls: list[tuple[Any, ...]] = []
    settings: dict[str, Any] = {"k": 7, "seed": 3, "exclude_self": True}
    result = evaluate(
        toy_model, toy_dataset, precision_at=(2,), progress=lambda *call: calls.append(call), **settings
    )
    assert calls[-1] == ("encoding", 160, 160)
    assert (result.k, result.seed, result.exclude_self, list(result.precision)) == (7, 3, True, [2])


def test_evaluate_needs_backbone(toy_model: HashModel, scene_folder: Path) -> None:
    with pytest.raises(ConfigError, match="has no backbone"):
        evaluate(toy_model, scene_folder, cache=None)


def test_codes_instead_of_a_model() -> None:
    with pytest.raises(InputError):
        evaluate(np.ones((4, 8)), feature_dataset())  # type: ignore[arg-type]
