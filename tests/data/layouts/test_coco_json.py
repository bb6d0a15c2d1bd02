"""Files in the form of COCO's instances, and the shares of the frame that objects cover."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.data.layouts.coco_json import find_instances, read_coco, read_coco_folder
from centerhash.data.layouts.masks import covered_share
from tests.layouts import LEFT_HALF, QUARTER, coco_document, coco_object, write_jpeg
from tests.own_images import CLASSES, instances, items, write_coco, write_coco_beside, write_pictures
from tests.toys import refusal

NAMES = ("a.jpg", "sub/b.jpg", "c.jpg")


def put(file: Path, document: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def write(folder: Path, document: Any) -> Path:
    for name in NAMES:
        write_jpeg(folder / "images" / name)
    return put(folder / "instances.json", document)


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("annotations/instances_train2017.json", "images"),
        ("annotations/instances_train2017.json", "images/train2017"),
        ("annotations/instances_train2017.json", "."),
        ("result.json", "images"),
        ("labels.json", "."),
    ],
)
def test_read_coco_folder_images(tmp_path: Path, file: str, folder: str) -> None:
    rows = items(4)
    write_pictures(tmp_path / folder, [name for name, _ in rows])
    put(tmp_path / file, instances(rows))
    (tmp_path / "settings.json").write_text("{}")
    paths = read_coco_folder(tmp_path).paths
    assert paths is not None
    assert paths[3] == tmp_path / folder / "003.png"


def test_read_coco_folder_splits(tmp_path: Path) -> None:
    for split, count in (("train", 6), ("valid", 2), ("test", 3)):
        write_coco_beside(tmp_path / split, count)
    contents = read_coco_folder(tmp_path)
    assert [file.parent.name for file in find_instances(tmp_path)] == ["test", "train", "valid"]
    splits = {name: rows.tolist() for name, rows in contents.splits.items()}
    assert splits == {"train": [3, 4, 5, 6, 7, 8], "query": [0, 1, 2]}


def test_read_coco_folder_classes(tmp_path: Path) -> None:
    write_coco(tmp_path, 8)
    file = tmp_path / "annotations" / "instances_val2017.json"
    document = json.loads(file.read_text())
    document["categories"].reverse()
    document["categories"].insert(0, {"id": 0, "name": "zebra"})
    document["annotations"][0]["category_id"] = 0
    put(file, document)
    contents = read_coco_folder(tmp_path)
    assert contents.classes == (*CLASSES, "zebra")
    assert contents.labels[6].astype(int).tolist() == [0, 1, 0, 1]  # bird and cat before
    assert not contents.labels[:6, 3].any()


def test_read_coco_folder_repeated(tmp_path: Path) -> None:
    rows = items(4)
    write_pictures(tmp_path / "images", [name for name, _ in rows])
    for part in ("a", "b"):
        put(tmp_path / "annotations" / f"instances_{part}.json", instances(rows))
    assert "4 image(s)" in refusal(read_coco_folder, tmp_path)


def test_read_coco(tmp_path: Path) -> None:
    runs = {"size": [20, 40], "counts": [0, 400, 400]}
    objects = [
        coco_object(1, 18, area=200.0, bbox=[0, 0, 20, 10], segmentation=[QUARTER]),
        coco_object(1, 18, area=400.0, bbox=[0, 0, 20, 20], segmentation=[LEFT_HALF]),  # covers the first one
        coco_object(1, 1, area=8.0, bbox=[30, 0, 4, 2], segmentation=[[30, 0, 34, 0, 34, 2, 30, 2]]),
        coco_object(2, 3, area=400.0, bbox=[0, 0, 20, 20], segmentation=runs),
    ]
    contents = read_coco(write(tmp_path, coco_document(NAMES, objects)), tmp_path / "images")
    assert contents.classes == ("person", "car", "dog")
    assert contents.names == NAMES
    assert contents.labels.astype(int).tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert contents.areas is not None
    np.testing.assert_allclose(contents.areas, [[0.01, 0, 0.5], [0, 0.5, 0], [0, 0, 0]], rtol=0.03)
    assert (contents.splits, contents.warnings) == ({}, ())


@pytest.mark.parametrize("lost", ["width", "area"])
def test_read_coco_unknown_sizes(tmp_path: Path, lost: str) -> None:
    file = write_coco(tmp_path, 8) / "annotations" / "instances_val2017.json"
    document = json.loads(file.read_text())
    if lost == "width":
        del document["images"][0]["width"]
    else:
        for key in ("area", "bbox", "segmentation"):
            del document["annotations"][0][key]
    put(file, document)
    contents = read_coco_folder(tmp_path)
    assert contents.areas is None
    assert contents.labels.any(axis=1).all()
    assert file.name in contents.warnings[0]


def changed(**changes: Any) -> dict[str, Any]:
    return {**coco_document(NAMES, [coco_object(1, 1, area=1)]), **changes}


def masks(**fields: Any) -> dict[str, Any]:
    return changed(annotations=[coco_object(1, 1, **fields)])


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ("{", "line 1"),
        ("[" * 100_000, "deep"),
        ("[]", "list"),
        (changed(categories=[{"id": "1", "name": "x"}]), "category 1"),
        (changed(categories=[{"id": 1, "name": 5}]), "[5]"),
        (changed(categories=[{"id": 1, "name": "x"}, {"id": 2, "name": "x"}]), "'x'"),
        (changed(categories=[{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]), "the same id"),
        (changed(images=[{"id": 1, "file_name": "../a.jpg"}]), "'../a.jpg'"),
        (changed(images=[{"id": 7, "file_name": "a.jpg"}, {"id": 7, "file_name": "c.jpg"}]), "the same id"),
        (changed(images=[{"id": 1, "file_name": "z.jpg"}]), "'z.jpg'"),
        (changed(annotations=[coco_object(9, 1)]), "annotation 0: there is no image 9"),
        (changed(annotations=[coco_object(1, 2)]), "category 2"),
        (changed(annotations=[{"image_id": [1]}]), "list"),
        *(
            (masks(**fields), "COCO's form")
            for fields in (
                {"area": -1},
                {"area": "x"},
                {"segmentation": {"size": [1, 2], "counts": [5]}},
                {"segmentation": [[1, 2, 3]]},
                {"bbox": [1, 2, 3]},
            )
        ),
    ],
)
def test_read_coco_error(tmp_path: Path, document: Any, fault: str) -> None:
    text = refusal(read_coco, write(tmp_path, document), tmp_path / "images")
    assert fault in text
    assert "instances.json" in text


# ---------------------------------------------------------------- shares of the frame


def box(left: float, top: float, width: float, height: float) -> dict[str, object]:
    return {"bbox": [left, top, width, height]}


def polygon(*corners: float) -> dict[str, object]:
    return {"segmentation": [list(corners)], **box(0, 0, 40, 40)}


@pytest.mark.parametrize(
    ("objects", "share"),
    [
        ([{"area": 400, **box(0, 0, 40, 20)}], 0.25),
        ([{"area": 5000}], 1),  # never more than the frame
        ([box(0, 0, 10, 10), box(10, 0, 10, 10)], 200 / 1600),
        ([polygon(0, 0, 20, 0, 0, 20)], 200 / 1600),
        ([{"segmentation": {"size": [40, 40], "counts": [1200, 400]}}], 0.25),
        ([box(0, 10, 20, 10), box(10, 0, 10, 40)], (200 + 400 - 100) / 1600),  # bars that cross
        ([box(0, 0, 20, 20)] * 3, 0.25),
        ([polygon(0, 0, 40, 40, 0, 40), polygon(0, 0, 40, 40, 40, 0)], 1),  # only the boxes overlap
        ([{}], None),
        ([box(0, 0, 1, 1), {"bbox": []}], None),
    ],
)
def test_covered_share(objects: list[dict[str, object]], share: float | None) -> None:
    assert covered_share(objects, 40, 40) == (None if share is None else pytest.approx(share, rel=0.05))
