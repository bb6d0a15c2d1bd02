"""Convert datasets to and from torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """An RGB image as uint8 (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class TorchItems(data.Dataset[tuple[Any, Tensor]]):
    """Some rows of a dataset: features (D,) float32 or the transformed image, and labels (C,) bool."""

    def __init__(
        self,
        source: NDArray[Any] | Sequence[Path],
        labels: NDArray[np.bool_],
        rows: NDArray[np.int64],
        transform: Transform = as_tensor,
    ) -> None:
        self.source, self.labels, self.rows, self.transform = source, labels, rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[Any, Tensor]:
        row = int(self.rows[place])
        held, labels = self.source[row], torch.from_numpy(self.labels[row].copy())
        if isinstance(held, Path):  # one image at a time: nothing is kept
            return self.transform(load_image(held)), labels
        return torch.from_numpy(held.astype(np.float32)), labels


def read_items(dataset: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features (N, D) and labels (N, C) of a map-style torch dataset, read item by item."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        raise InputError(
            f"dataset must be a torch Dataset with a length of at least 1 and numbered items, got {dataset!r:.80}."
        )
    columns: list[NDArray[np.float32]] = []
    names = ("features", "labels")
    for row in range(len(dataset)):
        item = dataset[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(f"item {row} must be a pair of features and labels, got {type(item).__name__}.")
        if isinstance(item[0], Image.Image) or getattr(item[0], "ndim", 1) > 1:
            raise InputError(
                f"item {row} is an image, and images do not fit into memory: give features (D,), or pass the files "
                "to Dataset.from_images."
            )
        values = [as_array(part, f"the {name} of item {row}") for part, name in zip(item, names, strict=True)]
        if not columns:  # the first item says how wide they are
            columns = [np.empty((len(dataset), *value.shape), np.float32) for value in values]
        for name, column, value in zip(names, columns, values, strict=True):
            if value.shape != column.shape[1:]:
                raise InputError(
                    f"the {name} of item {row} have the shape {value.shape}, those of item 0 {column.shape[1:]}: all "
                    "must have the same."
                )
            column[row] = value
    features, labels = columns
    return features, labels
