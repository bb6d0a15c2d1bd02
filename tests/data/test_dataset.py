"""Datasets of folders and of arrays in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from centerhash.core.errors import DataError, InputError
from centerhash.data import Dataset, Splits, make_splits, open_dataset
from tests.toys import refusal

SPLITS = Splits(np.array([1, 2]), np.array([0]), np.array([1, 2]))
LABELS = np.array([[True, False], [False, True], [True, True]])


def image_folder(root: Path, count: int = 30) -> Path:
    rows = "".join(f"{i:03}.jpg,{'dog|cat' if i % 2 else 'dog'}\n" for i in range(count))
    (root / "labels.csv").write_text("file_name,labels\n" + rows)
    for i in range(count):
        (root / f"{i:03}.jpg").write_bytes(b"x")
    return root


def test_open_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset(str(image_folder(tmp_path)), seed=5)
    assert (data.kind, data.size, data.name) == ("images", 30, tmp_path.name)
    assert (data.classes, data.features, data.warnings) == (("cat", "dog"), None, ())
    assert data.image_paths is not None
    assert data.image_paths[29] == tmp_path / "029.jpg"
    assert data.names[0] == "000.jpg"
    assert data.splits.source == "drawn with seed 5"
    assert (data.splits.query.size, data.splits.database.size) == (3, 27)
    assert np.array_equal(data.splits.query, open_dataset(tmp_path, seed=5).splits.query)
    monkeypatch.chdir(tmp_path)
    assert open_dataset(".").name == tmp_path.name


def test_open_dataset_warnings(tmp_path: Path) -> None:
    root = image_folder(tmp_path, 4)
    (root / "labels.csv").write_text(
        "file_name,labels,width,split\n000.jpg,dog,1,train|query\n001.jpg,,1,database|query\n002.jpg,,1,\n"
    )
    data = open_dataset(root)
    words = ("'width'", "leak", "retrieve itself", "1 of 3 rows", "2 of 3 rows")
    assert len(data.warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, data.warnings, strict=True))
    assert data.splits.source == "column"


@pytest.mark.parametrize("path", ["000.jpg", "notes", "gone", "photos.parquet"])
def test_open_dataset_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "000.jpg").touch()
    (tmp_path / "photos.parquet").touch()
    (tmp_path / "notes").mkdir()
    assert f"'{path}'" in refusal(open_dataset, path)


# ---------------------------------------------------------------- in memory

FEATURES = np.arange(80, dtype=np.float32).reshape(20, 4)
TRUTH = np.tile(LABELS[:2], (10, 1))
NAMED = [("dog",), ("cat", "dog")] * 10


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (FEATURES, TRUTH),
        (FEATURES.tolist(), TRUTH.astype(int).tolist()),
        (torch.from_numpy(FEATURES).requires_grad_(), torch.from_numpy(TRUTH)),
        (torch.from_numpy(FEATURES).bfloat16(), torch.from_numpy(TRUTH).float()),
        (FEATURES.astype(np.float64), TRUTH.astype(np.uint8)),
        (FEATURES.astype(np.int16), TRUTH.astype(np.float64)),
    ],
)
def test_from_arrays(features: Any, labels: Any) -> None:
    data = Dataset.from_arrays(features, labels, seed=4)
    assert data.features is not None
    assert (data.kind, data.features.dtype, data.labels.dtype) == ("features", np.float32, np.bool_)
    np.testing.assert_array_equal(data.features, FEATURES)
    np.testing.assert_array_equal(data.labels, TRUTH)
    assert (data.classes, data.names[3]) == (("0", "1"), "3")
    assert data.splits.source == "drawn with seed 4"
    np.testing.assert_array_equal(data.splits.query, make_splits(20, seed=4).query)


@pytest.mark.parametrize("labels", [NAMED, list(map(set, NAMED)), np.array(NAMED, dtype=object)])
def test_from_arrays_names(labels: Any) -> None:
    data = Dataset.from_arrays(FEATURES, labels)
    assert data.classes == ("cat", "dog")
    assert data.labels[:2].astype(int).tolist() == [[0, 1], [1, 1]]
    assert Dataset.from_arrays(FEATURES, labels, ["dog", "ant", "cat"]).classes == ("dog", "ant", "cat")
    assert Dataset.from_arrays(FEATURES, ["dog", "cat"] * 10).labels[0].tolist() == [False, True]


def test_from_images(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{row}.jpg") for row in range(20)]
    data = Dataset.from_images(paths, NAMED, names=map(str, range(20)), name="photos")
    assert data.image_paths == tuple(map(Path, paths))
    assert repr(data) == "Dataset('photos', 20 images, 2 classes, train 18 / query 2 / database 18)"
    assert Dataset.from_images(paths, NAMED).names == tuple(paths)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"features": "features.npy"}, "features must be .*got str"),
        ({"features": None}, "got NoneType"),
        ({"features": [[1, 2], [3]]}, "cannot be read as an array"),
        ({"features": FEATURES[0]}, r"shape \(4,\)"),
        ({"features": FEATURES[:7]}, r"\(7, 4\)"),
        ({"features": np.full((20, 2), np.nan)}, "NaN"),
        ({"labels": [["dog"], [True]] * 10}, "True"),
        ({"labels": NAMED, "classes": ["cat", "dig"]}, "Did you mean 'dig'"),
        ({"classes": "ab"}, "one name per class, got 'ab'"),
        ({"names": ["a"]}, "names has 1 entries"),
        ({"query": [20]}, "20 to 20"),
        ({"query": "test"}, "the split 'query' must be"),
        ({"seed": -1}, "the seed"),
    ],
)
def test_from_arrays_error(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Dataset.from_arrays(**{"features": FEATURES, "labels": TRUTH, **change})


# ---------------------------------------------------------------- Dataset


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"labels": LABELS.astype(int)}, "got int64"),
        ({"labels": LABELS[0]}, "got bool (2,)"),
        ({"classes": ("a",)}, "classes has 1 entries"),
        ({"features": None}, "features or image paths"),
        ({"features": np.zeros((2, 4))}, "features has 2 entries"),
        ({"names": ("x",)}, "names has 1 entries"),
        ({"image_paths": (Path("x"),)}, "image_paths has 1 entries"),
        ({"areas": np.zeros((3, 1), np.float32)}, "areas has shape (3, 1)"),
    ],
)
def test_dataset_fields(change: dict[str, Any], text: str) -> None:
    fields = {"labels": LABELS, "classes": ("a", "b"), "features": np.zeros((3, 4)), **change}
    with pytest.raises(DataError, match=re.escape(text)):
        Dataset(name="d", root=Path(), splits=SPLITS, **fields)
