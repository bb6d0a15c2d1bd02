"""Inspect a dataset before a training run: counts, class balance, splits, broken images and copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from centerhash.core.files import atomic
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import as_it_is, new_figure
from centerhash.data.dataset import Dataset
from centerhash.data.images import check_image, content_key
from centerhash.data.layouts.contents import first_few
from centerhash.data.splits import Splits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Size: TypeAlias = tuple[int, int]  # width, height

_EXAMPLES = 5
_FEW = 10  # training images below which a class can hardly be learned
_NAMED_CLASSES = 30  # more bars than that cannot carry their names
_COLORS = {"train": "#0072B2", "query": "#D55E00", "database": "#999999"}


@dataclass(frozen=True)
class ClassCount:
    """How many images carry a class: in all, and in each split."""

    name: str
    images: int
    train: int
    query: int
    database: int


@dataclass(frozen=True)
class Copies:
    """Images of the split `of` that are byte for byte another image of the split `among`.

    Within one split, an image counts when an earlier one is the same.
    """

    of: str
    among: str
    count: int
    examples: tuple[tuple[str, str], ...]  # the first few: image, and its copy in `among`


@dataclass(frozen=True)
class Pictures:
    """What decoding every image found."""

    broken: tuple[tuple[str, str], ...]  # name, reason
    copies: tuple[Copies, ...]
    relabeled: tuple[tuple[str, str], ...]  # pairs of equal images with different labels
    sizes: tuple[Size, ...]  # of all images that could be read


@dataclass(frozen=True)
class Inspection:
    """The inspection of a dataset of `images` rows; `pictures` is None if no image was opened."""

    name: str
    kind: str
    images: int
    classes: tuple[ClassCount, ...]
    labels_per_image: Mapping[int, int]  # number of labels: number of images
    splits: Mapping[str, int]
    overlaps: Mapping[str, int]  # "query and train": rows in both
    splits_made: str
    pictures: Pictures | None
    warnings: tuple[str, ...]

    @property
    def labels_mean(self) -> float:
        """The mean number of labels per image."""
        return sum(count * images for count, images in self.labels_per_image.items()) / self.images

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for json; what needs opened images is None if none was opened."""
        plain = {
            **asdict(self),
            "unlabeled": self.labels_per_image.get(0, 0),
            "labels_mean": self.labels_mean,
        }
        opened = plain.pop("pictures") or dict.fromkeys(("broken", "copies", "relabeled", "sizes"))
        if self.pictures is not None:
            opened["sizes"] = size_summary(self.pictures.sizes)
            opened["broken"] = [{"image": name, "reason": reason} for name, reason in self.pictures.broken]
        return plain | opened


def inspect_dataset(dataset: Dataset, *, images: bool = True, progress: Progress = silent) -> Inspection:
    """Count labels and splits and, with `images`, decode every image to find broken ones and copies."""
    parts = [dataset.labels, *(dataset.labels[rows] for _, rows in dataset.splits.items())]
    counts = np.stack([part.sum(axis=0) for part in parts], axis=1).tolist()
    classes = [ClassCount(name, *row) for name, row in zip(dataset.classes, counts, strict=True)]
    pictures = None
    if images and dataset.image_paths is not None:
        pictures = _inspect_pictures(dataset, dataset.image_paths, progress)
    return Inspection(
        name=dataset.name,
        kind=dataset.kind,
        images=dataset.size,
        classes=tuple(classes),
        labels_per_image={
            number: int(count)
            for number, count in enumerate(np.bincount(dataset.labels.sum(axis=1)))
            if count
        },
        splits={name: int(rows.size) for name, rows in dataset.splits.items()},
        # training rows usually lie in the database
        overlaps={
            f"{first} and {second}": int(np.intersect1d(rows, others).size)
            for (first, rows), (second, others) in combinations(dataset.splits.items(), 2)
        },
        splits_made=dataset.splits.made,
        pictures=pictures,
        warnings=(*dataset.warnings, *class_warnings(classes), *_picture_warnings(pictures)),
    )


def _inspect_pictures(dataset: Dataset, paths: Sequence[Path], progress: Progress) -> Pictures:
    """Decode all images in threads; equal bytes make copies."""

    def inspect(path: Path) -> tuple[str, Size]:
        return content_key(path), check_image(path)

    found, broken = read_all(inspect, dict(enumerate(paths)), "images", progress)
    by_key: dict[str, list[int]] = defaultdict(list)
    for row in sorted(found):
        by_key[found[row][0]].append(row)
    groups = [rows for rows in by_key.values() if len(rows) > 1]
    labels, names = dataset.labels, dataset.names
    return Pictures(
        broken=tuple((names[row], str(error)) for row, error in broken.items()),
        copies=find_copies(groups, dataset.splits, names),
        relabeled=tuple(
            (names[first], names[other])
            for first, *others in groups
            for other in others
            if (labels[first] != labels[other]).any()
        ),
        sizes=tuple(size for _, size in found.values()),
    )


def find_copies(groups: Iterable[Sequence[int]], splits: Splits, names: Sequence[str]) -> tuple[Copies, ...]:
    """Return the copies within and across splits, leaks from the queries first, without cases that have none.

    `groups` are sorted rows of equal images. Across splits, rows that lie in both are no copies but an overlap.
    """
    members = {name: set(rows.tolist()) for name, rows in splits.items()}
    cases = [("query", "train"), ("query", "database"), ("train", "database")]
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {
        case: [] for case in (*cases, *((name, name) for name in members))
    }
    for group in groups:
        for (of, among), found in pairs.items():
            twins = [row for row in group if row in members[among]]
            if of == among:
                found += [(names[row], names[twins[0]]) for row in twins[1:]]
            elif twins:
                alone = (row for row in group if row in members[of] and row not in members[among])
                found += [(names[row], names[twins[0]]) for row in alone]
    return tuple(
        Copies(of, among, len(found), tuple(found[:_EXAMPLES]))
        for (of, among), found in pairs.items()
        if found
    )


def size_summary(sizes: Sequence[Size]) -> dict[str, Any]:
    """Return the smallest, median and largest width and height, and how many sizes there are."""
    if not sizes:
        return {"different": 0}
    table = np.array(sizes)
    return {
        "different": len(set(sizes)),
        "smallest": table.min(axis=0).tolist(),
        "median": np.median(table, axis=0).astype(int).tolist(),
        "largest": table.max(axis=0).tolist(),
    }


# ---------------------------------------------------------------- warnings


def class_warnings(classes: Sequence[ClassCount]) -> list[str]:
    """Warn about classes that cannot be learned or scored, and about suspicious names."""
    cases = {
        "have no training image": [entry.name for entry in classes if not entry.train],
        f"have fewer than {_FEW} training images": [e.name for e in classes if 0 < e.train < _FEW],
        "have no query, so no score covers them": [e.name for e in classes if e.images and not e.query],
        "of queries have no database image, so nothing is found for them": [
            entry.name for entry in classes if entry.query and not entry.database
        ],
    }
    warnings = [
        f"{len(names):,} classes {what}: {first_few(names)}." for what, names in cases.items() if names
    ]
    spellings: dict[str, list[str]] = defaultdict(list)
    for entry in classes:
        spellings["".join(entry.name.split()).casefold()].append(entry.name)
    alike = [" / ".join(f"'{name}'" for name in same) for same in spellings.values() if len(same) > 1]
    if alike:
        more = f" and {len(alike) - _EXAMPLES:,} more" if len(alike) > _EXAMPLES else ""
        warnings.append(
            f"{len(alike):,} labels are written in several ways, and count as different classes: "
            f"{', '.join(alike[:_EXAMPLES])}{more}. Write each in one way, if it is one."
        )
    commas = [entry.name for entry in classes if "," in entry.name]
    if commas:
        warnings.append(
            f"{len(commas):,} labels hold a comma, as if they were several: {first_few(commas)}. Join several labels "
            "by '|'; a label that holds a comma is put in double quotes in searches."
        )
    return warnings


def _picture_warnings(pictures: Pictures | None) -> list[str]:
    warnings = []
    if pictures is not None and pictures.broken:
        names = first_few([name for name, _ in pictures.broken])
        warnings.append(
            f"{len(pictures.broken):,} images cannot be read: {names}. Repair them, or train with `skip_broken=True`."
        )
    leaks = [c for c in pictures.copies if c.of == "query" and c.among != "query"] if pictures else []
    if leaks:
        (query, twin), *_ = leaks[0].examples
        counts = " and ".join(f"{copies.count:,} of images in {copies.among}" for copies in leaks)
        warnings.append(
            f"leak: queries are copies, {counts}, so the scores will look better than they are: "
            f"'{query}' is the picture '{twin}'."
        )
    if pictures is not None and pictures.relabeled:
        first, second = pictures.relabeled[0]
        warnings.append(
            f"{len(pictures.relabeled):,} copies carry other labels than their first: "
            f"'{second}' is the picture '{first}'."
        )
    return warnings


# ---------------------------------------------------------------- the figure


def write_plot(inspection: Inspection, folder: Path) -> list[Path]:
    """Write `inspection.svg` and `inspection.png` into a folder and return their paths."""
    panels = [_draw_classes, _draw_labels] if inspection.classes else [_draw_labels]
    if inspection.pictures is not None and inspection.pictures.sizes:
        panels.append(_draw_sizes)
    height = max(3.4, 0.8 + 0.2 * min(len(inspection.classes), _NAMED_CLASSES))
    written = [folder / "inspection.svg", folder / "inspection.png"]
    with new_figure(4.4 * len(panels), height, len(panels)) as (figure, axes):
        for draw, axis in zip(panels, axes, strict=True):
            draw(inspection, axis)
        figure.suptitle(
            f"{as_it_is(inspection.name)}: {inspection.images:,} images, {len(inspection.classes):,} classes"
        )
        for path in written:
            with atomic(path) as stream:
                metadata = {"Date": None} if path.suffix == ".svg" else {}
                figure.savefig(stream, format=path.suffix[1:], dpi=120, metadata=metadata)
    return written


def _draw_classes(inspection: Inspection, axis: Axes) -> None:
    """Bars per class, or a curve by rank where the classes are too many to name."""
    ranked = sorted(inspection.classes, key=lambda entry: entry.images, reverse=True)
    if len(ranked) <= _NAMED_CLASSES:
        places = range(len(ranked))
        axis.barh(places, [entry.images for entry in ranked], color=_COLORS["database"], label="all")
        axis.barh(places, [entry.train for entry in ranked], 0.45, color=_COLORS["train"], label="train")
        axis.set_yticks(places, [as_it_is(entry.name) for entry in ranked], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel("images")
    else:
        ranks = range(1, len(ranked) + 1)
        axis.plot(ranks, [entry.images for entry in ranked], color=_COLORS["database"], label="all")
        axis.plot(ranks, [entry.train for entry in ranked], ":", color=_COLORS["train"], label="train")
        axis.set_yscale("symlog", linthresh=1)
        axis.set(xlabel="class by frequency", ylabel="images")
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    axis.set_title("class balance", fontsize=10, loc="left")


def _draw_labels(inspection: Inspection, axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = inspection.labels_per_image
    axis.bar(list(numbers), list(numbers.values()), color=_COLORS["train"])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.set(xlim=(min(numbers) - 1, max(numbers) + 1), xlabel="labels", ylabel="images")
    axis.set_title(f"labels per image, mean {inspection.labels_mean:.2f}", fontsize=10, loc="left")


def _draw_sizes(inspection: Inspection, axis: Axes) -> None:
    widths, heights = zip(*inspection.pictures.sizes if inspection.pictures else (), strict=True)
    axis.scatter(widths, heights, s=9, alpha=0.35, linewidths=0, color=_COLORS["query"], rasterized=True)
    axis.set(xlabel="width, pixels", ylabel="height, pixels", xlim=(0, None), ylim=(0, None))
    axis.set_title("image sizes", fontsize=10, loc="left")
