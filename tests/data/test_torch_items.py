"""Datasets from torch and to torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from centerhash.core.errors import ConfigError, ImageError, InputError
from centerhash.data import Dataset, open_dataset
from tests.toys import CLASSES, separable

FEATURES, LABELS = separable(20)


def dataset(*changed: tuple[int, Any]) -> list[Any]:
    """Twenty pairs of features and labels, some of them changed."""
    items: list[Any] = list(zip(torch.from_numpy(FEATURES), torch.from_numpy(LABELS), strict=True))
    for row, item in changed:
        items[row] = item
    return items


@pytest.mark.parametrize(
    "source",
    [
        TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS)),
        TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS).long()),
        [(list(map(float, row)), labels) for row, labels in zip(FEATURES, LABELS, strict=True)],
    ],
)
def test_from_torch(source: Any) -> None:
    data = Dataset.from_torch(source, CLASSES, query=[3, 1])
    assert data.classes == CLASSES
    assert data.splits.query.tolist() == [3, 1]
    assert np.array_equal(data.features, FEATURES)
    assert np.array_equal(data.labels, LABELS)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ([], r"got \[\]"),
        (iter(dataset()), "iterator"),
        (dataset((2, FEATURES[2])), "item 2 .*ndarray"),
        (dataset((0, (Image.new("RGB", (4, 4)), LABELS[0]))), "item 0 .*Dataset.from_images"),
        (dataset((5, (FEATURES[5][:3], LABELS[5]))), "features .*shape"),
        (dataset((5, (FEATURES[5], 3))), "the labels of item 5"),
        (dataset((5, (FEATURES[5] * np.nan, LABELS[5]))), "row 5"),
    ],
)
def test_from_torch_error(source: Any, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        Dataset.from_torch(source)


def test_to_torch() -> None:
    data = Dataset.from_arrays(
        FEATURES.astype(np.float16), LABELS, train=[4, 2, 9], query=[1], database=[4, 2, 9]
    )
    items = data.to_torch("train")
    assert isinstance(items, torch.utils.data.Dataset)
    features, labels = next(iter(DataLoader(items, batch_size=3)))
    assert features.dtype == torch.float32
    assert np.array_equal(features, FEATURES[[4, 2, 9]].astype(np.float16))
    assert np.array_equal(labels, LABELS[[4, 2, 9]])
    assert len(data.to_torch("query")) == 1
    assert len(data.to_torch()) == 20
    labels[:] = False  # what a loop does with its batch
    items[0][1][:] = False
    assert np.array_equal(data.labels, LABELS)
    with pytest.raises(ConfigError):
        data.to_torch("training")


def test_to_torch_images(scene_folder: Path, tmp_path: Path) -> None:
    data = open_dataset(scene_folder)
    row = int(data.splits.query[0])
    image, labels = data.to_torch("query")[0]
    assert data.image_paths is not None
    with Image.open(data.image_paths[row]) as opened:
        assert np.array_equal(image.permute(1, 2, 0), np.asarray(opened.convert("RGB")))
    assert np.array_equal(labels, data.labels[row])
    assert data.to_torch("query", transform=lambda image: image.size)[0][0] == (64, 64)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(ImageError):
        Dataset.from_images([tmp_path / "broken.jpg"] * 20, LABELS).to_torch()[0]
