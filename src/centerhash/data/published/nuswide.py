"""NUS-WIDE: one text file of 0/1 lines per class, the list of images, and photos that its makers hand out on request."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.data.layouts.contents import Contents, first_few, first_present, read_bytes, read_lines
from centerhash.data.published.catalogue import PublishedDataset, RandomSplit, RemoteFile, register
from centerhash.data.published.list_files import FileIndex

# the 21 most frequent of the 81 classes, on which most figures are published ("TC-21")
_FREQUENT = (
    "animal beach buildings clouds flowers grass lake mountain ocean person plants reflection road rocks sky "
    "snow sunset tree vehicle water window"
)
FREQUENT = tuple(_FREQUENT.split())
CLASSES = 81


def read_nuswide(root: Path, classes: tuple[str, ...] = ()) -> Contents:
    """Read `Labels_CLASS.txt` and `Imagelist.txt`; all 81 classes in alphabetical order, unless some are given.

    Photos that are not there are skipped with a warning: Flickr's users take them away, so that hardly any copy is
    complete. Images that show none of the classes are skipped too.
    """
    folder = first_present(root, ("Groundtruth/AllLabels", "AllLabels"))
    table = first_present(root, ("ImageList/Imagelist.txt", "Imagelist.txt"))
    if not classes:
        classes = tuple(sorted(path.stem.removeprefix("Labels_") for path in folder.glob("Labels_*.txt")))
        if len(classes) != CLASSES:
            raise DataError(
                f"'{folder}' has {len(classes)} files Labels_*.txt, NUS-WIDE has {CLASSES}: unpack Groundtruth.zip again."
            )
    listed = [line.replace("\\", "/") for line in read_lines(table) if line]
    columns = [_read_column(folder / f"Labels_{name}.txt", len(listed)) for name in classes]
    index = FileIndex(root)
    found = [index.find(name) for name in listed]
    rows = np.array([row for row, file in enumerate(found) if file is not None], dtype=np.int64)
    if rows.size == 0:
        raise DataError(
            f"none of the {len(listed):,} photos of '{table}' is under '{root}': {first_few(listed)}. "
            "They come on request only: `centerhash download` prints how to get them."
        )
    missing = len(listed) - rows.size
    gone = f"{missing:,} of {len(listed):,} photos of NUS-WIDE are not under '{root}' and are skipped."
    files = [file or name for file, name in zip(found, listed, strict=True)]
    paths, warnings = tuple(root / file for file in files), (gone,) if missing else ()
    whole = Contents(tuple(files), classes, np.column_stack(columns), paths=paths, warnings=warnings)
    return whole.keep(rows).labeled()


def _read_column(path: Path, count: int) -> NDArray[np.bool_]:
    """Read one 0 or 1 per line, (N,) bool."""
    words = read_bytes(path, " Unpack Groundtruth.zip.").split()
    if not set(words) <= {b"0", b"1"}:
        wrong = next(word for word in words if word not in (b"0", b"1"))
        raise DataError(f"'{path}' holds '{wrong.decode(errors='replace')}', which is not 0 or 1.")
    if len(words) != count:
        raise DataError(f"'{path}' has {len(words):,} lines for {count:,} images of the list.")
    column: NDArray[np.bool_] = np.array(words) == b"1"
    return column


_HOME = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide"
_ALL = PublishedDataset(
    name="nuswide81",
    title="NUS-WIDE, all 81 classes",
    classes=CLASSES,
    images=209_347,
    photos=269_648,
    split=RandomSplit(10_000, 5_000, "the paper, Sec. 4.1"),
    areas="unknown",
    license="labels for research; photos under the terms of their Flickr users, available under an agreement",
    citation="Chua et al.: NUS-WIDE: A Real-World Web Image Database. CIVR 2009",
    home=f"{_HOME}/NUS-WIDE.html",
    folder="nuswide",
    files=(RemoteFile(f"{_HOME}/Groundtruth.zip", into="Groundtruth"), RemoteFile(f"{_HOME}/ImageList.zip")),
    needs=("Groundtruth/AllLabels|AllLabels", "ImageList/Imagelist.txt|Imagelist.txt", "Flickr|images"),
    reader=read_nuswide,
    by_hand=(
        f"Open {_HOME}/NUS-WIDE.html and send the 'Agreement and Disclaimer Form' to the address given there. "
        "Instructions to download the photos come by e-mail.",
        "Unpack the photos to nuswide/Flickr with the folders of Imagelist.txt, or into a flat folder nuswide/images.",
    ),
)
register(
    replace(
        _ALL,
        name="nuswide21",
        title="NUS-WIDE, the 21 most frequent classes",
        classes=21,
        images=195_834,
        split=RandomSplit(
            10_000,
            2_040,
            "the paper, Table 1",
            "; `--lists` for CSQ's",
        ),
        reader=partial(read_nuswide, classes=FREQUENT),
    )
)
register(_ALL)
