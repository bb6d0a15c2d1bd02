from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data import open_dataset
from centerhash.data.layouts import arrays
from centerhash.data.layouts.arrays import read_feature_folder
from centerhash.data.layouts.contents import load_array
from tests.toys import refusal

LABELS = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.uint8)
FEATURES = np.arange(12, dtype=np.float32).reshape(3, 4)


def fill(
    root: Path, features: Any = FEATURES, labels: Any = LABELS, classes: str | None = "cat\ndog\n"
) -> Path:
    if features is not None:
        np.save(root / "features.npy", features)
    if labels is not None:
        np.save(root / "labels.npy", labels)
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return root


def held(root: Path) -> np.ndarray:
    features = read_feature_folder(root).features
    assert features is not None
    return features


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_are_memory_mapped_read_only(tmp_path: Path, dtype: type) -> None:
    folder = read_feature_folder(fill(tmp_path, FEATURES.astype(dtype)))
    assert isinstance(folder.features, np.memmap)
    assert folder.features.dtype == dtype
    assert not folder.features.flags.writeable
    assert np.array_equal(folder.features, FEATURES)
    assert folder.classes == ("cat", "dog")
    assert folder.warnings == ()


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float32])
def test_labels_become_bool(tmp_path: Path, dtype: type) -> None:
    labels = read_feature_folder(fill(tmp_path, labels=LABELS.astype(dtype))).labels
    assert labels.dtype == np.bool_
    assert labels.tolist() == [[True, False], [False, True], [True, True]]


def test_version_two_headers_are_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, FEATURES, version=(2, 0))
    (fill(tmp_path) / "features.npy").write_bytes(stream.getvalue())
    assert np.array_equal(held(tmp_path), FEATURES)


@pytest.mark.parametrize("missing", ["labels.npy", "classes.txt"])
def test_missing_files(tmp_path: Path, missing: str) -> None:
    fill(tmp_path)
    (tmp_path / missing).unlink()
    assert f"has no {missing}" in refusal(read_feature_folder, tmp_path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"features": np.zeros(3, np.float32)}, "shape (N, D), one row per image, got (3,)"),
        ({"features": np.zeros((0, 4), np.float32)}, "must not be empty"),
        ({"features": np.zeros((3, 0), np.float32)}, "must not be empty"),
        ({"features": FEATURES.astype(np.float64)}, "float16 or float32, got float64"),
        ({"features": FEATURES.astype(">f4")}, "float16 or float32, got >f4"),
        ({"features": FEATURES[:2]}, "features have 2 rows, but labels 3 in"),
        ({"features": FEATURES.astype(object)}, "never unpickled"),
        ({"labels": np.array([0, 1, 1])}, "got (3,). From one class number per image: numpy.eye"),
        ({"labels": np.zeros((3, 2, 1), bool)}, "one column per class, got (3, 2, 1)."),
        ({"labels": np.zeros((0, 2), bool)}, "must not be empty"),
        ({"labels": np.array([[1, 0], [0, 2], [7, 1]])}, "2 in row 1, column 1"),
        ({"labels": np.array([[1, 0], [0, 0.5], [0, 1]])}, "0.5 in row 1, column 1"),
        ({"labels": np.array([[1, 0], [0, 1], [np.nan, 1]])}, "nan in row 2, column 0"),
        ({"labels": LABELS.astype(object)}, "never unpickled"),
        ({"labels": np.ones((3, 3), bool)}, "3 columns for 2 classes"),
        ({"classes": ""}, "one name per class"),
        ({"classes": "cat\n\ndog\n"}, "name 2 is ''"),
        ({"classes": "cat\ncat\n"}, "more than once: 'cat'"),
    ],
)
def test_bad_features_labels_and_classes(tmp_path: Path, content: dict[str, Any], text: str) -> None:
    assert text in refusal(read_feature_folder, fill(tmp_path, **content))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("row", "value"), [(77, np.nan), (77, -np.inf), (100, np.inf)])
def test_the_first_value_that_is_not_finite_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: int, value: float, dtype: type
) -> None:
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", 64)  # many blocks, the last one short
    features = np.ones((101, 4), dtype)
    features[row, 2] = features[100, 3] = value
    fill(tmp_path, features, np.ones((101, 2), bool))
    assert f"{dtype(value)} in row {row}, column 2" in refusal(read_feature_folder, tmp_path)


def test_column_order_is_warned_about(tmp_path: Path) -> None:
    folder = read_feature_folder(fill(tmp_path, np.asfortranarray(FEATURES)))
    assert np.array_equal(held(tmp_path), FEATURES)
    assert "Fortran order" in folder.warnings[0]


@pytest.mark.parametrize("name", ["features.npy", "labels.npy"])
@pytest.mark.parametrize("length", [0, 4, 9, 60, -3])
def test_truncated_files(tmp_path: Path, name: str, length: int) -> None:
    path = fill(tmp_path) / name
    path.write_bytes(path.read_bytes()[:length])
    assert ("is truncated" if length < 0 else "not a whole .npy file") in refusal(
        read_feature_folder, tmp_path
    )


@pytest.mark.parametrize(
    ("shape", "text"),
    [(b"(-3, -2), }", "impossible shape (-3, -2)"), (b"(3000000000, 2000), }", "is truncated")],
)
def test_a_header_may_not_claim_what_the_file_cannot_hold(tmp_path: Path, shape: bytes, text: str) -> None:
    path = fill(tmp_path) / "labels.npy"
    path.write_bytes(path.read_bytes().replace(b"(3, 2), }".ljust(len(shape)), shape))
    assert text in refusal(read_feature_folder, tmp_path)  # and no attempt to allocate 6 TB


def test_small_arrays_load_whole_even_when_empty(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.empty((0, 3), np.int16))
    assert load_array(tmp_path / "a.npy").shape == (0, 3)
    assert load_array(tmp_path / "a.npy").dtype == np.int16
    with pytest.raises(DataError, match=tmp_path.name):
        load_array(tmp_path)


def test_open_dataset_of_features(tmp_path: Path) -> None:
    root = fill(tmp_path)
    np.save(root / "train.npy", np.array([1, 2]))
    np.save(root / "query.npy", np.array([0]))
    np.save(root / "database.npy", np.array([2, 1]))
    data = open_dataset(root)
    assert (data.kind, data.size, data.name, data.root) == ("features", 3, tmp_path.name, tmp_path)
    assert isinstance(data.features, np.memmap)
    assert data.image_paths is None
    assert data.areas is None
    assert data.names == ("0", "1", "2")
    assert data.splits.made == "files"
    assert data.splits.database.tolist() == [2, 1]
    assert data.warnings == ()


def test_row_numbers_may_also_be_listed_as_text(tmp_path: Path) -> None:
    (fill(tmp_path) / "query.txt").write_text("2\n")
    data = open_dataset(tmp_path)
    assert data.splits.query.tolist() == [2]
    assert data.splits.database.tolist() == [0, 1]
