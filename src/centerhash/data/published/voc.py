"""Pascal VOC: one xml file per image with its objects and boxes, and lists of the official parts.

An object marked `difficult` counts as a label like any other: it is in the picture, though hard to see. (VOC's own
classification score ignores such objects.) Areas are those of the boxes, since few images have masks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from centerhash.core.errors import DataError, did_you_mean
from centerhash.data.layouts.coco_json import Entry, covered_share
from centerhash.data.layouts.contents import (
    Contents,
    duplicates,
    first_few,
    first_present,
    present,
    read_bytes,
    read_lines,
)
from centerhash.data.published.catalogue import PublishedDataset, RemoteFile, register

_CLASSES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person "
    "pottedplant sheep sofa train tvmonitor"
)
CLASSES = tuple(_CLASSES.split())


def read_voc(root: Path, year: str, *, known: str, asking: str) -> Contents:
    """Read the VOC of a year ("VOC2007"): the part `known` to train on and search, `asking` as queries."""
    home = first_present(root, (f"VOCdevkit/{year}", year))
    parts = {part: _read_part(home, part) for part in (known, asking)}
    numbers = tuple(number for part in parts.values() for number in part)
    repeated = duplicates(numbers)
    if repeated:
        raise DataError(f"'{home}': {first_few(repeated)} stand in the lists of {known} and {asking} twice.")
    names = tuple(f"{number}.jpg" for number in numbers)
    paths = present(home / "JPEGImages", names, home / "ImageSets" / "Main")
    labels = np.zeros((len(names), len(CLASSES)), dtype=np.bool_)
    areas = np.zeros(labels.shape, dtype=np.float32)
    for row, number in enumerate(numbers):
        for name, share in read_annotation(home / "Annotations" / f"{number}.xml").items():
            labels[row, CLASSES.index(name)] = True
            areas[row, CLASSES.index(name)] = share
    learned, rest = np.split(np.arange(len(numbers)), [len(parts[known])])
    splits = {"train": learned, "query": rest, "database": learned}
    source = f"official {known}, {asking}"
    return Contents(names, CLASSES, labels, splits, source, paths, areas=areas).labeled()


def _read_part(home: Path, part: str) -> list[str]:
    return [line.split()[0] for line in read_lines(home / "ImageSets" / "Main" / f"{part}.txt") if line]


def read_annotation(path: Path) -> Mapping[str, float]:
    """Read the classes of one image and the share of the frame that the boxes of each cover together."""
    content = read_bytes(path)
    try:
        tree = ElementTree.fromstring(content)
        width, height = (float(tree.findtext(f"size/{side}", "")) for side in ("width", "height"))
        boxes: dict[str, list[Entry]] = defaultdict(list)
        for entry in tree.findall("object"):
            boxes[entry.findtext("name", "").strip()].append({"bbox": _box(entry)})
        shares = {name: covered_share(entries, width, height) or 0.0 for name, entries in boxes.items()}
    except (ElementTree.ParseError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"'{path}' is not an annotation of Pascal VOC ({error}): unpack it again.") from error
    for name in shares:
        if name not in CLASSES:
            raise DataError(f"'{path}': unknown class '{name}'.{did_you_mean(name, CLASSES)}")
    return shares


def _box(entry: ElementTree.Element) -> Sequence[float]:
    """Return (x, y, width, height); VOC counts pixels from 1 and includes the last one."""
    left, top, right, bottom = (
        float(entry.findtext(f"bndbox/{side}", "")) for side in ("xmin", "ymin", "xmax", "ymax")
    )
    return left - 1, top - 1, right - left + 1, bottom - top + 1


_SOURCE = "http://host.robots.ox.ac.uk/pascal/VOC"
_VOC2007 = register(
    PublishedDataset(
        name="voc2007",
        title="Pascal VOC 2007",
        classes=20,
        images=9_963,
        photos=9_963,
        split="the official trainval (5,011) as training set and database, the official test (4,952) as queries",
        areas="union of each label's boxes, objects marked difficult included",
        license="photos under the terms of their Flickr users; annotations for research",
        citation="Everingham et al.: The Pascal Visual Object Classes (VOC) Challenge. IJCV 2010",
        home=f"{_SOURCE}/voc2007/",
        folder="voc",
        files=(
            RemoteFile(
                f"{_SOURCE}/voc2007/VOCtrainval_06-Nov-2007.tar",
                460_032_000,
                "c52e279531787c972589f7e41ab4ae64",
            ),
            RemoteFile(
                f"{_SOURCE}/voc2007/VOCtest_06-Nov-2007.tar", 451_020_800, "b6e924de25625d8de591ea690078ad9f"
            ),
        ),
        needs=tuple(
            f"VOCdevkit/VOC2007/{part}|VOC2007/{part}"
            for part in ("Annotations", "ImageSets/Main", "JPEGImages")
        ),
        reader=partial(read_voc, year="VOC2007", known="trainval", asking="test"),
    )
)
register(
    replace(
        _VOC2007,
        name="voc2012",
        title="Pascal VOC 2012",
        images=11_540,
        photos=11_540,
        split="the official train (5,717) as training set and database, the official val (5,823) as queries; "
        "test labels are not published",
        home=f"{_SOURCE}/voc2012/",
        files=(
            RemoteFile(
                f"{_SOURCE}/voc2012/VOCtrainval_11-May-2012.tar",
                1_999_639_040,
                "6cd6e144f989b92b3379bac3b3de84fd",
            ),
        ),
        needs=tuple(part.replace("2007", "2012") for part in _VOC2007.needs),
        reader=partial(read_voc, year="VOC2012", known="train", asking="val"),
    )
)
