from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError, InputError, OutputError
from centerhash.data import make_splits, open_dataset
from centerhash.data.published import DATASETS, describe, download, home_of
from centerhash.data.published.catalogue import (
    PublishedDataset,
    RandomSplit,
    RemoteFile,
    draw_splits,
)
from tests.layouts import (
    tarred,
    write_cifar10,
    write_coco,
    write_flickr25k,
    write_imagenet100,
    write_jpeg,
    write_nuswide,
    write_voc,
    zipped,
)
from tests.toys import names
from tests.webserver import FileServer

WRITERS: dict[str, Callable[[Path], Path]] = {
    "coco2014": lambda root: write_coco(root, "2014"),
    "coco2017": lambda root: write_coco(root, "2017"),
    "nuswide21": write_nuswide,
    "nuswide81": write_nuswide,
    "flickr25k": write_flickr25k,
    "flickr25k-38": write_flickr25k,
    "voc2007": lambda root: write_voc(root, "2007"),
    "voc2012": lambda root: write_voc(root, "2012"),
    "cifar10": write_cifar10,
    "cifar10-1": write_cifar10,
    "cifar10-2": write_cifar10,
    "imagenet100": write_imagenet100,
}


def place(row: PublishedDataset, root: Path) -> Path:
    return WRITERS[row.name](root / row.folder)


# ---------------------------------------------------------------- the rows


def test_every_row_can_be_written_here() -> None:
    assert set(WRITERS) == set(DATASETS)


@pytest.mark.parametrize("row", DATASETS.values(), ids=DATASETS)
def test_rows_are_whole(row: PublishedDataset) -> None:
    assert row.classes > 0
    assert 0 < row.images <= row.photos
    assert 1_000 <= row.depth <= 59_000
    assert all((row.title, row.license, row.citation, row.home.startswith("http"), row.folder, row.needs))
    assert row.files or row.by_hand
    for file in row.files:
        assert file.url.startswith("http")
        assert file.name.endswith((".zip", ".tar", ".tar.gz"))
        assert file.md5 is None or len(bytes.fromhex(file.md5)) == hashlib.md5().digest_size
        assert file.md5 is None or file.size is not None
    if isinstance(row.split, RandomSplit) and row.split.per_class:
        rest = row.images - row.classes * (row.split.query + (0 if row.split.joined else row.split.train))
        assert rest == row.depth
    elif isinstance(row.split, RandomSplit):
        assert row.split.train + row.split.query < row.images


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("row", DATASETS.values(), ids=DATASETS)
def test_a_small_copy_of_each_opens(row: PublishedDataset, tmp_path: Path) -> None:
    place(row, tmp_path)
    assert home_of(row, tmp_path) == tmp_path / row.folder
    dataset = open_dataset(row.name, root=tmp_path)
    assert dataset.name == row.name
    assert dataset.labels.any(axis=1).all()
    assert dataset.image_paths is not None
    assert all(path.is_file() for path in dataset.image_paths)
    assert (dataset.areas is None) == (row.areas == "unknown")
    if row.name.startswith(("nuswide", "flickr", "voc")):
        assert len(dataset.classes) == row.classes
    splits = dataset.splits
    assert not set(splits.query) & set(splits.database)
    assert (set(splits.train) <= set(splits.database)) == (row.name != "cifar10")
    if isinstance(row.split, RandomSplit):
        assert f"this copy has {dataset.size} of the {row.images:,} labeled images" in dataset.warnings[-1]


def test_the_folder_of_the_data_set_itself_will_do(tmp_path: Path) -> None:
    write_voc(tmp_path)
    assert home_of(DATASETS["voc2007"], tmp_path) == tmp_path
    assert open_dataset("voc2007", root=tmp_path).size == 5


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset("voc2007", root=tmp_path)
    assert "'VOCdevkit/VOC2007/Annotations', 'VOCdevkit/VOC2007/ImageSets/Main'" in str(caught.value)
    assert f"centerhash download voc2007 --root {tmp_path}" in str(caught.value)
    shutil.rmtree(write_nuswide(tmp_path / "nuswide") / "Flickr")
    with pytest.raises(DataError, match=r"it has no 'Flickr'\. .* and by hand: Open https://lms"):
        open_dataset("nuswide21", root=tmp_path)


def test_what_a_command_names(tmp_path: Path, feature_folder: Path) -> None:
    write_voc(tmp_path / "voc")
    assert open_dataset("voc2007", root=tmp_path).size == 5
    assert open_dataset(feature_folder).kind == "features"
    with pytest.raises(ConfigError, match="labels"):
        open_dataset("voc2007", root=tmp_path, labels=False)
    with pytest.raises(ConfigError, match=r"'voc2007' is a published dataset.*root"):
        open_dataset("voc2007")


def test_lists_take_the_place_of_the_split_rule(tmp_path: Path) -> None:
    write_voc(tmp_path / "voc")
    lists = tmp_path / "lists"
    lists.mkdir()
    for name, numbers in {"train": (1, 2), "test": (3,), "database": (1, 2, 4, 5)}.items():
        (lists / f"{name}.txt").write_text("".join(f"x/00000{number}.jpg 1 0\n" for number in numbers))
    dataset = open_dataset("voc2007", root=tmp_path, lists=lists)
    assert [dataset.names[row].rpartition("/")[2] for row in dataset.splits.query] == ["000003.jpg"]
    assert open_dataset(tmp_path / "voc", lists=lists).splits.database.size == 4


# ---------------------------------------------------------------- splits


def unlabeled(size: int) -> NDArray[np.bool_]:
    return np.zeros((size, 1), dtype=np.bool_)


def test_the_rule_of_the_paper_is_the_one_of_own_images() -> None:
    rule = DATASETS["coco2014"].split
    assert isinstance(rule, RandomSplit)
    splits = draw_splits(unlabeled(60_000), rule, 3, 60_000)
    expected = make_splits(60_000, seed=3)
    for name in ("train", "query", "database"):
        assert np.array_equal(getattr(splits, name), getattr(expected, name))
    assert (splits.train.size, splits.query.size, splits.database.size) == (10_000, 5_000, 55_000)
    assert splits.made == "the paper, Sec. 4.1, drawn with seed 3"


def test_a_smaller_copy_keeps_the_counts_where_it_can_and_shrinks_them_else() -> None:
    rule = RandomSplit(20, 10, "test")
    expected = {50: (20, 10, 40), 29: (5, 2, 27), 2: (1, 1, 1)}
    for size, counts in expected.items():
        splits = draw_splits(unlabeled(size), rule, 0, 100)
        assert (splits.train.size, splits.query.size, splits.database.size) == counts
    with pytest.raises(DataError):
        draw_splits(unlabeled(1), rule, 0, 100)


@pytest.mark.parametrize("joined", [False, True])
def test_every_class_has_the_same_share_of_each_split(joined: bool) -> None:
    labels = np.eye(3, dtype=np.bool_)[np.arange(60) % 3]
    rule = RandomSplit(5, 2, "test", per_class=True, joined=joined)
    splits, again, other, fewer = (
        draw_splits(labels[:size], rule, seed, 60) for size, seed in ((60, 3), (60, 3), (60, 4), (30, 3))
    )
    assert splits.made == "test, drawn with seed 3"
    found = {name: labels[rows].sum(axis=0).tolist() for name, rows in splits.items()}
    assert found == {"train": [5] * 3, "query": [2] * 3, "database": [18 if joined else 13] * 3}
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
            server.files[f"/zips/{part}.zip"] = zipped(folder)
        shutil.copytree(coco / "annotations", source / "packed" / year / "annotations")
        server.files[f"/annotations/annotations_trainval{year}.zip"] = zipped(source / "packed" / year)
    nuswide = write_nuswide(source / "nuswide")
    server.files["/Groundtruth.zip"] = zipped(nuswide / "Groundtruth")
    shutil.copytree(nuswide / "ImageList", source / "packed" / "list" / "ImageList")
    server.files["/ImageList.zip"] = zipped(source / "packed" / "list")
    flickr = write_flickr25k(source / "flickr")
    shutil.copytree(flickr / "mirflickr", source / "packed" / "flickr" / "mirflickr")
    server.files["/mirflickr25k.zip"] = zipped(source / "packed" / "flickr")
    server.files["/mirflickr25k_annotations_v080.zip"] = zipped(flickr / "mirflickr25k_annotations_v080")
    later = write_voc(source / "voc2007")
    first = source / "packed" / "voc"
    shutil.copytree(later, first)
    (first / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main" / "test.txt").unlink()
    server.files["/VOCtrainval_06-Nov-2007.tar"] = tarred(first)
    server.files["/VOCtest_06-Nov-2007.tar"] = tarred(later)
    server.files["/VOCtrainval_11-May-2012.tar"] = tarred(write_voc(source / "voc2012", "2012"))
    server.files["/cifar-10-binary.tar.gz"] = tarred(write_cifar10(source / "cifar10"), "w:gz")


def archives(server: FileServer, folder: Path) -> tuple[RemoteFile, ...]:
    for name in ("one", "two"):
        (folder / name / "photos").mkdir(parents=True)
        (folder / name / "photos" / f"{name}.txt").write_text(name)
        server.files[f"/{name}.zip"] = zipped(folder / name)
    return (RemoteFile(f"{server.url}/one.zip"), RemoteFile(f"{server.url}/two.zip", into="sub"))


def test_archives_are_fetched_unpacked_and_deleted(server: FileServer, tmp_path: Path) -> None:
    files = archives(server, tmp_path / "source")
    home = tmp_path / "home"
    assert download(files, home) == ["one.zip", "two.zip"]
    assert (home / "photos" / "one.txt").read_text() == "one"
    assert (home / "sub" / "photos" / "two.txt").read_text() == "two"
    assert names(home) == [".unpacked", "photos", "sub"]
    assert json.loads((home / ".unpacked" / "two.zip.json").read_text())["into"] == "sub"


def test_finished_steps_are_skipped(server: FileServer, tmp_path: Path) -> None:
    files = archives(server, tmp_path / "source")
    download(files[:1], tmp_path / "home")
    assert download(files, tmp_path / "home", keep_archives=True) == ["two.zip"]
    assert (tmp_path / "home" / "two.zip").is_file()
    assert download(files, tmp_path / "home") == []
    assert [path for path, _ in server.asked] == ["/one.zip", "/two.zip"]


def test_a_damaged_archive_is_not_taken_for_done(server: FileServer, tmp_path: Path) -> None:
    server.files["/one.zip"] = b"PK\x03\x04 no zip"
    file = RemoteFile(f"{server.url}/one.zip")
    with pytest.raises(DataError, match=r"one\.zip"):
        download([file], tmp_path / "home")
    assert not (tmp_path / "home" / ".unpacked").exists()


def test_a_second_process_is_refused(server: FileServer, tmp_path: Path) -> None:
    files = archives(server, tmp_path / "source")
    home = tmp_path / "home"
    refusals: list[str] = []

    def second(*values: object) -> None:
        with pytest.raises(InputError) as caught:
            download(files, home)
        refusals.append(str(caught.value))

    download(files[:1], home, progress=second)
    assert refusals[0] == f"process {os.getpid()} downloads into '{home}': wait for it."
    assert download(files, home) == ["two.zip"]


def test_the_disk_must_hold_the_archive_and_its_files(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5_999_999))
    (tmp_path / "a.zip").write_bytes(b"1")
    with pytest.raises(OutputError, match=r"0\.01 GB"):
        download([RemoteFile(f"{server.url}/a.zip", 3_000_001)], tmp_path)
    assert server.requests == []


@pytest.mark.parametrize("path", ["/mirror/zips/a.zip", "/mirror/a.zip"])
def test_a_mirror_keeps_the_folders_or_only_the_file(server: FileServer, tmp_path: Path, path: str) -> None:
    archives(server, tmp_path / "source")
    server.files = {path: server.files["/one.zip"]}
    file = RemoteFile("http://example.invalid/zips/a.zip")
    assert download([file], tmp_path / "home", mirror=f"{server.url}/mirror/") == ["a.zip"]
    server.files = {}
    with pytest.raises(DataError, match="mirror"):
        download([file], tmp_path / "other", mirror=f"{server.url}/mirror/")


@pytest.mark.parametrize("mirror", ["example.org", "file:///etc", "ftp://example.org", "http://"])
def test_what_is_no_mirror(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(ConfigError, match="mirror"):
        download([RemoteFile("http://example.invalid/a.zip")], tmp_path, mirror=mirror)


def test_every_data_set_comes_from_a_server_and_opens(server: FileServer, tmp_path: Path) -> None:
    publish(server, tmp_path / "source")
    for row in DATASETS.values():
        files = [type(file)(file.url, into=file.into) for file in row.files]  # the copies are smaller
        download(files, tmp_path / "data" / row.folder, mirror=server.url)
        if row.name == "nuswide21":
            assert home_of(row, tmp_path / "data") is None
            write_jpeg(tmp_path / "data" / "nuswide" / "Flickr" / "actor" / "0001_7919.jpg")
            write_jpeg(tmp_path / "data" / "nuswide" / "Flickr" / "actor" / "0003_23757.jpg")
        if row.name == "imagenet100":
            assert home_of(row, tmp_path / "data") is None
            write_imagenet100(tmp_path / "data" / row.folder)
        assert open_dataset(row.name, root=tmp_path / "data").size >= 2
    asked = [path for path, _ in server.asked if path in server.files]
    assert len(asked) == len(set(asked)) == len({file.url for row in DATASETS.values() for file in row.files})


def test_describe_is_plain(tmp_path: Path) -> None:
    write_voc(tmp_path / "voc")
    rows = json.loads(json.dumps([describe(row, tmp_path) for row in DATASETS.values()]))
    there = {row["name"]: row["path"] for row in rows}
    assert there["voc2007"] == str(tmp_path / "voc")
    assert there["voc2012"] is None
    assert there.keys() == DATASETS.keys()
    coco = next(row for row in rows if row["name"] == "coco2014")
    assert coco["files"][1]["md5"] == "0da8c0bd3d6becc4dcb32757491aca88"
