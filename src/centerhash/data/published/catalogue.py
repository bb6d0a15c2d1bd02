"""The published data sets by name: what they are, where they come from, how they are split.

Each row of DATASETS is a table in catalogue.toml and the reader of its original files. The rows are also the source of
`centerhash datasets` and of docs/datasets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from centerhash.core.errors import unknown_name
from centerhash.core.files import packaged
from centerhash.data.layouts.coco_json import read_coco_parts
from centerhash.data.layouts.contents import Contents
from centerhash.data.published.cifar10 import read_cifar10, read_cifar10_parts
from centerhash.data.published.download import RemoteFile
from centerhash.data.published.flickr25k import POTENTIAL, RELEVANT, read_flickr25k
from centerhash.data.published.listfiles import read_imagenet100
from centerhash.data.published.nuswide import FREQUENT, read_nuswide
from centerhash.data.published.voc import read_voc

COMMON_DEPTH = 5_000  # of mAP, in the paper and nearly everywhere


@dataclass(frozen=True)
class RandomSplit:
    """Queries drawn from all images, the rest is the database, training images drawn from the database."""

    train: int
    query: int
    source: str
    note: str = ""

    def __str__(self) -> str:
        return (
            f"{self.query:,} random queries, the rest is the database, {self.train:,} random training images from "
            f"the database ({self.source}{self.note})"
        )


@dataclass(frozen=True)
class ClassSplit:
    """Of images with one label, as many queries and training images of each class; the rest is the database."""

    train: int  # of each class
    query: int
    joined: bool  # whether the database holds the training images too
    source: str

    def __str__(self) -> str:
        database = "all others are the database" if self.joined else "the rest is the database"
        return (
            f"of each class {self.query:,} random queries and {self.train:,} random training images, {database} "
            f"({self.source})"
        )


@dataclass(frozen=True)
class NamedSet:
    """A published data set. `images` carry at least one label; `photos` are all that belong to it."""

    name: str
    title: str
    classes: int
    images: int
    photos: int
    split: RandomSplit | ClassSplit | str  # a text: the parts that its makers published, as they were read
    areas: str
    licence: str
    citation: str
    home: str
    folder: str  # below --root
    files: tuple[RemoteFile, ...]
    needs: tuple[str, ...]  # paths below the folder without which nothing can be read; "a|b" is either
    reader: Callable[[Path], Contents]
    by_hand: tuple[str, ...] = ()
    depth: int = COMMON_DEPTH


_READERS: Mapping[str, Callable[[Path], Contents]] = {
    "coco2014": partial(read_coco_parts, parts=("train2014", "val2014")),
    "coco2017": partial(read_coco_parts, parts=("train2017", "val2017")),
    "nuswide21": partial(read_nuswide, classes=FREQUENT),
    "nuswide81": read_nuswide,
    "flickr25k": read_flickr25k,
    "flickr25k-38": partial(read_flickr25k, classes=POTENTIAL + RELEVANT),
    "voc2007": partial(read_voc, year="VOC2007", known="trainval", asking="test"),
    "voc2012": partial(read_voc, year="VOC2012", known="train", asking="val"),
    "cifar10": read_cifar10,
    "cifar10-1": read_cifar10,
    "cifar10-2": read_cifar10_parts,
    "imagenet100": read_imagenet100,
}
_SPLITS = {"random": RandomSplit, "classes": ClassSplit}


def _row(values: Mapping[str, Any]) -> NamedSet:
    """A data set as catalogue.toml describes it, with the reader of its files."""
    split = values["split"]
    if not isinstance(split, str):
        split = _SPLITS[split["kind"]](**{name: value for name, value in split.items() if name != "kind"})
    made: dict[str, Any] = {
        "split": split,
        "files": tuple(RemoteFile(**file) for file in values["files"]),
        "needs": tuple(values["needs"]),
        "by_hand": tuple(values.get("by_hand", ())),
        "reader": _READERS[values["name"]],
    }
    return NamedSet(**{**values, **made})


def _rows() -> Iterator[NamedSet]:
    for family in packaged("centerhash.data.published", "catalogue.toml")["family"]:
        own = family.pop("sets")
        yield from (_row({**family, **values}) for values in own)


DATASETS: Mapping[str, NamedSet] = {row.name: row for row in _rows()}


def get_dataset(name: str) -> NamedSet:
    """Return the row of a data set, or say which there are."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS, see="See `centerhash datasets`.")
    return DATASETS[name]
