"""The datasets of the stored tables, from a small copy of COCO's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError, InputError
from centerhash.data import open_dataset
from centerhash.networks.backbones import get_backbone
from centerhash.networks.encoder import Encoder
from reproduction import coco117k
from reproduction.coco117k import build, build_photos, hashnet_lists, image_ids, photo_rows, split_rows
from tests.layouts import coco_document, coco_object, write_jpeg
from tests.toys import names

IDS = (581929, 25, 9, 30, 77, 34)  # in the order of the annotation file; 77 has no object
SORTED = [9, 25, 30, 34, 581929]
SPLITS = {"train": [0, 3], "query": [2], "database": [0, 1, 3, 4]}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the photos and classes (dog, person, car) of IDS in `coco2017`; real names, ids and masks."""
    document = coco_document([f"{number:012d}.jpg" for number in IDS], [])
    for entry, number in zip(document["images"], IDS, strict=True):
        entry["id"] = number
        write_jpeg(tmp_path / "coco2017" / "train2017" / entry["file_name"], number)
    boxed: dict[str, Any] = {"bbox": [0, 0, 20, 10], "area": 200.0, "segmentation": [[0, 0, 20, 0, 20, 10]]}
    labels = ((581929, 18), (25, 1), (9, 3), (9, 1), (30, 3), (34, 18), (34, 18))
    document["annotations"] = [coco_object(image, category, **boxed) for image, category in labels]
    path = tmp_path / "coco2017" / "annotations" / "instances_train2017.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    monkeypatch.setattr(coco117k, "hashnet_lists", lambda: {"train": (34, 9), "query": (30,)})
    return tmp_path


@pytest.mark.slow
def test_build(root: Path, feature_cache: Path) -> None:
    out = build(root, cache=feature_cache, device="cpu")
    assert np.load(out / "image_ids.npy").tolist() == SORTED
    dataset = open_dataset(out)
    assert (dataset.name, dataset.classes) == ("coco117k", ("car", "dog", "person"))
    assert [np.flatnonzero(row).tolist() for row in dataset.labels] == [[0, 2], [2], [0], [1], [1]]
    assert {name: sorted(rows.tolist()) for name, rows in dataset.splits.items()} == SPLITS
    paths = [root / "coco2017" / "train2017" / f"{number:012d}.jpg" for number in SORTED]
    backbone = get_backbone("efficientnet-lite0", crop=256, pool="mean+max")
    expected = Encoder(backbone, device="cpu").features(paths)
    assert dataset.features is not None
    assert np.array_equal(dataset.features, expected.astype(np.float16))


def test_build_photos(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_dataset(build_photos(root))
    assert [int(Path(name).stem) for name in found.names] == SORTED
    assert {name: rows.tolist() for name, rows in found.splits.items()} == SPLITS
    assert found.classes == ("car", "dog", "person")
    assert found.labels.astype(int).tolist() == [[1, 0, 1], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 0]]
    with pytest.raises(InputError, match="coco29k"):
        build_photos(root)
    monkeypatch.setattr(coco117k, "OTHERS", 0)
    assert len(open_dataset(build_photos(root, every=True))) == 5


def test_photo_rows() -> None:
    rows = photo_rows(117_266, {"train": np.arange(9_602), "query": np.arange(9_602, 14_409)})
    assert len(rows) == 29_409
    assert rows[14_409:14_412].tolist() == [14_410, 14_418, 14_422]


def test_build_rejects(root: Path, tmp_path: Path) -> None:
    image = root / "coco2017" / "train2017" / "000000000025.jpg"
    with pytest.raises(DataError, match="nowhere"):
        build(root, root / "nowhere")
    for spoil in (lambda: image.write_bytes(b"no picture"), image.unlink):
        spoil()
        with pytest.raises(DataError, match=image.name):
            build(root, cache=tmp_path / "cache", device="cpu")
    assert "coco117k" not in names(root)


def test_split_rows_rejects() -> None:
    with pytest.raises(DataError, match=r"'query'.*31"):
        split_rows(np.array([9, 25, 30]), {"train": (9,), "query": (25, 31)})
    with pytest.raises(DataError, match=r"dog\.jpg"):
        image_ids(["000000000009.jpg", "dog.jpg"])


def test_hashnet_lists() -> None:
    lists = hashnet_lists()
    assert {name: len(ids) for name, ids in lists.items()} == {"train": 9_602, "query": 4_807}
    assert len({*lists["train"], *lists["query"]}) == 9_602 + 4_807
