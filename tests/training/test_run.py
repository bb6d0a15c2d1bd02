from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from centerhash.codes import unpack
from centerhash.core.errors import ConfigError, DataError, InputError, OutputError
from centerhash.core.files import make_folder
from centerhash.data import open_dataset
from centerhash.encoding.code_files import evaluate_files, read_run_codes
from centerhash.model.model import HashModel
from centerhash.networks.head_options import HeadOptions
from centerhash.training import run as runs
from centerhash.training.config import TrainConfig
from centerhash.training.folder import read_config
from centerhash.training.run import train
from tests.toys import (
    CLASSES,
    RUN_FILES,
    Killed,
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


def test_a_finished_run_holds_all_its_files_and_no_others(feature_run: Path, image_run: Path) -> None:
    assert names(feature_run) == RUN_FILES
    assert names(image_run) == RUN_FILES


def test_the_configuration_is_stored_resolved(feature_run: Path) -> None:
    stored = read_config(feature_run)
    config = TrainConfig(**stored["config"])
    assert config.method == toy_config().method
    assert config.head.hidden == toy_config().head.hidden
    assert config.options
    assert None not in config.options.values()
    assert stored["config"]["seed"] == 0
    assert stored["data"]["images"] == 160
    assert stored["splits"] == "drawn with seed 0"
    assert {"centerhash", "python", "torch", "numpy", "timm", "pillow"} <= set(stored["versions"])
    assert stored["threads"] == 1


def test_the_stored_configuration_trains_the_same_model_again(
    feature_folder: Path, feature_run: Path, tmp_path: Path
) -> None:
    config = TrainConfig(**read_config(feature_run)["config"])
    train(feature_folder, config=config, out=tmp_path / "again")
    assert run_contents(tmp_path / "again") == run_contents(feature_run)


def test_the_log_has_a_line_per_epoch(feature_run: Path) -> None:
    rows = run_log(feature_run)
    assert [row["epoch"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_the_splits_are_stored(feature_folder: Path, feature_run: Path) -> None:
    splits, stored = open_dataset(feature_folder).splits, arrays(feature_run / "splits.npz")
    assert sorted(stored) == ["database", "query", "train"]
    for name, rows in stored.items():
        assert np.array_equal(rows, getattr(splits, name))


def test_the_stored_weights_are_those_of_the_training_images(feature_folder: Path, feature_run: Path) -> None:
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


def test_the_stored_codes_are_those_of_queries_and_database(feature_folder: Path, feature_run: Path) -> None:
    dataset, model = open_dataset(feature_folder), HashModel.load(feature_run)
    assert dataset.features is not None
    for name, stored in zip(("query", "database"), read_run_codes(feature_run), strict=True):
        rows = getattr(dataset.splits, name)
        assert (stored.bits, stored.classes) == (16, dataset.classes)
        assert np.array_equal(stored.ids, rows)
        assert np.array_equal(stored.labels, dataset.labels[rows])
        assert np.array_equal(unpack(stored.packed, 16), model.encode_features(dataset.features[rows]))


def test_a_run_on_images_knows_its_backbone(image_run: Path, scene_folder: Path) -> None:
    model, dataset = HashModel.load(image_run), open_dataset(scene_folder)
    assert (model.spec.backbone, model.spec.crop, model.spec.pool) == ("efficientnet-lite0", 256, "mean+max")
    assert model.classes == dataset.classes
    assert len(read_run_codes(image_run)[0].packed) == len(dataset.splits.query)
    weights = arrays(image_run / "weights.npz")
    sums = np.bincount(weights["rows"], weights["weights"], minlength=dataset.size)
    labelled = dataset.splits.train[dataset.labels[dataset.splits.train].any(axis=1)]
    np.testing.assert_allclose(sums[labelled], 1, atol=1e-5)


def test_training_rows_without_labels_have_no_weights(small_folder: Path, tmp_path: Path) -> None:
    labels = np.load(small_folder / "labels.npy")
    labels[[5, 17]] = False
    np.save(small_folder / "labels.npy", labels)
    np.save(small_folder / "query.npy", np.arange(5))
    train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "run")
    rows = arrays(tmp_path / "run" / "weights.npz")["rows"]
    assert set(range(5, 60)) - set(rows.tolist()) == {5, 17}


def test_training_without_a_folder_gives_the_same_model_and_writes_nothing(
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


def test_keywords_go_before_the_configuration_and_leave_the_rest_to_the_method() -> None:
    dataset, hidden = feature_dataset(60), {"hidden": (16,)}
    model = train(dataset, config=TrainConfig(epochs=1, bits=32, head=hidden), bits=24, method="csq", seed=3)
    assert (model.bits, model.spec.method, model.spec.seed, model.spec.head.hidden) == (24, "csq", 3, (16,))
    again = train(dataset, config=TrainConfig(method="csq", epochs=1, bits=24, seed=3, head=hidden))
    assert again.spec == model.spec


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ({"epcohs": 3}, "Did you mean 'epochs'"),
        ({"overwite": True}, "Did you mean 'overwrite'"),
        ({"bits": 7}, "option 'bits' of TrainConfig cannot be 7"),
        ({"config": {"bits": 16}}, "must be a TrainConfig, got dict"),
        ({"options": {"lamda": 1}}, "Did you mean 'lambda'"),
    ],
)
def test_slips_in_keywords_are_named(slip: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train(feature_dataset(60), **slip)


@pytest.mark.parametrize("data", [None, 3, np.zeros((4, 2))])
def test_something_that_is_no_data_set_is_refused(data: Any) -> None:
    with pytest.raises(InputError):
        train(data)


def test_stages_are_reported_up_to_their_total(small_folder: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int, str]] = []
    train(
        small_folder,
        config=toy_config(**BRIEF),
        out=tmp_path / "run",
        progress=lambda *call: calls.append(call),
    )
    assert [call[1:3] for call in calls if call[0] == "training"] == [(1, 3), (2, 3), (3, 3)]
    assert next(call for call in calls if call[0] == "training")[3].startswith("loss ")
    assert [call for call in calls if call[0] == "encoding"][-1][1:3] == (60, 60)


# Resuming, starting again, refusing


def test_a_finished_run_returns_at_once(feature_folder: Path, feature_run: Path) -> None:
    before = run_contents(feature_run)
    with mock.patch.object(runs, "fit_frozen", side_effect=AssertionError("it was trained again")):
        model = train(feature_folder, config=toy_config(), out=feature_run)
    assert model.spec == HashModel.load(feature_run).spec
    assert run_contents(feature_run) == before


def test_a_finished_run_that_lost_its_model_is_trained_again(small_folder: Path, tmp_path: Path) -> None:
    dataset, run = open_dataset(small_folder), tmp_path / "run"
    train(dataset, config=toy_config(**BRIEF), out=run)
    before = run_contents(run)
    (run / "model.json").unlink()
    train(dataset, config=toy_config(**BRIEF), out=run)
    assert run_contents(run) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 24}, ["bits was 16, now 24"]),
        ({"method": "csq"}, ["method was ics-softmax, now csq"]),
        ({"seed": 5, "epochs": 2}, ["seed was 0, now 5", "epochs was 12, now 2"]),
        ({"options": {"lambda": 7.5}}, ["lambda was", "now 7.5"]),
        ({"head": HeadOptions(hidden=(9,))}, ["hidden was [32], now [9]"]),
    ],
)
def test_other_settings_are_refused_and_named(
    feature_folder: Path, feature_run: Path, changes: dict[str, Any], words: list[str]
) -> None:
    before = run_contents(feature_run)
    with pytest.raises(ConfigError) as caught:
        train(feature_folder, config=toy_config(**{"method": "ics-softmax", **changes}), out=feature_run)
    text = str(caught.value)
    assert "holds a run with other settings" in text
    assert all(word in text for word in words)
    assert run_contents(feature_run) == before


def test_a_run_from_before_the_whole_frame_is_another_run(
    scene_folder: Path, image_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(image_run, run)
    stored = read_config(run)
    for name in ("crop", "pool"):
        del stored["config"][name]
    (run / "config.json").write_text(json.dumps(stored))
    config = toy_config(bits=32, epochs=4)
    with pytest.raises(ConfigError, match=r"crop was 224, now 256; pool was mean, now mean\+max"):
        train(scene_folder, config=config, out=run)
    train(scene_folder, config=config, out=run, crop=224, pool="mean")  # is the finished run, and read


def test_other_data_is_refused(feature_run: Path, tmp_path: Path) -> None:
    other = open_dataset(write_feature_folder(tmp_path / "toy", seed=9))
    with pytest.raises(ConfigError, match="fingerprint was"):
        train(other, config=toy_config(), out=feature_run)


def test_overwrite_starts_again(small_folder: Path, tmp_path: Path) -> None:
    dataset = open_dataset(small_folder)
    train(dataset, config=toy_config(**BRIEF, bits=24, method="csq"), out=tmp_path / "run")
    train(dataset, config=toy_config(**BRIEF), out=tmp_path / "run", overwrite=True)
    train(dataset, config=toy_config(**BRIEF), out=tmp_path / "fresh")
    assert names(tmp_path / "run") == RUN_FILES
    assert run_contents(tmp_path / "run") == run_contents(tmp_path / "fresh")
    assert run_log(tmp_path / "run") == run_log(tmp_path / "fresh")


def test_overwrite_does_not_take_up_the_other_runs_checkpoint(small_folder: Path, tmp_path: Path) -> None:
    dataset = open_dataset(small_folder)

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training":
            raise Killed

    with pytest.raises(Killed):
        train(
            dataset,
            config=toy_config(**BRIEF, seed=4),
            out=tmp_path / "run",
            checkpoint_seconds=0,
            progress=stop,
        )
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    train(dataset, config=toy_config(**BRIEF), out=tmp_path / "run", overwrite=True)
    train(dataset, config=toy_config(**BRIEF), out=tmp_path / "fresh")
    assert run_contents(tmp_path / "run") == run_contents(tmp_path / "fresh")


def test_a_run_that_may_not_be_deleted_is_told(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", forbidden)
    with pytest.raises(OutputError):
        train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "run", overwrite=True)


def test_a_damaged_configuration_is_named(small_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for content in (b"{", b"", b"[]", b"\xff\xfe"):
        (tmp_path / "run" / "config.json").write_bytes(content)
        with pytest.raises(DataError, match=r"config\.json' is damaged"):
            train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "run")
    train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "run", overwrite=True)
    assert names(tmp_path / "run") == RUN_FILES


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a run: it has no config\.json"):
        read_config(tmp_path)
    with pytest.raises(DataError):
        read_run_codes(tmp_path)


def test_a_finished_run_of_version_0_1_is_read(
    feature_folder: Path, feature_run: Path, tmp_path: Path
) -> None:
    """It held the codes of both sides in one file."""
    run = tmp_path / "run"
    shutil.copytree(feature_run, run)
    arrays: dict[str, Any] = {"bits": 16, "classes": len(CLASSES)}
    for name, side in zip(("query", "database"), read_run_codes(feature_run), strict=True):
        assert side.labels is not None
        arrays |= {
            name: side.packed,
            f"{name}_rows": side.ids,
            f"{name}_labels": np.packbits(side.labels, axis=1),
        }
        (run / f"{name}.npz").unlink()
    np.savez(run / "codes.npz", **arrays)
    with mock.patch.object(runs, "fit_frozen", side_effect=AssertionError("it was trained again")):
        train(feature_folder, config=toy_config(), out=run)
    assert evaluate_files([run]) == evaluate_files([feature_run])


def test_an_output_below_a_file_is_refused(small_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file" / "run", tmp_path / "file"):
        with pytest.raises(OutputError):
            train(small_folder, config=toy_config(**BRIEF), out=out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_output_is_refused(small_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OutputError):
        train(small_folder, config=toy_config(**BRIEF), out=tmp_path / "locked" / "run")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "icss"}, "Did you mean 'ics'"),
        ({"options": {"lamda": 1}}, "Did you mean 'lambda'"),
        ({"backbone": "resnet"}, "unknown backbone 'resnet'"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_written(
    small_folder: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(small_folder, config=toy_config(**BRIEF, **changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Images that cannot be read


def test_broken_images_stop_a_run_unless_they_are_skipped(
    scene_folder: Path, feature_cache: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "scenes"
    shutil.copytree(scene_folder, folder)
    (folder / "images" / "000003.jpg").write_bytes(b"")
    cut = folder / "images" / "000007.jpg"
    cut.write_bytes(cut.read_bytes()[:900])
    dataset, config = open_dataset(folder), toy_config(epochs=1)
    with pytest.raises(DataError) as caught:
        train(dataset, config=config, out=tmp_path / "run", cache=feature_cache, device="cpu")
    text = str(caught.value)
    assert text.startswith("2 of 40 images cannot be read:")
    assert "000003.jpg" in text
    assert "000007.jpg" in text
    assert "skip broken images" in text

    train(dataset, config=config, out=tmp_path / "run", cache=feature_cache, device="cpu", skip_broken=True)
    stored = arrays(tmp_path / "run" / "splits.npz")
    used = np.unique(np.concatenate(list(stored.values())))
    assert sorted(set(range(40)) - set(used.tolist())) == [3, 7]
    _, database = read_run_codes(tmp_path / "run")
    assert database.ids is not None
    assert not set(database.ids.tolist()) & {3, 7}
    assert not set(arrays(tmp_path / "run" / "weights.npz")["rows"].tolist()) & {3, 7}


def test_classes_are_those_of_the_folder(feature_run: Path) -> None:
    assert HashModel.load(feature_run).classes == CLASSES


def test_a_run_of_an_earlier_version_is_known_by_its_settings(tmp_path: Path) -> None:
    """Options that came later had their defaults then."""
    dataset, config = feature_dataset(), toy_config(epochs=1)
    train(dataset, config=config, out=tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    for name in ("precision", "accumulate", "finetune", "weights"):
        del stored["config"][name]
    path.write_text(json.dumps(stored))
    train(dataset, config=config, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="accumulate was 1, now 2"):
        train(dataset, config=toy_config(epochs=1, accumulate=2), out=tmp_path / "run")
