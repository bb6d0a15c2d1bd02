"""MIRFLICKR-25000: photos `im1.jpg` to `im25000.jpg`, and one text file of image numbers per annotation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from centerhash.core.errors import DataError
from centerhash.data.layouts.common import Contents, existing_paths, read_lines
from centerhash.data.published.catalogue import PublishedDataset, RandomSplit, RemoteFile

# An image has one of the 24 potential labels if it shows the thing at all.
_POTENTIAL = (
    "animals baby bird car clouds dog female flower food indoor lake male night people plant_life portrait "
    "river sea sky structures sunset transport tree water"
)
POTENTIAL = tuple(_POTENTIAL.split())
# It has one of the 14 relevant labels if the thing is its subject.
_RELEVANT = "baby bird car clouds dog female flower male night people portrait river sea tree"
RELEVANT = tuple(f"{name}_r1" for name in _RELEVANT.split())
_PHOTO_FOLDER, _LABEL_FOLDER = "mirflickr", "mirflickr25k_annotations_v080"


def read_flickr25k(root: Path, classes: tuple[str, ...] = POTENTIAL) -> Contents:
    """Read `CLASS.txt` files, which hold the numbers of the images, counted from 1."""
    photos, folder = root / _PHOTO_FOLDER, root / _LABEL_FOLDER
    numbers = {name: _read_image_numbers(folder / f"{name}.txt") for name in classes}
    count = max((max(rows, default=0) for rows in numbers.values()), default=0)
    count = max(count, sum(1 for _ in photos.glob("im*.jpg")))
    labels = np.zeros((count, len(classes)), dtype=np.bool_)
    for column, rows in enumerate(numbers.values()):
        labels[np.array(rows, dtype=np.int64) - 1, column] = True
    names = tuple(f"im{number}.jpg" for number in range(1, count + 1))
    return Contents(names, classes, labels, paths=existing_paths(photos, names, folder)).labeled()


def _read_image_numbers(path: Path) -> list[int]:
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not line.isdecimal() or int(line) < 1:
            raise DataError(f"'{path}', line {number}: '{line}' is not the number of an image (1, 2, ...).")
    return [int(line) for line in lines]


_SOURCE = "http://press.liacs.nl/mirflickr/mirflickr25k.v3b"
FLICKR25K = PublishedDataset(
    name="flickr25k",
    title="MIRFLICKR-25000 (FLICKR25K), 24 potential annotations",
    classes=24,
    images=24_581,
    split=RandomSplit(10_000, 2_000, "the counts of DCMH, CVPR 2017"),
    license="photos under Creative Commons licenses, one per photo in mirflickr/meta/license",
    home="https://press.liacs.nl/mirflickr/",
    folder="mirflickr25k",
    files=(
        RemoteFile(f"{_SOURCE}/mirflickr25k.zip", 3_069_184_257, "a23d0a8564ee84cda5622a6c2f947785"),
        RemoteFile(f"{_SOURCE}/{_LABEL_FOLDER}.zip", into=_LABEL_FOLDER),
    ),
    needs=(_PHOTO_FOLDER, _LABEL_FOLDER),
    reader=read_flickr25k,
)
FLICKR25K_38 = replace(
    FLICKR25K,
    name="flickr25k-38",
    title="MIRFLICKR-25000 (FLICKR25K), 24 potential and 14 relevant annotations",
    classes=38,
    split=RandomSplit(4_000, 1_000, "the counts of DHN, AAAI 2016"),
    reader=partial(read_flickr25k, classes=POTENTIAL + RELEVANT),
)
