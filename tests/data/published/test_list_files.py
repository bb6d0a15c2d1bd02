from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.data import Dataset, open_dataset
from centerhash.data.published.list_files import FileIndex
from tests.layouts import write_jpeg

TRAIN = "/home/me/data/val2014/c.jpg 1 0 0\n/home/me/data/val2014/d.jpg 0 1 1\n"
TEST = "/home/me/data/train2014/a.jpg 1 0 1\n"
DATABASE = "/home/me/data/train2014/b.jpg 0 1 0\n/home/me/data/val2014/c.jpg 1 0 0\n/home/me/data/train2014/a.jpg 1 0 1\n"


def write(root: Path, **lists: str) -> tuple[Path, Path]:
    """Lists and the images train2014/{a,b}.jpg and val2014/{b,c,d}.jpg."""
    for name in ("train2014/a", "train2014/b", "val2014/b", "val2014/c", "val2014/d"):
        write_jpeg(root / "images" / f"{name}.jpg")
    (root / "lists").mkdir(exist_ok=True)
    for name, text in {"train": TRAIN, "test": TEST, "database": DATABASE, **lists}.items():
        if text:
            (root / "lists" / f"{name}.txt").write_text(text)
    return root / "lists", root / "images"


def opened(lists: Path, root: Path) -> Dataset:
    return open_dataset(root, lists=lists)


def message(root: Path, **lists: str) -> str:
    with pytest.raises(DataError) as caught:
        opened(*write(root, **lists))
    return str(caught.value)


def members(names: tuple[str, ...], rows: list[int]) -> list[str]:
    return [names[row] for row in rows]


def test_images_are_found_by_the_end_of_their_path(tmp_path: Path) -> None:
    dataset = opened(*write(tmp_path))
    names = dataset.names
    assert members(names, dataset.splits.train.tolist()) == ["val2014/c.jpg", "val2014/d.jpg"]
    assert members(names, dataset.splits.query.tolist()) == ["train2014/a.jpg"]
    assert members(names, dataset.splits.database.tolist()) == [
        "train2014/b.jpg",
        "val2014/c.jpg",
        "train2014/a.jpg",
    ]
    assert dataset.classes == ("class 0", "class 1", "class 2")
    labels = {name: row.astype(int).tolist() for name, row in zip(names, dataset.labels, strict=True)}
    assert labels == {
        "val2014/c.jpg": [1, 0, 0],
        "val2014/d.jpg": [0, 1, 1],
        "train2014/a.jpg": [1, 0, 1],
        "train2014/b.jpg": [0, 1, 0],
    }
    assert dataset.image_paths is not None
    assert all(path.is_file() for path in dataset.image_paths)
    assert dataset.splits.made == f"lists in '{tmp_path / 'lists'}'"
    overlaps = "images in two lists: 0 in train and query, 1 in query and database, 1 in train and database."
    assert overlaps in dataset.warnings
    assert any("1 of 1 queries are also in the database" in warning for warning in dataset.warnings)


@pytest.mark.parametrize(
    "names", [("database1", "database2"), ("database_1", "database_2"), ("database-a", "database_b")]
)
def test_a_database_in_parts(tmp_path: Path, names: tuple[str, str]) -> None:
    lines = DATABASE.splitlines(keepends=True)
    parts = {names[0]: "".join(lines[:2]), names[1]: "".join(lines[2:])}
    dataset = opened(*write(tmp_path, database="", **parts))
    assert dataset.splits.database.size == 3


def test_classes_txt_names_the_classes(tmp_path: Path) -> None:
    assert opened(*write(tmp_path, classes="x\ny\nz\n")).classes == ("x", "y", "z")
    assert "classes.txt' names 2 classes" in message(tmp_path, classes="x\ny\n")


def test_query_txt_will_do_for_test_txt(tmp_path: Path) -> None:
    assert opened(*write(tmp_path, test="", query=TEST)).splits.query.size == 1


def test_images_that_are_not_there_are_left_out_and_counted(tmp_path: Path) -> None:
    dataset = opened(*write(tmp_path, train=TRAIN + "x/gone.jpg 1 1 1\n"))
    assert dataset.size == 4
    assert "1 of 5 listed images" in dataset.warnings[0]
    assert "'x/gone.jpg'" in dataset.warnings[0]


def test_none_is_there(tmp_path: Path) -> None:
    lists, _ = write(tmp_path)
    (tmp_path / "empty").mkdir()
    for folder, root in ((lists, "empty"), (lists, "nowhere"), (tmp_path / "nowhere", "images")):
        with pytest.raises(DataError, match=r"none of the 4 images|nowhere"):
            opened(folder, tmp_path / root)


def test_a_path_that_two_files_match_equally(tmp_path: Path) -> None:
    text = message(tmp_path, train="elsewhere/b.jpg 1 0 0\n")
    assert "'elsewhere/b.jpg' may be any of 'train2014/b.jpg', 'val2014/b.jpg'" in text


def test_repeated_and_contradicting_lines(tmp_path: Path) -> None:
    dataset = opened(*write(tmp_path, train=TRAIN + "val2014/c.jpg 0 0 1\n"))
    assert dataset.splits.train.size == 2
    assert dataset.labels[0].tolist() == [True, False, False]
    assert "1 lines name an image that their list has already: counted once." in dataset.warnings
    assert "1 lines give an image other labels than its first line, which holds." in dataset.warnings


def test_paths_with_blanks_backslashes_and_tabs(tmp_path: Path) -> None:
    lists, images = write(tmp_path, train="C:\\my data\\val2014\\c.jpg 1 0 0\nmy photo 1.jpg\t0\t1\t0\n")
    write_jpeg(images / "my photo 1.jpg")
    dataset = opened(lists, images)
    assert members(dataset.names, dataset.splits.train.tolist()) == ["val2014/c.jpg", "my photo 1.jpg"]


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({"train": "a.jpg\n"}, "train.txt', line 1: 'a.jpg'"),
        ({"train": "a.jpg 3\n"}, "line 1: 'a.jpg 3'"),
        ({"train": "a.jpg 1 0 0\nb.jpg 1 0\n"}, "line 2: 'b.jpg 1 0'"),
        ({"train": "a.jpg 1 0\nb.jpg 1 0 0\n"}, "line 2: more labels than the 2"),
        ({"train": "a.jpg 1 0 0\nb.jpg 1 0 2\n"}, "line 2: 'b.jpg 1 0 2'"),
        ({"train": "train2014/a.jpg 1 0\n"}, "2 for 'train2014/a.jpg', 3 for"),
        ({"train": "\n"}, "train.txt' is empty"),
        ({"database": ""}, "has no database.txt; it has: 'test.txt', 'train.txt'."),
        ({"test": ""}, "has no test.txt or query.txt"),
        ({"database1": DATABASE}, "holds both database.txt and its parts 'database1.txt'"),
        (
            {"database": "", "database1": DATABASE, "database2": "train2014/b.jpg 1 0\n"},
            "2 for 'train2014/b.jpg'",
        ),
    ],
)
def test_lists_that_are_not_of_the_form(tmp_path: Path, lists: dict[str, str], expected: str) -> None:
    assert expected in message(tmp_path, **lists)


def test_photos_behind_links_are_found_and_circles_end(tmp_path: Path) -> None:
    write_jpeg(tmp_path / "disk" / "val2014" / "c.jpg")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "coco").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "up").symlink_to(tmp_path / "data")
    assert FileIndex(tmp_path / "data").find("val2014/c.jpg") == "coco/val2014/c.jpg"


def test_the_index_finds_only_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    write_jpeg(tmp_path / "b.JPG")
    index = FileIndex(tmp_path)
    assert index.find("x/a.txt") is None
    assert index.find("x/b.JPG") == "b.JPG"
    assert index.find("") is None
