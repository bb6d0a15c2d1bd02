"""The catalogue of published datasets: rows, splits, downloads."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.data import Dataset, make_splits, open_dataset
from centerhash.data.published import DATASETS
from centerhash.data.published.catalogue import (
    PublishedDataset,
    RandomSplit,
    RemoteFile,
    download,
    draw_splits,
    home_of,
)
from tests.layouts import (
    tarred,
    write_cifar10,
    write_coco,
    write_flickr25k,
    write_imagenet100,
    write_jpeg,
    write_nuswide,
    zipped,
)
from tests.toys import names
from tests.webserver import FileServer

# ---------------------------------------------------------------- the rows


@pytest.mark.parametrize("row", DATASETS.values(), ids=DATASETS)
def test_published_rows(row: PublishedDataset) -> None:
    assert all((row.images, row.classes, row.title, row.license, row.home.startswith("http"), row.needs))
    assert row.files or row.by_hand
    for file in row.files:
        assert file.name.endswith((".zip", ".tar", ".tar.gz"))
        assert (file.md5 is None) == (file.size is None)
        assert file.md5 is None or len(bytes.fromhex(file.md5)) == hashlib.md5().digest_size
    page = Path(__file__).parents[3] / "docs" / "reference" / "datasets.md"
    assert f"`{row.name}`" in page.read_text()


# ---------------------------------------------------------------- reading


def test_open_dataset_missing_parts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"centerhash download coco2014") as caught:
        open_dataset("coco2014", root=tmp_path)
    assert "'annotations/instances_train2014.json'" in str(caught.value)
    shutil.rmtree(write_nuswide(tmp_path / "nuswide") / "Flickr")
    with pytest.raises(DataError, match="'Flickr'"):
        open_dataset("nuswide21", root=tmp_path)


def test_open_dataset_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="labels"):
        open_dataset("coco2014", root=tmp_path, labels=False)
    with pytest.raises(ConfigError, match="root"):
        open_dataset("coco2014")
    with pytest.raises(ConfigError, match="'coco2017'"):
        open_dataset("coco2041", root=tmp_path)


# ---------------------------------------------------------------- splits


def unlabeled(size: int) -> NDArray[np.bool_]:
    return np.zeros((size, 1), dtype=np.bool_)


def test_draw_splits() -> None:
    rule = DATASETS["coco2014"].split
    assert isinstance(rule, RandomSplit)
    splits = draw_splits(unlabeled(60_000), rule, 3, 60_000)
    expected = make_splits(60_000, seed=3)
    for name in ("train", "query", "database"):
        assert np.array_equal(getattr(splits, name), getattr(expected, name))
    assert (splits.train.size, splits.query.size, splits.database.size) == (10_000, 5_000, 55_000)
    assert splits.source == "the paper, Sec. 4.1, drawn with seed 3"


@pytest.mark.parametrize("train_in_database", [False, True])
def test_draw_splits_per_class(train_in_database: bool) -> None:
    labels = np.eye(3, dtype=np.bool_)[np.arange(60) % 3]
    rule = RandomSplit(5, 2, "test", per_class=True, train_in_database=train_in_database)
    splits, again, other, fewer = (
        draw_splits(labels[:size], rule, seed, 60) for size, seed in ((60, 3), (60, 3), (60, 4), (30, 3))
    )
    assert splits.source == "test, drawn with seed 3"
    counts = {name: labels[rows].sum(axis=0).tolist() for name, rows in splits.items()}
    assert counts == {"train": [5] * 3, "query": [2] * 3, "database": [18 if train_in_database else 13] * 3}
    assert set(np.concatenate([rows for _, rows in splits.items()])) == set(range(60))
    assert np.array_equal(again.train, splits.train)
    assert not np.array_equal(other.train, splits.train)
    assert (len(fewer.query), len(fewer.train)) == (3, 6)
    with pytest.raises(InputError):
        draw_splits(labels, rule, -1, 60)


# ---------------------------------------------------------------- from the net


def publish(server: FileServer, source: Path) -> None:
    """Put the archives of all data sets on a server, packed as their makers pack them."""
    for year in ("2014", "2017"):
        coco = write_coco(source / year, year)
        for part in (f"train{year}", f"val{year}"):
            folder = source / "packed" / part
            shutil.copytree(coco / part, folder / part)
            server.files[f"/{part}.zip"] = zipped(folder)
        shutil.copytree(coco / "annotations", source / "packed" / year / "annotations")
        server.files[f"/annotations_trainval{year}.zip"] = zipped(source / "packed" / year)
    nuswide = write_nuswide(source / "nuswide")
    server.files["/Groundtruth.zip"] = zipped(nuswide / "Groundtruth")
    shutil.copytree(nuswide / "ImageList", source / "packed" / "list" / "ImageList")
    server.files["/ImageList.zip"] = zipped(source / "packed" / "list")
    flickr = write_flickr25k(source / "flickr")
    shutil.copytree(flickr / "mirflickr", source / "packed" / "flickr" / "mirflickr")
    server.files["/mirflickr25k.zip"] = zipped(source / "packed" / "flickr")
    server.files["/mirflickr25k_annotations_v080.zip"] = zipped(flickr / "mirflickr25k_annotations_v080")
    server.files["/cifar-10-binary.tar.gz"] = tarred(write_cifar10(source / "cifar10"), "w:gz")


def archives(server: FileServer, folder: Path) -> tuple[RemoteFile, ...]:
    for name in ("one", "two"):
        (folder / name / "photos").mkdir(parents=True)
        (folder / name / "photos" / f"{name}.txt").write_text(name)
        server.files[f"/{name}.zip"] = zipped(folder / name)
    return (RemoteFile(f"{server.url}/one.zip"), RemoteFile(f"{server.url}/two.zip", into="sub"))


def test_download(server: FileServer, tmp_path: Path) -> None:
    files = archives(server, tmp_path / "source")
    home = tmp_path / "home"
    assert download(files[:1], home) == ["one.zip"]
    assert names(home) == [".unpacked", "photos"]
    assert download(files, home, keep_archives=True) == ["two.zip"]
    assert (home / "photos" / "one.txt").read_text() == "one"
    assert (home / "sub" / "photos" / "two.txt").read_text() == "two"
    assert names(home) == [".unpacked", "photos", "sub", "two.zip"]
    assert download(files, home) == []
    assert [path for path, _ in server.asked] == ["/one.zip", "/two.zip"]


def test_download_mirror(server: FileServer, tmp_path: Path) -> None:
    archives(server, tmp_path / "source")
    server.files = {"/mirror/a.zip": server.files["/one.zip"]}
    file = RemoteFile("http://example.invalid/zips/a.zip")
    assert download([file], tmp_path / "home", mirror=f"{server.url}/mirror/") == ["a.zip"]
    server.files = {}
    with pytest.raises(DataError, match="mirror"):
        download([file], tmp_path / "other", mirror=f"{server.url}/mirror/")


@pytest.mark.parametrize("mirror", ["example.org", "file:///etc", "ftp://example.org", "http://"])
def test_download_mirror_error(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(ConfigError, match="mirror"):
        download([RemoteFile("http://example.invalid/a.zip")], tmp_path, mirror=mirror)


def test_download_all(server: FileServer, tmp_path: Path) -> None:
    publish(server, tmp_path / "source")
    for row in DATASETS.values():
        files = [RemoteFile(file.url, into=file.into) for file in row.files]  # the copies are smaller
        home = tmp_path / "data" / row.folder
        download(files, home, mirror=server.url)
        if row.name == "nuswide21":
            assert home_of(row, tmp_path / "data") is None
            for photo in ("0001_7919", "0003_23757"):
                write_jpeg(home / "Flickr" / "actor" / f"{photo}.jpg")
        if row.name == "imagenet100":
            assert home_of(row, tmp_path / "data") is None
            write_imagenet100(home)
        check(open_dataset(row.name, root=tmp_path / "data"), row)
    requested = [path for path, _ in server.asked if path in server.files]
    assert sorted(requested) == sorted(set(requested))


def check(dataset: Dataset, row: PublishedDataset) -> None:
    """What holds for every published dataset, of which the tests have small copies."""
    assert dataset.name == row.name
    assert dataset.labels.any(axis=1).all()
    assert dataset.image_paths is not None
    assert all(path.is_file() for path in dataset.image_paths)
    assert (dataset.areas is not None) == row.name.startswith("coco")
    splits = dataset.splits
    assert not set(splits.query) & set(splits.database)
    assert (set(splits.train) <= set(splits.database)) == (row.name != "cifar10")
    if isinstance(row.split, RandomSplit):
        assert f"{dataset.size} of the {row.images:,}" in dataset.warnings[-1]
