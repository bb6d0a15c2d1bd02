from __future__ import annotations

import re
from pathlib import Path

import pytest

from centerhash.data import open_dataset
from centerhash.data.layouts.class_folders import detect_class_folders, read_class_folders
from tests.toys import refusal


def fill(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not opened here")
    return root


def test_a_folder_per_class(tmp_path: Path) -> None:
    folder = read_class_folders(fill(tmp_path, "dog/2.JPG", "dog/1.jpg", "cat/1.png", "cat/old/9.webp"))
    assert folder.classes == ("cat", "dog")
    assert folder.names == ("cat/1.png", "cat/old/9.webp", "dog/1.jpg", "dog/2.JPG")
    assert folder.labels.astype(int).tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert folder.paths == tuple(tmp_path / name for name in folder.names)
    assert folder.splits == {}
    assert folder.warnings == ()


def test_what_is_skipped(tmp_path: Path) -> None:
    fill(tmp_path, "dog/1.jpg", "dog/._1.jpg", "dog/notes.txt", "dog/.cache/2.jpg", ".git/3.jpg", "cat/4.jpg")
    fill(tmp_path, "loose.jpg", "readme.txt", "bird/notes.txt")
    folder = read_class_folders(tmp_path)
    assert folder.names == ("cat/4.jpg", "dog/1.jpg")
    loose, empty = folder.warnings
    assert loose.startswith("1 images")
    assert "'loose.jpg'" in loose
    assert "'bird'" in empty


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (("train", "test"), {"train": [2, 3], "query": [0, 1]}),
        (("Training", "val"), {"train": [0, 1], "query": [2, 3]}),
        (("train", "validation"), {"train": [0, 1], "query": [2, 3]}),
        (("gallery", "query"), {"database": [0, 1], "query": [2, 3]}),
        (("train", "test", "database"), {"train": [4, 5], "query": [2, 3], "database": [0, 1]}),
        (("train", "test", "val"), {"train": [2, 3], "query": [0, 1]}),
        (("train",), {}),
        (("test",), {}),
    ],
)
def test_split_folders(tmp_path: Path, folders: tuple[str, ...], splits: dict[str, list[int]]) -> None:
    fill(tmp_path, *(f"{split}/{name}/1.jpg" for split in folders for name in ("cat", "dog")))
    folder = read_class_folders(tmp_path)
    assert folder.classes == ("cat", "dog")
    assert {name: rows.tolist() for name, rows in folder.splits.items()} == splits
    assert folder.source == ("folders" if splits else "files")


def test_a_set_with_only_a_training_part_still_opens(tmp_path: Path) -> None:
    fill(tmp_path, *(f"train/{name}/{i}.jpg" for name in ("cat", "dog") for i in range(10)))
    data = open_dataset(tmp_path, seed=3)
    assert data.splits.made == "drawn with seed 3"
    assert data.splits.query.size == 2


def test_validation_images_are_searched_if_there_are_test_images(tmp_path: Path) -> None:
    names = [f"{split}/{name}/1.jpg" for split in ("train", "test", "val") for name in ("cat", "dog")]
    data = open_dataset(fill(tmp_path, *names))
    assert [data.names[row] for row in data.splits.database] == [*names[:2], *names[4:]]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    folder = read_class_folders(fill(tmp_path, "train/1.jpg", "bus/1.jpg"))
    assert folder.classes == ("bus", "train")
    assert folder.splits == {}


def test_classes_txt_fixes_order_and_names(tmp_path: Path) -> None:
    fill(tmp_path, "dog/1.jpg", "cat/1.jpg")
    (tmp_path / "classes.txt").write_text("dog\nbird\ncat\n")
    assert read_class_folders(tmp_path).classes == ("dog", "bird", "cat")
    (tmp_path / "classes.txt").write_text("dog\ncats\n")
    assert "the folder 'cat' is no class of classes.txt. Did you mean 'cats'?" in refusal(
        read_class_folders, tmp_path
    )


def test_split_files_name_images_by_folder(tmp_path: Path) -> None:
    fill(tmp_path, "dog/1.jpg", "cat/1.jpg")
    (tmp_path / "query.txt").write_text("dog/1.jpg\n")
    folder = read_class_folders(tmp_path)
    assert folder.splits["query"].tolist() == [1]
    assert folder.source == "files"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "holds no image"),
        (("images/1.jpg", "images/2.jpg"), "one folder of images only, 'images'"),
        (("train/1.jpg", "test/1.jpg"), "2 images lie in a split's folder.*labels=False"),
        (("train2017/1.jpg", "val2017/1.jpg"), "2 images lie in a split's folder"),
    ],
)
def test_folders_that_name_no_classes(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    assert re.search(words, refusal(read_class_folders, fill(tmp_path, *names)))


def test_detection(tmp_path: Path) -> None:
    fill(tmp_path, "1.jpg", ".hidden/2.jpg", "notes/a.txt")
    assert detect_class_folders(tmp_path) == []
    fill(tmp_path, "zebra/deep/3.jpg")
    assert detect_class_folders(tmp_path) == []  # one folder tells no classes apart
    fill(tmp_path, "bee/4.jpg")
    assert [folder.name for folder in detect_class_folders(tmp_path)] == ["bee", "zebra"]


@pytest.mark.parametrize("name", ["train/dog/1.jpg", "test/1.jpg"])
def test_one_folder_of_a_split_is_enough(tmp_path: Path, name: str) -> None:
    assert detect_class_folders(fill(tmp_path, name)) == [tmp_path / name.split("/")[0]]


def test_one_folder_is_a_class_where_classes_txt_says_so(tmp_path: Path) -> None:
    fill(tmp_path, "dog/1.jpg")
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    assert detect_class_folders(tmp_path) == [tmp_path / "dog"]
