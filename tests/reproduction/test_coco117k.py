"""The dataset of the stored table, from a small copy of COCO's archives on a real server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.data import open_dataset
from centerhash.data.published import DATASETS
from centerhash.data.published.catalogue import RemoteFile
from centerhash.networks.encoder import Encoder
from reproduction import coco117k
from reproduction.coco117k import build, build_photos, hashnet_lists, image_ids, photo_rows, split_rows
from tests.layouts import coco_document, coco_object, write_jpeg, zipped
from tests.toys import names
from tests.webserver import FileServer

IDS = (581929, 25, 9, 30, 77, 34)  # in the order of the annotation file; 77 has no object
LISTS = {"train": (34, 9), "query": (30,)}
PHOTOS, ANNOTATIONS = "/zips/train2017.zip", "/annotations/annotations_trainval2017.zip"


def write_coco2017(root: Path) -> Path:
    """`train2017` with the photos and classes (dog, person, car) of IDS; real names, ids and masks."""
    document = coco_document([f"{number:012d}.jpg" for number in IDS], [])
    for entry, number in zip(document["images"], IDS, strict=True):
        entry["id"] = number
        write_jpeg(root / "photos" / "train2017" / entry["file_name"], number)
    boxed: dict[str, Any] = {"bbox": [0, 0, 20, 10], "area": 200.0, "segmentation": [[0, 0, 20, 0, 20, 10]]}
    labels = ((581929, 18), (25, 1), (9, 3), (9, 1), (30, 3), (34, 18), (34, 18))
    document["annotations"] = [coco_object(image, category, **boxed) for image, category in labels]
    path = root / "texts" / "annotations" / "instances_train2017.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    return root


@pytest.fixture
def published(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A server of small archives in the place of COCO's."""
    source = write_coco2017(tmp_path / "source")
    server.files = {ANNOTATIONS: zipped(source / "texts"), PHOTOS: zipped(source / "photos")}
    row = DATASETS["coco2017"]
    small = tuple(RemoteFile(f"{server.url}{path}", len(data)) for path, data in server.files.items())
    monkeypatch.setitem(DATASETS, row.name, replace(row, files=(*small, row.files[-1])))
    monkeypatch.setattr(coco117k, "hashnet_lists", lambda: LISTS)
    return server


def asked(server: FileServer) -> list[str]:
    return [path for path, _ in server.asked]


@pytest.mark.slow
def test_the_dataset_comes_from_the_archives_and_resumes(
    published: FileServer, tmp_path: Path, feature_cache: Path
) -> None:
    photos = published.files.pop(PHOTOS)
    root, told = tmp_path / "data", list[str]()
    with pytest.raises(DataError, match=r"train2017\.zip"):
        build(root, cache=feature_cache, device="cpu", log=told.append)
    assert "train2017.zip" in told[0]
    assert "117,266 photos" in told[0]
    published.files[PHOTOS] = photos
    published.requests.clear()
    out = build(root, cache=feature_cache, device="cpu", log=told.append)
    assert asked(published) == [PHOTOS]  # the annotations were kept
    assert names(out) == [
        "classes.txt",
        "database.npy",
        "features.npy",
        "image_ids.npy",
        "labels.npy",
        "query.npy",
        "train.npy",
    ]
    ids = [9, 25, 30, 34, 581929]
    assert np.load(out / "image_ids.npy").tolist() == ids
    dataset = open_dataset(out)
    assert (dataset.name, dataset.classes) == ("coco117k", ("car", "dog", "person"))
    assert [np.flatnonzero(row).tolist() for row in dataset.labels] == [[0, 2], [2], [0], [1], [1]]
    splits = {name: rows.tolist() for name, rows in dataset.splits.items()}
    assert splits == {"train": [3, 0], "query": [2], "database": [0, 1, 3, 4]}
    paths = [tmp_path / "source" / "photos" / "train2017" / f"{number:012d}.jpg" for number in ids]
    expected = Encoder(coco117k.network(), device="cpu").features(paths)
    assert dataset.features is not None
    assert dataset.features.shape == (5, 2560)
    assert np.array_equal(dataset.features, expected.astype(np.float16))
    assert "5 photos have a label, not 117,266" in told[-1]
    published.requests.clear()
    assert build(root, log=told.append) == out
    assert "is there already" in told[-1]
    assert published.requests == []


@pytest.mark.slow
def test_photos_and_annotations_on_disk_need_no_download(
    published: FileServer, tmp_path: Path, feature_cache: Path
) -> None:
    source = tmp_path / "source"
    given = {
        "images": source / "photos" / "train2017",
        "annotations": source / "texts" / "annotations" / "instances_train2017.json",
    }
    out = build(tmp_path / "data", **given, cache=feature_cache, device="cpu")
    assert published.requests == []
    assert names(tmp_path / "data") == ["coco117k"]
    assert np.load(out / "features.npy").shape == (5, 2560)


def test_photos_of_the_lists_and_some_others_become_a_dataset(published: FileServer, tmp_path: Path) -> None:
    source, told = tmp_path / "source", list[str]()
    given = {
        "images": source / "photos" / "train2017",
        "annotations": source / "texts" / "annotations" / "instances_train2017.json",
    }
    out = build_photos(tmp_path / "data", **given, log=told.append)
    assert ([text[:8] for text in told], published.requests) == (["warning:"], [])  # five photos
    found = open_dataset(out)
    assert [Path(name).stem.lstrip("0") for name in found.names] == ["9", "25", "30", "34", "581929"]
    splits = {name: getattr(found.splits, name).tolist() for name in ("train", "query", "database")}
    assert splits == {"train": [0, 3], "query": [2], "database": [0, 1, 3, 4]}
    assert found.classes == ("car", "dog", "person")
    assert found.labels.astype(int).tolist() == [[1, 0, 1], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert build_photos(tmp_path / "data", **given, log=told.append) == out
    assert "coco29k" in told[1]


def test_all_photos_become_a_dataset(
    published: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    given = {
        "images": source / "photos" / "train2017",
        "annotations": source / "texts" / "annotations" / "instances_train2017.json",
    }
    monkeypatch.setattr("reproduction.coco117k.OTHERS", 0)
    assert len(open_dataset(build_photos(tmp_path / "data", **given))) == 3
    out = build_photos(tmp_path / "data", **given, every=True)
    assert (out.name, len(open_dataset(out))) == ("coco117k-photos", 5)


def test_the_photos_are_the_same_each_time() -> None:
    rows = photo_rows(117_266, {"train": np.arange(9_602), "query": np.arange(9_602, 14_409)})
    assert len(rows) == 29_409
    assert rows[14_409:14_412].tolist() == [14_410, 14_418, 14_422]


def test_missing_and_damaged_photos_are_named_and_nothing_is_half_written(
    published: FileServer, tmp_path: Path
) -> None:
    images, root = tmp_path / "source" / "photos" / "train2017", tmp_path / "data"
    given = {
        "images": images,
        "annotations": tmp_path / "source" / "texts" / "annotations" / "instances_train2017.json",
    }
    with pytest.raises(DataError, match="nowhere"):
        build(root, **{**given, "images": tmp_path / "nowhere"})
    (images / "000000000025.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"000000000025\.jpg"):
        build(root, **given, cache=tmp_path / "cache", device="cpu")
    (images / "000000000025.jpg").unlink()
    with pytest.raises(DataError, match=r"000000000025\.jpg"):
        build(root, **given, cache=tmp_path / "cache", device="cpu")
    assert names(root) == []


def test_a_list_of_other_photos_is_refused() -> None:
    ids = np.array([9, 25, 30])
    with pytest.raises(DataError, match=r"1 of the 2 photos of the list 'query'.*31"):
        split_rows(ids, {"train": (9,), "query": (25, 31)})
    with pytest.raises(DataError, match=r"dog\.jpg"):
        image_ids(["000000000009.jpg", "dog.jpg"])


def test_the_lists_are_those_of_the_stored_results() -> None:
    lists = hashnet_lists()
    assert {name: len(ids) for name, ids in lists.items()} == {"train": 9_602, "query": 4_807}
    every = [*lists["train"], *lists["query"]]
    assert len(set(every)) == len(every)
    assert min(every) > 0
    assert max(every) < 600_000
