"""Inspect a dataset before a training run: counts, class balance, splits, leaks, copies and broken images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, silent
from centerhash.data.dataset import Dataset
from centerhash.data.images import content_key, load_image
from centerhash.data.layouts.common import first_few
from centerhash.data.splits import Splits

_EXAMPLES = 5


@dataclass(frozen=True)
class ClassCount:
    """Numbers of the images with a class, in all and in each split."""

    name: str
    images: int
    train: int
    query: int
    database: int


@dataclass(frozen=True)
class Copies:
    """Images of the split `of` that are byte for byte equal to one of the split `among`, and the first few pairs.

    Within one split, an image counts if an earlier one is the same.
    """

    of: str
    among: str
    count: int
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Inspection:
    """The inspection of a dataset of `images` rows; `broken` (names, reasons) and `copies` are None without images.

    `labels_per_image` counts images by their number of labels, `overlaps` the rows in "query and train" and so on.
    """

    name: str
    kind: str
    images: int
    classes: tuple[ClassCount, ...]
    labels_per_image: Mapping[int, int]
    labels_mean: float
    splits: Mapping[str, int]
    overlaps: Mapping[str, int]
    splits_made: str
    broken: Mapping[str, str] | None
    copies: tuple[Copies, ...] | None
    warnings: tuple[str, ...]


def inspect_dataset(dataset: Dataset, *, images: bool = True, progress: Progress = silent) -> Inspection:
    """Count labels and splits and, with `images`, decode every image to find broken ones and copies."""
    parts = [dataset.labels, *(dataset.labels[rows] for _, rows in dataset.splits.items())]
    counts = np.stack([part.sum(axis=0) for part in parts], axis=1).tolist()
    classes = tuple(ClassCount(name, *row) for name, row in zip(dataset.classes, counts, strict=True))
    paths = dataset.image_paths if images else None
    broken, copies = (None, None) if paths is None else _inspect_images(dataset, paths, progress)
    per_image = dataset.labels.sum(axis=1)
    return Inspection(
        name=dataset.name,
        kind=dataset.kind,
        images=dataset.size,
        classes=classes,
        labels_per_image={number: n for number, n in enumerate(np.bincount(per_image).tolist()) if n},
        labels_mean=float(per_image.mean()),
        splits={name: int(rows.size) for name, rows in dataset.splits.items()},
        overlaps={
            f"{first} and {second}": int(np.intersect1d(rows, second_rows).size)
            for (first, rows), (second, second_rows) in combinations(dataset.splits.items(), 2)
        },
        splits_made=dataset.splits.source,
        broken=broken,
        copies=copies,
        warnings=(*dataset.warnings, *class_warnings(classes), *_image_warnings(broken or {}, copies or ())),
    )


def _inspect_images(
    dataset: Dataset, paths: Sequence[Path], progress: Progress
) -> tuple[dict[str, str], tuple[Copies, ...]]:
    """Decode all images in threads; images with equal bytes are copies."""

    def inspect(path: Path) -> str:
        # A JPEG is read to its end, but decoded at a small size.
        load_image(path, at_least=1)
        return content_key(path)

    keys, broken = read_all(inspect, dict(enumerate(paths)), "images", progress)
    groups: dict[str, list[int]] = defaultdict(list)
    for row in sorted(keys):
        groups[keys[row]].append(row)
    reasons = {dataset.names[row]: str(error) for row, error in broken.items()}
    return reasons, find_copies(groups.values(), dataset.splits, dataset.names)


def find_copies(groups: Iterable[Sequence[int]], splits: Splits, names: Sequence[str]) -> tuple[Copies, ...]:
    """Return the copies within and across splits, leaks from the queries first, without cases that have none.

    `groups` are sorted rows of equal images. Across splits, rows that are in both are no copies but an overlap.
    """
    members = {name: set(rows.tolist()) for name, rows in splits.items()}
    cases = [("query", "train"), ("query", "database"), ("train", "database")]
    cases += [(name, name) for name in members]
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {case: [] for case in cases}
    for group in groups:
        for (of, among), copies in pairs.items():
            originals = [row for row in group if row in members[among]]
            outside = (row for row in group if row in members[of] and row not in members[among])
            equal = originals[1:] if of == among else outside
            copies += [(names[row], names[originals[0]]) for row in equal if originals]
    return tuple(
        Copies(*case, len(copies), tuple(copies[:_EXAMPLES])) for case, copies in pairs.items() if copies
    )


def class_warnings(classes: Sequence[ClassCount]) -> list[str]:
    """Warn about classes that cannot be learned or scored, and about suspicious names."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for entry in classes:
        spellings["".join(entry.name.split()).casefold()].append(entry.name)
    cases = {
        "have no training image": [entry.name for entry in classes if not entry.train],
        "have fewer than 10 training images": [entry.name for entry in classes if 0 < entry.train < 10],
        "have no query, so no score covers them": [
            entry.name for entry in classes if entry.images and not entry.query
        ],
        "of queries have no database image, so they have no relevant item": [
            entry.name for entry in classes if entry.query and not entry.database
        ],
        "are written in several ways, which count as different classes": [
            " / ".join(names) for names in spellings.values() if len(names) > 1
        ],
    }
    return [f"{len(names):,} classes {case}: {first_few(names)}." for case, names in cases.items() if names]


def _image_warnings(broken: Mapping[str, str], copies: Sequence[Copies]) -> list[str]:
    warnings = []
    if broken:
        names = first_few(list(broken))
        warnings.append(
            f"{len(broken):,} images cannot be read: {names}. Repair them, or train with `skip_broken=True`."
        )
    for case in copies:
        if case.of == "query" and case.among != "query":
            query, original = case.examples[0]
            warnings.append(
                f"leak: {case.count:,} queries are copies of images in {case.among}, so the scores will look better than "
                f"they are: '{query}' is the picture '{original}'."
            )
    return warnings
