"""Images that only their folders describe, and images without labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.data import open_dataset
from centerhash.data.layouts.class_folders import read_class_folders
from centerhash.data.layouts.detection import find_layout, is_described
from tests.own_images import write_class_folders, write_pictures
from tests.toys import cli, refusal, refused

NAMES = ("a.png", "b.png", "holiday/c.png", "holiday/sea/d.png")


def fill(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not opened here")
    return root


def test_read_class_folders_skipped(tmp_path: Path) -> None:
    fill(tmp_path, "dog/1.jpg", "dog/._1.jpg", "dog/notes.txt", "dog/.cache/2.jpg", ".git/3.jpg", "cat/4.jpg")
    fill(tmp_path, "loose.jpg", "readme.txt", "bird/notes.txt")
    contents = read_class_folders(tmp_path)
    assert contents.names == ("cat/4.jpg", "dog/1.jpg")
    (loose,) = contents.warnings
    assert "'loose.jpg'" in loose


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (("train", "test"), {"train": [2, 3], "query": [0, 1]}),
        (("Training", "val"), {"train": [0, 1], "query": [2, 3]}),
        (("train2017", "val2017"), {"train": [0, 1], "query": [2, 3]}),
        (("gallery", "query"), {"database": [0, 1], "query": [2, 3]}),
        (("train", "test", "database"), {"train": [4, 5], "query": [2, 3], "database": [0, 1]}),
        (("train", "test", "val"), {"train": [2, 3], "query": [0, 1]}),
        (("train",), {}),
        (("test",), {}),
    ],
)
def test_read_class_folders_splits(
    tmp_path: Path, folders: tuple[str, ...], splits: dict[str, list[int]]
) -> None:
    fill(tmp_path, *(f"{split}/{name}/1.jpg" for split in folders for name in ("cat", "dog")))
    contents = read_class_folders(tmp_path)
    assert contents.classes == ("cat", "dog")
    assert {name: rows.tolist() for name, rows in contents.splits.items()} == splits
    assert contents.source == ("folders" if splits else "files")


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        ((), "0 folder"),
        (("images/1.jpg", "images/2.jpg"), "1 folder"),
        (("train/1.jpg", "test/1.jpg"), "2 images"),
        (("train2017/1.jpg", "val2017/1.jpg"), "2 images"),
    ],
)
def test_read_class_folders_error(tmp_path: Path, names: tuple[str, ...], fault: str) -> None:
    assert fault in refusal(read_class_folders, fill(tmp_path, *names))


# ---------------------------------------------------------------- without labels


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "photos", NAMES)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    return tmp_path / "photos"


def test_read_bare(bare: Path) -> None:
    layout = find_layout(bare)
    assert layout is not None
    assert layout.name == "bare"
    assert not is_described(bare)
    data = open_dataset(bare)
    assert data.names == NAMES
    assert (data.labels.shape, data.classes, data.has_labels, data.warnings) == ((4, 0), (), False, ())
    assert "no labels" in repr(data)
    (bare / "query.txt").write_text("holiday/c.png\n")
    assert open_dataset(bare).splits.query.tolist() == [2]


def test_read_layout_misspelled(bare: Path) -> None:
    (bare / "label.csv").write_text("file_name,labels\n")
    with pytest.raises(DataError, match=r"'label\.csv'"):
        open_dataset(bare)
    assert open_dataset(bare, labels=False).size == 4


@pytest.mark.slow
def test_commands_without_labels(tmp_path: Path, bare: Path, feature_cache: Path) -> None:
    run, words = tmp_path / "run", ("--bits", "16", "--device", "cpu", "--cache", feature_cache)
    done = cli("train", bare, "--out", run, *words)
    assert done.code == 0, done.err
    assert "itq" in done.out.splitlines()[0]
    refused(cli("evaluate", run))
    refused(cli("train", bare, "--out", tmp_path / "x", "--method", "csq"))
    refused(cli("train", "cifar10", "--no-labels", "--root", bare, "--out", run))
    assert cli("encode", run, bare, "--out", tmp_path / "codes.npz", "--cache", feature_cache).code == 0
    albums = write_class_folders(tmp_path / "albums")
    done = cli("train", albums, "--no-labels", "--out", tmp_path / "run2", "--method", "sh", *words)
    assert "12 images without labels" in done.out, done.err
