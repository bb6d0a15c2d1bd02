"""Read the list files of HashNet, CSQ and others, `path 0 1 0 ...` per image; such lists define ImageNet100.

The files are `train.txt`, `test.txt` (or `query.txt`) and `database.txt`, the last also in parts (`database1.txt`,
`database_2.txt`). The paths are those of the machine of their authors, so images are matched by the end of their paths.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from centerhash.core.errors import DataError
from centerhash.data.images import is_picture_name
from centerhash.data.layouts.common import Contents, first_few, read_classes, read_lines
from centerhash.data.published.catalogue import PublishedDataset
from centerhash.data.splits import SPLIT_NAMES

# A line has a path, which may hold spaces, and then all labels.
_LINE = re.compile(r"(.*?)((?:\s+[01])+)")
_FILES = {"train": ("train",), "query": ("test", "query"), "database": ("database",)}


class FileIndex:
    """All images under a folder, by the end of their paths."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._by_name: dict[str, list[list[str]]] = defaultdict(list)
        # Links are followed, since photos are often on another disk.
        for folder, folders, files in os.walk(root, followlinks=True):
            folders.sort()
            for name in filter(is_picture_name, sorted(files)):
                self._by_name[name].append([*Path(folder).relative_to(root).parts, name])

    def find(self, path: str) -> str | None:
        """Return the file, relative to the root, that shares the longest end with `path`, or None.

        DataError if two files match equally well.
        """
        parts = path.replace("\\", "/").split("/")
        shared = {"/".join(file): _shared(parts, file) for file in self._by_name.get(parts[-1], ())}
        best = [file for file, length in shared.items() if length == max(shared.values())]
        if len(best) > 1:
            raise DataError(
                f"'{path}' may be any of {first_few(best)} in '{self.root}': give a folder with one."
            )
        return best[0] if best else None


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the common end of two paths."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def read_lists(folder: Path, root: Path) -> Contents:
    """Read the lists of `folder` for the images under `root`.

    The names of the classes are those of a `classes.txt` next to the lists, else numbers. An image has the labels of its
    first line. Missing images are skipped, and a warning counts them.
    """
    index = FileIndex(root)
    rows: dict[str, int] = {}
    digits: list[str] = []
    paths_by_width: dict[int, str] = {}
    missing: dict[str, None] = {}
    splits = {}
    for split in SPLIT_NAMES:
        members: dict[int, None] = {}
        for path, labels in (line for file in _list_files(folder, split) for line in _read_list(file)):
            paths_by_width.setdefault(len(labels), path)
            name = index.find(path)
            if name is None:
                missing[path] = None
                continue
            row = rows.setdefault(name, len(rows))
            digits += [labels] if row == len(digits) else []
            members[row] = None
        splits[split] = np.array(list(members), dtype=np.int64)
    classes = read_classes(folder) or tuple(f"class {number}" for number in range(min(paths_by_width)))
    if set(paths_by_width) != {len(classes)}:
        examples = ", ".join(f"{width} for '{path}'" for width, path in paths_by_width.items())
        raise DataError(
            f"the lists in '{folder}' have {examples} labels per line, of {len(classes)} classes."
        )
    skipped = (
        f"{len(missing):,} listed images are not under '{root}' and are skipped: {first_few(list(missing))}."
    )
    if not rows:
        raise DataError(f"no image is left: {skipped} Give the folder that holds them.")
    return Contents(
        tuple(rows),
        classes,
        np.array([list(labels) for labels in digits]) == "1",
        splits,
        f"lists in '{folder}'",
        tuple(root / name for name in rows),
        warnings=(skipped,) if missing else (),
    )


def _list_files(folder: Path, split: str) -> list[Path]:
    """Return the files of one split: its name, optionally followed by a number or an ending."""
    stems = _FILES[split]
    for stem in stems:
        files = [*folder.glob(f"{stem}.txt"), *sorted(folder.glob(f"{stem}[_0-9-]*.txt"))]
        if files:
            return files
    names = first_few(sorted(path.name for path in folder.glob("*.txt"))) or "no .txt file"
    raise DataError(
        f"'{folder}' has no {' or '.join(f'{stem}.txt' for stem in stems)}; it has: {names}. Lists are train.txt, "
        "test.txt and database.txt (or database1.txt, database2.txt, ...) with lines 'path 0 1 0 ...'."
    )


def _read_list(path: Path) -> list[tuple[str, str]]:
    """Read path and labels, "010...", of each line; the first line defines the number of labels."""
    images: list[tuple[str, str]] = []
    for number, line in enumerate(read_lines(path), 1):
        match = _LINE.fullmatch(line)
        labels = re.sub(r"\s", "", match[2]) if match else ""
        width = len(images[0][1]) if images else len(labels)
        if line and (not labels or len(labels) != width):
            raise DataError(
                f"'{path}', line {number}: '{line:.80}' is not of the form 'path 0 1 0 ...' with the number of labels of "
                f"the first line ({width})."
            )
        images += [(match[1], labels)] if match else []
    if not images:
        raise DataError(f"'{path}' is empty: write one line 'path 0 1 0 ...' per image.")
    return images


IMAGENET100 = PublishedDataset(
    name="imagenet100",
    title="ImageNet100, the 100 classes of HashNet's lists",
    classes=100,
    images=133_503,
    split="HashNet's lists: 5,000 validation images as queries, 128,503 training images as database, 10,000 of them "
    "as training set",
    license="ImageNet's terms: for research, not for redistribution",
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
)
