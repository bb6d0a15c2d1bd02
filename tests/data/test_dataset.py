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


def image_folder(root: Path, count: int = 30, extra: str = "") -> Path:
    rows = "".join(f"{i:03}.jpg,{'dog|cat' if i % 2 else 'dog'}\n" for i in range(count))
    (root / "labels.csv").write_text("file_name,labels\n" + rows + extra)
    for i in range(count):
        (root / f"{i:03}.jpg").write_bytes(b"x")
    return root


def test_open_images_without_splits_draws_them(tmp_path: Path) -> None:
    data = open_dataset(str(image_folder(tmp_path)), seed=5)
    assert (data.kind, data.size, data.name) == ("images", 30, tmp_path.name)
    assert data.classes == ("cat", "dog")
    assert data.features is None
    assert data.image_paths is not None
    assert data.image_paths[29] == tmp_path / "029.jpg"
    assert data.names[0] == "000.jpg"
    assert data.splits.made == "drawn with seed 5"
    assert (data.splits.query.size, data.splits.database.size) == (3, 27)
    assert data.warnings == ()
    assert np.array_equal(data.splits.query, open_dataset(tmp_path, seed=5).splits.query)


def test_a_relative_path_still_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(image_folder(tmp_path))
    assert open_dataset(".").name == tmp_path.name


def test_warnings_of_all_kinds_are_collected(tmp_path: Path) -> None:
    root = image_folder(tmp_path, 4)
    (root / "labels.csv").write_text(
        "file_name,labels,width,split\n000.jpg,dog,1,train|query\n001.jpg,,1,database|query\n002.jpg,,1,\n"
    )
    data = open_dataset(root)
    assert [text.partition(":")[0].replace(str(root), "") for text in data.warnings] == [
        "'/labels.csv'",
        "leak",
        "1 of 2 queries are also in the database, so a query would retrieve itself",
        "1 of 3 rows are in no split and will not be used.",
        "2 of 3 rows carry no label",
    ]
    assert data.splits.made == "column"


@pytest.mark.parametrize("path", ["000.jpg", "notes"])
def test_a_path_without_data_says_what_may_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "000.jpg").touch()
    (tmp_path / "notes").mkdir()
    text = refusal(open_dataset, path)
    assert f"'{path}'" in text
    assert "a folder of images with labels.csv" in text


def test_what_is_no_path_is_refused() -> None:
    for path in (None, 3, ["photos"], b"photos"):
        with pytest.raises(InputError, match="path"):
            open_dataset(path)


def test_a_folder_of_something_else_says_what_it_holds(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg", "label.csv", "z.jpg"):
        (tmp_path / name).write_text("")
    (tmp_path / "e").mkdir()
    text = refusal(open_dataset, tmp_path)
    assert "it holds 'a.jpg', 'b.jpg', 'c.jpg', 'd.jpg', 'e/' and 2 more" in text
    assert "(rename 'label.csv' to 'labels.csv'?)" in text


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
def test_arrays_tensors_and_lists_are_a_data_set(features: Any, labels: Any) -> None:
    data = Dataset.from_arrays(features, labels, seed=4)
    assert data.features is not None
    assert (data.kind, data.features.dtype, data.labels.dtype) == ("features", np.float32, np.bool_)
    np.testing.assert_array_equal(data.features, FEATURES)
    np.testing.assert_array_equal(data.labels, TRUTH)
    assert (data.classes, data.names[3]) == (("0", "1"), "3")
    assert data.splits.made == "drawn with seed 4"
    np.testing.assert_array_equal(data.splits.query, make_splits(20, seed=4).query)


@pytest.mark.parametrize("labels", [NAMED, list(map(set, NAMED)), np.array(NAMED, dtype=object)])
def test_labels_may_be_names(labels: Any) -> None:
    data = Dataset.from_arrays(FEATURES, labels)
    assert data.classes == ("cat", "dog")
    assert data.labels[:2].astype(int).tolist() == [[0, 1], [1, 1]]
    assert Dataset.from_arrays(FEATURES, labels, ["dog", "ant", "cat"]).classes == ("dog", "ant", "cat")
    assert Dataset.from_arrays(FEATURES, ["dog", "cat"] * 10).labels[0].tolist() == [False, True]


def test_splits_may_be_given() -> None:
    data = Dataset.from_arrays(FEATURES, TRUTH, query=torch.tensor([1, 0]), train=[5, 7], name="toy")
    assert data.splits.query.tolist() == [1, 0]
    assert data.splits.train.tolist() == [5, 7]
    assert data.splits.database.tolist() == list(range(2, 20))
    assert data.splits.made == "given; database is all but the queries"
    assert repr(data) == "Dataset('toy', 20 x 4 features, 2 classes, train 2 / query 2 / database 18)"
    assert len(data) == 20


def test_image_files_are_a_data_set(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{row}.jpg") for row in range(20)]
    data = Dataset.from_images(paths, NAMED, names=map(str, range(20)), name="photos")
    assert data.image_paths == tuple(map(Path, paths))
    assert repr(data) == "Dataset('photos', 20 images, 2 classes, train 18 / query 2 / database 18)"
    assert Dataset.from_images(paths, NAMED).names == tuple(paths)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"features": "features.npy"}, "features must be a numpy array, .*got str"),
        ({"features": None}, "got NoneType"),
        ({"features": [[1, 2], [3]]}, "cannot be read as an array"),
        ({"features": FEATURES[0]}, r"shape \(N, D\)"),
        ({"features": FEATURES[:0]}, "must not be empty"),
        ({"features": FEATURES[:7]}, "features have 7 rows, but labels 20"),
        ({"features": np.full((20, 2), np.nan)}, "must be finite"),
        ({"labels": TRUTH[:, 0].astype(int)}, "numpy.eye"),
        ({"labels": TRUTH * 2}, "2 in row 0, column 0"),
        ({"labels": [["dog"], [True]] * 10}, "the label True"),
        ({"labels": NAMED, "classes": ["cat", "dig"]}, "Did you mean 'dig'"),
        ({"classes": ["cat"]}, "2 columns for 1 classes"),
        ({"classes": "ab"}, "one name per class, got 'ab'"),
        ({"classes": ["a", 3]}, "name 2 is 3"),
        ({"classes": ["a", "a"]}, "more than once"),
        ({"names": ["a"]}, "names must be 20"),
        ({"query": [20]}, "points outside"),
        ({"query": "test"}, "the split 'query' must be"),
        ({"seed": -1}, "the seed"),
    ],
)
def test_arrays_that_do_not_fit(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Dataset.from_arrays(**{"features": FEATURES, "labels": TRUTH, **change})


def test_paths_that_do_not_fit() -> None:
    for paths in ("photos", None, [3] * 20, ["a.jpg"]):
        with pytest.raises(InputError):
            Dataset.from_images(paths, TRUTH)


# ---------------------------------------------------------------- Dataset


def test_arrays_are_read_only_and_the_callers_stay_writable() -> None:
    labels, areas = LABELS.copy(), np.zeros((3, 2), np.float32)
    data = Dataset("d", Path(), ("a", "b"), labels, SPLITS, features=np.zeros((3, 4)), areas=areas)
    with pytest.raises(ValueError):
        data.labels[0, 0] = False
    assert data.areas is not None
    with pytest.raises(ValueError):
        data.areas[0, 0] = 1
    labels[0, 0] = False
    areas[0, 0] = 1


def test_names_default_to_row_numbers_and_features_win_over_images() -> None:
    paths = tuple(Path(f"{i}.jpg") for i in range(3))
    images = Dataset("d", Path(), ("a", "b"), LABELS, SPLITS, image_paths=paths)
    both = Dataset("d", Path(), ("a", "b"), LABELS, SPLITS, np.zeros((3, 4)), paths)
    assert (images.kind, both.kind) == ("images", "features")
    assert both.names == ("0", "1", "2")


def test_with_splits() -> None:
    data = Dataset("d", Path(), ("a", "b"), LABELS, SPLITS, features=np.zeros((3, 4)))
    other = data.with_splits(Splits(np.array([0]), np.array([1]), np.array([0, 2])))
    assert other.splits.train.tolist() == [0]
    assert data.splits.train.tolist() == [1, 2]
    assert other.names == data.names
    with pytest.raises(DataError):
        data.with_splits(Splits(np.array([0]), np.array([3]), np.array([0])))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"labels": LABELS.astype(int)}, "got int64"),
        ({"labels": LABELS[0]}, "got bool (2,)"),
        ({"classes": ("a",)}, "1 classes for 2 label columns"),
        ({"features": None}, "features or image paths"),
        ({"features": np.zeros((2, 4))}, "features has 2 entries"),
        ({"names": ("x",)}, "names has 1 entries"),
        ({"image_paths": (Path("x"),)}, "image_paths has 1 entries"),
        ({"areas": np.zeros((3, 1), np.float32)}, "areas has shape (3, 1)"),
    ],
)
def test_fields_must_agree(change: dict[str, Any], text: str) -> None:
    fields = {"labels": LABELS, "classes": ("a", "b"), "features": np.zeros((3, 4)), **change}
    with pytest.raises(DataError, match=re.escape(text)):
        Dataset(name="d", root=Path(), splits=SPLITS, **fields)
