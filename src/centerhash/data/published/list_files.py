"""Read list files as HashNet, CSQ and others ship them, `path 0 1 0 ...` per image; ImageNet100 is defined by some.

`train.txt`, `test.txt` (or `query.txt`) and `database.txt`, the last also in parts (`database1.txt`,
`database_2.txt`). The paths are those of somebody's machine: an image is found by the end of its path.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.data.images import is_picture_name
from centerhash.data.layouts.contents import Contents, first_few, read_classes, read_lines
from centerhash.data.published.catalogue import PublishedDataset, register
from centerhash.data.splits import SPLIT_NAMES, Indices

_FILES = {"train": ("train",), "query": ("test", "query"), "database": ("database",)}


@dataclass(frozen=True)
class ListedImage:
    """One line of a list: the path as it stands there, and one 0/1 per class."""

    path: str
    labels: tuple[str, ...]


class FileIndex:
    """All images under a folder, found by the end of a path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._by_name: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        seen: set[str] = set()
        for folder, folders, files in os.walk(root, followlinks=True):  # photos often lie on another disk
            real = os.path.realpath(folder)
            folders[:] = [] if real in seen else sorted(folders)
            if real in seen:  # a link back up
                continue
            seen.add(real)
            parts = Path(folder).relative_to(root).parts
            for name in sorted(files):
                if is_picture_name(name):
                    self._by_name[name].append((*parts, name))

    def find(self, path: str) -> str | None:
        """Return the file, relative to the root, that shares the longest end with `path`, or None.

        Refuses a path that two files match equally well.
        """
        wanted = PurePosixPath(path.replace("\\", "/")).parts
        candidates = self._by_name.get(wanted[-1], []) if wanted else []
        if not candidates:
            return None
        lengths = [_common_end(wanted, candidate) for candidate in candidates]
        best = [parts for parts, length in zip(candidates, lengths, strict=True) if length == max(lengths)]
        if len(best) > 1:
            both = first_few(["/".join(parts) for parts in best])
            raise DataError(
                f"'{path}' may be any of {both} in '{self.root}': give a folder with one of them."
            )
        return "/".join(best[0])


def _common_end(first: Sequence[str], second: Sequence[str]) -> int:
    """How many last parts two paths share."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def read_lists(folder: Path, root: Path) -> Contents:
    """Read the lists of `folder` for the images under `root`.

    Classes are named by `classes.txt` beside the lists, else numbered. Images that are not found are left out;
    how many, and how far the lists overlap, is said in the warnings.
    """
    if not root.is_dir():
        raise DataError(f"no such folder: '{root}'. Give the folder that holds the images of the lists.")
    listed = {
        split: [image for path in list_files(folder, split) for image in _read_list(path)]
        for split in SPLIT_NAMES
    }
    classes = _classes(folder, listed)
    index, wanted = FileIndex(root), (image.path for images in listed.values() for image in images)
    places = {path: index.find(path) for path in dict.fromkeys(wanted)}
    found = {path: file for path, file in places.items() if file is not None}
    missing = [path for path, file in places.items() if file is None]
    if not found:
        raise DataError(
            f"none of the {len(missing):,} images of the lists in '{folder}' is under '{root}': "
            f"{first_few(missing)}. Give the folder that holds them."
        )
    rows = {name: row for row, name in enumerate(dict.fromkeys(found.values()))}
    labels, contradictions = _labels(listed, found, rows, len(classes))
    members = {
        split: [rows[found[image.path]] for image in listed[split] if image.path in found] for split in listed
    }
    unique = {split: np.array(list(dict.fromkeys(numbers))) for split, numbers in members.items()}
    repeated = sum(len(numbers) - len(set(numbers)) for numbers in members.values())
    paths = tuple(root / name for name in rows)
    notes = (*_notes(missing, len(found), repeated, contradictions, root), overlaps(unique))
    return Contents(tuple(rows), classes, labels, unique, f"lists in '{folder}'", paths, warnings=notes)


def overlaps(splits: Mapping[str, Indices]) -> str:
    """Say how many images two of the splits share."""
    pairs = (("train", "query"), ("query", "database"), ("train", "database"))
    counts = (
        f"{np.intersect1d(splits[first], splits[second]).size:,} in {first} and {second}"
        for first, second in pairs
    )
    return f"images in two lists: {', '.join(counts)}."


def list_files(folder: Path, split: str) -> list[Path]:
    """Return the files of one split: its own name, or that name with a number or an ending after it."""
    for stem in _FILES[split]:
        whole = folder / f"{stem}.txt"
        parts = sorted(path for path in folder.glob(f"{stem}[_0-9-]*.txt") if path.is_file())
        if whole.is_file() and parts:
            raise DataError(
                f"'{folder}' holds both {whole.name} and its parts {first_few([path.name for path in parts])}: "
                "keep one of the two."
            )
        if whole.is_file():
            return [whole]
        if parts:
            return parts
    wanted = " or ".join(f"{stem}.txt" for stem in _FILES[split])
    there = sorted(path.name for path in folder.glob("*.txt")) if folder.is_dir() else []
    raise DataError(
        f"'{folder}' has no {wanted}; it has: {first_few(there) or 'no .txt file'}. Lists are train.txt, test.txt "
        "and database.txt (or database1.txt, database2.txt, ...) with lines 'path 0 1 0 ...'."
    )


def _read_list(path: Path) -> list[ListedImage]:
    lines = [(number, line) for number, line in enumerate(read_lines(path), 1) if line]
    if not lines:
        raise DataError(f"'{path}' is empty: write one line 'path 0 1 0 ...' per image.")
    words = lines[0][1].split()[1:]
    width = sum(1 for _ in takewhile(lambda word: word in ("0", "1"), reversed(words)))
    return [_read_line(line, width, f"'{path}', line {number}") for number, line in lines]


def _read_line(line: str, width: int, where: str) -> ListedImage:
    path, *labels = line.rsplit(None, width)
    if width == 0 or len(labels) != width or not set(labels) <= {"0", "1"}:
        shown = line if len(line) <= 80 else f"{line[:77]}..."
        raise DataError(
            f"{where}: '{shown}' is not of the form 'path 0 1 0 ...' with {width or 'its'} labels."
        )
    if len(path.split()) > 1 and path.split()[-1] in ("0", "1"):
        raise DataError(f"{where}: more labels than the {width} of the first line.")
    return ListedImage(path, tuple(labels))


def _classes(folder: Path, listed: Mapping[str, Sequence[ListedImage]]) -> tuple[str, ...]:
    widths = {len(image.labels): image.path for images in listed.values() for image in images}
    if len(widths) > 1:
        shown = ", ".join(f"{width} for '{path}'" for width, path in widths.items())
        raise DataError(f"the lists in '{folder}' have different numbers of labels per line: {shown}.")
    (width,) = widths
    if not (folder / "classes.txt").is_file():
        return tuple(f"class {number}" for number in range(width))
    classes = read_classes(folder / "classes.txt")
    if len(classes) != width:
        raise DataError(
            f"'{folder / 'classes.txt'}' names {len(classes)} classes, but the lists have {width} labels."
        )
    return classes


def _labels(
    listed: Mapping[str, Sequence[ListedImage]], found: Mapping[str, str], rows: Mapping[str, int], width: int
) -> tuple[NDArray[np.bool_], int]:
    """Return the labels (N, C) of the first line of each image, and how many lines say otherwise."""
    first: dict[int, tuple[str, ...]] = {}
    contradictions = 0
    for images in listed.values():
        for image in images:
            if image.path in found:
                stated = first.setdefault(rows[found[image.path]], image.labels)
                contradictions += stated != image.labels
    text = "".join("".join(first[row]) for row in range(len(rows)))
    digits = np.frombuffer(text.encode(), dtype=np.uint8).reshape(len(rows), width)
    return digits == ord("1"), contradictions


def _notes(missing: Sequence[str], found: int, repeated: int, contradictions: int, root: Path) -> list[str]:
    notes = []
    if missing:
        notes.append(
            f"{len(missing):,} of {len(missing) + found:,} listed images are not under '{root}' and are left out: "
            f"{first_few(missing)}."
        )
    if repeated:
        notes.append(f"{repeated:,} lines name an image that their list has already: counted once.")
    if contradictions:
        notes.append(f"{contradictions:,} lines give an image other labels than its first line, which holds.")
    return notes


register(
    PublishedDataset(
        name="imagenet100",
        title="ImageNet100, the 100 classes of HashNet's lists",
        classes=100,
        images=133_503,
        photos=133_503,
        split="HashNet's lists: 10,000 training images out of a database of 128,503, all from ImageNet's training part, "
        "and 5,000 queries from its validation part",
        areas="unknown",
        license="ImageNet's terms: for research, not to be handed on",
        citation="Cao et al.: HashNet: Deep Learning to Hash by Continuation. ICCV 2017; Russakovsky et al.: ImageNet "
        "Large Scale Visual Recognition Challenge. IJCV 2015",
        home="https://github.com/thuml/HashNet",
        folder="imagenet100",
        files=(),
        needs=("lists/train.txt",),
        reader=lambda root: read_lists(root / "lists", root),
        by_hand=(
            "Copy HashNet's lists for ImageNet (https://github.com/thuml/HashNet, pytorch/data/imagenet) to "
            "imagenet100/lists: train.txt, test.txt and database.txt, or the latter two in parts (test0.txt, "
            "database0.txt, ... of caffe/data/imagenet).",
            "Download imagenet.tar.gz from the folder that HashNet's README names, or the training and validation images "
            "of ILSVRC2012 from https://image-net.org after registering, and unpack them anywhere below imagenet100/.",
            "Images are found by the end of their path; missing ones are skipped, with a warning that counts them.",
        ),
        depth=1_000,
    )
)
