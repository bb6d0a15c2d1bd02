"""Read images described in COCO's form: `annotations/instances_train.json` next to `train/`, or one json file per folder.

The share of the frame that the objects of a label cover together comes from their areas, masks and boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from centerhash.core.errors import DataError
from centerhash.core.files import parse_json
from centerhash.data.layouts.contents import (
    Contents,
    check_classes,
    check_matrix,
    checked_names,
    duplicates,
    first_few,
    named_splits,
    present,
    read_text,
    register_layout,
    subfolders,
)
from centerhash.data.splits import file_split, folder_split, splits_from_words

Entry: TypeAlias = Mapping[str, Any]
Mask: TypeAlias = NDArray[np.bool_]
Value = TypeVar("Value", np.bool_, np.float32)

PREFIX = "instances_"
EXPORTED = "_annotations.coco.json"  # what annotation tools write into the folder of the images
MAX_MASK = 100_000_000  # pixels, as of images; each takes a byte
GRID = 128  # pixels of the longer side when masks are drawn to measure how far they overlap
_KEYS = (b'"images"', b'"annotations"', b'"categories"')


def find_instances(root: Path) -> list[Path]:
    """Return the annotation files of a folder: in `annotations/`, else next to the pictures, also in split folders."""
    official = sorted((root / "annotations").glob(f"{PREFIX}*.json"))
    places = [root, *(entry for entry in subfolders(root) if folder_split(entry.name))]
    beside = [place / EXPORTED for place in places if (place / EXPORTED).is_file()]
    if official or beside:
        return [*official, *beside]
    found = []
    for file in (file for place in places for file in sorted(place.glob("*.json"))):
        with suppress(OSError):  # a folder, or no permission
            data = file.read_bytes()
            found += [file] if all(key in data for key in _KEYS) else []
    return found


@register_layout(
    "coco",
    find_instances,
    "a folder with COCO's json (annotations/instances_*.json, or one json file next to the images)",
)
def read_coco_folder(root: Path, files: Sequence[Path] = ()) -> Contents:
    """Read the annotation files of a folder, all unless some are given, and join them: the whole has the classes of all.

    Splits are told by the names of the files or their folders.
    """
    files = files or find_instances(root)
    parts = [read_coco(file, _images_of(root, file)) for file in files]
    paths = tuple(path for part in parts for path in part.paths or ())
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    repeated = duplicates(names)
    if repeated:
        raise DataError(
            f"'{root}': {len(repeated):,} image(s) are described by more than one of the files "
            f"{first_few([file.relative_to(root).as_posix() for file in files])}: {first_few(repeated)}. Keep one."
        )
    classes = tuple(dict.fromkeys(name for part in parts for name in part.classes))
    check_matrix(len(names), len(classes), f"'{root}'", 4)
    labels = np.concatenate([_spread(part.labels, part.classes, classes) for part in parts])
    known = [_spread(part.areas, part.classes, classes) for part in parts if part.areas is not None]
    areas = np.concatenate(known) if len(known) == len(parts) else None
    # `instances_train2017.json` or `train/_annotations.coco.json`
    told = [folder_split(file.parent.name) or file_split(file.stem.removeprefix(PREFIX)) for file in files]
    words = [word for word, part in zip(told, parts, strict=True) for _ in part.names]
    splits, source = named_splits(root, names, splits_from_words(words), "file names")
    warnings = tuple(warning for part in parts for warning in part.warnings)
    return Contents(names, classes, labels, splits, source, paths, areas=areas, warnings=warnings)


def _images_of(root: Path, file: Path) -> Path:
    """Return the folder of an annotation file's images: its own, or that of the part which it is called after."""
    if file.parent != root / "annotations":
        beside = file.parent / "images"
        return beside if beside.is_dir() and file.name != EXPORTED else file.parent
    part = file.stem.removeprefix(PREFIX)
    places = (root / part, root / "images" / part, root / "images")
    return next((place for place in places if place.is_dir()), root)


def _spread(values: NDArray[Value], own: Sequence[str], classes: Sequence[str]) -> NDArray[Value]:
    """Lay values (n, c) of a part's own classes into the columns (n, C) of all classes."""
    spread = np.zeros((len(values), len(classes)), dtype=values.dtype)
    spread[:, [classes.index(name) for name in own]] = values
    return spread


# ---------------------------------------------------------------- one annotation file


def read_coco(file: Path, images: Path) -> Contents:
    """Read an instances file, whose file names are relative to the folder `images`.

    Classes stand in the order of their category ids. `areas` (N, C) is the share of the frame that the objects of
    a label cover together (see `covered_share`), or None where the file does not say it for every object.
    Crowds are objects like any other. Images without objects are kept, with no label.
    """
    text = read_text(file)
    try:
        document = parse_json(text)
    except ValueError as error:
        raise DataError(f"'{file}' is not valid json ({error}): copy it again.") from error
    pictures, objects, categories = (
        _entries(document, key, file) for key in ("images", "annotations", "categories")
    )
    where = f"'{file}', categories"
    named = sorted(
        (_value(entry, "id", int, where), _value(entry, "name", str, where)) for entry in categories
    )
    classes = check_classes([name for _, name in named], where)
    columns = _positions([number for number, _ in named], where)
    where = f"'{file}', images"
    if not pictures:
        raise DataError(f"{where}: there is none.")
    places = [f"{where}, entry {position}" for position in range(len(pictures))]
    names = checked_names([_value(entry, "file_name", str, where) for entry in pictures], places)
    rows = _positions([_value(entry, "id", int, where) for entry in pictures], where)
    groups: dict[tuple[int, int], list[Entry]] = defaultdict(list)  # the objects by row and class
    for position, entry in enumerate(objects):
        where = f"'{file}', annotation {position}"
        row = rows.get(_value(entry, "image_id", int, where))
        column = columns.get(_value(entry, "category_id", int, where))
        if row is None or column is None:
            key = "image_id" if row is None else "category_id"
            raise DataError(f"{where}: no entry has the {key} {entry[key]!r}.")
        groups[row, column].append(entry)
    check_matrix(len(names), len(classes), f"'{file}'", 4)  # shares of the frame are float32
    labels = np.zeros((len(names), len(classes)), dtype=np.bool_)
    for row, column in groups:
        labels[row, column] = True
    areas = _areas(groups, pictures, labels.shape, file)
    unknown = () if areas is not None else (f"'{file}' does not say how large every object is.",)
    paths = present(images, names, file)
    return Contents(names, classes, labels, paths=paths, areas=areas, warnings=unknown)


def _entries(document: Any, key: str, path: Path) -> list[Entry]:
    """Return one of the lists of the file, of objects only."""
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        keys = (isinstance(document, dict) and ", ".join(sorted(document))) or "nothing"
        raise DataError(
            f"'{path}' has no list '{key}'; it has: {keys}. Give a file in the form of COCO's instances_*.json "
            "with images, annotations and categories."
        )
    return entries


def _value(entry: Entry, key: str, kind: type, where: str) -> Any:
    value = entry.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{where}: '{key}' is {value!r}, which is no {kind.__name__}.")
    return value


def _positions(ids: Sequence[int], where: str) -> dict[int, int]:
    positions = {number: position for position, number in enumerate(ids)}
    if len(positions) < len(ids):
        raise DataError(f"{where}: more than one entry has the id {duplicates(ids)[0]}.")
    return positions


def _areas(
    groups: Mapping[tuple[int, int], Sequence[Entry]],
    pictures: Sequence[Entry],
    shape: tuple[int, int],
    path: Path,
) -> NDArray[np.float32] | None:
    """The shares (N, C) of the frame, or None where one of them is unknown."""
    areas = np.zeros(shape, dtype=np.float32)
    for (row, column), entries in groups.items():
        width, height = pictures[row].get("width"), pictures[row].get("height")
        if not width or not height:
            return None
        try:
            share = covered_share(entries, float(width), float(height))
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            name = pictures[row]["file_name"]
            raise DataError(f"'{path}': the masks of '{name}' cannot be read: {error}.") from error
        if share is None:
            return None
        areas[row, column] = share
    return areas


# ---------------------------------------------------------------- shares of the frame


def covered_share(objects: Sequence[Entry], width: float, height: float) -> float | None:
    """The share (0 to 1) of a frame that the objects cover together, or None where one says nothing of its size.

    Sizes come from the stated `area`, else from the mask, else from the box. Where the boxes of objects touch,
    their masks are drawn on a small grid and what they share is counted once.
    """
    shares = [_own_share(entry, width, height) for entry in objects]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    boxes = [_box(entry) for entry in objects]
    ratio = 1.0  # of the pixels of all masks together to the sum of the pixels of each
    if any(_may_touch(first, second) for first, second in combinations(boxes, 2)):
        masks = [draw(entry, width, height) for entry in objects]
        total = sum(int(mask.sum()) for mask in masks)
        ratio = int(np.logical_or.reduce(masks).sum()) / total if total else 1.0
    return min(1.0, sum(known) * ratio)


def _own_share(entry: Entry, width: float, height: float) -> float | None:
    """The share of one object alone."""
    outline, box = entry.get("segmentation"), _box(entry)
    if entry.get("area") is not None:
        area = float(entry["area"])
    elif isinstance(outline, Mapping):
        area = float(decode_runs(outline).sum())
    elif outline:
        # the shoelace formula over the corners x1, y1, x2, y2, ...
        corners = [np.asarray(polygon, dtype=np.float64).reshape(-1, 2) for polygon in outline]
        following = [np.roll(polygon, -1, axis=0) for polygon in corners]
        pairs = zip(corners, following, strict=True)
        area = sum(
            abs(float(here[:, 0] @ after[:, 1] - here[:, 1] @ after[:, 0])) / 2 for here, after in pairs
        )
    elif box is not None:
        area = float(box[2]) * float(box[3])
    else:
        return None
    if not 0 <= area < np.inf:
        raise ValueError(f"an area of {area}")
    return area / (width * height)


def _box(entry: Entry) -> Sequence[float] | None:
    box = entry.get("bbox")
    return box if box and len(box) == 4 else None


def _may_touch(first: Sequence[float] | None, second: Sequence[float] | None) -> bool:
    """Whether two boxes (x, y, width, height) share pixels; without boxes only the masks can tell."""
    if first is None or second is None:
        return True
    return all(
        first[axis] < second[axis] + second[axis + 2] and second[axis] < first[axis] + first[axis + 2]
        for axis in (0, 1)
    )


def draw(entry: Entry, width: float, height: float) -> Mask:
    """Draw one object on the grid, (rows, columns) bool: its mask, else its box, else nothing."""
    scale = GRID / max(width, height)
    columns, rows = max(1, round(width * scale)), max(1, round(height * scale))
    outline, box = entry.get("segmentation"), _box(entry)
    if isinstance(outline, Mapping):
        full = decode_runs(outline)
        evenly = (
            ((np.arange(count) + 0.5) * size / count).astype(np.int64)
            for count, size in zip((rows, columns), full.shape, strict=True)
        )
        return full[np.ix_(*evenly)]
    if not outline and box is not None:
        left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
        outline = [[left, top, right, top, right, bottom, left, bottom]]
    canvas = Image.new("L", (columns, rows))
    pen = ImageDraw.Draw(canvas)
    for polygon in outline or ():
        # Pillow counts from the first pixel's center
        scaled = [float(value) * scale - 0.5 for value in polygon]
        pen.polygon(list(zip(scaled[::2], scaled[1::2], strict=True)), fill=1)
    return np.asarray(canvas, dtype=np.bool_)


def decode_runs(runs: Mapping[str, Any]) -> Mask:
    """Decode COCO's run lengths into a mask (height, width): column by column, background first."""
    height, width = (int(length) for length in runs["size"])
    counts = runs["counts"]
    lengths = _read_counts(counts) if isinstance(counts, str) else [int(count) for count in counts]
    pixels = sum(lengths)
    if pixels != height * width or min(height, width, *lengths) < 0:
        raise ValueError(f"run lengths of {pixels:,} pixels for a mask of {width} x {height}")
    if pixels > MAX_MASK:
        raise ValueError(
            f"a mask of {width:,} x {height:,} is {pixels:,} pixels, more than the limit of {MAX_MASK:,}; make it smaller"
        )
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).reshape(width, height).T


def _read_counts(text: str) -> list[int]:
    """Read the compressed form: five bits per character, and from the fourth run on the change from two before."""
    lengths: list[int] = []
    value, place = 0, 0
    for character in text:
        digit = ord(character) - 48
        value |= (digit & 0x1F) << (5 * place)
        place += 1
        if digit & 0x20:  # more to come
            continue
        if digit & 0x10:  # negative
            value -= 1 << (5 * place)
        lengths.append(value + lengths[-2] if len(lengths) > 2 else value)
        value, place = 0, 0
    return lengths
