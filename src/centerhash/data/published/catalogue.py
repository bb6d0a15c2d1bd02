"""Describe, download, read and split published datasets.

docs/reference/datasets.md cites the sources and has all further facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import whole_number
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import make_folder
from centerhash.core.progress import Progress, silent
from centerhash.data import fetch
from centerhash.data.layouts.common import Contents, first_few
from centerhash.data.splits import Splits, make_splits

# This folder holds one empty file per unpacked archive.
_UNPACKED = ".unpacked"


@dataclass(frozen=True)
class RandomSplit:
    """Random queries of all images, the rest as database, and random training images of the database.

    With `per_class`, images have one label and the counts are those of each class. Without `train_in_database`, the
    database does not hold the training images.
    """

    train: int
    query: int
    source: str
    per_class: bool = False
    train_in_database: bool = True

    def __str__(self) -> str:
        counts = f"{self.query:,} queries and {self.train:,} training images" + " per class" * self.per_class
        rest = "all but the queries" if self.train_in_database else "the rest"
        return f"{counts}, drawn at random, {rest} as database ({self.source})"


@dataclass(frozen=True)
class RemoteFile:
    """An archive of a dataset and the subfolder it is unpacked into.

    `size` in bytes and `md5` are None if no trustworthy source states them.
    """

    url: str
    size: int | None = None
    md5: str | None = None
    into: str = "."

    @property
    def name(self) -> str:
        """The file name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class PublishedDataset:
    """A published dataset, of which `images` carry at least one label, in a `folder` below the root.

    A `split` that is a text describes the official parts, which the reader returns. `needs` are the paths without which
    the reader fails.
    """

    name: str
    title: str
    classes: int
    images: int
    split: RandomSplit | str
    license: str
    home: str
    folder: str
    files: tuple[RemoteFile, ...]
    needs: tuple[str, ...]
    reader: Callable[[Path], Contents]
    by_hand: tuple[str, ...] = ()


def describe(row: PublishedDataset, root: Path) -> dict[str, Any]:
    """Return the facts of a dataset as plain values, and its `path` under `root` (None if it is incomplete)."""
    home = home_of(row, root)
    facts = asdict(replace(row, split=str(row.split)))
    names = ("name", "title", "classes", "images", "split", "license", "home", "files", "by_hand")
    return {**{name: facts[name] for name in names}, "path": None if home is None else str(home)}


def home_of(row: PublishedDataset, root: Path) -> Path | None:
    """Return the folder of a dataset, either its own below `root` or `root` itself; None if it is incomplete."""
    return next((home for home in (root / row.folder, root) if not missing_parts(row, home)), None)


def missing_parts(row: PublishedDataset, home: Path) -> list[str]:
    """Return the parts of a dataset that are missing in a folder."""
    return [part for part in row.needs if not (home / part).exists()]


# ---------------------------------------------------------------- opening and splitting


def read_published(row: PublishedDataset, root: Path, seed: int) -> tuple[Path, Contents, Splits]:
    """Read a dataset below `root`, and split it by its rule with `seed`; also return its folder."""
    home = home_of(row, root)
    if home is None:
        missing = first_few(missing_parts(row, root / row.folder))
        raise DataError(
            f"{row.title} is incomplete in '{root / row.folder}': it has no {missing}. "
            f"`centerhash download {row.name} --root {root}` downloads it, or prints the steps to do by hand."
        )
    contents = row.reader(home)
    if isinstance(row.split, str):
        return home, contents, make_splits(len(contents.names), contents.splits, source=contents.source)
    splits = draw_splits(contents.labels, row.split, seed, row.images)
    if len(contents.names) < row.images:
        smaller = (
            f"this copy has {len(contents.names):,} of the {row.images:,} labeled images: {len(splits.query):,} "
            f"queries and {len(splits.train):,} training images are drawn from it, so that results cannot be compared "
            "with published ones."
        )
        contents = replace(contents, warnings=(*contents.warnings, smaller))
    return home, contents, splits


def draw_splits(labels: NDArray[np.bool_], rule: RandomSplit, seed: int, complete: int) -> Splits:
    """Draw the splits of images with labels (N, C) by the rule for a `complete` number of images.

    An incomplete copy keeps the counts of the rule if queries and training images fit, else they shrink in proportion.
    Counts per class shrink in proportion if the class is incomplete.
    """
    whole_number(seed, "the seed", 0)
    size, classes = labels.shape
    if not rule.per_class:
        query, train = rule.query, rule.train
        if size < complete and query + train > size:
            query, train = max(1, query * size // complete), max(1, train * size // complete)
        splits = make_splits(size, seed=seed, queries=query, training=train)
        return replace(splits, source=f"{rule.source}, {splits.source}")
    generator, each = np.random.default_rng(seed), complete // classes
    parts: dict[str, list[NDArray[np.int64]]] = {"train": [], "query": [], "database": []}
    for column in range(classes):
        rows = generator.permutation(np.flatnonzero(labels[:, column]))
        query, train = (max(1, min(count, count * len(rows) // each)) for count in (rule.query, rule.train))
        parts["query"].append(rows[:query])
        parts["train"].append(rows[query : query + train])
        parts["database"].append(rows[query if rule.train_in_database else query + train :])
    rows_by_split = {name: np.sort(np.concatenate(rows)) for name, rows in parts.items()}
    return Splits(**rows_by_split, source=f"{rule.source}, drawn with seed {seed}")


# ---------------------------------------------------------------- downloading


def download(
    files: Sequence[RemoteFile],
    folder: Path,
    *,
    mirror: str | None = None,
    keep_archives: bool = False,
    progress: Progress = silent,
) -> list[str]:
    """Download and unpack archives into `folder`, and return the names of those that were missing.

    Finished steps are skipped, so a repeated call resumes. Archives are deleted once unpacked,
    unless `keep_archives`. A `mirror` is the address of a folder that holds the archives.
    """
    if mirror is not None and not re.match(r"https?://[^/]", mirror):
        raise ConfigError(f"a mirror is an address such as https://example.org/data, got '{mirror}'.")
    marks = make_folder(folder / _UNPACKED)
    missing = [file for file in files if not (marks / file.name).is_file()]
    # Pictures do not shrink in archives, so an unpacked archive needs the same space again.
    fetch.check_space(folder, 2 * sum(file.size or 0 for file in missing))
    for file in missing:
        url = file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}"
        archive = fetch.download(url, folder / file.name, size=file.size, md5=file.md5, progress=progress)
        fetch.unpack(archive, folder / file.into, progress=progress)
        (marks / file.name).touch()
        if not keep_archives:
            archive.unlink()
    return [file.name for file in missing]
