from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data.layouts.coco_json import find_instances, read_coco, read_coco_folder
from tests.layouts import LEFT_HALF, QUARTER, coco_document, coco_object, write_jpeg
from tests.own_images import CLASSES, instances, items, write_coco, write_coco_beside, write_pictures
from tests.toys import refusal

NAMES = ("a.jpg", "sub/b.jpg", "c.jpg")


def put(file: Path, document: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document if isinstance(document, str) else json.dumps(document))


def test_annotations_of_parts_are_joined(tmp_path: Path) -> None:
    folder = read_coco_folder(write_coco(tmp_path, 8))
    assert folder.names[0] == "train2017/000.png"
    assert folder.names[-1] == "val2017/007.png"
    assert folder.paths == tuple(tmp_path / name for name in folder.names)
    assert {name: rows.tolist() for name, rows in folder.splits.items()} == {
        "train": [0, 1, 2, 3, 4, 5],
        "query": [6, 7],
    }
    assert folder.areas is not None
    assert np.array_equal(folder.areas, np.where(folder.labels, np.float32(0.25), 0))


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("annotations/instances_train2017.json", "images"),
        ("annotations/instances_train2017.json", "images/train2017"),
        ("annotations/instances_train2017.json", "."),
        ("result.json", "images"),
    ],
)
def test_where_the_images_of_annotations_may_lie(tmp_path: Path, file: str, folder: str) -> None:
    rows = items(4)
    write_pictures(tmp_path / folder, [name for name, _ in rows])
    put(tmp_path / file, instances(rows))
    paths = read_coco_folder(tmp_path).paths
    assert paths is not None
    assert paths[3] == tmp_path / folder / "003.png"


@pytest.mark.parametrize("name", ["_annotations.coco.json", "labels.json"])
def test_a_file_beside_the_images(tmp_path: Path, name: str) -> None:
    write_coco_beside(tmp_path, 6)
    (tmp_path / "_annotations.coco.json").rename(tmp_path / name)
    (tmp_path / "settings.json").write_text("{}")
    folder = read_coco_folder(tmp_path)
    assert folder.names == tuple(name for name, _ in items(6))
    assert folder.splits == {}


def test_a_file_in_each_split_folder(tmp_path: Path) -> None:
    for split, count in (("train", 6), ("valid", 2), ("test", 3)):
        write_coco_beside(tmp_path / split, count)
    folder = read_coco_folder(tmp_path)
    assert [file.parent.name for file in find_instances(tmp_path)] == ["test", "train", "valid"]
    assert {name: rows.tolist() for name, rows in folder.splits.items()} == {
        "train": [3, 4, 5, 6, 7, 8],
        "query": [0, 1, 2],
    }


def test_parts_with_other_classes_are_joined_by_name(tmp_path: Path) -> None:
    write_coco(tmp_path, 8)
    file = tmp_path / "annotations" / "instances_val2017.json"
    document = json.loads(file.read_text())
    document["categories"].reverse()
    document["categories"].insert(0, {"id": 0, "name": "zebra"})
    document["annotations"][0]["category_id"] = 0
    put(file, document)
    folder = read_coco_folder(tmp_path)
    assert folder.classes == (*CLASSES, "zebra")
    assert folder.labels[6].astype(int).tolist() == [0, 1, 0, 1], "row 6 was bird and cat"
    assert not folder.labels[:6, 3].any()


def test_an_image_in_two_files(tmp_path: Path) -> None:
    rows = items(4)
    write_pictures(tmp_path / "images", [name for name, _ in rows])
    for part in ("a", "b"):
        put(tmp_path / "annotations" / f"instances_{part}.json", instances(rows))
    assert "4 image(s) are described by more than one of the files" in refusal(read_coco_folder, tmp_path)


# ---------------------------------------------------------------- one annotation file


def write(folder: Path, document: Any) -> Path:
    path = folder / "instances.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    for name in NAMES:
        write_jpeg(folder / "images" / name)
    return path


def test_labels_areas_and_the_order_of_classes(tmp_path: Path) -> None:
    objects = [
        coco_object(1, 18, area=200.0, bbox=[0, 0, 20, 10], segmentation=[QUARTER]),
        coco_object(1, 18, area=400.0, bbox=[0, 0, 20, 20], segmentation=[LEFT_HALF]),  # covers the first one
        coco_object(1, 1, area=8.0, bbox=[30, 0, 4, 2], segmentation=[[30, 0, 34, 0, 34, 2, 30, 2]]),
        coco_object(
            2, 3, area=400.0, bbox=[0, 0, 20, 20], segmentation={"size": [20, 40], "counts": [0, 400, 400]}
        ),
    ]
    folder = read_coco(write(tmp_path, coco_document(NAMES, objects)), tmp_path / "images")
    assert folder.classes == ("person", "car", "dog")  # by category id
    assert folder.names == NAMES
    assert folder.paths is not None
    assert folder.paths[1] == tmp_path / "images" / "sub" / "b.jpg"
    assert folder.labels.astype(int).tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert folder.areas is not None
    np.testing.assert_allclose(folder.areas, [[0.01, 0, 0.5], [0, 0.5, 0], [0, 0, 0]], rtol=0.03)
    assert folder.splits == {}
    assert folder.warnings == ()


@pytest.mark.parametrize("lost", ["width", "area"])
def test_unknown_sizes_give_no_areas(tmp_path: Path, lost: str) -> None:
    root = write_coco(tmp_path, 8)
    file = root / "annotations" / "instances_val2017.json"  # one of two parts
    document = json.loads(file.read_text())
    del document["images"][0]["width" if lost == "width" else "height"]
    if lost == "area":
        document["annotations"][0] = {
            key: document["annotations"][0][key] for key in ("image_id", "category_id")
        }
    put(file, document)
    folder = read_coco_folder(root)
    assert folder.areas is None
    assert folder.labels.any(axis=1).all()
    assert "does not say how large every object is" in folder.warnings[0]


def changed(**changes: Any) -> dict[str, Any]:
    return {**coco_document(NAMES, [coco_object(1, 1, area=1)]), **changes}


def masks(**fields: Any) -> dict[str, Any]:
    return changed(annotations=[coco_object(1, 1, **fields)])


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{", "not valid json"),
        ("[" * 100_000, "not valid json"),
        ("[]", "has no list"),
        ({"images": []}, "no list 'annotations'; it has: images."),
        (changed(images={}), "no list 'images'"),
        (changed(images=[1]), "no list 'images'"),
        (changed(images=[]), "images: there is none"),
        (changed(categories=[]), "categories must hold one name per class"),
        (changed(categories=[{"id": "1", "name": "x"}]), "'id' is '1', which is no int"),
        (changed(categories=[{"id": 1, "name": 5}]), "'name' is 5, which is no str"),
        (changed(categories=[{"id": 1, "name": "x"}, {"id": 2, "name": "x"}]), "more than once: 'x'"),
        (changed(categories=[{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]), "the id 1"),
        (changed(images=[{"id": 1, "file_name": "../a.jpg"}]), "'../a.jpg' leads out"),
        (changed(images=[{"id": 7, "file_name": "a.jpg"}, {"id": 7, "file_name": "c.jpg"}]), "the id 7"),
        (changed(images=[{"id": 1, "file_name": "z.jpg"}]), "'z.jpg'"),
        (changed(annotations=[coco_object(9, 1)]), "annotation 0: no entry has the image_id 9"),
        (changed(annotations=[coco_object(1, 2)]), "no entry has the category_id 2"),
        (changed(annotations=[{"image_id": [1]}]), "'image_id' is [1]"),
        (masks(area=-1), "the masks of 'a.jpg' cannot be read: an area of -1"),
        (masks(area="x"), "the masks of 'a.jpg'"),
        (masks(segmentation={"size": [1, 2], "counts": [5]}), "run lengths of 5 pixels"),
        (masks(segmentation=[[1, 2, 3]]), "the masks of 'a.jpg'"),
    ],
)
def test_files_that_are_not_of_the_form(tmp_path: Path, document: Any, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read_coco(write(tmp_path, document), tmp_path / "images")
    assert expected in str(caught.value)
