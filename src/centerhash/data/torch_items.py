"""Convert datasets to and from torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils import data

from centerhash.core.checks import as_array
from centerhash.core.errors import InputError
from centerhash.data.images import load_image

Transform: TypeAlias = Callable[[Image.Image], Any]


def as_tensor(image: Image.Image) -> Tensor:
    """Return an RGB image as uint8 (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@dataclass(eq=False, repr=False)
class TorchItems(data.Dataset[tuple[Any, Tensor]]):
    """Some rows of a dataset: features (D,) float32 or the transformed image, and labels (C,) bool."""

    source: NDArray[Any] | Sequence[Path]
    labels: NDArray[np.bool_]
    rows: NDArray[np.int64]
    transform: Transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        row = int(self.rows[index])
        item, labels = self.source[row], torch.from_numpy(self.labels[row].copy())
        if isinstance(item, Path):
            return self.transform(load_image(item)), labels
        return torch.from_numpy(item.astype(np.float32)), labels


def read_items(dataset: Any) -> tuple[list[Any], list[Any]]:
    """Read features and labels of a map-style torch dataset of pairs, item by item."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        raise InputError(f"dataset must be a torch Dataset with a length of at least 1, got {dataset!r:.80}.")
    features, labels = [], []
    for row in range(len(dataset)):
        item = dataset[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(f"item {row} must be a pair of features and labels, got {type(item).__name__}.")
        if isinstance(item[0], Image.Image) or getattr(item[0], "ndim", 1) > 1:
            raise InputError(f"item {row} is an image: give features (D,), or use Dataset.from_images.")
        features.append(as_array(item[0], f"the features of item {row}"))
        labels.append(as_array(item[1], f"the labels of item {row}"))
    return features, labels
