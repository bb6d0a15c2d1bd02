"""Small copies of the published datasets, in their real layouts and file formats."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.data.published.cifar10 import BINARIES, TEST, TRAINING
from centerhash.data.published.flickr25k import POTENTIAL, RELEVANT
from centerhash.data.published.nuswide import FREQUENT
from tests.toys import noise_image

# (x, y) corners in frames of 40 x 20: a quarter of the frame, its left half, and two crossing bars
QUARTER = [0, 0, 20, 0, 20, 10, 0, 10]
LEFT_HALF = [0, 0, 20, 0, 20, 20, 0, 20]


def write_jpeg(path: Path, seed: int = 0, size: tuple[int, int] = (40, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise_image(48, seed).resize(size).save(path, "JPEG")
    return path


def coco_object(image: int, category: int, **fields: Any) -> dict[str, Any]:
    return {"id": 1000 * image + category, "image_id": image, "category_id": category, "iscrowd": 0, **fields}


def coco_document(names: Sequence[str], objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An instances file of frames of 40 x 20 with the image ids 1, 2, ... and gaps in the category ids."""
    return {
        "info": {"year": 2014},
        "images": [
            {"id": number, "file_name": name, "width": 40, "height": 20}
            for number, name in enumerate(names, 1)
        ],
        "annotations": list(objects),
        "categories": [
            {"id": 18, "name": "dog", "supercategory": "animal"},
            {"id": 1, "name": "person", "supercategory": "person"},
            {"id": 3, "name": "car", "supercategory": "vehicle"},
        ],
    }


def write_coco(root: Path, year: str = "2014", count: int = 6) -> Path:
    """`train` and `val` with `count` images each; the last one of each has no object."""
    for part in (f"train{year}", f"val{year}"):
        names = [f"COCO_{part}_{number:012d}.jpg" for number in range(1, count + 1)]
        for number, name in enumerate(names):
            write_jpeg(root / part / name, number)
        objects = [
            coco_object(
                number, (1, 3, 18)[number % 3], area=200.0, bbox=[0, 0, 20, 10], segmentation=[QUARTER]
            )
            for number in range(1, count)
        ]
        runs = {"size": [20, 40], "counts": [0, 400, 400]}  # the left half, column by column
        objects.append(coco_object(1, 1, area=400.0, bbox=[0, 0, 20, 20], segmentation=runs))
        path = root / "annotations" / f"instances_{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(coco_document(names, objects)))
    return root


def write_nuswide(root: Path, count: int = 30, absent: Sequence[int] = ()) -> Path:
    """Every image has class `number % 81` of the 81, and every third one `sky` too; `absent` photos are not there."""
    others = [f"other{number:02d}" for number in range(81 - len(FREQUENT))]
    classes = sorted([*FREQUENT, *others])
    names = [f"actor\\{number:04d}_{number * 7919}.jpg" for number in range(count)]
    (root / "ImageList").mkdir(parents=True)
    (root / "ImageList" / "Imagelist.txt").write_bytes("".join(f"{name}\r\n" for name in names).encode())
    folder = root / "Groundtruth" / "AllLabels"
    folder.mkdir(parents=True)
    for column, name in enumerate(classes):
        truth = [
            number % 81 == column or (name == "sky" and number % 3 == 0 and number > 0)
            for number in range(count)
        ]
        (folder / f"Labels_{name}.txt").write_text("".join(f"{int(value)}\n" for value in truth))
    for number, name in enumerate(names):
        if number not in absent:
            write_jpeg(root / "Flickr" / name.replace("\\", "/"), number)
    return root


def write_flickr25k(root: Path, count: int = 12) -> Path:
    """Image `n` has the potential annotation `n % 24`; the relevant ones have the first of theirs; the last has none."""
    for number in range(1, count + 1):
        write_jpeg(root / "mirflickr" / f"im{number}.jpg", number)
    folder = root / "mirflickr25k_annotations_v080"
    folder.mkdir(parents=True)
    (folder / "README.txt").write_text("Annotations\n")
    for column, name in enumerate(POTENTIAL):
        members = [number for number in range(1, count) if number % len(POTENTIAL) == column]
        (folder / f"{name}.txt").write_bytes("".join(f"{number}\r\n" for number in members).encode())
        if f"{name}_r1" in RELEVANT:
            (folder / f"{name}_r1.txt").write_bytes(
                "".join(f"{number}\r\n" for number in members[:1]).encode()
            )
    return root


def write_cifar10(root: Path, count: int = 30) -> Path:
    """Each of the six files has `count` images of random pixels, the classes 0 to 9 in turn."""
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (root / BINARIES).mkdir(parents=True)
    (root / BINARIES / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    generator = np.random.default_rng(0)
    for stem in (*TRAINING, TEST):
        records = generator.integers(0, 256, (count, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(count) % 10
        (root / BINARIES / f"{stem}.bin").write_bytes(records.tobytes())
    return root


def write_imagenet100(root: Path) -> Path:
    """Lists of six images in the database, two of them to learn from, and two to ask for."""
    lists = {
        "train": [f"train/n0{number}/n0{number}_1.JPEG" for number in (1, 2)],
        "test": [f"val_image/ILSVRC2012_val_0000000{number}.JPEG" for number in (1, 2)],
        "database": [f"train/n0{number}/n0{number}_{place}.JPEG" for number in (1, 2) for place in (1, 2, 3)],
    }
    (root / "lists").mkdir(parents=True, exist_ok=True)
    for split, names in lists.items():
        lines = []
        for row, name in enumerate(names):
            write_jpeg(root / name, row)
            label = 1 if "n02" in name or "0002" in name else 0
            lines.append(
                f"/home/someone/imagenet/{name} " + " ".join(str(int(place == label)) for place in range(100))
            )
        (root / "lists" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return root


def zipped(folder: Path, below: str = ".") -> bytes:
    """A zip of everything in a sub-folder, with paths relative to it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((folder / below).rglob("*")):
            archive.write(path, path.relative_to(folder / below))
    return stream.getvalue()


def tarred(folder: Path, mode: str = "w") -> bytes:
    """A tar of everything in a folder, with paths relative to it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    return stream.getvalue()
