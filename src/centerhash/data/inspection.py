"""A look at a data set before it is trained on: what is there, how it is spread, and what is wrong with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.core.files import atomic
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import as_it_is, new_figure
from centerhash.data.dataset import Dataset
from centerhash.data.images import check_image, content_key
from centerhash.data.layouts.contents import first_few
from centerhash.data.splits import SPLIT_NAMES, Splits

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

    @property
    def across(self) -> bool:
        """Whether the copies lie in two different splits."""
        return self.of != self.among


@dataclass(frozen=True)
class Pictures:
    """What decoding every image found."""

    broken: tuple[tuple[str, str], ...]  # name, reason
    copies: tuple[Copies, ...]
    relabelled: tuple[tuple[str, str], ...]  # pairs of equal images with different labels
    sizes: tuple[Size, ...]  # of all images that could be read


@dataclass(frozen=True)
class Inspection:
    """All that is known about a data set of `images` rows; `pictures` is None where no image was opened."""

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
    def unlabelled(self) -> int:
        """The number of images without labels."""
        return self.labels_per_image.get(0, 0)

    @property
    def labels_mean(self) -> float:
        """The mean number of labels per image."""
        return sum(count * images for count, images in self.labels_per_image.items()) / self.images

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values for json; what only opened images tell is None where none was opened."""
        plain = {**asdict(self), "unlabelled": self.unlabelled, "labels_mean": self.labels_mean}
        opened = plain.pop("pictures") or dict.fromkeys(("broken", "copies", "relabelled", "sizes"))
        if self.pictures is not None:
            opened["sizes"] = size_summary(self.pictures.sizes)
            opened["broken"] = [{"image": name, "reason": reason} for name, reason in self.pictures.broken]
        return plain | opened


def inspect_dataset(dataset: Dataset, *, images: bool = True, progress: Progress = silent) -> Inspection:
    """Look at labels and splits and, with `images`, decode every image to find broken ones and copies."""
    classes = count_classes(dataset)
    pictures = None
    if images and dataset.image_paths is not None:
        pictures = inspect_pictures(dataset, dataset.image_paths, progress)
    found = (*dataset.warnings, *class_warnings(classes), *picture_warnings(pictures))
    return Inspection(
        name=dataset.name,
        kind=dataset.kind,
        images=dataset.size,
        classes=classes,
        labels_per_image=labels_per_image(dataset.labels),
        splits={name: int(getattr(dataset.splits, name).size) for name in SPLIT_NAMES},
        overlaps=split_overlaps(dataset.splits),
        splits_made=dataset.splits.made,
        pictures=pictures,
        warnings=found,
    )


def count_classes(dataset: Dataset) -> tuple[ClassCount, ...]:
    """Count the images of each class, in the order of the classes."""
    parts = [dataset.labels, *(dataset.labels[getattr(dataset.splits, name)] for name in SPLIT_NAMES)]
    counts = np.stack([part.sum(axis=0) for part in parts], axis=1).tolist()
    return tuple(ClassCount(name, *row) for name, row in zip(dataset.classes, counts, strict=True))


def labels_per_image(labels: NDArray[np.bool_]) -> dict[int, int]:
    """Return how many images carry 0, 1, 2, ... of the labels (N, C), without numbers that do not occur."""
    counts = np.bincount(labels.sum(axis=1)).tolist()
    return {number: images for number, images in enumerate(counts) if images}


def split_overlaps(splits: Splits) -> dict[str, int]:
    """Return the number of rows that each two splits share. Training rows usually lie in the database."""
    return {
        f"{first} and {second}": int(np.intersect1d(getattr(splits, first), getattr(splits, second)).size)
        for first, second in combinations(SPLIT_NAMES, 2)
    }


# ---------------------------------------------------------------- the images themselves


def inspect_pictures(dataset: Dataset, paths: Sequence[Path], progress: Progress = silent) -> Pictures:
    """Decode all images in threads; equal bytes make copies."""

    def look(path: Path) -> tuple[str, Size]:
        return content_key(path), check_image(path)

    looks, broken = read_all(look, dict(enumerate(paths)), "images", progress)
    groups = equal_rows({row: key for row, (key, _) in looks.items()})
    return Pictures(
        broken=tuple((dataset.names[row], str(error)) for row, error in broken.items()),
        copies=find_copies(groups, dataset.splits, dataset.names),
        relabelled=tuple(_relabelled(groups, dataset)),
        sizes=tuple(size for _, size in looks.values()),
    )


def equal_rows(keys: Mapping[int, str]) -> list[list[int]]:
    """Return the rows that share a key with others, group by group, each sorted."""
    groups: dict[str, list[int]] = defaultdict(list)
    for row, key in keys.items():
        groups[key].append(row)
    return [sorted(rows) for rows in groups.values() if len(rows) > 1]


def find_copies(groups: Iterable[Sequence[int]], splits: Splits, names: Sequence[str]) -> tuple[Copies, ...]:
    """Return the copies within and across splits, leaks from the queries first; cases without any are left out.

    Across splits, rows that lie in both are no copies but an overlap, and do not count.
    """
    members = {name: set(getattr(splits, name).tolist()) for name in SPLIT_NAMES}
    cases = [("query", "train"), ("query", "database"), ("train", "database")]
    cases += [(name, name) for name in SPLIT_NAMES]
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {case: [] for case in cases}
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


def _relabelled(groups: Iterable[Sequence[int]], dataset: Dataset) -> Iterable[tuple[str, str]]:
    """Yield pairs of equal images with different labels: one of the two must be wrong or incomplete."""
    for first, *others in groups:
        for other in others:
            if (dataset.labels[first] != dataset.labels[other]).any():
                yield dataset.names[first], dataset.names[other]


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
    """Say which classes cannot be learned or scored."""
    cases = {
        "have no training image": [entry.name for entry in classes if entry.train == 0],
        f"have fewer than {_FEW} training images": [
            entry.name for entry in classes if 0 < entry.train < _FEW
        ],
        "have no query, so no score covers them": [
            entry.name for entry in classes if entry.images and not entry.query
        ],
        "of queries have no database image, so nothing is found for them": [
            entry.name for entry in classes if entry.query and not entry.database
        ],
    }
    warnings = [
        f"{len(names):,} classes {what}: {first_few(names)}." for what, names in cases.items() if names
    ]
    return warnings + name_warnings([entry.name for entry in classes])


def name_warnings(names: Sequence[str]) -> list[str]:
    """Say which names are likely one label written in several ways, or several labels written as one."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in names:
        spellings["".join(name.split()).casefold()].append(name)
    alike = [" / ".join(f"'{name}'" for name in same) for same in spellings.values() if len(same) > 1]
    commas = [name for name in names if "," in name]
    warnings = []
    if alike:
        more = f" and {len(alike) - _EXAMPLES:,} more" if len(alike) > _EXAMPLES else ""
        warnings.append(
            f"{len(alike):,} labels are written in several ways, and count as different classes: "
            f"{', '.join(alike[:_EXAMPLES])}{more}. Write each in one way, if it is one."
        )
    if commas:
        warnings.append(
            f"{len(commas):,} labels hold a comma, as if they were several: {first_few(commas)}. Join several labels "
            "by '|'; a label that holds a comma is put in double quotes in searches."
        )
    return warnings


def picture_warnings(pictures: Pictures | None) -> list[str]:
    """Say what is wrong with the images."""
    if pictures is None:
        return []
    warnings = []
    if pictures.broken:
        names = first_few([name for name, _ in pictures.broken])
        warnings.append(
            f"{len(pictures.broken):,} images cannot be read: {names}. Repair them, or train with `skip_broken=True`."
        )
    leaks = [copies for copies in pictures.copies if copies.of == "query" and copies.across]
    if leaks:
        (query, twin), *_ = leaks[0].examples
        counts = " and ".join(f"{copies.count:,} of images in {copies.among}" for copies in leaks)
        warnings.append(
            f"leak: queries are copies, {counts}, so the scores will look better than they are: "
            f"'{query}' is the picture '{twin}'."
        )
    if pictures.relabelled:
        first, second = pictures.relabelled[0]
        warnings.append(
            f"{len(pictures.relabelled):,} copies carry other labels than their first: "
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
    axis.set_xlim(min(numbers) - 1, max(numbers) + 1)
    axis.set(xlabel="labels", ylabel="images")
    axis.set_title(f"labels per image, mean {inspection.labels_mean:.2f}", fontsize=10, loc="left")


def _draw_sizes(inspection: Inspection, axis: Axes) -> None:
    sizes = inspection.pictures.sizes if inspection.pictures is not None else ()
    widths, heights = zip(*sizes, strict=True)
    axis.scatter(widths, heights, s=9, alpha=0.35, linewidths=0, color=_COLORS["query"], rasterized=True)
    axis.set(xlabel="width, pixels", ylabel="height, pixels", xlim=(0, None), ylim=(0, None))
    axis.set_title("image sizes", fontsize=10, loc="left")
