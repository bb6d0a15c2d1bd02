"""Small datasets in every layout: the same pictures and labels, described in different ways."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.toys import noise_image

CLASSES = ("bird", "cat", "dog")
Item = tuple[str, tuple[str, ...]]  # file name, labels


def items(count: int = 12, single: bool = False) -> list[Item]:
    """File names and labels: one label each, or two and one in turn."""
    rows = []
    for number in range(count):
        first, second = CLASSES[number % 3], CLASSES[(number + 1) % 3]
        rows.append((f"{number:03d}.png", (first,) if single or number % 2 else (first, second)))
    return rows


def png(number: int, size: int = 32) -> bytes:
    """The bytes of a picture, a different one per number."""
    stream = io.BytesIO()
    noise_image(size, seed=number).save(stream, "PNG")
    return stream.getvalue()


def write_pictures(folder: Path, names: Sequence[str]) -> None:
    """Write a different picture under each name."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))


def write_table(root: Path, file: str, rows: Sequence[Sequence[str]]) -> Path:
    """The pictures of the first column, and a csv file of the rows below their header."""
    write_pictures(root, [row[0] for row in rows[1:]])
    with (root / file).open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return root


def write_labels_csv(root: Path, count: int = 12) -> Path:
    """Names joined by `|` in labels.csv."""
    rows = [[name, "|".join(labels)] for name, labels in items(count)]
    return write_table(root, "labels.csv", [["file_name", "labels"], *rows])


def write_class_columns(root: Path, count: int = 12) -> Path:
    """A column of 0 and 1 per class in labels.csv."""
    rows = [[name, *(str(int(label in labels)) for label in CLASSES)] for name, labels in items(count)]
    return write_table(root, "labels.csv", [["file_name", *CLASSES], *rows])


def write_metadata_csv(root: Path, count: int = 12) -> Path:
    """JSON lists of names in metadata.csv."""
    rows = [[name, json.dumps(labels)] for name, labels in items(count)]
    return write_table(root, "metadata.csv", [["file_name", "labels"], *rows])


def write_jsonl(root: Path, count: int = 12) -> Path:
    """Lists of names in metadata.jsonl."""
    rows = items(count)
    write_pictures(root, [name for name, _ in rows])
    lines = [json.dumps({"file_name": name, "labels": labels}) for name, labels in rows]
    (root / "metadata.jsonl").write_text("\n".join(lines))
    return root


def write_class_folders(root: Path, count: int = 12) -> Path:
    """A folder per class."""
    write_pictures(root, [f"{labels[0]}/{name}" for name, labels in items(count, single=True)])
    return root


def write_split_folders(root: Path, count: int = 12) -> Path:
    """Three quarters in `train`, the rest in `test`, each with a folder per class."""
    names = [f"{labels[0]}/{name}" for name, labels in items(count, single=True)]
    border = 3 * count // 4
    write_pictures(root, [f"{'train' if row < border else 'test'}/{name}" for row, name in enumerate(names)])
    return root


def instances(rows: Sequence[Item]) -> dict[str, Any]:
    """An instances file: every object fills a quarter of the frame, and category ids leave gaps."""
    ids = {name: 10 * number + 1 for number, name in enumerate(CLASSES)}
    return {
        "images": [
            {"id": 100 + row, "file_name": name, "width": 32, "height": 32}
            for row, (name, _) in enumerate(rows)
        ],
        "annotations": [
            {
                "id": 1000 * row + place,
                "image_id": 100 + row,
                "category_id": ids[label],
                "bbox": [16 * place, 0, 16, 16],
                "area": 256,
                "segmentation": [[16 * place, 0, 16 * place + 16, 0, 16 * place + 16, 16, 16 * place, 16]],
                "iscrowd": 0,
            }
            for row, (_, labels) in enumerate(rows)
            for place, label in enumerate(labels)
        ],
        "categories": [{"id": number, "name": name} for name, number in ids.items()],
    }


def write_coco(root: Path, count: int = 12) -> Path:
    """As COCO itself: annotations/instances_train2017.json and images in train2017/; the same for val2017."""
    rows, border = items(count), 3 * count // 4
    write_pictures(root, [f"{'train' if row < border else 'val'}2017/{rows[row][0]}" for row in range(count)])
    (root / "annotations").mkdir()
    for part, chosen in (("train2017", rows[:border]), ("val2017", rows[border:])):
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(instances(chosen)))
    return root


def write_coco_beside(root: Path, count: int = 12) -> Path:
    """As annotation tools export: one JSON file next to the pictures."""
    rows = items(count)
    write_pictures(root, [name for name, _ in rows])
    (root / "_annotations.coco.json").write_text(json.dumps(instances(rows)))
    return root


def write_features(root: Path, count: int = 12) -> Path:
    """Features, labels and classes.txt instead of pictures."""
    root.mkdir(parents=True, exist_ok=True)
    np.save(root / "features.npy", np.arange(4 * count, dtype=np.float32).reshape(count, 4))
    np.save(
        root / "labels.npy", np.array([[label in labels for label in CLASSES] for _, labels in items(count)])
    )
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


WRITERS: Mapping[str, Callable[[Path, int], Path]] = {
    "labels.csv": write_labels_csv,
    "class columns": write_class_columns,
    "metadata.csv": write_metadata_csv,
    "metadata.jsonl": write_jsonl,
    "class folders": write_class_folders,
    "split folders": write_split_folders,
    "coco": write_coco,
    "coco beside": write_coco_beside,
}
