"""MS COCO: photos of everyday scenes with masks of 80 classes of objects."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from centerhash.data.layouts.coco_json import PREFIX, read_coco_folder
from centerhash.data.layouts.common import Contents
from centerhash.data.published.catalogue import PublishedDataset, RandomSplit, RemoteFile


def read_coco_parts(root: Path, parts: tuple[str, ...]) -> Contents:
    """Read `annotations/instances_PART.json` of MS COCO for each part, without images that have no label."""
    return read_coco_folder(root, [root / "annotations" / f"{PREFIX}{part}.json" for part in parts]).labeled()


def _archive(path: str, size: int, md5: str) -> RemoteFile:
    return RemoteFile(f"http://images.cocodataset.org/{path}.zip", size, md5)


COCO2014 = PublishedDataset(
    name="coco2014",
    title="MS COCO 2014, train and val",
    classes=80,
    images=122_218,
    split=RandomSplit(10_000, 5_000, "the paper, Sec. 4.1"),
    license="annotations CC BY 4.0; photos under the terms of their Flickr users",
    home="https://cocodataset.org/#download",
    folder="coco2014",
    files=(
        _archive("annotations/annotations_trainval2014", 252_872_794, "0a379cfc70b0e71301e0f377548639bd"),
        _archive("zips/train2014", 13_510_573_713, "0da8c0bd3d6becc4dcb32757491aca88"),
        _archive("zips/val2014", 6_645_013_297, "a3d79f5ed8d289b7a7554ce06a5782b3"),
    ),
    needs=(
        "annotations/instances_train2014.json",
        "annotations/instances_val2014.json",
        "train2014",
        "val2014",
    ),
    reader=partial(read_coco_parts, parts=("train2014", "val2014")),
)
COCO2017 = replace(
    COCO2014,
    name="coco2017",
    title="MS COCO 2017, train and val",
    folder="coco2017",
    files=(
        _archive("annotations/annotations_trainval2017", 252_907_541, "f4bbac642086de4f52a3fdda2de5fa2c"),
        _archive("zips/train2017", 19_336_861_798, "cced6f7f71b7629ddf16f17bbcfab6b2"),
        _archive("zips/val2017", 815_585_330, "442b8da7639aecaf257c1dceb8ba8c80"),
    ),
    needs=tuple(part.replace("2014", "2017") for part in COCO2014.needs),
    reader=partial(read_coco_parts, parts=("train2017", "val2017")),
)
