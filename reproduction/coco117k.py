"""Build the datasets of the stored tables from COCO's photos and HashNet's split: coco117k (features), coco29k (photos).

The folder `coco117k` below the root holds features.npy (N, 2560) float16, labels.npy (N, 80), classes.txt, image_ids.npy
and train.npy, query.npy, database.npy. Rows are sorted by image id and classes by name. Photos of val2017 are not part of
it, so HashNet's 10,000 training images and 5,000 queries become 9,602 and 4,807.

The folder `coco29k` holds labels.csv and the photos of these training images and queries, and of 15,000 others. The
folder `coco117k-photos` holds those of all rows.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.core.files import atomic_folder, make_folder, parse_json, write_text
from centerhash.core.progress import Progress, silent
from centerhash.data import fetch
from centerhash.data.layouts.coco_json import read_coco
from centerhash.data.layouts.contents import Contents, first_few
from centerhash.data.published import download, get_dataset
from centerhash.data.published.catalogue import RemoteFile
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.cache import default_cache
from centerhash.networks.encoder import Encoder

NAME, LABELED = "coco117k", 117_266
PHOTOS, OTHERS = "coco29k", 15_000
ALL_PHOTOS = "coco117k-photos"
PART = "train2017"
ANNOTATIONS = f"annotations/instances_{PART}.json"
SPEEDS = (
    100,
    35,
)  # photos per second on two cores by ONNX Runtime and PyTorch, of `python -m benchmarks.encoding`
_CHUNK = 8192  # photos between two looks into the cache


def build(
    root: Path,
    *,
    images: Path | None = None,
    annotations: Path | None = None,
    mirror: str | None = None,
    cache: Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
    log: Callable[[str], None] = lambda text: None,
) -> Path:
    """Download what is missing, encode all labeled photos, write the folder `root`/coco117k, and return it.

    `images` is a folder of photos with COCO's names, `annotations` an instances_train2017.json; without them, COCO's
    archives are downloaded. `log` receives the necessary disk space and time before they are used. Archives and
    features are kept as they arrive, so a later call resumes.
    """
    out, backbone = root / NAME, network()
    if out.exists():  # it is written atomically
        log(f"'{out}' is there already: nothing is computed.")
        return out
    contents, ids, splits = _sources(root, images, annotations, mirror, progress, log, plan(out, backbone))
    fetch.check_space(make_folder(root), len(ids) * backbone.features * 2)
    features = encode(contents.paths or (), backbone, cache or default_cache(), device, progress)
    arrays = {"features": features, "labels": contents.labels, "image_ids": ids, **splits}
    with atomic_folder(out) as draft:
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array)
        write_text(draft / "classes.txt", "".join(f"{name}\n" for name in contents.classes))
    return out


def build_photos(
    root: Path,
    *,
    images: Path | None = None,
    annotations: Path | None = None,
    mirror: str | None = None,
    every: bool = False,
    progress: Progress = silent,
    log: Callable[[str], None] = lambda text: None,
) -> Path:
    """Download what is missing, write the folder `root`/coco29k of photos, and return it; arguments as of `build`.

    With `every`, the folder is `root`/coco117k-photos and holds all labeled photos.

    The photos are hard links where the file system has them, otherwise copies.
    """
    out = root / (ALL_PHOTOS if every else PHOTOS)
    if out.exists():
        log(f"'{out}' is there already: nothing is copied.")
        return out
    contents, ids, splits = _sources(root, images, annotations, mirror, progress, log)
    rows = np.arange(len(ids)) if every else photo_rows(len(ids), splits)
    names = {name: set(own.tolist()) for name, own in splits.items()}
    with atomic_folder(make_folder(root) / out.name) as draft, (draft / "labels.csv").open("w") as stream:
        (draft / "images").mkdir()
        table = csv.writer(stream)
        table.writerow(("file_name", "labels", "split"))
        for done, row in enumerate(rows.tolist(), 1):
            source = (contents.paths or ())[row]
            _link(source, draft / "images" / source.name)
            labels = (contents.classes[place] for place in np.flatnonzero(contents.labels[row]))
            split = "|".join(name for name in ("train", "query", "database") if row in names[name])
            table.writerow((f"images/{source.name}", "|".join(labels), split))
            progress("photos", done, len(rows))
    return out


def photo_rows(count: int, splits: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """The rows of coco29k, sorted: training images, queries, and random others of the database."""
    known = np.union1d(splits["train"], splits["query"])
    rest = np.setdiff1d(np.arange(count), known)
    others = np.random.default_rng(0).choice(rest, min(OTHERS, len(rest)), replace=False)
    return np.union1d(known, others)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(source, target)


def _sources(
    root: Path,
    images: Path | None,
    annotations: Path | None,
    mirror: str | None,
    progress: Progress,
    log: Callable[[str], None],
    *steps: str,
) -> tuple[Contents, NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """Read the labeled photos, after a download if some are missing; return them with their ids and HashNet's split."""
    row = get_dataset("coco2017")
    home = root / row.folder
    labels, photos = annotations or home / ANNOTATIONS, images or home / PART
    missing = {
        "annotations_trainval2017.zip": annotations is None and not labels.exists(),
        f"{PART}.zip": images is None and not photos.exists(),
    }
    wanted = [file for file in row.files if missing.get(file.name)]
    if told := [*download_plan(wanted, home), *steps]:
        log("\n".join(told))
    if wanted:
        download(wanted, home, mirror=mirror, progress=progress)
    contents = read_photos(labels, photos)
    ids = image_ids(contents.names)
    splits = split_rows(ids, hashnet_lists())
    if len(ids) != LABELED:
        log(
            f"warning: {len(ids):,} photos have a label, not {LABELED:,}: scores differ from the stored table."
        )
    return contents, ids, splits


def network() -> Backbone:
    """The network of the stored features: the whole frame squashed to 256 x 256, pooled by mean and maximum."""
    return get_backbone("efficientnet-lite0", crop=256, pool="mean+max")


def download_plan(wanted: Sequence[RemoteFile], home: Path) -> list[str]:
    """Describe what is about to be downloaded, with its disk space; nothing if all is here."""
    bytes_left = sum((file.size or 0) - fetch.downloaded(home / file.name, file.size or 0) for file in wanted)
    names, disk = " and ".join(file.name for file in wanted), sum(file.size or 0 for file in wanted) / 1e9
    step = f"to download: {names}, {bytes_left / 1e9:.1f} GB; unpacked in '{home}', up to {2 * disk:.1f} GB of disk"
    return [step] if wanted else []


def plan(out: Path, backbone: Backbone) -> str:
    """Describe what is about to be computed, with its disk space and time."""
    small, large = (LABELED * backbone.features * size / 1e9 for size in (2, 4))  # float16 and float32
    hours = " to ".join(f"{LABELED / speed / 3600:.1f}" for speed in SPEEDS)
    return (
        f"to encode: {LABELED:,} photos, {hours} hours on two cores; {small:.1f} GB in '{out}' and {large:.1f} GB in the "
        "feature cache"
    )


def read_photos(annotations: Path, images: Path) -> Contents:
    """Read the labeled photos: sorted by their ids, classes sorted by name."""
    for path in (annotations, images):
        if not path.exists():
            raise DataError(f"there is no '{path}': check the path, or omit it for a download.")
    contents = read_coco(annotations, images).labeled()
    rows = np.argsort(image_ids(contents.names))
    columns = np.argsort(np.array(contents.classes))
    return Contents(
        tuple(contents.names[row] for row in rows),
        tuple(contents.classes[column] for column in columns),
        contents.labels[np.ix_(rows, columns)],
        paths=tuple(images / contents.names[row] for row in rows),
    )


def image_ids(names: Sequence[str]) -> NDArray[np.int64]:
    """COCO's ids of photos by their file names, such as 000000000009.jpg."""
    stems = [Path(name).stem for name in names]
    wrong = [name for name, stem in zip(names, stems, strict=True) if not stem.isdecimal() or len(stem) > 12]
    if wrong:
        raise DataError(
            f"{len(wrong):,} photos are not named by COCO's ids, such as 000000000009.jpg: {first_few(wrong)}."
        )
    return np.array([int(stem) for stem in stems], dtype=np.int64)


@cache
def hashnet_lists() -> Mapping[str, Sequence[int]]:
    """The image ids of HashNet's lists `train` and `query`, in their order."""
    text = resources.files("reproduction").joinpath("hashnet_coco.json").read_text(encoding="utf-8")
    stored = parse_json(text)
    return {name: tuple(stored[name]) for name in ("train", "query")}


def split_rows(ids: NDArray[np.int64], lists: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    """The rows of the lists among sorted image ids (N,); the database is all rows but the queries."""
    rows = {name: np.searchsorted(ids, wanted) for name, wanted in lists.items()}
    for name, wanted in lists.items():
        found = rows[name] < len(ids)
        found[found] = ids[rows[name][found]] == np.asarray(wanted)[found]
        if not found.all():
            missing = np.asarray(wanted)[~found].tolist()
            raise DataError(
                f"{len(missing):,} of the {len(wanted):,} photos of the list '{name}' are not among the {len(ids):,} "
                f"labeled ones: {first_few(list(map(str, missing)))}. Give all photos and annotations of {PART}."
            )
    return {**rows, "database": np.setdiff1d(np.arange(len(ids)), rows["query"])}


def encode(
    paths: Sequence[Path], backbone: Backbone, cache: Path, device: str, progress: Progress = silent
) -> NDArray[np.float16]:
    """Compute features (N, D) of photos, as many as the cache does not hold."""
    features = np.empty((len(paths), backbone.features), dtype=np.float16)
    encoder = Encoder(backbone, device=device)
    for start in range(0, len(paths), _CHUNK):
        part = paths[start : start + _CHUNK]

        def moved(stage: str, done: int, total: int, note: str = "", /, before: int = start) -> None:
            progress(stage, before + done, len(paths), note)

        table = encoder.table(part, cache, progress=moved)
        table.raise_if_broken("Copy these photos again; the features of all others are kept.")
        features[start : start + len(part)] = table.features
    return features
