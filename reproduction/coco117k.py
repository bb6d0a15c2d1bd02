"""Build the datasets of the stored tables from COCO's photos and HashNet's split: coco117k (features), coco29k (photos).

The folder `coco117k` below the root holds features.npy (N, 2560) float16, labels.npy (N, 80), classes.txt, image_ids.npy
and train.npy, query.npy, database.npy. Rows are sorted by image id and classes by name. Photos of val2017 are not part of
it, so HashNet's 10,000 training images and 5,000 queries become 9,602 and 4,807. `centerhash download coco2017` downloads
photos and annotations.

The folder `coco29k` holds labels.csv and the photos of these training images and queries, and of 15,000 others. The
folder `coco117k-photos` holds those of all rows.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, InputError
from centerhash.core.files import atomic_folder, make_folder, parse_json, write_text
from centerhash.core.progress import Progress, silent
from centerhash.data.layouts.coco_json import read_coco
from centerhash.data.layouts.common import Contents, first_few
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.cache import default_cache
from centerhash.networks.encoder import Encoder, raise_if_broken

NAME, PHOTOS, ALL_PHOTOS = "coco117k", "coco29k", "coco117k-photos"
OTHERS = 15_000
PART = "train2017"
_CHUNK = 8192  # photos whose features are in memory at once


def build(
    root: Path,
    images: Path | None = None,
    annotations: Path | None = None,
    *,
    cache: Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> Path:
    """Encode all labeled photos, write the folder `root`/coco117k, and return it; features are cached as they come.

    `images` is the folder of photos, `annotations` instances_train2017.json; by default those below `root`/coco2017.
    """
    contents, ids, splits = read_photos(root, images, annotations)
    backbone = network()
    features = np.empty((len(ids), backbone.features), dtype=np.float16)
    encoder, paths = Encoder(backbone, device=device), contents.paths or ()
    for start in range(0, len(paths), _CHUNK):
        table = encoder.table(paths[start : start + _CHUNK], cache or default_cache(), progress=progress)
        advice = "Copy these photos again; the features of all others are kept."
        raise_if_broken(table.broken, len(table.features), advice)
        features[start : start + _CHUNK] = table.features
    arrays = {"features": features, "labels": contents.labels, "image_ids": ids, **splits}
    with atomic_folder(new_folder(root / NAME)) as draft:
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array)
        write_text(draft / "classes.txt", "".join(f"{name}\n" for name in contents.classes))
    return root / NAME


def build_photos(
    root: Path, images: Path | None = None, annotations: Path | None = None, *, every: bool = False
) -> Path:
    """Write the folder `root`/coco29k of photos, or with `every` coco117k-photos of all labeled ones, and return it.

    The photos are hard links where the file system has them, otherwise copies; arguments as of `build`.
    """
    out = new_folder(root / (ALL_PHOTOS if every else PHOTOS))
    contents, ids, splits = read_photos(root, images, annotations)
    rows = np.arange(len(ids)) if every else photo_rows(len(ids), splits)
    members = {name: set(split.tolist()) for name, split in splits.items()}
    with atomic_folder(out) as draft, (draft / "labels.csv").open("w") as stream:
        (draft / "images").mkdir()
        table = csv.writer(stream)
        table.writerow(("file_name", "labels", "split"))
        for row in rows.tolist():
            source = (contents.paths or ())[row]
            link(source, draft / "images" / source.name)
            labels = (contents.classes[column] for column in np.flatnonzero(contents.labels[row]))
            split = "|".join(name for name in ("train", "query", "database") if row in members[name])
            table.writerow((f"images/{source.name}", "|".join(labels), split))
    return out


def new_folder(path: Path) -> Path:
    """Return the path of a folder to write, which must not be there yet."""
    if path.exists():
        raise InputError(f"'{path}' is there already: use it, or delete it first.")
    make_folder(path.parent)
    return path


def photo_rows(count: int, splits: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the rows of coco29k, sorted: training images, queries, and random others of the database."""
    known = np.union1d(splits["train"], splits["query"])
    rest = np.setdiff1d(np.arange(count), known)
    others = np.random.default_rng(0).choice(rest, min(OTHERS, len(rest)), replace=False)
    return np.union1d(known, others)


def link(source: Path, target: Path) -> None:
    """Link a file, or copy it to another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def network() -> Backbone:
    """Return the network of the features: the whole frame squashed to 256 x 256, pooled by mean and maximum."""
    return get_backbone("efficientnet-lite0", crop=256, pool="mean+max")


def read_photos(
    root: Path, images: Path | None, annotations: Path | None
) -> tuple[Contents, NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """Read the labeled photos, sorted by id, with classes sorted by name; return them, their ids and HashNet's split."""
    images = images or root / "coco2017" / PART
    annotations = annotations or root / "coco2017" / "annotations" / f"instances_{PART}.json"
    for path in (annotations, images):
        if not path.exists():
            raise DataError(
                f"there is no '{path}': name photos and annotations, or run `centerhash download coco2017 --root {root}`."
            )
    contents = read_coco(annotations, images).labeled()
    rows, columns = np.argsort(image_ids(contents.names)), np.argsort(np.array(contents.classes))
    names = tuple(contents.names[row] for row in rows)
    classes = tuple(contents.classes[column] for column in columns)
    paths, ids = tuple(images / name for name in names), image_ids(names)
    found = Contents(names, classes, contents.labels[np.ix_(rows, columns)], paths=paths)
    return found, ids, split_rows(ids, hashnet_lists())


def image_ids(names: Sequence[str]) -> NDArray[np.int64]:
    """Return COCO's ids of photos by their file names, such as 000000000009.jpg."""
    stems = [Path(name).stem for name in names]
    wrong = [name for name, stem in zip(names, stems, strict=True) if not stem.isdecimal() or len(stem) > 12]
    if wrong:
        raise DataError(
            f"{len(wrong):,} photos are not named by COCO's ids, such as 000000000009.jpg: {first_few(wrong)}."
        )
    return np.array([int(stem) for stem in stems], dtype=np.int64)


@cache
def hashnet_lists() -> Mapping[str, Sequence[int]]:
    """Return the image ids of HashNet's lists `train` and `query`, in their order."""
    text = resources.files("reproduction").joinpath("hashnet_coco.json").read_text(encoding="utf-8")
    stored = parse_json(text)
    return {name: tuple(stored[name]) for name in ("train", "query")}


def split_rows(ids: NDArray[np.int64], lists: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    """Return the rows of the lists among sorted image ids (N,); the database is all rows but the queries."""
    for name, wanted in lists.items():
        missing = np.setdiff1d(wanted, ids).astype(str).tolist()
        if missing:
            raise DataError(
                f"{len(missing):,} of the {len(wanted):,} photos of the list '{name}' are not among the {len(ids):,} "
                f"labeled ones: {first_few(missing)}. Give all photos and annotations of {PART}."
            )
    rows = {name: np.searchsorted(ids, wanted) for name, wanted in lists.items()}
    return {**rows, "database": np.setdiff1d(np.arange(len(ids)), rows["query"])}
