"""Build the datasets of the stored tables from COCO's photos and HashNet's split: coco117k (features), coco29k (photos).

The folder `coco117k` below the root has features.npy (N, 2560) float16, labels.npy (N, 80), classes.txt, image_ids.npy
and train.npy, query.npy, database.npy. Rows are sorted by image id and classes by name. Photos of val2017 are not part of
it, so HashNet's 10,000 training images and 5,000 queries become 9,602 and 4,807. `centerhash download coco2017` downloads
photos and annotations.

The folder `coco29k` has labels.csv and photos: these training images and queries, and 15,000 others. The folder
`coco117k-photos` has the photos of all rows.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError, InputError
from centerhash.core.files import atomic_folder, write_text
from centerhash.core.progress import Progress, silent
from centerhash.data.layouts.coco_json import read_coco
from centerhash.data.layouts.common import Contents, first_few
from centerhash.networks.backbones import get_backbone
from centerhash.networks.cache import default_cache
from centerhash.networks.encoder import Encoder, raise_if_broken

NAME, PHOTOS, ALL_PHOTOS = "coco117k", "coco29k", "coco117k-photos"
OTHERS = 15_000
PART = "train2017"
PHOTOS_IN_MEMORY = 8192


def build(
    root: Path,
    images: Path | None = None,
    annotations: Path | None = None,
    *,
    cache: Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> Path:
    """Encode all labeled photos, write the folder `root`/coco117k, and return it; features are cached.

    `images` is the folder of photos, `annotations` instances_train2017.json; by default those below `root`/coco2017.
    """
    out = new_folder(root / NAME)
    contents, ids, splits = read_photos(root, images, annotations)
    # The whole frame is resized to 256 x 256.
    backbone = get_backbone("efficientnet-lite0", crop=256, pool="mean+max")
    features = np.empty((len(ids), backbone.features), dtype=np.float16)
    encoder, paths = Encoder(backbone, device=device), contents.paths or ()
    for start in range(0, len(paths), PHOTOS_IN_MEMORY):
        table = encoder.table(
            paths[start : start + PHOTOS_IN_MEMORY], cache or default_cache(), progress=progress
        )
        raise_if_broken(
            table.broken, len(table.features), "Copy these photos again; all other features are kept."
        )
        features[start : start + PHOTOS_IN_MEMORY] = table.features
    arrays = {"features": features, "labels": contents.labels, "image_ids": ids, **splits}
    with atomic_folder(out) as draft:
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array)
        write_text(draft / "classes.txt", "".join(f"{name}\n" for name in contents.classes))
    return out


def build_photos(
    root: Path, images: Path | None = None, annotations: Path | None = None, *, every: bool = False
) -> Path:
    """Write the folder `root`/coco29k of photos, or with `every` coco117k-photos of all labeled ones, and return it.

    The photos are hard links if the file system supports them, otherwise copies. Arguments are those of `build`.
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
            try:
                os.link(source, draft / "images" / source.name)
            except OSError:  # another disk
                shutil.copyfile(source, draft / "images" / source.name)
            labels = (contents.classes[column] for column in np.flatnonzero(contents.labels[row]))
            split = "|".join(name for name in ("train", "query", "database") if row in members[name])
            table.writerow((f"images/{source.name}", "|".join(labels), split))
    return out


def new_folder(path: Path) -> Path:
    """Return the path of a folder to write, which must not exist yet."""
    if path.exists():
        raise InputError(f"'{path}' is there already: use it, or delete it first.")
    return path


def photo_rows(count: int, splits: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the rows of coco29k, sorted: training images, queries, and random others of the database."""
    listed = np.union1d(splits["train"], splits["query"])
    rest = np.setdiff1d(np.arange(count), listed)
    others = np.random.default_rng(0).choice(rest, min(OTHERS, len(rest)), replace=False)
    return np.union1d(listed, others)


def read_photos(
    root: Path, images: Path | None, annotations: Path | None
) -> tuple[Contents, NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """Return the labeled photos sorted by id, with classes sorted by name, their ids and HashNet's split."""
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
    ordered = Contents(names, classes, contents.labels[np.ix_(rows, columns)], paths=paths)
    return ordered, ids, split_rows(ids, hashnet_lists())


def image_ids(names: Sequence[str]) -> NDArray[np.int64]:
    """Return COCO's ids of photos by their file names, such as 000000000009.jpg."""
    wrong = [name for name in names if not re.fullmatch(r"\d{1,12}", Path(name).stem)]
    if wrong:
        raise DataError(
            f"{len(wrong):,} photos are not named by COCO's ids, such as 000000000009.jpg: {first_few(wrong)}."
        )
    return np.array([int(Path(name).stem) for name in names], dtype=np.int64)


def hashnet_lists() -> Mapping[str, Sequence[int]]:
    """Return the image ids of HashNet's lists `train` and `query`, in their order."""
    lists: dict[str, list[int]] = json.loads(Path(__file__).with_name("hashnet_coco.json").read_text())
    return {name: lists[name] for name in ("train", "query")}


def split_rows(ids: NDArray[np.int64], lists: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    """Return the rows of the lists among sorted image ids (N,); the database is all rows but the queries."""
    for name, listed in lists.items():
        missing = np.setdiff1d(listed, ids).astype(str).tolist()
        if missing:
            raise DataError(
                f"{len(missing):,} of the {len(listed):,} photos of the list '{name}' are not among the {len(ids):,} "
                f"labeled ones: {first_few(missing)}. Give all photos and annotations of {PART}."
            )
    rows = {name: np.searchsorted(ids, listed) for name, listed in lists.items()}
    return {**rows, "database": np.setdiff1d(np.arange(len(ids)), rows["query"])}
