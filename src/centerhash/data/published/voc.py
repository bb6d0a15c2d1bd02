"""Pascal VOC: one xml file per image with its objects and boxes, and lists of the official parts.

An object marked `difficult` counts as a label like any other: it is in the picture, though hard to see. (VOC's own
classification score ignores such objects.) Areas are those of the boxes, since few images have masks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from centerhash.core.errors import DataError, did_you_mean
from centerhash.data.layouts.contents import Contents, first_present, present
from centerhash.data.masks import Object, covered_share
from centerhash.data.textfiles import duplicates, first_few, read_bytes, read_lines

_CLASSES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person "
    "pottedplant sheep sofa train tvmonitor"
)
CLASSES = tuple(_CLASSES.split())


def read_voc(root: Path, year: str, *, known: str, asking: str) -> Contents:
    """Read the VOC of a year ("VOC2007"): the part `known` trains and is searched, the part `asking` asks."""
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
    return Contents(names, CLASSES, labels, splits, source, paths, areas=areas).labelled()


def _read_part(home: Path, part: str) -> list[str]:
    return [line.split()[0] for line in read_lines(home / "ImageSets" / "Main" / f"{part}.txt") if line]


def read_annotation(path: Path) -> Mapping[str, float]:
    """Read the classes of one image and the share of the frame that the boxes of each cover together."""
    content = read_bytes(path)
    try:
        tree = ElementTree.fromstring(content)
        width, height = (float(tree.findtext(f"size/{side}", "")) for side in ("width", "height"))
        boxes: dict[str, list[Object]] = defaultdict(list)
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
