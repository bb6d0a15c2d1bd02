"""Published datasets by name, one module each. `centerhash datasets` and docs/reference/datasets.md list them."""

from __future__ import annotations

from centerhash.data.published import cifar10, coco, flickr25k, nuswide  # noqa: F401  (they register themselves)
from centerhash.data.published.catalogue import (
    DATASETS,
    describe,
    download,
    get_dataset,
    home_of,
    read_published,
)
from centerhash.data.published.list_files import read_lists

__all__ = [
    "DATASETS",
    "describe",
    "download",
    "get_dataset",
    "home_of",
    "read_lists",
    "read_published",
]
