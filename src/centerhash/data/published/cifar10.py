"""CIFAR-10, binary version: files of records, each a class number and 32 x 32 pixels in three planes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from centerhash.core.errors import DataError
from centerhash.core.files import atomic_folder
from centerhash.data.layouts.common import Contents, check_classes, existing_paths, read_bytes, read_lines
from centerhash.data.published.catalogue import PublishedDataset, RandomSplit, RemoteFile

BINARIES, IMAGES = "cifar-10-batches-bin", "cifar-10-images"
TRAINING, TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch"
SIDE = 32
_RECORD = 1 + 3 * SIDE * SIDE


def read_cifar10(root: Path) -> Contents:
    """Read all images with the official parts: the training files as training set and database, the test file as queries.

    The first call also writes the images as PNG files.
    """
    classes = check_classes([line for line in read_lines(root / BINARIES / "batches.meta.txt") if line])
    batches = [_read_records(root / BINARIES / f"{stem}.bin", len(classes)) for stem in (*TRAINING, TEST)]
    names = [
        f"{classes[number]}/{stem}_{row:05d}.png"
        for stem, batch in zip((*TRAINING, TEST), batches, strict=True)
        for row, number in enumerate(batch[:, 0])
    ]
    records = np.concatenate(batches)
    if not (root / IMAGES).is_dir():
        with atomic_folder(root / IMAGES) as draft:
            for name in classes:
                (draft / name).mkdir()
            for name, record in zip(names, records, strict=True):
                pixels = record[1:].reshape(3, SIDE, SIDE).transpose(1, 2, 0)
                Image.fromarray(np.ascontiguousarray(pixels)).save(draft / name)
    labels = records[:, 0, None] == np.arange(len(classes))
    train, query = np.split(np.arange(len(records)), [-len(batches[-1])])
    splits = {"train": train, "query": query, "database": train}
    paths = existing_paths(root / IMAGES, names, root / BINARIES)
    return Contents(tuple(names), classes, labels, splits, "the official parts", paths)


def _read_records(path: Path, classes: int) -> NDArray[np.uint8]:
    """Read the records (N, 3073) of one file: the class, then red, green and blue row by row."""
    numbers = np.frombuffer(read_bytes(path), dtype=np.uint8)
    if not numbers.size or numbers.size % _RECORD or int(numbers[::_RECORD].max()) >= classes:
        raise DataError(
            f"'{path}' does not hold records of {_RECORD:,} bytes with a class below {classes}: download CIFAR-10's "
            "binary version again."
        )
    return numbers.reshape(-1, _RECORD)


_HOME = "https://www.cs.toronto.edu/~kriz"
CIFAR10 = PublishedDataset(
    name="cifar10",
    title="CIFAR-10, binary version, 54,000 images in the database",
    classes=10,
    images=60_000,
    split=RandomSplit(500, 100, "the counts of DeepHash-pytorch", per_class=True, train_in_database=False),
    license="none stated; the makers ask to cite their report",
    home=f"{_HOME}/cifar.html",
    folder="cifar10",
    files=(RemoteFile(f"{_HOME}/cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),),
    needs=(BINARIES,),
    reader=read_cifar10,
)
CIFAR10_1 = replace(
    CIFAR10,
    name="cifar10-1",
    title="CIFAR-10, binary version, 59,000 images in the database",
    split=RandomSplit(500, 100, "protocol I of GreedyHash", per_class=True),
)
CIFAR10_2 = replace(
    CIFAR10,
    name="cifar10-2",
    title="CIFAR-10, binary version, 50,000 images in the database",
    split="the 50,000 official training images as training set and database, the 10,000 test images as queries "
    "(protocol II of GreedyHash)",
)
