"""NUS-WIDE: one text file of 0/1 lines per class, the list of images, and photos that are available on request."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from centerhash.core.errors import DataError
from centerhash.data.layouts.common import Contents, first_few, read_bytes, read_lines
from centerhash.data.published.catalogue import PublishedDataset, RandomSplit, RemoteFile
from centerhash.data.published.list_files import FileIndex

# The 21 most frequent of the 81 classes, for which most results are published ("TC-21").
_FREQUENT = (
    "animal beach buildings clouds flowers grass lake mountain ocean person plants reflection road rocks sky "
    "snow sunset tree vehicle water window"
)
FREQUENT = tuple(_FREQUENT.split())
_LABELS, _TABLE = "Groundtruth/AllLabels", "ImageList/Imagelist.txt"


def read_nuswide(root: Path, classes: tuple[str, ...] = ()) -> Contents:
    """Read `Labels_CLASS.txt` and `Imagelist.txt`, by default for all 81 classes in alphabetical order.

    Missing photos are skipped with a warning: hardly any copy is complete, since Flickr's users delete photos. Images
    that show none of the classes are skipped too.
    """
    folder, table = root / _LABELS, root / _TABLE
    files = folder.glob("Labels_*.txt")
    classes = classes or tuple(sorted(path.stem.removeprefix("Labels_") for path in files))
    listed = [line.replace("\\", "/") for line in read_lines(table) if line]
    labels = np.column_stack([_read_column(folder / f"Labels_{name}.txt", len(listed)) for name in classes])
    index = FileIndex(root)
    photos = {row: photo for row, name in enumerate(listed) if (photo := index.find(name))}
    missing = len(listed) - len(photos)
    if not photos:
        raise DataError(
            f"none of the {missing:,} photos of '{table}' is under '{root}': {first_few(listed)}. "
            "They come on request only: `centerhash download` prints how to get them."
        )
    skipped = f"{missing:,} of {len(listed):,} photos of NUS-WIDE are not under '{root}' and are skipped."
    names, paths = tuple(photos.values()), tuple(root / name for name in photos.values())
    warnings = (skipped,) if missing else ()
    return Contents(names, classes, labels[list(photos)], paths=paths, warnings=warnings).labeled()


def _read_column(path: Path, count: int) -> list[bool]:
    """Read one 0 or 1 per line."""
    words = read_bytes(path).split()
    if len(words) != count or not set(words) <= {b"0", b"1"}:
        raise DataError(
            f"'{path}' must hold a 0 or 1 for each of the {count:,} images of the list: unpack Groundtruth.zip again."
        )
    return [word == b"1" for word in words]


_HOME = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide"
NUSWIDE81 = PublishedDataset(
    name="nuswide81",
    title="NUS-WIDE, all 81 classes",
    classes=81,
    images=209_347,
    split=RandomSplit(10_000, 5_000, "the paper, Sec. 4.1"),
    license="labels for research; photos under the terms of their Flickr users, available under an agreement",
    home=f"{_HOME}/NUS-WIDE.html",
    folder="nuswide",
    files=(RemoteFile(f"{_HOME}/Groundtruth.zip", into="Groundtruth"), RemoteFile(f"{_HOME}/ImageList.zip")),
    needs=(_LABELS, _TABLE, "Flickr"),
    reader=read_nuswide,
    by_hand=(
        f"Open {_HOME}/NUS-WIDE.html and send the 'Agreement and Disclaimer Form' to the address given there. "
        "Instructions to download the photos come by e-mail.",
        "Unpack the photos to nuswide/Flickr, with the folders of Imagelist.txt or without any.",
    ),
)
NUSWIDE21 = replace(
    NUSWIDE81,
    name="nuswide21",
    title="NUS-WIDE, the 21 most frequent classes",
    classes=21,
    images=195_834,
    split=RandomSplit(10_000, 2_040, "the paper, Table 1"),
    reader=partial(read_nuswide, classes=FREQUENT),
)
