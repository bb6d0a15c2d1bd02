"""Folders of features.npy, labels.npy and classes.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.data.layouts.arrays import read_features
from tests.toys import refusal

LABELS = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.uint8)
FEATURES = np.arange(12, dtype=np.float32).reshape(3, 4)


def fill(
    root: Path, features: Any = FEATURES, labels: Any = LABELS, classes: str | None = "cat\ndog\n"
) -> Path:
    np.save(root / "features.npy", features)
    np.save(root / "labels.npy", labels)
    (root / "classes.txt").write_text(classes or "")
    return root


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_read_features(tmp_path: Path, dtype: type) -> None:
    contents = read_features(fill(tmp_path, FEATURES.astype(dtype)))
    assert isinstance(contents.features, np.memmap)
    assert contents.features.dtype == dtype
    assert not contents.features.flags.writeable
    assert np.array_equal(contents.features, FEATURES)
    assert (contents.classes, contents.warnings) == (("cat", "dog"), ())
    assert contents.labels.dtype == np.bool_
    assert np.array_equal(contents.labels, LABELS)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"features": np.zeros(3, np.float32)}, "(3,)"),
        ({"features": np.zeros((0, 4), np.float32)}, "(0, 4)"),
        ({"features": np.zeros((3, 0), np.float32)}, "(3, 0)"),
        ({"features": FEATURES.astype(np.float64)}, "got float64"),
        ({"features": FEATURES[:2]}, "(2, 4)"),
        ({"features": FEATURES.astype(object)}, "Python objects"),
        ({"labels": np.array([0, 1, 1])}, "numpy.eye"),
        ({"labels": np.zeros((0, 2), bool)}, "got (0, 2)"),
        ({"labels": np.array([[1, 0], [0, 2], [7, 1]])}, "2 in row 1, column 1"),
        ({"labels": np.array([[1, 0], [0, 1], [np.nan, 1]])}, "nan in row 2, column 0"),
        ({"labels": LABELS.astype(object)}, "Python objects"),
        ({"labels": np.ones((3, 3), bool)}, "3 columns for 2 classes"),
        ({"classes": ""}, "classes.txt"),
        ({"classes": "cat\n\ndog\n"}, "''"),
        ({"classes": "cat\ncat\n"}, "'cat'"),
    ],
)
def test_read_features_error(tmp_path: Path, content: dict[str, Any], fault: str) -> None:
    text = refusal(read_features, fill(tmp_path, **content))
    assert fault in text
    assert str(tmp_path) in text


@pytest.mark.parametrize("name", ["features.npy", "labels.npy"])
@pytest.mark.parametrize("length", [0, 4, 9, 60, -3])
def test_read_features_truncated(tmp_path: Path, name: str, length: int) -> None:
    path = fill(tmp_path) / name
    path.write_bytes(path.read_bytes()[:length])
    assert f"{name}'" in refusal(read_features, tmp_path)
