from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data.layouts.coco_json import find_instances, read_coco_folder
from tests.own_images import CLASSES, instances, items, write_coco, write_coco_beside, write_pictures


def put(file: Path, document: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document if isinstance(document, str) else json.dumps(document))


def message(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_coco_folder(root)
    return str(caught.value)


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


@pytest.mark.parametrize("folder", ["images", "images/train2017", "."])
def test_where_the_images_of_annotations_may_lie(tmp_path: Path, folder: str) -> None:
    rows = items(4)
    write_pictures(tmp_path / folder, [name for name, _ in rows])
    put(tmp_path / "annotations" / "instances_train2017.json", instances(rows))
    assert read_coco_folder(tmp_path).paths[3] == tmp_path / folder / "003.png"


@pytest.mark.parametrize("name", ["_annotations.coco.json", "labels.json"])
def test_a_file_beside_the_images(tmp_path: Path, name: str) -> None:
    write_coco_beside(tmp_path, 6)
    (tmp_path / "_annotations.coco.json").rename(tmp_path / name)
    (tmp_path / "settings.json").write_text("{}")
    folder = read_coco_folder(tmp_path)
    assert folder.names == tuple(name for name, _ in items(6))
    assert folder.splits == {}


def test_a_file_above_a_folder_of_images(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", [name for name, _ in items(4)])
    put(tmp_path / "result.json", instances(items(4)))
    assert read_coco_folder(tmp_path).names[0] == "images/000.png"


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


def test_areas_are_unknown_where_one_part_does_not_give_them(tmp_path: Path) -> None:
    write_coco(tmp_path, 8)
    file = tmp_path / "annotations" / "instances_val2017.json"
    document = json.loads(file.read_text())
    for image in document["images"]:
        del image["width"]
    put(file, document)
    assert read_coco_folder(tmp_path).areas is None


def test_an_image_in_two_files(tmp_path: Path) -> None:
    rows = items(4)
    write_pictures(tmp_path / "images", [name for name, _ in rows])
    for part in ("a", "b"):
        put(tmp_path / "annotations" / f"instances_{part}.json", instances(rows))
    assert message(tmp_path).startswith(
        f"'{tmp_path}': 4 image(s) are described by more than one of the files 'annotations/instances_a.json', "
        "'annotations/instances_b.json': 'images/000.png', "
    )


def test_malformed_files_are_named(tmp_path: Path) -> None:
    write_coco_beside(tmp_path, 4)
    file = tmp_path / "_annotations.coco.json"
    whole = file.read_text()
    file.write_text(whole[:-40])
    assert f"'{file}' is not valid json" in message(tmp_path)
    file.write_text("[]")
    assert f"'{file}' holds no object of images, annotations and categories" in message(tmp_path)
    file.write_text(whole)
    (tmp_path / "002.png").unlink()
    assert "'002.png'" in message(tmp_path)
