from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data.published.coco import read_coco, read_coco_parts
from tests.layouts import LEFT_HALF, QUARTER, coco_document, coco_object, write_coco, write_jpeg

NAMES = ("a.jpg", "sub/b.jpg", "c.jpg")


def write(folder: Path, document: Any, files: tuple[str, ...] = NAMES) -> Path:
    path = folder / "instances.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    for name in files:
        write_jpeg(folder / "images" / name)
    return path


def message(folder: Path, document: Any, files: tuple[str, ...] = NAMES) -> str:
    with pytest.raises(DataError) as caught:
        read_coco(write(folder, document, files), folder / "images")
    return str(caught.value)


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
    assert folder.paths[1] == tmp_path / "images" / "sub" / "b.jpg"
    assert folder.labels.astype(int).tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert folder.areas is not None
    np.testing.assert_allclose(folder.areas, [[0.01, 0, 0.5], [0, 0.5, 0], [0, 0, 0]], rtol=0.03)
    assert folder.splits == {}
    assert folder.warnings == ()


@pytest.mark.parametrize("lost", ["width", "area and box"])
def test_unknown_sizes_give_no_areas(tmp_path: Path, lost: str) -> None:
    document = coco_document(NAMES, [coco_object(1, 1)] if lost != "width" else [coco_object(1, 1, area=5)])
    if lost == "width":
        del document["images"][0]["width"]
    folder = read_coco(write(tmp_path, document), tmp_path / "images")
    assert folder.areas is None
    assert folder.labels[0, 0]
    assert "does not say how large every object is" in folder.warnings[0]


def test_the_parts_are_joined_and_images_without_labels_left_out(tmp_path: Path) -> None:
    folder = read_coco_parts(write_coco(tmp_path), ("train2014", "val2014"))
    assert len(folder.names) == 10  # two parts of six, each with one image without objects
    assert folder.names[0] == "train2014/COCO_train2014_000000000001.jpg"
    assert folder.names[5] == "val2014/COCO_val2014_000000000001.jpg"
    assert all(path.is_file() for path in folder.paths)
    assert folder.labels.any(axis=1).all()
    assert folder.areas is not None
    np.testing.assert_allclose(folder.areas[0], [0.5, 0.25, 0], rtol=0.03)


def test_parts_of_different_sources(tmp_path: Path) -> None:
    write_coco(tmp_path)
    path = tmp_path / "annotations" / "instances_val2014.json"
    path.write_text(path.read_text().replace('"dog"', '"wolf"'))
    with pytest.raises(DataError, match="val2014 has other classes than train2014"):
        read_coco_parts(tmp_path, ("train2014", "val2014"))


def test_missing_images_are_counted(tmp_path: Path) -> None:
    text = message(tmp_path, coco_document(NAMES, []), files=("a.jpg",))
    assert "2 of 3 images of" in text
    assert "'sub/b.jpg', 'c.jpg'. Unpack all of them." in text


def changed(**changes: Any) -> dict[str, Any]:
    return {**coco_document(NAMES, [coco_object(1, 1, area=1)]), **changes}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{", "instances.json' is not valid json"),
        ("[" * 100_000, "instances.json' is not valid json"),
        ("[]", "holds no object of images, annotations and categories"),
        ({"images": []}, "has no list 'annotations'; it has: images."),
        (changed(images={}), "has no list 'images'"),
        (changed(images=[1]), "has no list 'images'"),
        (changed(images=[]), "images: there is none."),
        (changed(categories=[]), "categories: there is none."),
        (changed(categories=[{"id": "1", "name": "x"}]), "categories: 'id' is '1', which is no int."),
        (changed(categories=[{"id": 1, "name": 5}]), "categories: 'name' is 5, which is no str."),
        (
            changed(categories=[{"id": 1, "name": "x"}, {"id": 2, "name": "x"}]),
            "more than one category has the name or id of 'x'.",
        ),
        (
            changed(images=[{"id": 1, "file_name": "../a.jpg"}]),
            "lead out of the folder of images: '../a.jpg'.",
        ),
        (
            changed(images=[{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "c.jpg"}]),
            "more than one entry has the same file name or id: 'a.jpg', 'c.jpg'.",
        ),
        (changed(annotations=[coco_object(9, 1)]), "annotation 0: no entry has the image_id 9."),
        (changed(annotations=[coco_object(1, 2)]), "annotation 0: no entry has the category_id 2."),
        (changed(annotations=[{"image_id": [1]}]), "annotation 0: 'image_id' is [1], which is no int."),
        (
            changed(annotations=[coco_object(1, 1, area=-1)]),
            "the masks of 'a.jpg' cannot be read: an area of -1",
        ),
        (changed(annotations=[coco_object(1, 1, area="x")]), "the masks of 'a.jpg' cannot be read"),
        (
            changed(annotations=[coco_object(1, 1, segmentation={"size": [1, 2], "counts": [5]})]),
            "cannot be read: run lengths of 5 pixels",
        ),
        (
            changed(annotations=[coco_object(1, 1, segmentation=[[1, 2, 3]])]),
            "the masks of 'a.jpg' cannot be",
        ),
    ],
)
def test_files_that_are_not_of_the_form(tmp_path: Path, document: Any, expected: str) -> None:
    assert expected in message(tmp_path, document)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read '.*no\.json': No such file"):
        read_coco(tmp_path / "no.json", tmp_path)
