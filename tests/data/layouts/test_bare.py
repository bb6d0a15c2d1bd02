"""Images without labels: found at any depth, trained by methods that need none, refused in a sentence elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import Dataset, open_dataset
from centerhash.data.dataset import find_layout, is_described
from centerhash.data.inspection import inspect_dataset
from centerhash.training.config import TrainConfig, suited
from centerhash.training.run import evaluate, train
from tests.own_images import WRITERS, write_class_folders, write_pictures
from tests.toys import WIDTH, cli, refused, separable

NAMES = ("a.png", "b.png", "holiday/c.png", "holiday/sea/d.png")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "photos", NAMES)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    return tmp_path / "photos"


def unlabelled_features() -> Dataset:
    return Dataset.from_arrays(separable(60)[0])


def test_images_anywhere_below_have_no_labels(bare: Path) -> None:
    layout = find_layout(bare)
    assert layout is not None
    assert layout.name == "bare"
    assert not is_described(bare)
    data = open_dataset(bare)
    assert data.names == NAMES
    assert (data.labels.shape, data.classes, data.has_labels, data.warnings) == ((4, 0), (), False, ())
    assert "no labels" in repr(data)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read(bare: Path) -> None:
    bare.chmod(0)
    try:
        with pytest.raises(DataError):
            open_dataset(bare)
    finally:
        bare.chmod(0o700)


@pytest.mark.parametrize("kind", WRITERS)
def test_every_layout_opens_without_its_labels(kind: str, tmp_path: Path) -> None:
    root = WRITERS[kind](tmp_path, 12)
    data = open_dataset(root, labels=False)
    assert (data.size, data.classes, data.areas) == (12, (), None)
    assert open_dataset(root).has_labels


def test_splits_may_be_named(bare: Path) -> None:
    (bare / "query.txt").write_text("holiday/c.png\n")
    assert open_dataset(bare).splits.query.tolist() == [2]


def test_a_misspelt_description_is_pointed_out_rather_than_ignored(bare: Path) -> None:
    (bare / "label.csv").write_text("file_name,labels\n")
    with pytest.raises(DataError, match=r"rename 'label.csv' to 'labels.csv'"):
        open_dataset(bare)
    assert open_dataset(bare, labels=False).size == 4


def test_arrays_and_paths_need_no_labels(bare: Path) -> None:
    assert unlabelled_features().labels.shape == (60, 0)
    assert not Dataset.from_images([bare / name for name in NAMES]).has_labels


def test_itq_is_trained_where_no_method_is_named() -> None:
    model = train(unlabelled_features(), bits=16, progress=False)
    assert (model.spec.method, model.classes) == ("itq", ())
    assert model.encode_features(np.ones((2, WIDTH), np.float32)).shape == (2, 16)


def test_methods_that_learn_from_labels_are_refused() -> None:
    data = unlabelled_features()
    for method in ("lsh", "sh", "itq"):
        assert suited(TrainConfig(method=method), data).method == method
    with pytest.raises(ConfigError, match=r"'ics' learns from labels.* lsh, sh, itq.*labels.csv"):
        train(data, method="ics", progress=False)


def test_scoring_says_that_it_needs_labels() -> None:
    data = unlabelled_features()
    with pytest.raises(DataError, match=r"scoring needs labels.*labels.csv"):
        evaluate(train(data, bits=8, progress=False), data, progress=False)


@pytest.mark.slow
def test_an_inspection_without_labels(bare: Path) -> None:
    found = inspect_dataset(open_dataset(bare))
    assert (found.classes, found.images) == ((), 4)
    done = cli("inspect", bare, "--out", bare.parent / "report")
    assert done.code == 0, done.err
    assert "labels" in done.out
    assert (bare.parent / "report" / "inspection.svg").exists()
    assert cli("inspect", bare, "--no-images", "--out", bare.parent / "quick").code == 0


@pytest.mark.slow
def test_the_command_line_without_labels(tmp_path: Path, bare: Path, feature_cache: Path) -> None:
    run, words = tmp_path / "run", ("--bits", "16", "--device", "cpu", "--cache", feature_cache)
    done = cli("train", bare, "--out", run, *words)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == f"{bare}: 4 images without labels, so itq is trained"
    assert "scoring needs labels" in refused(cli("evaluate", run))
    assert "learns from labels" in refused(cli("train", bare, "--out", tmp_path / "x", "--method", "csq"))
    assert cli("encode", run, bare, "--out", tmp_path / "codes.npz", "--cache", feature_cache).code == 0
    albums = write_class_folders(tmp_path / "albums")
    done = cli("train", albums, "--no-labels", "--out", tmp_path / "run2", "--method", "sh", *words)
    assert "12 images without labels, so sh is trained" in done.out, done.err


def test_no_labels_stands_for_folders_alone(bare: Path) -> None:
    words = ("--no-labels", "--root", bare, "--out", bare / "run")
    assert "--no-labels is for a folder" in refused(cli("train", "voc2007", *words))
