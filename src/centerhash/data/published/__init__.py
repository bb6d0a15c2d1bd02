"""Published datasets by name, one module each. `centerhash datasets` and docs/reference/datasets.md list them."""

from __future__ import annotations

from centerhash.core.errors import unknown_name
from centerhash.data.published.catalogue import PublishedDataset
from centerhash.data.published.cifar10 import CIFAR10, CIFAR10_1, CIFAR10_2
from centerhash.data.published.coco import COCO2014, COCO2017
from centerhash.data.published.flickr25k import FLICKR25K, FLICKR25K_38
from centerhash.data.published.list_files import IMAGENET100
from centerhash.data.published.nuswide import NUSWIDE21, NUSWIDE81

_ROWS = (
    *(CIFAR10, CIFAR10_1, CIFAR10_2, COCO2014, COCO2017),
    *(FLICKR25K, FLICKR25K_38, IMAGENET100, NUSWIDE21, NUSWIDE81),
)
DATASETS = {row.name: row for row in _ROWS}


def get_dataset(name: str) -> PublishedDataset:
    """Return a dataset by its name; ConfigError lists all names."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS, see="See `centerhash datasets`.")
    return DATASETS[name]
