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
def test_a_torch_dataset_becomes_ours(source: Any) -> None:
    data = Dataset.from_torch(source, CLASSES, query=[3, 1])
    assert data.classes == CLASSES
    assert data.splits.query.tolist() == [3, 1]
    assert np.array_equal(data.features, FEATURES)
    assert np.array_equal(data.labels, LABELS)


def test_every_item_is_read_once() -> None:
    class Counted(TensorDataset):
        read: list[int] = []  # noqa: RUF012

        def __getitem__(self, row: int) -> Any:
            self.read.append(row)
            return super().__getitem__(row)

    Dataset.from_torch(Counted(torch.from_numpy(FEATURES), torch.from_numpy(LABELS)))
    assert Counted.read == list(range(20))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "with a length of at least 1"),
        (iter(dataset()), "with a length of at least 1"),
        (dataset((2, FEATURES[2])), "item 2 must be a pair of features and labels, got ndarray"),
        (dataset((0, (Image.new("RGB", (4, 4)), LABELS[0]))), "item 0 is an image.*Dataset.from_images"),
        (dataset((0, (torch.zeros(3, 4, 4), LABELS[0]))), "item 0 is an image.*Dataset.from_images"),
        (dataset((5, (FEATURES[5][:3], LABELS[5]))), r"the features of item 5 have the shape \(3,\)"),
        (dataset((5, (FEATURES[5], LABELS[5][:1]))), r"the labels of item 5 have the shape \(1,\)"),
        (dataset((5, (FEATURES[5], 3))), "the labels of item 5 must be a numpy array"),
        (dataset((5, (FEATURES[5], LABELS[5] * 2))), "2.0 in row 5.*only 0 and 1"),
        (dataset((5, (FEATURES[5] * np.nan, LABELS[5]))), "nan in row 5"),
    ],
)
def test_what_is_refused(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Dataset.from_torch(source)


def test_features_come_out_by_split() -> None:
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


def test_what_comes_out_goes_in_again() -> None:
    data = Dataset.from_arrays(FEATURES, LABELS)
    again = Dataset.from_torch(data.to_torch())
    assert np.array_equal(again.features, FEATURES)
    assert np.array_equal(again.labels, LABELS)


def test_images_come_out_upright_and_transformed(scene_folder: Path, tmp_path: Path) -> None:
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
