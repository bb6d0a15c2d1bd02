from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data import open_dataset
from centerhash.data.layouts import arrays
from centerhash.data.layouts.arrays import load_array, load_labels, open_features, read_feature_folder

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


def message(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_feature_folder(root)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_are_memory_mapped_read_only(tmp_path: Path, dtype: type) -> None:
    folder = read_feature_folder(fill(tmp_path, FEATURES.astype(dtype)))
    assert isinstance(folder.features, np.memmap)
    assert folder.features.dtype == dtype
    assert not folder.features.flags.writeable
    assert np.array_equal(folder.features, FEATURES)
    assert folder.classes == ("cat", "dog")
    assert folder.warnings == ()


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.int64])
def test_labels_become_bool(tmp_path: Path, dtype: type) -> None:
    labels = read_feature_folder(fill(tmp_path, labels=LABELS.astype(dtype))).labels
    assert labels.dtype == np.bool_
    assert labels.tolist() == [[True, False], [False, True], [True, True]]


def test_version_two_headers_are_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, FEATURES, version=(2, 0))
    (tmp_path / "features.npy").write_bytes(stream.getvalue())
    assert np.array_equal(open_features(tmp_path / "features.npy")[0], FEATURES)


@pytest.mark.parametrize("missing", ["labels.npy", "classes.txt"])
def test_missing_files(tmp_path: Path, missing: str) -> None:
    fill(tmp_path)
    (tmp_path / missing).unlink()
    text = message(tmp_path)
    assert f"'{tmp_path}' has no {missing}: a feature folder holds features.npy (N, D)" in text


@pytest.mark.parametrize(
    ("features", "text"),
    [
        (np.zeros(3, np.float32), "features.npy' must be of shape (N, D), one row per image, got (3,)."),
        (np.zeros((3, 2, 2), np.float32), "must be of shape (N, D), one row per image, got (3, 2, 2)."),
        (np.zeros((0, 4), np.float32), "features.npy' is empty: its shape is (0, 4)."),
        (np.zeros((3, 0), np.float32), "features.npy' is empty: its shape is (3, 0)."),
        (FEATURES.astype(np.float64), "must hold float16 or float32, got float64: save features.astype"),
        (FEATURES.astype(np.uint8), "must hold float16 or float32, got uint8"),
        (FEATURES.astype(">f4"), "must hold float16 or float32, got >f4"),
        (FEATURES[:2], "features.npy has 2 rows, but labels.npy has 3 in"),
        (FEATURES.astype(object), "features.npy' holds Python objects, which are never unpickled"),
    ],
)
def test_bad_features(tmp_path: Path, features: np.ndarray, text: str) -> None:
    assert text in message(fill(tmp_path, features))


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (np.array([0, 1, 1]), "one column per class, got (3,). From one class number per image: numpy.eye"),
        (
            np.zeros((3, 2, 1), bool),
            "labels.npy' must be of shape (N, C), one column per class, got (3, 2, 1).",
        ),
        (np.zeros((0, 2), bool), "labels.npy' is empty: its shape is (0, 2)."),
        (LABELS.astype(np.float32), "must hold bool or whole numbers 0 and 1, got float32."),
        (np.array([[1, 0], [0, 2], [7, 1]]), "holds 2 in row 1, column 1: only 0 and 1 are allowed."),
        (np.array([[1, 0], [0, 1], [-1, 1]]), "holds -1 in row 2, column 0: only 0 and 1 are allowed."),
        (LABELS.astype(object), "labels.npy' holds Python objects, which are never unpickled"),
        (np.ones((3, 3), bool), "classes.txt names 2 classes, but labels.npy has 3 columns in"),
    ],
)
def test_bad_labels(tmp_path: Path, labels: np.ndarray, text: str) -> None:
    assert text in message(fill(tmp_path, labels=labels))


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ("", "classes.txt' is empty: write one class name per line."),
        ("cat\n\ndog\n", "classes.txt', line 2 is empty: write one class name per line."),
        ("cat\ncat\n", "classes.txt' names these classes more than once: 'cat'."),
        ("cat\n", "classes.txt names 1 classes, but labels.npy has 2 columns"),
    ],
)
def test_bad_classes(tmp_path: Path, classes: str, text: str) -> None:
    assert text in message(fill(tmp_path, classes=classes))


def test_classes_in_another_encoding(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "classes.txt").write_bytes("café\ndog\n".encode("latin-1"))
    assert "classes.txt' is not UTF-8 text (byte 0xe9 at position 3): save it with" in message(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_first_value_that_is_not_finite_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, dtype: type
) -> None:
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", 64)  # many blocks, the last one short
    features = np.ones((101, 4), dtype)
    features[77, 2] = value
    features[100, 0] = value
    fill(tmp_path, features, np.ones((101, 2), bool))
    assert f"features.npy' holds {dtype(value)} in row 77, column 2: features must be finite." in message(
        tmp_path
    )


def test_finite_check_sees_the_last_row_of_the_last_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", 64)
    features = np.ones((101, 4), np.float32)
    features[100, 3] = np.nan
    assert "in row 100, column 3" in message(fill(tmp_path, features, np.ones((101, 2), bool)))


def test_column_order_is_warned_about(tmp_path: Path) -> None:
    folder = read_feature_folder(fill(tmp_path, np.asfortranarray(FEATURES)))
    assert np.array_equal(folder.features, FEATURES)
    assert len(folder.warnings) == 1
    assert (
        "features.npy' is stored column by column (Fortran order), so reading rows is slow"
        in folder.warnings[0]
    )


@pytest.mark.parametrize("name", ["features.npy", "labels.npy"])
def test_truncated_data(tmp_path: Path, name: str) -> None:
    path = fill(tmp_path) / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    text = f"{name}' is truncated: {len(whole) - 3:,} of {len(whole):,} bytes are there. Copy it again."
    assert text in message(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 9, 60])
def test_truncated_header(tmp_path: Path, length: int) -> None:
    path = fill(tmp_path) / "features.npy"
    path.write_bytes(path.read_bytes()[:length])
    assert "features.npy' is not a whole .npy file (" in message(tmp_path)


def test_another_file_under_the_name(tmp_path: Path) -> None:
    fill(tmp_path)
    np.savez(tmp_path / "other.npz", FEATURES)
    (tmp_path / "other.npz").rename(tmp_path / "features.npy")
    assert "features.npy' is not a whole .npy file (" in message(tmp_path)


def test_impossible_shape(tmp_path: Path) -> None:
    path = fill(tmp_path) / "features.npy"
    path.write_bytes(path.read_bytes().replace(b"(3, 4), }  ", b"(-3, -4), }"))
    assert "announces the impossible shape (-3, -4)" in message(tmp_path)


def test_a_header_may_not_claim_more_than_the_file_holds(tmp_path: Path) -> None:
    path = fill(tmp_path) / "labels.npy"
    path.write_bytes(path.read_bytes().replace(b"(3, 2), }            ", b"(3000000000, 2000), }"))
    assert "labels.npy' is truncated: " in message(tmp_path)  # and no attempt to allocate 6 TB


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="holds Python objects, which are never unpickled"):
        load_array(tmp_path / "labels.npy")


def test_unreadable_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read '.*': Is a directory"):
        load_labels(tmp_path)


def test_small_arrays_load_whole_even_when_empty(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.empty((0, 3), np.int16))
    assert load_array(tmp_path / "a.npy").shape == (0, 3)
    assert load_array(tmp_path / "a.npy").dtype == np.int16


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


def test_rows_without_labels_are_counted(tmp_path: Path) -> None:
    labels = LABELS.copy()
    labels[1] = 0
    data = open_dataset(fill(tmp_path, labels=labels))
    assert data.warnings == ("1 of 3 rows carry no label: they teach nothing and are relevant to no query.",)
