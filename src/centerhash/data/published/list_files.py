"""Read list files as HashNet, CSQ and others ship them, `path 0 1 0 ...` per image; ImageNet100 is defined by some.

`train.txt`, `test.txt` (or `query.txt`) and `database.txt`, the last also in parts (`database1.txt`,
`database_2.txt`). The paths are those of somebody's machine: an image is found by the end of its path.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath

import numpy as np

from centerhash.core.errors import DataError
from centerhash.data.images import is_picture_name
from centerhash.data.layouts.contents import Contents, first_few, given_classes, read_lines
from centerhash.data.published.catalogue import PublishedDataset, register
from centerhash.data.splits import SPLIT_NAMES, Indices

_FILES = {"train": ("train",), "query": ("test", "query"), "database": ("database",)}


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
        lengths = []  # how many last parts of the paths are the same
        for candidate in candidates:
            pairs = zip(reversed(wanted), reversed(candidate), strict=False)
            lengths.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        best = [parts for parts, length in zip(candidates, lengths, strict=True) if length == max(lengths)]
        if len(best) > 1:
            both = first_few(["/".join(parts) for parts in best])
            raise DataError(f"'{path}' may be any of {both} in '{self.root}': give a folder with one.")
        return "/".join(best[0])


def read_lists(folder: Path, root: Path) -> Contents:
    """Read the lists of `folder` for the images under `root`.

    Classes are named by a `classes.txt` next to the lists, else numbered. Images that are not found are skipped;
    warnings count them, and how far the lists overlap.
    """
    if not root.is_dir():
        raise DataError(f"no such folder: '{root}'. Give the folder that holds the images of the lists.")
    listed = {
        split: [image for path in list_files(folder, split) for image in _read_list(path)]
        for split in SPLIT_NAMES
    }
    lines = [image for images in listed.values() for image in images]
    classes = _classes(folder, lines)
    index = FileIndex(root)
    files = {path: index.find(path) for path, _ in lines}
    found = {path: file for path, file in files.items() if file is not None}
    missing = [path for path, file in files.items() if file is None]
    if not found:
        raise DataError(
            f"none of the {len(missing):,} images of the lists in '{folder}' is under '{root}': "
            f"{first_few(missing)}. Give the folder that holds them."
        )
    names = tuple(dict.fromkeys(found.values()))
    rows = {name: row for row, name in enumerate(names)}
    stated: dict[str, str] = {}  # the labels of the first line of each image
    for path, labels in lines:
        if path in found:
            stated.setdefault(found[path], labels)
    contradictions = sum(path in found and stated[found[path]] != labels for path, labels in lines)
    digits = np.frombuffer("".join(stated[name] for name in names).encode(), dtype=np.uint8)
    members = {
        split: [rows[found[path]] for path, _ in images if path in found] for split, images in listed.items()
    }
    splits = {split: np.array(list(dict.fromkeys(numbers))) for split, numbers in members.items()}
    repeated = sum(len(numbers) - len(set(numbers)) for numbers in members.values())
    warnings = {
        f"{len(missing):,} of {len(files):,} listed images are not under '{root}' and are skipped: "
        f"{first_few(missing)}.": len(missing),
        f"{repeated:,} lines name an image that their list has already: counted once.": repeated,
        f"{contradictions:,} lines give an image other labels than its first line, which holds.": contradictions,
        f"images in two lists: {overlaps(splits)}.": True,
    }
    return Contents(
        names,
        classes,
        digits.reshape(len(names), len(classes)) == ord("1"),
        splits,
        f"lists in '{folder}'",
        tuple(root / name for name in names),
        warnings=tuple(text for text, applies in warnings.items() if applies),
    )


def overlaps(splits: Mapping[str, Indices]) -> str:
    """Count the images that two of the splits share."""
    pairs = (("train", "query"), ("query", "database"), ("train", "database"))
    return ", ".join(
        f"{np.intersect1d(splits[first], splits[second]).size:,} in {first} and {second}"
        for first, second in pairs
    )


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


def _read_list(path: Path) -> list[tuple[str, str]]:
    """Read path and labels, "010...", of each line; the first line tells how many labels there are."""
    lines = [(number, line) for number, line in enumerate(read_lines(path), 1) if line]
    if not lines:
        raise DataError(f"'{path}' is empty: write one line 'path 0 1 0 ...' per image.")
    words = lines[0][1].split()[1:]
    width = sum(1 for _ in takewhile(lambda word: word in ("0", "1"), reversed(words)))
    images = []
    for number, line in lines:
        name, *labels = line.rsplit(None, width)
        if width == 0 or len(labels) != width or not set(labels) <= {"0", "1"}:
            shown = line if len(line) <= 80 else f"{line[:77]}..."
            raise DataError(
                f"'{path}', line {number}: '{shown}' is not of the form 'path 0 1 0 ...' with {width or 'its'} labels."
            )
        if len(name.split()) > 1 and name.split()[-1] in ("0", "1"):
            raise DataError(f"'{path}', line {number}: more labels than the {width} of the first line.")
        images.append((name, "".join(labels)))
    return images


def _classes(folder: Path, lines: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    widths = {len(labels): path for path, labels in lines}
    if len(widths) > 1:
        shown = ", ".join(f"{width} for '{path}'" for width, path in widths.items())
        raise DataError(f"the lists in '{folder}' have different numbers of labels per line: {shown}.")
    (width,) = widths
    classes = given_classes(folder) or tuple(f"class {number}" for number in range(width))
    if len(classes) != width:
        raise DataError(f"'{folder / 'classes.txt'}' names {len(classes)} classes, the lists {width} labels.")
    return classes


register(
    PublishedDataset(
        name="imagenet100",
        title="ImageNet100, the 100 classes of HashNet's lists",
        classes=100,
        images=133_503,
        photos=133_503,
        split="HashNet's lists: 5,000 validation images as queries, 128,503 training images as database, 10,000 of them "
        "as training set",
        areas="unknown",
        license="ImageNet's terms: for research, not for redistribution",
        citation="Cao et al.: HashNet: Deep Learning to Hash by Continuation. ICCV 2017; Russakovsky et al.: ImageNet "
        "Large Scale Visual Recognition Challenge. IJCV 2015",
        home="https://github.com/thuml/HashNet",
        folder="imagenet100",
        files=(),
        needs=("lists/train.txt",),
        reader=lambda root: read_lists(root / "lists", root),
        by_hand=(
            "Copy train.txt, test.txt and database.txt of HashNet (https://github.com/thuml/HashNet, "
            "pytorch/data/imagenet) to imagenet100/lists.",
            "Download the images named in HashNet's README, or those of ILSVRC2012 from https://image-net.org, and "
            "unpack them anywhere below imagenet100/.",
        ),
        depth=1_000,
    )
)
