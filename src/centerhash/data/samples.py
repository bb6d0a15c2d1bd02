"""Sample datasets in the package: features of real photos, which need no download.

data = centerhash.sample("coco6k")
model = centerhash.train(data, method="ics-softmax", bits=64)
print(centerhash.evaluate(model, data))
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from centerhash.core.errors import unknown_name
from centerhash.data.dataset import Dataset
from centerhash.data.splits import Splits

SAMPLES = ("coco6k",)


def sample(name: str = "coco6k") -> Dataset:
    """Return a sample dataset: features (N, D), labels (N, C), box areas (N, C) and splits.

    "coco6k" describes 6,000 photos of COCO train2017 without the photos themselves. It holds 256 principal components
    of EfficientNet-Lite0's features, the labels, and for each label the share of the frame that the union of its boxes
    covers. `names` are COCO's image ids. 1,000 photos are queries, the rest the database; 3,000 of these train.
    """
    if name not in SAMPLES:
        raise unknown_name("sample", name, SAMPLES)
    path = sample_file(name)
    with np.load(path, allow_pickle=False) as stored:
        classes = tuple(stored["classes"].tolist())
        labels = np.unpackbits(stored["labels"], axis=1, count=len(classes)).astype(np.bool_)
        areas = np.zeros(labels.shape, dtype=np.float32)
        areas[labels] = stored["areas"] / 65_535
        return Dataset(
            name=name,
            root=path,
            classes=classes,
            labels=labels,
            splits=Splits(stored["train"], stored["query"], stored["database"]),
            features=stored["features"] * stored["scale"],
            names=tuple(map(str, stored["ids"].tolist())),
            areas=areas,
        )


def sample_file(name: str) -> Path:
    """Return the file of a sample."""
    return Path(__file__).parents[1] / "builtin" / "samples" / f"{name}.npz"
