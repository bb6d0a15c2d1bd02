"""Opening the published data sets of the catalogue, split as they are in print or by list files."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import whole_number
from centerhash.core.errors import ConfigError, DataError
from centerhash.data.dataset import Dataset, assemble, open_dataset
from centerhash.data.published.catalogue import DATASETS, ClassSplit, NamedSet, RandomSplit, get_dataset
from centerhash.data.published.listfiles import read_lists
from centerhash.data.splits import Splits, check_splits, make_splits
from centerhash.data.textfiles import first_few


def home_of(row: NamedSet, root: Path) -> Path | None:
    """Where a data set is: in its folder below `root`, or in `root` itself; None where it is not whole."""
    return next((home for home in (root / row.folder, root) if not missing_parts(row, home)), None)


def missing_parts(row: NamedSet, home: Path) -> list[str]:
    """The parts of a data set that a folder does not have."""
    return [
        part.split("|")[0]
        for part in row.needs
        if not any((home / name).exists() for name in part.split("|"))
    ]


def describe(row: NamedSet, root: Path) -> dict[str, Any]:
    """What is known of a data set, as plain values, and where it is under `root` (None where it is not)."""
    shown = ("name", "title", "classes", "images", "photos", "depth", "areas", "licence")
    home = home_of(row, root)
    return {
        **{field: getattr(row, field) for field in shown},
        "citation": row.citation,
        "split": str(row.split),
        "homepage": row.home,
        "files": [asdict(file) for file in row.files],
        "by_hand": list(row.by_hand),
        "path": None if home is None else str(home),
    }


def draw_splits(size: int, rule: RandomSplit, seed: int, whole: int) -> tuple[Splits, tuple[str, ...]]:
    """Draw the splits of `size` images by the rule for `whole` images, and return them with warnings.

    A copy with fewer images keeps the counts of the rule where it can, and shrinks them in proportion where queries
    and training images do not fit; either way the figures are not the published ones, and the warning says so.
    """
    query, train = rule.query, rule.train
    if size < whole and query + train > size:
        query, train = max(1, query * size // whole), max(1, train * size // whole)
    splits = make_splits(size, seed=seed, queries=query, training=train)
    made = replace(splits, made=f"{rule.source}, {splits.made}")
    return made, _smaller_copy(size, whole, query, train)


def draw_class_splits(
    labels: NDArray[np.bool_], rule: ClassSplit, seed: int, whole: int
) -> tuple[Splits, tuple[str, ...]]:
    """Draw splits of images with one of C labels each (N, C), the same number of each class, and return warnings.

    Where a class has fewer than its part of the `whole` images, its counts shrink in proportion.
    """
    whole_number(seed, "the seed", 0)
    size, classes = labels.shape
    generator, each = np.random.default_rng(seed), whole // classes
    query, train, rest = [], [], []
    for column in range(classes):
        rows = generator.permutation(np.flatnonzero(labels[:, column]))
        asking, learning = (
            max(1, min(count, count * len(rows) // each)) for count in (rule.query, rule.train)
        )
        query.append(rows[:asking])
        train.append(rows[asking : asking + learning])
        rest.append(rows[asking if rule.joined else asking + learning :])
    drawn = {"train": train, "query": query, "database": rest}
    splits = Splits(
        **{name: np.sort(np.concatenate(parts)) for name, parts in drawn.items()},
        made=f"{rule.source}, drawn with seed {seed}",
    )
    return splits, _smaller_copy(size, whole, len(splits.query), len(splits.train))


def _smaller_copy(size: int, whole: int, query: int, train: int) -> tuple[str, ...]:
    """A warning where a copy has fewer images than the data set."""
    text = (
        f"this copy has {size:,} of the {whole:,} labelled images: {query:,} queries and {train:,} training "
        "images are drawn from it, so that figures cannot be compared with published ones."
    )
    return (text,) if size < whole else ()


def open_named(name: str, root: str | Path, seed: int = 0, lists: str | Path | None = None) -> Dataset:
    """Open a published data set that lies in its folder below `root`, or in `root` itself.

    The splits follow the row's rule, with `seed`, or the list files in the folder `lists`.
    """
    row = get_dataset(name)
    if lists is not None:
        place = Path(root) / row.folder
        return _open_listed(lists, place if place.is_dir() else Path(root), row.name)
    home = home_of(row, Path(root))
    if home is None:
        raise DataError(_absent(row, Path(root)))
    folder = row.reader(home)
    if isinstance(row.split, RandomSplit):
        splits, warnings = draw_splits(len(folder.names), row.split, seed, row.images)
    elif isinstance(row.split, ClassSplit):
        splits, warnings = draw_class_splits(folder.labels, row.split, seed, row.images)
    else:
        splits, warnings = make_splits(len(folder.names), folder.splits, source=folder.source), ()
    warnings = (*warnings, *check_splits(splits, len(folder.names)))
    return assemble(folder, row.name, home, splits, warnings)


def _open_listed(lists: str | Path, root: Path, name: str) -> Dataset:
    """The images under `root` that list files name, split as these say."""
    found = read_lists(Path(lists), root)
    splits = make_splits(len(found.names), found.splits, source=found.source)
    return assemble(found, name, root, splits, check_splits(splits, len(found.names)))


def open_data(
    data: str | Path,
    *,
    seed: int = 0,
    root: str | Path | None = None,
    lists: str | Path | None = None,
    labels: bool = True,
) -> Dataset:
    """Open what a command names: a folder, a published data set below `root`, either of them split by `lists`.

    Without `labels`, those of a folder are left out.
    """
    if not labels and (root is not None or lists is not None):
        raise ConfigError("`labels=False` is for a folder of images: leave out `root=` and `lists=`.")
    if root is not None:
        return open_named(str(data), root, seed, lists)
    if str(data) in DATASETS and not Path(data).exists():
        raise ConfigError(f"'{data}' is a published data set: say where it is by `root=`.")
    if lists is not None:
        return _open_listed(lists, Path(data), Path(data).resolve().name)
    return open_dataset(data, seed=seed, labels=labels)


def _absent(row: NamedSet, root: Path) -> str:
    missing = first_few(missing_parts(row, root / row.folder))
    text = (
        f"{row.title} is not whole in '{root / row.folder}': it has no {missing}. "
        f"Fetch it by `centerhash download {row.name} --root {root}`"
    )
    return f"{text} and by hand: {' '.join(row.by_hand)}" if row.by_hand else f"{text}."
