"""CIFAR-10, binary version: files of records, each a class number and 32 x 32 pixels in three planes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from centerhash.core.errors import DataError
from centerhash.core.files import atomic_folder
from centerhash.data.layouts.contents import Contents, check_classes, present, read_bytes, read_lines
from centerhash.data.published.catalogue import PublishedDataset, RandomSplit, RemoteFile, register

BINARIES, IMAGES = "cifar-10-batches-bin", "cifar-10-images"
TRAINING, TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch"
SIDE = 32
_RECORD = 1 + 3 * SIDE * SIDE


def read_cifar10(root: Path) -> Contents:
    """Read all images, those of the five training files first; the first call also writes them as PNG files."""
    classes = check_classes(
        [line for line in read_lines(root / BINARIES / "batches.meta.txt") if line], "batches.meta.txt"
    )
    records = {
        stem: _read_records(root / BINARIES / f"{stem}.bin", len(classes)) for stem in (*TRAINING, TEST)
    }
    names = tuple(
        f"{classes[record[0]]}/{stem}_{row:05d}.png"
        for stem, batch in records.items()
        for row, record in enumerate(batch)
    )
    whole = np.concatenate(list(records.values()))
    if not (root / IMAGES).is_dir():
        with atomic_folder(root / IMAGES) as draft:
            for name in classes:
                (draft / name).mkdir()
            for name, record in zip(names, whole, strict=True):
                pixels = record[1:].reshape(3, SIDE, SIDE).transpose(1, 2, 0)
                Image.fromarray(np.ascontiguousarray(pixels)).save(draft / name)
    labels = whole[:, 0, None] == np.arange(len(classes))
    return Contents(names, classes, labels, paths=present(root / IMAGES, names, root / BINARIES))


def read_cifar10_parts(root: Path) -> Contents:
    """Read all images with the official parts: training files and database, and the test file as queries."""
    whole = read_cifar10(root)
    asking = np.array([name.rpartition("/")[2].startswith(TEST) for name in whole.names])
    known, query = np.flatnonzero(~asking), np.flatnonzero(asking)
    splits = {"train": known, "query": query, "database": known}
    return replace(whole, splits=splits, source="the official parts")


def _read_records(path: Path, classes: int) -> NDArray[np.uint8]:
    """Records (N, 3073) of one file: the class, then red, green and blue row by row."""
    numbers = np.frombuffer(read_bytes(path, " Unpack cifar-10-binary.tar.gz again."), dtype=np.uint8)
    if not numbers.size or numbers.size % _RECORD:
        raise DataError(
            f"'{path}' has {numbers.size:,} bytes, which are no records of {_RECORD:,}: "
            "download CIFAR-10's binary version again."
        )
    records = numbers.reshape(-1, _RECORD)
    if int(records[:, 0].max()) >= classes:
        raise DataError(
            f"'{path}' has the class {records[:, 0].max()}, of {classes} classes: download it again."
        )
    return records


_CIFAR10 = register(
    PublishedDataset(
        name="cifar10",
        title="CIFAR-10, binary version, 54,000 images in the database",
        classes=10,
        images=60_000,
        photos=60_000,
        split=RandomSplit(500, 100, "the counts of DeepHash-pytorch", per_class=True, joined=False),
        areas="unknown",
        license="none stated; the makers ask to cite their report",
        citation="Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar10",
        files=(
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                170_052_171,
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        needs=(BINARIES,),
        reader=read_cifar10,
        depth=54_000,
    )
)
register(
    replace(
        _CIFAR10,
        name="cifar10-1",
        title="CIFAR-10, binary version, 59,000 images in the database",
        split=RandomSplit(500, 100, "protocol I of GreedyHash", per_class=True),
        depth=59_000,
    )
)
register(
    replace(
        _CIFAR10,
        name="cifar10-2",
        title="CIFAR-10, binary version, 50,000 images in the database",
        split="the 50,000 official training images as training set and database, the 10,000 test images as queries "
        "(protocol II of GreedyHash)",
        reader=read_cifar10_parts,
        depth=50_000,
    )
)
