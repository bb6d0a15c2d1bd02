"""List files as HashNet ships them."""

from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.data import Dataset, open_dataset
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


def test_read_lists(tmp_path: Path) -> None:
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
    assert dataset.splits.source == f"lists in '{tmp_path / 'lists'}'"


@pytest.mark.parametrize(
    "names", [("database1", "database2"), ("database_1", "database_2"), ("database-a", "database_b")]
)
def test_read_lists_parts(tmp_path: Path, names: tuple[str, str]) -> None:
    lines = DATABASE.splitlines(keepends=True)
    parts = {names[0]: "".join(lines[:2]), names[1]: "".join(lines[2:])}
    dataset = opened(*write(tmp_path, database="", **parts))
    assert dataset.splits.database.size == 3


def test_read_lists_missing_images(tmp_path: Path) -> None:
    dataset = opened(*write(tmp_path, train=TRAIN + "x/gone.jpg 1 1 1\n"))
    assert dataset.size == 4
    assert "'x/gone.jpg'" in dataset.warnings[0]


def test_read_lists_missing_folders(tmp_path: Path) -> None:
    lists, _ = write(tmp_path)
    (tmp_path / "empty").mkdir()
    for folder, root in ((lists, "empty"), (lists, "nowhere"), (tmp_path / "nowhere", "images")):
        with pytest.raises(DataError, match=r"4 listed images|nowhere"):
            opened(folder, tmp_path / root)


def test_read_lists_ambiguous(tmp_path: Path) -> None:
    text = message(tmp_path, train="elsewhere/b.jpg 1 0 0\n")
    assert "'elsewhere/b.jpg' may be any of 'train2014/b.jpg', 'val2014/b.jpg'" in text


def test_read_lists_odd_paths(tmp_path: Path) -> None:
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
        ({"train": "a.jpg 1 0\nb.jpg 1 0 0\n"}, "line 2: 'b.jpg 1 0 0'"),
        ({"train": "a.jpg 1 0 0\nb.jpg 1 0 2\n"}, "line 2: 'b.jpg 1 0 2'"),
        ({"train": "train2014/a.jpg 1 0\n"}, "2 for 'train2014/a.jpg'"),
        ({"train": "\n"}, "train.txt' is empty"),
        ({"database": ""}, "has no database.txt; it has: 'test.txt', 'train.txt'."),
        ({"test": ""}, "has no test.txt or query.txt"),
        (
            {"database": "", "database1": DATABASE, "database2": "train2014/b.jpg 1 0\n"},
            "2 for 'train2014/b.jpg'",
        ),
    ],
)
def test_read_lists_error(tmp_path: Path, lists: dict[str, str], expected: str) -> None:
    assert expected in message(tmp_path, **lists)
